"""Jobs that read files of a data group: scans, hashes, exports and trial merges."""

from collections.abc import Callable, Iterable

from nodeagent.host.damaged_files import DamagedFiles
from nodeagent.host.group_context import GroupContext
from nodeagent.host.held_state import HeldState
from nodeagent.host.removals import Removals
from nodeagent.model.files import FileMeta
from nodeagent.model.jobs import Failed, FilesHashed, HashFiles, Job, JobResult


class FileReads:
    def __init__(
        self, context: GroupContext, held: HeldState, removals: Removals, damaged: DamagedFiles
    ) -> None:
        self._context = context
        self._held = held
        self._removals = removals
        self._damaged = damaged

    def check(self, names: Iterable[str]) -> None:
        """Hash these files, so that damage is known."""
        manifest = self._held.state.files.manifest
        files = [f for name in names if (f := manifest.get(name)) is not None]
        if files and not self._context.condition.removed:
            self.read(HashFiles(self._context.group, tuple(files)), files, lambda _: None)

    def read(self, job: Job, files: Iterable[FileMeta], then: Callable[[JobResult], None]) -> None:
        """Run a job that reads these files; none of them is unlinked before the job ends."""
        names = [f.name for f in files]
        self._removals.hold(names)

        def done(result: JobResult) -> None:
            self._removals.release(names)
            if isinstance(result, Failed):
                self._damaged.on_failed(result, files)
            elif isinstance(result, FilesHashed):
                self._damaged.on_hashed(result, files)
            then(result)

        self._context.effects.job(job, done)

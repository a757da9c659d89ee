"""The unlinking of a data group's files that its manifest no longer names."""

from collections import Counter
from collections.abc import Callable, Iterable

from nodeagent.host.checkpoint_waits import CheckpointWaits
from nodeagent.host.group_context import GroupContext
from nodeagent.host.held_state import HeldState
from nodeagent.model.files import FileMeta
from nodeagent.model.jobs import DeleteFiles


class Removals:
    """A file is unlinked when a checkpoint without it is durable and no job reads it.

    Args:
        start: starts the job that unlinks files, and retries it.
    """

    def __init__(
        self,
        context: GroupContext,
        held: HeldState,
        waits: CheckpointWaits,
        start: Callable[[DeleteFiles], None],
    ) -> None:
        self._context = context
        self._held = held
        self._waits = waits
        self._start = start
        self._leaving: dict[str, FileMeta] = {}
        """Out of the manifest and not unlinked yet."""

        self._unnamed: set[str] = set()
        """Leaving files that no durable checkpoint names any more."""

        self._in_use: Counter[str] = Counter()
        """Number of running jobs that read a file, by its name."""

    @property
    def is_pending(self) -> bool:
        """Whether files out of the manifest are still to be unlinked."""
        return bool(self._leaving)

    def add(self, files: list[FileMeta]) -> None:
        """Unlink these files, which the manifest no longer names, as soon as that is safe."""
        if not files:
            return
        state, names = self._held.state, {f.name for f in files}
        self._leaving |= {f.name: f for f in files}

        def saved() -> None:
            if state is self._held.state:
                self._unnamed |= names
                self.unlink()

        self._waits.add(saved)
        self._context.unsaved.add()

    def unlink(self) -> None:
        """Unlink the files that may go now."""
        if self._context.condition.installing is not None:
            return  # the state to come may name them; the files it does not name go when it is in place
        names = [n for n in sorted(self._unnamed) if not self._in_use[n]]
        if names:
            self._unnamed.difference_update(names)
            self._start(DeleteFiles(self._context.group, tuple(self._leaving.pop(n) for n in names)))

    def drop_unnamed(self, copied: FileMeta) -> None:
        """Unlink a copy that was put in place too late: its slot was released in the meantime, for example.

        A leaving file is unlinked anyway, and a stopped state does not show which files are still named.
        """
        state = self._held.state
        if self._held.is_obsolete(state) or copied.name in self._leaving:
            return
        if state.never_named((copied,)):
            self._start(DeleteFiles(self._context.group, (copied,)))

    def hold(self, names: Iterable[str]) -> None:
        """A job reads these files: none is unlinked until `release`."""
        self._in_use.update(names)

    def release(self, names: list[str]) -> None:
        self._in_use.subtract(names)
        for name in names:
            if not self._in_use[name]:
                del self._in_use[name]
        self.unlink()

    def take_leaving(self) -> list[FileMeta]:
        """Return the files that were to be unlinked, and forget them: a snapshot is installed."""
        files = list(self._leaving.values())
        self._leaving.clear()
        self._unnamed.clear()
        return files

"""The files of a data group that this node fails to make, and what the status reports about them."""

from collections.abc import Iterator

from nodeagent.host.failing import CLOSE, Failing, Making, specs_of
from nodeagent.host.held_state import HeldState
from nodeagent.model.files import tsfile_name


class FileFailures:
    def __init__(self, held: HeldState) -> None:
        self._held = held
        self.failing: dict[str, Failing] = {}
        """By the name of the file."""

        self.helped = ""
        """Why this node last used another member's file instead of making it; "" once a worker here makes a
        file."""

    @property
    def stuck(self) -> dict[str, Failing]:
        """Compactions that fail, by the name of their output."""
        names = (c.job.unit.spec.name for c in self._held.state.compactions.active if c.job is not None)
        return {name: self.failing[name] for name in names if name in self.failing}

    @property
    def is_lost(self) -> bool:
        """Whether damage keeps this node from making a file that no other member has."""
        return any(f.is_lost for f in self.stuck.values())

    def troubles(self) -> Iterator[str]:
        """What an operator should know, the most urgent first."""
        yield from (f.trouble for f in self.failing.values() if f.kind is CLOSE and not f.is_awaited)
        yield from (f.trouble for f in self.stuck.values() if not f.is_awaited)
        if self.helped:
            yield self.helped

    def add(self, job: Making) -> list[Failing]:
        """The files of a job that failed."""
        return [self.failing.setdefault(s.name, Failing.of(job, s)) for s in specs_of(job)]

    def forget(self, job: Making, left: Making | None) -> None:
        """The files of `job` no longer fail, except those of what is left to make."""
        for name in {s.name for s in specs_of(job)} - {s.name for s in specs_of(left)}:
            self.failing.pop(name, None)

    def forget_unparked(self, job: Making) -> None:
        """Forget the failed TsFiles that are made as Arrow files from now on."""
        for spec in specs_of(job):
            if spec.parked:
                self.failing.pop(tsfile_name(spec.name), None)

    def reset(self) -> None:
        """A snapshot was installed: earlier failures do not count; the new state requests its files."""
        self.failing.clear()
        self.helped = ""

"""Which library makes this node's files: entries name it, as the bytes of a file depend on it."""

from collections.abc import Callable, Iterable

from nodeagent.model.features import Feature
from nodeagent.model.files import CloseSpec


class FileWriter:
    """`own` is the library and its version, "" where nobody says; `level` the cluster's feature level."""

    def __init__(self, own: str, level: Callable[[], int]) -> None:
        self.own = own
        self._level = level

    @property
    def named(self) -> str:
        """For an entry that is proposed now."""
        return self.own if self._level() >= Feature.FILE_WRITER else ""

    def refusal(self, specs: Iterable[CloseSpec]) -> str:
        """Why these files cannot be made here with the bytes that the other members make; "" if they can."""
        other = next((s.writer for s in specs if s.writer not in ("", self.own)), "") if self.own else ""
        return (
            f"the other members make it with {other}, this node has {self.own or 'another'}" if other else ""
        )

"""Which TsFile library makes this node's files: entries name it, because a file's bytes depend on it."""

from collections.abc import Callable, Iterable

from nodeagent.model.features import Feature
from nodeagent.model.files import CloseSpec


class FileWriter:
    """
    Args:
        own: this node's TsFile library and its version, "" if not given.
        level: the cluster's feature level.
        unnamed: the library of entries that name none, "" if it is not known.
        is_current: whether `level` and `unnamed` are at least as new as before the last start, or were
            awaited for long enough.
    """

    def __init__(
        self, own: str, level: Callable[[], int], unnamed: Callable[[], str], is_current: Callable[[], bool]
    ) -> None:
        self.own = own
        self._level = level
        self._unnamed = unnamed
        self._is_current = is_current

    @property
    def named(self) -> str:
        """The library to name in an entry that is proposed now, "" if the cluster's level does not allow
        it."""
        return self.own if self._level() >= Feature.FILE_WRITER else ""

    @property
    def is_ready(self) -> bool:
        """Whether it is known which files this node's library may make."""
        return not self.own or self._level() >= Feature.FILE_WRITER or self._is_current()

    def refusal(self, specs: Iterable[CloseSpec]) -> str:
        """Why these files cannot be made here with the bytes that the other members make; "" if they can."""
        if not self.own:
            return ""
        named = (s.writer or self._unnamed() for s in specs if not s.parked)
        other = next((library for library in named if library not in ("", self.own)), "")
        return f"the other members make it with {other}, this node has {self.own}" if other else ""

"""Space on the log's disk: the reserve, and which failures are final."""

import errno
from collections.abc import Callable

from nodeagent.model.disk import Disk

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
RESERVE = "reserve"


class NoSpace(OSError):
    """The disk is full, and the reserve is used up or may not be used. Nothing was written; the call may be
    retried."""


class Space:
    """Runs the log's disk actions: frees the reserve when the disk is full, and stores a final error."""

    def __init__(self, disk: Disk, directory: str, reserve_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{RESERVE}"
        self._reserve_bytes = reserve_bytes
        self.is_low = False
        """The disk was full at an attempt, and the reserve has not been filled since."""

        self.error: OSError | None = None
        """The final error: the log can no longer be used."""

    def check(self) -> None:
        """Raise the final error, if there is one."""
        if self.error is not None:
            raise self.error

    def guard(self, action: Callable[[], None]) -> None:
        """Run `action`; an error is final for the log."""
        try:
            action()
        except OSError as error:
            self.error = error
            raise

    def grow(
        self,
        action: Callable[[], None],
        undo: Callable[[], None] = lambda: None,
        *,
        may_use_reserve: bool = True,
    ) -> None:
        """Run an action that takes space on the disk; if there is none, free the reserve and retry.

        `undo` removes what a failed attempt left behind. Any other error is final.

        Raises:
            NoSpace: the action was undone.
        """
        while True:
            try:
                return action()
            except OSError as error:
                self.undo(error, undo, may_use_reserve=may_use_reserve)

    def undo(self, error: OSError, undo: Callable[[], None], *, may_use_reserve: bool) -> None:
        """Undo a failed write. Returns if the reserve was freed, so that the write may be retried.

        Raises:
            NoSpace: there is no reserve, or the write may not use it.
            OSError: `error` is not about space, so it is final.
        """
        if error.errno not in NO_SPACE:
            self.error = error
            raise error
        self.is_low = True
        self.guard(undo)
        if not (may_use_reserve and self._free_reserve()):
            raise NoSpace(*error.args) from error

    def _free_reserve(self) -> bool:
        """Free the reserve; returns whether there was one."""
        if not self._disk.exists(self._path):
            return False
        self.guard(lambda: self._disk.unlink(self._path))
        self.guard(lambda: self._disk.sync_dir(self._directory))
        return True

    def fill_reserve(self) -> None:
        """Fill the reserve, unless the disk is too full."""
        size = self._reserve_bytes
        if size == 0 or (self._disk.exists(self._path) and self._disk.stat(self._path).size == size):
            return
        if self._disk.free_bytes() < 4 * size:
            self.is_low = True
            return
        try:
            with self._disk.open(self._path, create=True) as file:
                file.zero_fill(0, size)
                file.sync()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._free_reserve()
            self.is_low = True
            return
        self.is_low = False

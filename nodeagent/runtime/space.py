"""The free space of the node's disks."""

import time

from nodeagent.model.limits import DISK_LOW_BYTES
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.notes import EventLog

DISK_LOOK_S = 0.2


class Space:
    """Reads the free space of the disks of log and data."""

    def __init__(self, home: RealDisk, data: RealDisk, notes: EventLog) -> None:
        self._home = home
        self._data = data
        self._notes = notes
        self._is_low = False
        self._look_at = 0.0
        """When the free space is read next."""

    def is_due(self) -> bool:
        """Whether `DISK_LOOK_S` has passed since this last returned True."""
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + DISK_LOOK_S
        return True

    def room(self) -> tuple[int, int]:
        """(free, total) bytes of the disk with log and data; if these are on two disks, of the one with less
        free space."""
        disks = (self._home, self._data)
        return min((disk.free_bytes(), disk.total_bytes()) for disk in disks)

    def log_changes(self) -> None:
        """Log once when the data disk runs low on free space, and once when the space suffices again."""
        free = self._data.free_bytes()
        if (free < DISK_LOW_BYTES) != self._is_low:
            self._is_low = free < DISK_LOW_BYTES
            self._notes.write("disk_low" if self._is_low else "disk_enough", {"free_bytes": free})

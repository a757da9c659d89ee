"""A log of small segments."""

from nodeagent.log import Log, LogSettings, Recovered
from nodeagent.model.disk import Disk

SMALL = LogSettings(segment_bytes=2048, zero_step_bytes=1024, reserve_bytes=0, copy_bytes_max=400)
"""Each segment holds a few batches, so that short tests cross many segment boundaries."""

GROUPS = ("meta", "node1.5", "node2.7")


def open_log(disk: Disk, settings: LogSettings = SMALL) -> tuple[Log, Recovered]:
    return Log.open(disk, "log", settings)

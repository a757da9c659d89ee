"""Watermarks of a disk, and sizes that shrink with a small disk. All sizes are in bytes."""

from enum import IntEnum

import msgspec

from nodeagent.model.config import NodeConfig
from nodeagent.model.limits import (
    DISK_FLOOR_BYTES_MAX,
    DISK_FLOOR_SHARE,
    DISK_REFUSE_BYTES_MAX,
    DISK_REFUSE_SHARE,
    GROUP_SHARE,
    LOG_KEEP_BYTES_MAX,
    LOG_KEEP_SHARE,
    RESERVE_BYTES_MAX,
    RESERVE_SHARE,
    SEGMENT_SHARE,
    ZERO_STEP_BYTES_MAX,
    ZERO_STEP_SHARE,
)


class Room(IntEnum):
    """What a node may still write; it reports this to the leaders of its groups."""

    ENOUGH = 0
    LOW = 1
    """No rows of clients and no copies of files. Files, checkpoints and log of accepted rows are written."""

    FULL = 2
    """Only terms, votes, configs and small entries: what the node needs to stay a member and to free room."""


def refuse_below(total: int) -> int:
    """Free bytes below which a node is `LOW`."""
    return min(DISK_REFUSE_BYTES_MAX, total // DISK_REFUSE_SHARE)


def floor_of(total: int) -> int:
    """Free bytes below which a node is `FULL`."""
    return min(DISK_FLOOR_BYTES_MAX, total // DISK_FLOOR_SHARE)


def log_keep(total: int) -> int:
    """Bytes of log of one group that are retained for followers that lag."""
    return min(LOG_KEEP_BYTES_MAX, total // LOG_KEEP_SHARE)


def zero_step(total: int) -> int:
    """Bytes by which the log is filled with zeros ahead of writing."""
    return min(ZERO_STEP_BYTES_MAX, total // ZERO_STEP_SHARE)


def reserve(total: int) -> int:
    """Bytes of the reserve file beside the log."""
    return min(RESERVE_BYTES_MAX, total // RESERVE_SHARE)


def fitted(config: NodeConfig, total: int) -> NodeConfig:
    """The settings with sizes reduced for a disk of `total` bytes, so that the rows and the log of one group
    cannot fill it."""
    share = total // GROUP_SHARE
    return msgspec.structs.replace(
        config,
        memtable_bytes_max=min(config.memtable_bytes_max, share),
        partition_bytes_max=min(config.partition_bytes_max, share),
        log_bytes_max=min(config.log_bytes_max, 2 * share),
        segment_bytes=min(config.segment_bytes, total // SEGMENT_SHARE),
    )

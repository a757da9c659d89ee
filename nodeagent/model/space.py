"""How much room a disk has, and how sizes follow it on a small one. Bytes everywhere."""

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
    """What may still be written; a node tells its leaders."""

    ENOUGH = 0
    LOW = 1
    """No rows of clients, no copies of files. What was accepted is finished: files, checkpoints, the log."""

    FULL = 2
    """Terms, votes, configs and small entries only: what it takes to live, and to get room again."""


def refuse_below(total: int) -> int:
    return min(DISK_REFUSE_BYTES_MAX, total // DISK_REFUSE_SHARE)


def floor_of(total: int) -> int:
    return min(DISK_FLOOR_BYTES_MAX, total // DISK_FLOOR_SHARE)


def log_keep(total: int) -> int:
    """So much log of a group is kept for followers that lag."""
    return min(LOG_KEEP_BYTES_MAX, total // LOG_KEEP_SHARE)


def zero_step(total: int) -> int:
    return min(ZERO_STEP_BYTES_MAX, total // ZERO_STEP_SHARE)


def reserve(total: int) -> int:
    return min(RESERVE_BYTES_MAX, total // RESERVE_SHARE)


def fitted(config: NodeConfig, total: int) -> NodeConfig:
    """The settings with sizes that suit a disk of `total` bytes: no group may hold back rows that fill it."""
    share = total // GROUP_SHARE
    return msgspec.structs.replace(
        config,
        memtable_bytes_max=min(config.memtable_bytes_max, share),
        partition_bytes_max=min(config.partition_bytes_max, share),
        log_bytes_max=min(config.log_bytes_max, 2 * share),
        segment_bytes=min(config.segment_bytes, total // SEGMENT_SHARE),
    )

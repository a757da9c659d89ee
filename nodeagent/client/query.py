"""What a scan reads, and the slots that can contain its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nodeagent.client.routes import mask_of
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import InvalidInput
from nodeagent.model.files import ScanSpec
from nodeagent.model.requests.rows import BOUNDED, STRONG, WEAK
from nodeagent.partition.hash import shard_of, slot_of, time_partition

if TYPE_CHECKING:
    from nodeagent.client.routes import Mask

SLOTS_LISTED_MAX = 4096
"""A time range of at most this many (time partition, shard) pairs is narrowed to its slots."""

OnAge = Callable[[int], None]
"""Called with the age (ms) of each answer to a bounded or weak read, -1 if no leader confirmed it
(`RowsScanned`). If no age is -1, the read contains every row acknowledged longer ago than the highest age."""

LEVELS = {"strong": STRONG, "bounded": BOUNDED, BOUNDED: BOUNDED, "weak": WEAK}
"""Read level -> as it is sent. `mid` is accepted until 0.3.0."""


def sent_level(read: str) -> str:
    """Raises `InvalidInput` if there is no such level."""
    if read not in LEVELS:
        raise InvalidInput(f"there is no read level {read!r}", next_step="use strong, bounded or weak")
    return LEVELS[read]


@dataclass(frozen=True, slots=True)
class Query:
    """A read of one table. `read` is one of `LEVELS`."""

    storage_group: str
    spec: ScanSpec
    read: str
    on_age: OnAge | None = None


def slots_of(storage_group: str, spec: ScanSpec, settings: ClusterSettings) -> Mask:
    """The slots that can contain the rows; all if they are more than `SLOTS_LISTED_MAX`."""
    if spec.time_from > spec.time_to:
        return np.zeros(settings.slots, np.bool_)
    first, last = (
        time_partition(t, settings.time_partition_interval_ms, settings.hash_mode)
        for t in (spec.time_from, spec.time_to)
    )
    shards = _shards_of(spec, settings)
    if (last - first + 1) * len(shards) > SLOTS_LISTED_MAX:
        return np.ones(settings.slots, np.bool_)
    found = (slot_of(storage_group, p, s, settings) for p in range(first, last + 1) for s in shards)
    return mask_of(found, settings.slots)


def _shards_of(spec: ScanSpec, settings: ClusterSettings) -> Sequence[int]:
    """One shard if every tag is given, else all."""
    given = dict(spec.tags)
    if settings.shards > 1 and given.keys() >= set(spec.schema.tags):
        return (shard_of(tuple(given[name] for name in spec.schema.tags), settings.shards),)
    return range(max(1, settings.shards))

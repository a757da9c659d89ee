"""Split an Arrow batch of one table into pieces of one (time partition, shard) each.

All work per row is done by Arrow or numpy; Python code handles only distinct devices (tag tuples), whose
hashes are cached. A batch has a column `time` (int64, milliseconds, no null). A tag that is in the schema but
not in the batch counts as null.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import SchemaMismatch
from nodeagent.model.ids import PartitionKey
from nodeagent.partition.hash import is_legacy, shard_of, time_span

TIME = "time"

_Ints = npt.NDArray[np.int64]
FEW_ROWS = 64
"""Up to this number of rows, try first whether all rows are of one device, as is usual: numbering the devices
would cost more than all other work."""

_RADIX_MAX = 1 << 40
"""Tag codes are compacted if their mixed radix would pass this (far below the int64 range)."""


def split_rows(
    batch: pa.RecordBatch, tags: Sequence[str], settings: ClusterSettings
) -> list[tuple[tuple[int, int], pa.RecordBatch]]:
    """Pieces as ((time partition, shard), rows), ascending; rows inside a piece stay in order.

    Args:
        tags: the table's tag columns in schema order.

    Raises:
        SchemaMismatch: the time column is missing, not int64, or has nulls.
    """
    if not batch.num_rows:
        return []
    partitions = _partitions(batch, settings)
    shards = _shards(batch, tags, settings.shards)
    step = np.flatnonzero((np.diff(partitions) != 0) | (np.diff(shards) != 0))
    if not step.size:
        return [((int(partitions[0]), int(shards[0])), batch)]
    order = np.lexsort((shards, partitions))
    if not np.array_equal(order, np.arange(order.size)):
        batch = batch.take(pa.array(order))
        partitions, shards = partitions[order], shards[order]
        step = np.flatnonzero((np.diff(partitions) != 0) | (np.diff(shards) != 0))
    starts = [0, *(step + 1).tolist()]
    ends = [*starts[1:], batch.num_rows]
    return [
        ((int(partitions[a]), int(shards[a])), batch.slice(a, b - a))
        for a, b in zip(starts, ends, strict=True)
    ]


def check_rows(
    batch: pa.RecordBatch,
    tags: Sequence[str],
    key: PartitionKey,
    settings: ClusterSettings,
    span: tuple[int, int],
) -> bool:
    """Whether every row belongs to the key's time partition and shard (its storage group is not checked).

    Args:
        span: first and last time of the rows.
    """
    first, last = time_span(key.time_partition, settings.time_partition_interval_ms, settings.hash_mode)
    if span[0] < first or span[1] > last:
        return False
    return bool((_shards(batch, tags, settings.shards) == key.shard).all())


def _times(batch: pa.RecordBatch) -> _Ints:
    index = batch.schema.get_field_index(TIME)
    if index < 0 or batch.schema.field(index).type != pa.int64() or batch.column(index).null_count:
        raise SchemaMismatch(
            f"the rows were refused: they need one column {TIME!r} of int64 milliseconds without nulls",
            next_step="cast the time column and drop rows without a time",
        )
    times: _Ints = batch.column(index).to_numpy()
    return times


def _partitions(batch: pa.RecordBatch, settings: ClusterSettings) -> _Ints:
    times, interval = _times(batch), settings.time_partition_interval_ms
    floored: _Ints = times // interval
    if is_legacy(settings.hash_mode):
        floored += (times < 0) & (times % interval != 0)
    return floored


def _shards(batch: pa.RecordBatch, tags: Sequence[str], shards: int) -> _Ints:
    """The shard of each row."""
    if shards <= 1 or not tags:
        return np.full(batch.num_rows, shard_of((), shards), np.int64)
    if batch.num_rows <= FEW_ROWS and (device := _only_device(batch, tags)) is not None:
        return np.full(batch.num_rows, shard_of(device, shards), np.int64)
    codes, first = _devices(batch, tags)
    values = [_values(batch, tag, first) for tag in tags]
    by_device = np.fromiter((shard_of(v, shards) for v in zip(*values, strict=True)), np.int64, first.size)
    per_row: _Ints = by_device[codes]
    return per_row


def _only_device(batch: pa.RecordBatch, tags: Sequence[str]) -> list[str | None] | None:
    """The tag values that all rows share; None if they differ."""
    device: list[str | None] = []
    for tag in tags:
        index = batch.schema.get_field_index(tag)
        values = [None] if index < 0 else batch.column(index).unique().to_pylist()
        if len(values) != 1:
            return None
        device += values
    return device


def _values(batch: pa.RecordBatch, tag: str, rows: _Ints) -> list[str | None]:
    """The tag's values at `rows`."""
    index = batch.schema.get_field_index(tag)
    if index < 0:
        return [None] * rows.size
    values: list[str | None] = batch.column(index).take(pa.array(rows)).to_pylist()
    return values


def _devices(batch: pa.RecordBatch, tags: Sequence[str]) -> tuple[_Ints, _Ints]:
    """(device number of each row, a row of each device)."""
    codes = np.zeros(batch.num_rows, np.int64)
    radix = 1
    for tag in tags:
        index = batch.schema.get_field_index(tag)
        if index < 0:
            continue
        column, size = _codes(batch.column(index))
        if radix * size > _RADIX_MAX:
            _, codes = np.unique(codes, return_inverse=True)
            radix = batch.num_rows
        codes = codes * size + column
        radix *= size
    if radix <= max(1024, 4 * batch.num_rows):
        return _compact_small(codes, radix)
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    return inverse, first


def _compact_small(codes: _Ints, radix: int) -> tuple[_Ints, _Ints]:
    """Like np.unique with index and inverse, but without sorting: all codes are below `radix`."""
    row_of = np.full(radix, -1, np.int64)
    row_of[codes] = np.arange(codes.size)
    present = np.flatnonzero(row_of >= 0)
    number = np.zeros(radix, np.int64)
    number[present] = np.arange(present.size)
    return number[codes], row_of[present]


def _codes(column: pa.Array) -> tuple[_Ints, int]:
    """(code of each row, number of codes); equal values have equal codes, null has code 0."""
    if pa.types.is_dictionary(column.type):
        # A client's dictionary may repeat a value or contain a null: code its values, then look them up.
        values, size = _codes(column.dictionary)
        indices = column.indices
        at: _Ints = indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        known: npt.NDArray[np.bool_] = indices.is_valid().to_numpy(zero_copy_only=False)
        return (np.where(known, values[at], 0) if len(values) else np.zeros(len(at), np.int64)), size
    encoded = column.dictionary_encode()
    codes: _Ints = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    return codes, len(encoded.dictionary) + 1

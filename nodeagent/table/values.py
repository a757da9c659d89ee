"""Which of the values that fit their types a row may have: those that a TsFile returns unchanged.

Times must be within the years 1 to 9999. A tag value must not contain NUL, because the TsFile library ends
the text there and treats `a\\0b` and `a\\0c` as one device, and is at most `TAG_BYTES_MAX` long. Fields are
not restricted: NUL, empty, NaN and infinities are read back unchanged (`tests/storage/test_accepted.py`).

The checks work on whole buffers; a single value is read only to report it in an error.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nodeagent.model.errors import InvalidInput
from nodeagent.model.limits import TAG_BYTES_MAX, TIME_MS_MAX, TIME_MS_MIN
from nodeagent.model.schema import TableSchema

Span = tuple[int, int]
"""First and last time of some rows."""


def check_values(batch: pa.RecordBatch, schema: TableSchema) -> Span | None:
    """Check rows in the table's Arrow form (column 0 is `time`). Returns the span of their times, None
    without rows.

    Raises:
        InvalidInput: a value is not allowed; the error has its column and row.
    """
    span = _check_times(batch.column(0))
    for at, column in enumerate(schema.columns, 1):
        if column.tag:
            _check_tag(batch.column(at), column.name)
    return span


def _check_times(times: pa.Array) -> Span | None:
    values = times.to_numpy()
    if not values.size:
        return None
    first, last = int(values.min()), int(values.max())
    if first >= TIME_MS_MIN and last <= TIME_MS_MAX:
        return first, last
    row = int(np.flatnonzero((values < TIME_MS_MIN) | (values > TIME_MS_MAX))[0])
    raise InvalidInput(
        f"`time` in row {row} is {values[row]}, which is outside the years 1 to 9999",
        next_step="use milliseconds since 1970: divide microseconds by 1 000, nanoseconds by 1 000 000",
        row=row,
    )


def _check_tag(tags: pa.Array, name: str) -> None:
    _, offsets, content = tags.buffers()
    if content is None or not len(tags):
        return
    ends = np.frombuffer(offsets, np.int32, len(tags) + 1, 4 * tags.offset)
    first, size = int(ends[0]), int(ends[-1] - ends[0])
    if not size:
        return
    # The buffer may hold the text of nulls: if something is found, it is checked once more without nulls.
    if b"\0" in content.slice(first, size).to_pybytes():
        _refuse_first(pc.match_substring(tags, "\0"), name, "has a NUL character")
    if size > TAG_BYTES_MAX and int(np.diff(ends).max()) > TAG_BYTES_MAX:
        is_long = pc.greater(pc.binary_length(tags), TAG_BYTES_MAX)
        _refuse_first(is_long, name, f"is longer than {TAG_BYTES_MAX} bytes")


def _refuse_first(bad: pa.BooleanArray, name: str, why: str) -> None:
    row = pc.index(bad, True).as_py()
    if row >= 0:
        raise InvalidInput(
            f"tag {name!r} {why} in row {row}",
            next_step="correct the value, or make the column a field",
            row=row,
        )

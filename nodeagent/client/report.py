"""The reports of writes and deletes, and the bounds of reads and writes.

Separate from the code that handles rows, because that code imports Arrow.
"""

import msgspec

ROWS_MAX = 20_000
"""Rows of one write entry; `WRITE_BYTES_MAX` bounds its bytes."""

IN_FLIGHT_MAX = 64
"""Unanswered entries of one `write` call or one `BulkWriter`."""

TIME_MIN, TIME_MAX = -(1 << 63), (1 << 63) - 1


class WriteReport(msgspec.Struct, frozen=True):
    """Rows that were acknowledged: durable on a majority and visible to strong reads."""

    rows: int
    entries: int
    seconds: float


class DeleteReport(msgspec.Struct, frozen=True):
    partitions: int
    seconds: float

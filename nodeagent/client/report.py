"""What writes and deletes report, and the bounds of reads and writes.

Apart from the code that handles rows, which needs Arrow.
"""

import msgspec

ROWS_MAX = 20_000
"""Rows of one write entry; its bytes are bounded by `WRITE_BYTES_MAX` besides."""

IN_FLIGHT_MAX = 64
"""Entries of one `write` call, or of one `BulkWriter`, that wait for their answers."""

TIME_MIN, TIME_MAX = -(1 << 63), (1 << 63) - 1


class WriteReport(msgspec.Struct, frozen=True):
    """What was acknowledged: durable on a majority and visible to strong reads."""

    rows: int
    entries: int
    seconds: float


class DeleteReport(msgspec.Struct, frozen=True):
    partitions: int
    seconds: float

"""Time windows that split the rows of files, so that a task holds one window and never a whole partition."""

from collections.abc import Iterator, Sequence

from iotctl.pipeline.tsfile_rows import TIME_MAX, TIME_MIN
from nodeagent.model.files import FileMeta

WINDOW_ROWS = 1_000_000
"""Approximate number of rows of one holder in memory at a time."""


def time_windows(metas: Sequence[FileMeta], rows_max: int) -> Iterator[tuple[int, int]]:
    """Adjacent windows (first, last), both inclusive, each with about `rows_max` rows by the manifests.

    Together they cover all times: a row outside the times that the manifest records is in a window too.
    """
    first, last = min(f.time_min for f in metas), max(f.time_max for f in metas)
    pieces = list(_cut(metas, first, last, rows_max))
    pieces[0] = (TIME_MIN, pieces[0][1])
    pieces[-1] = (pieces[-1][0], TIME_MAX)
    yield from pieces


def _cut(metas: Sequence[FileMeta], first: int, last: int, rows_max: int) -> Iterator[tuple[int, int]]:
    if first >= last or sum(_share(f, first, last) for f in metas) <= rows_max:
        yield first, last
        return
    middle = (first + last) // 2
    yield from _cut(metas, first, middle, rows_max)
    yield from _cut(metas, middle + 1, last, rows_max)


def _share(file: FileMeta, first: int, last: int) -> int:
    """About how many rows of the file are in the window."""
    times = min(last, file.time_max) - max(first, file.time_min) + 1
    return -(-file.rows * times // (file.time_max - file.time_min + 1)) if times > 0 else 0

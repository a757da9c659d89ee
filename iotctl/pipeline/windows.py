"""Times that cut the rows of files into pieces, so that a task holds a piece and never a partition."""

from collections.abc import Iterator, Sequence

from iotctl.pipeline.tsfile_rows import TIME_MAX, TIME_MIN
from nodeagent.model.files import FileMeta

WINDOW_ROWS = 1_000_000
"""Rows of one holder in memory at a time, about."""


def time_windows(metas: Sequence[FileMeta], rows_max: int) -> Iterator[tuple[int, int]]:
    """Neighbouring times, first and last included, that hold about so many rows by what the manifests say.

    Together they are all of time: a row outside the times its manifest says is in one of them too.
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
    """About how many of its rows lie between two times."""
    times = min(last, file.time_max) - max(first, file.time_min) + 1
    return -(-file.rows * times // (file.time_max - file.time_min + 1)) if times > 0 else 0

"""Rows of TsFiles read in place, by series and time range. For the worker process only.

Files of at most `SMALL_BYTES` and parked files are read and hashed whole for every page. Every other file
stays open between pages of a scan, with the names and statistics of its series as a cache, bounded by
`OPEN_FILES_MAX` and `SERIES_KEPT_MAX`. Its bytes are hashed when it is opened. They are hashed again at a
later use if the last check is at least `VERIFIED_S` old, or if the file's inode, size or modification time
has changed. The last `OPEN_FILES_MAX` damaged files are not hashed again while these three are unchanged.

Measured with tsfile 2.5.0: the cost of a read of one series is proportional to the rows in the time range,
plus about 10 ms per 5 million rows of the whole series. The statistics of a series take 60 to 200 us, its
name 5 us.
"""

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from nodeagent.model.errors import FileCorrupt
from nodeagent.model.files import PARKED, FileMeta, ScanSpec
from nodeagent.model.limits import KIB, MIB
from nodeagent.storage.files import check_content, check_stream
from nodeagent.storage.format import format_of
from nodeagent.storage.tsfile_format import TsFileFormat, read_batches, tag_filter
from nodeagent.storage.tsfile_package import tsfile
from nodeagent.table.memory_source import TableSource
from nodeagent.table.merge import Part
from nodeagent.table.paging import SeriesKey, Source, Span, key_of, row_bytes, tags_of

OPEN_FILES_MAX = 64
SERIES_KEPT_MAX = 500_000
"""The maximum number of cached names and statistics of series, over all open files."""

VERIFIED_S = 60.0
"""How long verified bytes are assumed to be unchanged."""

SWEEP_S = 5.0
"""Open files that were deleted are closed at this interval while pages are read."""

SMALL_BYTES = 256 * KIB
"""A file of up to this size is read whole for every page, because opening it in place costs more."""

BATCH_BYTES = 1 * MIB
BATCH_ROWS_MAX = 8192

Stamp = tuple[int, int, int]
"""Inode, size and modification time of a file."""


@dataclass(slots=True)
class _Open:
    """A verified open file. `tags` are the file's own tags, in its order."""

    stamp: Stamp
    verified_at: float
    reader: "tsfile.TsFileReader"
    tags: tuple[str, ...]
    columns: frozenset[str]
    series: list[SeriesKey] | None = None
    spans: dict[SeriesKey, Span | None] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        return len(self.series or ()) + len(self.spans)


class TsFileSources:
    """Sources over files under `root`. `opening` is called with each path before native code reads it."""

    def __init__(self, root: str, file_format: TsFileFormat, opening: Callable[[str], None]) -> None:
        self._root = root
        self._format = file_format
        self._opening = opening
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._damaged: OrderedDict[str, tuple[Stamp, FileCorrupt]] = OrderedDict()
        self._swept_at = time.monotonic()

    def of(self, path: str, meta: FileMeta, spec: ScanSpec) -> Source:
        """See `Sources.of`."""
        if meta.size <= SMALL_BYTES or meta.name.endswith(PARKED):
            return self._whole(path, meta, spec)
        return _TsFileSource(self, path, meta, spec)

    def _whole(self, path: str, meta: FileMeta, spec: ScanSpec) -> TableSource:
        with open(os.path.join(self._root, path), "rb", buffering=0) as file:
            content = file.readall()
        check_content(content, meta, path)
        self._opening(path)
        return TableSource([(meta.order, format_of(meta.name, self._format).decode(content, spec))], spec)

    def reader(self, path: str, meta: FileMeta, table: str) -> _Open:
        """The open file, verified. Raises `FileCorrupt`, `OSError`."""
        stamp = _stamp(os.stat(os.path.join(self._root, path)))
        held = self._open.get(path)
        if held is not None and held.stamp == stamp and time.monotonic() - held.verified_at < VERIFIED_S:
            self._open.move_to_end(path)
            self._opening(path)
            return held
        self._verify(path, meta, stamp)
        self._opening(path)
        if held is not None and held.stamp == stamp:
            held.verified_at = time.monotonic()
            return held
        self.close(path)
        self._open[path] = fresh = self._opened(path, stamp, table)
        return fresh

    def _verify(self, path: str, meta: FileMeta, stamp: Stamp) -> None:
        known = self._damaged.get(path)
        if known is not None and known[0] == stamp:
            raise known[1]
        try:
            with open(os.path.join(self._root, path), "rb") as file:
                check_stream(file, meta, path)
        except FileCorrupt as error:
            self.close(path)
            self._damaged[path] = (stamp, error)
            while len(self._damaged) > OPEN_FILES_MAX:
                self._damaged.popitem(last=False)
            raise

    def _opened(self, path: str, stamp: Stamp, table: str) -> _Open:
        with reading(path):
            reader = tsfile.TsFileReader(os.path.join(self._root, path))
            stored = reader.get_all_table_schemas().get(table)
        if stored is None:
            raise FileCorrupt(f"{path}: the file has no table {table}")
        columns = stored.get_columns()
        tags = tuple(c.get_column_name() for c in columns if c.get_category() == tsfile.ColumnCategory.TAG)
        names = frozenset(c.get_column_name() for c in columns)
        return _Open(stamp, time.monotonic(), reader, tags, names)

    def trim(self) -> None:
        """Close files above the bounds and deleted files; called after each request."""
        if time.monotonic() - self._swept_at > SWEEP_S:
            self._swept_at = time.monotonic()
            for path in [p for p in self._open if not os.path.exists(os.path.join(self._root, p))]:
                self.close(path)
        while len(self._open) > OPEN_FILES_MAX or (
            self._open and sum(held.kept for held in self._open.values()) > SERIES_KEPT_MAX
        ):
            self.close(next(iter(self._open)))

    def close_all(self) -> None:
        for path in list(self._open):
            self.close(path)

    def close(self, path: str) -> None:
        held = self._open.pop(path, None)
        if held is not None:
            held.reader.close()


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_ino, found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def reading(where: str) -> Iterator[None]:
    """Every exception becomes `FileCorrupt`: the package also raises `ValueError`, `TypeError` and others."""
    try:
        yield
    except FileCorrupt:
        raise
    except Exception as error:
        raise FileCorrupt(f"{where}: TsFile reader: {type(error).__name__}: {error}") from error


class _TsFileSource:
    """`Source` over one file."""

    by_time = True

    def __init__(self, files: TsFileSources, path: str, meta: FileMeta, spec: ScanSpec) -> None:
        self._files = files
        self._path = path
        self._meta = meta
        self._spec = spec

    def rows_max(self) -> int:
        return self._meta.rows

    def series(self) -> Sequence[SeriesKey]:
        wanted = dict(self._spec.tags)
        names = self._spec.schema.tags
        if all(name in wanted for name in names):
            return [key_of(tuple(wanted[name] for name in names))]
        held = self._held()
        if held.series is None:
            with reading(self._path):
                devices = held.reader.get_all_devices()
            held.series = sorted(self._key(held, d.segments) for d in devices)
        return held.series

    def spans(self, series: Sequence[SeriesKey]) -> dict[SeriesKey, Span]:
        held = self._held()
        unknown = [key for key in series if key not in held.spans]
        if unknown:
            self._look_up(held, unknown)
        return {key: span for key in series if (span := held.spans[key]) is not None}

    def read(self, series: SeriesKey, time_from: int, time_to: int) -> Iterator[Part]:
        tags = tuple(zip(self._spec.schema.tags, tags_of(series), strict=True))
        return self._read(tags, time_from, time_to)

    def read_all(self) -> Iterator[Part]:
        return self._read(self._spec.tags, self._spec.time_from, self._spec.time_to)

    def _read(self, tags: tuple[tuple[str, str | None], ...], time_from: int, time_to: int) -> Iterator[Part]:
        held = self._held()
        width = max(row_bytes(self._spec.schema, self._spec.fields), self._meta.size // self._meta.rows)
        rows = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES // width))
        chosen = tag_filter(tags, held.columns)
        with reading(self._path):
            for batch in read_batches(
                held.reader, self._spec, held.columns, time_from, time_to, chosen, rows
            ):
                yield self._meta.order, batch

    def _held(self) -> _Open:
        return self._files.reader(self._path, self._meta, self._spec.schema.table)

    def _key(self, held: _Open, segments: Sequence[str | None]) -> SeriesKey:
        """Key of a device by the file's own tags (the table may have more tags by now)."""
        own = dict(zip(held.tags, segments[1:], strict=False))
        return key_of(tuple(own.get(name) for name in self._spec.schema.tags))

    def _look_up(self, held: _Open, series: Sequence[SeriesKey]) -> None:
        table = self._spec.schema.table
        devices = []
        for key in series:
            own = dict(zip(self._spec.schema.tags, tags_of(key), strict=True))
            devices.append(tsfile.schema.DeviceID("", table, (table, *(own.get(t) for t in held.tags))))
        with reading(self._path):
            found = held.reader.get_timeseries_metadata(devices)
        held.spans.update(dict.fromkeys(series))
        for segments, group in found.items():
            held.spans[self._key(held, segments)] = self._span(group)

    def _span(self, group: "tsfile.DeviceTimeseriesMetadataGroup") -> Span:
        whole = Span(self._meta.rows, self._meta.time_min, self._meta.time_max)
        if not group.timeseries:
            return whole
        line = group.timeseries[0].timeline_statistic
        return Span(line.row_count, line.start_time, line.end_time) if line.has_statistic else whole

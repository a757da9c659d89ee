"""Rows of one table of one partition in pages, in the order (tags, time), each page bounded in bytes.

A page continues after the *key* (tags, time) of the last row of the previous page. A key stays valid when
files are added, removed or merged between two pages, and on another replica: pages need no state.

Memory does not grow with the partition: the rows are read in *windows*, i.e. several whole series, or one
series between two times, sized to a page by the statistics of the files. A window is read from every source
that has rows in it and merged; rows that exceed the page are left for the next page. If the statistics
mislead (many rows in a small part of their time range), reading stops early and the window ends there.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Protocol

import msgspec
import pyarrow as pa

from nodeagent.model.files import PageSpec, RowKey, ScanSpec, Tags, Tombstone
from nodeagent.model.schema import TableSchema
from nodeagent.table.arrow import TIME, Rows
from nodeagent.table.merge import Part, merge

SERIES_AT_ONCE = 256
"""Number of series whose spans are looked up together; also the most series in one window."""

ROWS_READ_MAX = 4_000_000
"""A page ends after this many rows read, even if deletes leave it almost empty; the next page continues."""

_FIXED_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "DATE": 4}
_TEXT_BYTES = 16
"""Assumed size of a text until texts have been read."""

SeriesKey = tuple[bytes, ...]
"""Tags in a form that compares as rows are sorted: null first, then UTF-8 byte order."""


@dataclass(frozen=True, slots=True)
class Span:
    """A source's statistics of one series: at most `rows` rows, all within these times."""

    rows: int
    time_min: int
    time_max: int


class Source(Protocol):
    """Rows of one file, or those in memory."""

    by_time: bool
    """Whether `read` returns the rows in order of time."""

    def rows_max(self) -> int: ...

    def series(self) -> Sequence[SeriesKey]:
        """Series with rows, ascending; at least those that the scan requests."""
        ...

    def spans(self, series: Sequence[SeriesKey]) -> dict[SeriesKey, Span]:
        """Spans of those series that the source has."""
        ...

    def read(self, series: SeriesKey, time_from: int, time_to: int) -> Iterator[Part]:
        """Rows of one series between two times, inclusive."""
        ...

    def read_all(self) -> Iterator[Part]:
        """At least all rows that the scan requests."""
        ...


class Page(msgspec.Struct, frozen=True):
    """`after` is the key after which the next page begins; None if this is the last page, or if it has
    `PageSpec.rows_max` rows: then the partition may have more."""

    rows: pa.Table
    after: RowKey | None


def key_of(tags: Tags) -> SeriesKey:
    return tuple(b"" if value is None else b"\1" + value.encode() for value in tags)


def tags_of(key: SeriesKey) -> Tags:
    return tuple(value[1:].decode() if value else None for value in key)


def row_bytes(schema: TableSchema, fields: Sequence[str] | None) -> int:
    """Approximate size of one row in Arrow, in bytes."""
    wanted = schema.columns if fields is None else [c for c in schema.columns if c.tag or c.name in fields]
    widths = (_FIXED_BYTES.get(c.type, 8 if _is_number(c.type) else _TEXT_BYTES) for c in wanted)
    return 8 + sum(widths)


def _is_number(kind: str) -> bool:
    return kind in ("INT64", "DOUBLE", "TIMESTAMP")


def matches(key: SeriesKey, spec: ScanSpec) -> bool:
    """Whether the scan requests the series."""
    wanted = dict(spec.tags)
    names = spec.schema.tags
    return all(
        key_of((wanted[name],))[0] == value for name, value in zip(names, key, strict=True) if name in wanted
    )


def page(
    sources: Sequence[Source], tombstones: Sequence[Tombstone], spec: ScanSpec, wanted: PageSpec
) -> Page:
    """The next page; its first row fits however large the row is. A page before the last may be empty, if
    deletes leave none of the rows read for it."""
    if wanted.after is None and wanted.until is None:
        rows = sum(source.rows_max() for source in sources)
        if rows * row_bytes(spec.schema, spec.fields) <= wanted.bytes_max:
            whole = read_whole(sources, tombstones, spec, wanted)
            if whole is not None:
                return Page(whole, None)
    return _Pager(sources, tombstones, spec, wanted).run(wanted.after)


def read_whole(
    sources: Sequence[Source], tombstones: Sequence[Tombstone], spec: ScanSpec, wanted: PageSpec
) -> pa.Table | None:
    """All rows, up to `rows_max`, in one page; None if the rows read exceed twice the size of a page."""
    parts: list[Part] = []
    size = _Size()
    for source in sources:
        for part in source.read_all():
            parts.append(part)
            size.add(part[1])
            if size.exceeds(2 * wanted.bytes_max):
                return None
    rows = merge(parts, tombstones, spec.schema, spec)
    return rows.slice(0, wanted.rows_max or rows.num_rows)


class _Size:
    """Size of rows in bytes. Computing the exact size of a part takes longer than reading a small part, so it
    is computed only if the buffers behind the parts, which may hold more than the parts, exceed the limit.
    They never hold less: rows whose columns share bytes are refused before they are logged (`table.ipc`).
    """

    def __init__(self) -> None:
        self._exact = 0
        self._bound = 0
        """`_exact` plus the buffers of the parts in `_since`."""

        self._since: list[Rows] = []

    def add(self, rows: Rows) -> None:
        self._bound += rows.get_total_buffer_size()
        self._since.append(rows)

    def exceeds(self, limit: int) -> bool:
        if self._bound > limit and self._since:
            self._exact += sum(rows.nbytes for rows in self._since)
            self._bound = self._exact
            self._since.clear()
        return self._bound > limit


@dataclass(slots=True)
class _Held:
    """A series with the sources that have rows of it, and the first requested time."""

    key: SeriesKey
    spans: list[tuple[Source, Span]]
    time_from: int

    def rows(self, time_from: int, time_to: int) -> int:
        """Approximate number of rows between two times."""
        return sum(_share(span, time_from, time_to) for _, span in self.spans)


def _share(span: Span, time_from: int, time_to: int) -> int:
    """Approximate number of the span's rows between two times; at least 1 if there may be a row."""
    first, last = max(span.time_min, time_from), min(span.time_max, time_to)
    if first > last:
        return 0
    return -(-span.rows * (last - first + 1) // (span.time_max - span.time_min + 1))


def _from(keys: Sequence[SeriesKey], start: SeriesKey) -> Iterator[SeriesKey]:
    return (keys[at] for at in range(bisect_left(keys, start), len(keys)))


class _Pager:
    def __init__(
        self,
        sources: Sequence[Source],
        tombstones: Sequence[Tombstone],
        spec: ScanSpec,
        wanted: PageSpec,
    ) -> None:
        self._sources = sources
        self._tombstones = tombstones
        self._spec = spec
        until = wanted.until
        self._until = (key_of(until.tags), until.time) if until is not None else None
        self._bytes_max = wanted.bytes_max
        self._rows_max = wanted.rows_max
        self._width = row_bytes(spec.schema, spec.fields)
        self._tables: list[pa.Table] = []
        self._nbytes = 0
        self._rows = 0
        self._read = 0
        self._last: RowKey | None = None

    def run(self, after: RowKey | None) -> Page:
        run: list[_Held] = []
        rows = 0
        for held in self._following(after):
            expected = held.rows(held.time_from, self._last_time(held.key))
            is_whole = held.time_from <= self._spec.time_from and expected <= self._room()
            if run and (not is_whole or rows + expected > self._room() or len(run) >= SERIES_AT_ONCE):
                reached = self._take_run(run)
                if reached is not None:
                    return self._page(reached)
                run, rows = [], 0
            if is_whole and expected <= self._room():
                run.append(held)
                rows += expected
                continue
            reached = self._take_one(held)
            if reached is not None:
                return self._page(reached)
        return self._page(self._take_run(run) if run else None)

    def _page(self, reached: RowKey | None) -> Page:
        done = self._rows_max and self._rows >= self._rows_max
        empty = merge((), (), self._spec.schema, self._spec)
        rows = pa.concat_tables([empty, *self._tables])
        return Page(rows.slice(0, self._rows_max or rows.num_rows), None if done else reached)

    def _room(self) -> int:
        """Number of rows that still fit the page."""
        room = max(1, (self._bytes_max - self._nbytes) // self._width)
        return min(room, self._rows_max - self._rows) if self._rows_max else room

    def _last_time(self, key: SeriesKey) -> int:
        if self._until is not None and key == self._until[0]:
            return min(self._spec.time_to, self._until[1])
        return self._spec.time_to

    def _following(self, after: RowKey | None) -> Iterator[_Held]:
        """The series from the key on, in order, with their sources; only series with a requested row."""
        start = key_of(after.tags) if after is not None else ()
        names = self._names(start)
        while some := list(islice(names, SERIES_AT_ONCE)):
            spans = [source.spans(some) for source in self._sources]
            for key in some:
                first = self._spec.time_from
                if after is not None and key == start:
                    first = max(first, after.time + 1)
                own = [(s, found[key]) for s, found in zip(self._sources, spans, strict=True) if key in found]
                held = _Held(key, own, first)
                if held.rows(first, self._last_time(key)):
                    yield held

    def _names(self, start: SeriesKey) -> Iterator[SeriesKey]:
        merged = heapq.merge(*(_from(source.series(), start) for source in self._sources))
        for key, _ in groupby(merged):
            if self._until is not None and key > self._until[0]:
                return
            if matches(key, self._spec):
                yield key

    # --- windows ---------------------------------------------------------------------------------

    def _take_run(self, run: Sequence[_Held]) -> RowKey | None:
        """Read whole series while they fit; returns the key at which the page ends, if it does."""
        parts: list[Part] = []
        nbytes = 0
        for at, held in enumerate(run):
            for source, _ in held.spans:
                for part in source.read(held.key, held.time_from, self._last_time(held.key)):
                    parts.append(part)
                    nbytes += part[1].nbytes
            is_last = at == len(run) - 1
            if is_last or nbytes > self._bytes_max - self._nbytes:
                end = RowKey(tags_of(held.key), self._last_time(held.key))
                reached = self._add(parts, self._spec)
                if reached is not None or not is_last:
                    return reached or end
                return end if self._is_full() else None
        return None

    def _take_one(self, held: _Held) -> RowKey | None:
        """Read one series window by window; returns the key at which the page ends, if it does."""
        tags, last = tags_of(held.key), self._last_time(held.key)
        at = held.time_from
        while held.rows(at, last):
            end = self._window_end(held, at, last)
            parts, end = self._read_window(held, at, end)
            spec = msgspec.structs.replace(self._spec, time_from=at, time_to=end)
            reached = self._add(parts, spec)
            if reached is not None or self._is_full():
                return reached or RowKey(tags, end)
            at = end + 1
        return None

    def _window_end(self, held: _Held, at: int, last: int) -> int:
        """The last time up to which rows fit the page, by the sources' spans; not before the first row."""
        if held.rows(at, last) <= self._room():
            return last
        low = max(at, min(span.time_min for _, span in held.spans if span.time_max >= at))
        high = min(last, max(span.time_max for _, span in held.spans))
        while low < high:
            middle = (low + high + 1) // 2
            if held.rows(at, middle) <= self._room():
                low = middle
            else:
                high = middle - 1
        return low

    def _read_window(self, held: _Held, at: int, end: int) -> tuple[list[Part], int]:
        """The window's parts and its last time, which is earlier than `end` if the window is too large."""
        parts: list[Part] = []
        for source, span in held.spans:
            nbytes = 0
            for order, rows in source.read(held.key, at, end) if _share(span, at, end) else ():
                parts.append((order, rows))
                nbytes += rows.nbytes
                if source.by_time and nbytes > 2 * self._bytes_max:
                    end = min(end, int(rows.column(TIME)[-1].as_py()))
                    break
        return parts, end

    def _add(self, parts: Sequence[Part], spec: ScanSpec) -> RowKey | None:
        """Merge the window into the page; returns the key of the page's last row if some rows do not fit."""
        read = sum(rows.num_rows for _, rows in parts)
        if read:
            self._read += read
            self._width = max(self._width, sum(rows.nbytes for _, rows in parts) // read)
        rows = merge(parts, self._tombstones, spec.schema, spec)
        fits = max(_fitting(rows, self._bytes_max - self._nbytes), 0 if self._rows else 1)
        kept = rows.slice(0, fits)
        if kept.num_rows:
            self._tables.append(kept)
            self._rows += kept.num_rows
            self._nbytes += kept.nbytes
            self._last = _last_key(kept, spec.schema)
        return self._last if fits < rows.num_rows else None

    def _is_full(self) -> bool:
        enough = bool(self._rows_max and self._rows >= self._rows_max)
        return enough or self._nbytes >= self._bytes_max or self._read >= ROWS_READ_MAX


def _fitting(rows: pa.Table, nbytes_max: int) -> int:
    """The largest number of first rows that fit into `nbytes_max`."""
    fits: int = rows.num_rows
    while fits and (size := rows.slice(0, fits).nbytes) > nbytes_max:
        fits = min(fits - 1, max(0, fits * nbytes_max // size))
    return fits


def _last_key(rows: pa.Table, schema: TableSchema) -> RowKey:
    last = rows.num_rows - 1
    tags = tuple(rows.column(name)[last].as_py() for name in schema.tags)
    return RowKey(tags, rows.column(TIME)[last].as_py())

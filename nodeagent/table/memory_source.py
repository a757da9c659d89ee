"""`TableSource`: a source of pages over rows in memory."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from nodeagent.model.files import ScanSpec
from nodeagent.table.arrow import TIME, one_chunk
from nodeagent.table.merge import Part, conform, merge
from nodeagent.table.paging import SeriesKey, Span, key_of
from nodeagent.table.series import Int64s, series_codes, tag_codes


class TableSource:
    """`Source` over rows in memory: parts of one age each, in any order."""

    by_time = False

    def __init__(self, parts: Sequence[Part], spec: ScanSpec) -> None:
        self._parts = parts
        self._spec = spec

    @cached_property
    def _rows(self) -> "_RowsBySeries":
        """Computed when first needed: most scans take all rows in one page."""
        return _RowsBySeries(self._parts, self._spec)

    def rows_max(self) -> int:
        return sum(rows.num_rows for _, rows in self._parts)

    def series(self) -> Sequence[SeriesKey]:
        return list(self._rows.index)

    def spans(self, series: Sequence[SeriesKey]) -> dict[SeriesKey, Span]:
        return {key: self._rows.span(key) for key in series if key in self._rows.index}

    def read(self, series: SeriesKey, time_from: int, time_to: int) -> Iterator[Part]:
        return self._rows.between(series, time_from, time_to)

    def read_all(self) -> Iterator[Part]:
        return iter(self._parts)


class _RowsBySeries:
    """The positions of each series' rows in several parts."""

    def __init__(self, parts: Sequence[Part], spec: ScanSpec) -> None:
        self._orders = [order for order, _ in parts]
        self._table = conform([rows for _, rows in parts], merge((), (), spec.schema, spec).schema)
        self._starts = np.cumsum([0, *(rows.num_rows for _, rows in parts)])
        self._times = one_chunk(self._table.column(TIME)).to_numpy()
        tags = [one_chunk(self._table.column(name)) for name in spec.schema.tags]
        codes, _ = series_codes([tag_codes(column) for column in tags], len(self._times))
        self._by_series = np.argsort(codes, kind="stable")
        _, first, self._counts = np.unique(codes, return_index=True, return_counts=True)
        self._ends = np.cumsum(self._counts)
        names = zip(*(column.take(pa.array(first)).to_pylist() for column in tags), strict=True)
        keys = [key_of(values) for values in names] if tags else [()] * len(first)
        self.index = {key: at for at, key in enumerate(keys)}

    def span(self, series: SeriesKey) -> Span:
        times = self._times[self._of(series)]
        return Span(len(times), int(times.min()), int(times.max()))

    def between(self, series: SeriesKey, time_from: int, time_to: int) -> Iterator[Part]:
        rows = self._of(series)
        times = self._times[rows]
        rows = rows[(times >= time_from) & (times <= time_to)]
        edges = np.searchsorted(rows, self._starts)
        for order, first, last in zip(self._orders, edges, edges[1:], strict=False):
            if first < last:
                yield order, self._table.take(pa.array(rows[first:last]))

    def _of(self, series: SeriesKey) -> Int64s:
        at = self.index[series]
        found: Int64s = self._by_series[self._ends[at] - self._counts[at] : self._ends[at]]
        return found

"""Selects the rows of a command, by the same rules for reading, counting and deleting.

Several values of one tag are alternatives; different tags must all match. A node takes one value per tag, so
a selection is requested in parts, one per combination of values; no row is in two parts.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product

import msgspec
import numpy as np
import pyarrow as pa

from iotctl.errors import InputProblem, UsageProblem
from iotctl.humanize import time_text
from iotctl.observe.cluster import Cluster
from iotctl.rows.times import SECONDS_FROM, SECONDS_TO, look_like_dates
from nodeagent.model.errors import NodeAgentError, OutcomeUnknown
from nodeagent.model.limits import TIME_MS_MAX, TIME_MS_MIN
from nodeagent.model.schema import TableSchema
from nodeagent.table.arrow import one_chunk
from nodeagent.table.series import series_codes, tag_codes

PARTS_MAX = 256
"""The most combinations of values in one selection; each is a separate request."""

Where = Mapping[str, tuple[str | None, ...]]
"""Tag -> its possible values; None selects rows without the tag."""


class Selection(msgspec.Struct, frozen=True):
    """Rows whose tags have one of these values, in [time_from, time_to] (ms; None: unbounded)."""

    where: Where = {}
    time_from: int | None = None
    time_to: int | None = None

    def parts(self) -> list[dict[str, str | None]]:
        """One mapping per combination of values, each with one value per tag."""
        return [dict(zip(self.where, values, strict=True)) for values in product(*self.where.values())]

    def limits(self) -> list[str]:
        """The conditions on the tags, such as `(device=a or device=b)`, `region=eu`."""
        return [_either(tag, values) for tag, values in self.where.items()]


class Age:
    """The age of a read: its rows include everything acknowledged `ms` before it began.

    0 for a strong read; None if the state of a replica that answered had not been confirmed by a leader.
    """

    def __init__(self) -> None:
        self.ms: int | None = 0

    def add(self, age_ms: int) -> None:
        """Add the age of one answer, negative if not confirmed; the oldest counts."""
        self.ms = None if age_ms < 0 or self.ms is None else max(self.ms, age_ms)


def parse_where(given: Sequence[str], option: str = "--where") -> Where:
    """Parse `tag=value` words; an empty value selects rows without the tag.

    Raises:
        UsageProblem: a word is malformed, or there are more combinations than `PARTS_MAX`.
    """
    where: dict[str, tuple[str | None, ...]] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UsageProblem(f"{option} {word!r} is not TAG=VALUE", next=f"for example {option} device=d1")
        values = where.get(name.lower(), ())
        where[name.lower()] = values if (value or None) in values else (*values, value or None)
    total = 1
    for values in where.values():
        total *= len(values)
    if total > PARTS_MAX:
        raise UsageProblem(
            f"{option}: {total} combinations of values; the limit is {PARTS_MAX}", next="give fewer values"
        )
    return where


def parse_tags(given: Sequence[str]) -> dict[str, str]:
    """Parse the `tag=value` words of one row. Raises `UsageProblem`, also for a repeated tag."""
    where = parse_where(given, "--tag")
    for name, values in where.items():
        if len(values) > 1:
            raise UsageProblem(
                f"--tag {name} has {len(values)} values; a row has one value per tag", next="give one value"
            )
    return {name: value or "" for name, (value,) in where.items()}


def parse_time(text: str | None) -> int | None:
    """Parse milliseconds, or ISO 8601 (in UTC if it names no zone), into milliseconds.

    Raises:
        UsageProblem: not a time, digits below a millisecond, or a number that is probably not milliseconds.
    """
    if text is None:
        return None
    if re.fullmatch(r"\s*[+-]?[0-9]+\s*", text):
        return _milliseconds(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageProblem(f"{text!r} is not a time", next=_WRITE) from None
    if re.search(r"[.,][0-9]{3}[0-9]*[1-9]", text):
        raise UsageProblem(f"{text!r} has digits below a millisecond", next="omit these digits")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return _within((moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1))


_WRITE = "write milliseconds or 2024-05-01T12:00:00Z"


def _within(number: int) -> int:
    if not TIME_MS_MIN <= number <= TIME_MS_MAX:
        raise UsageProblem("the time is outside the years 1 to 9999", next=_WRITE)
    return number


def _milliseconds(text: str) -> int:
    number = _within(int(text) if len(text) < 100 else TIME_MS_MAX + 1)
    if look_like_dates(np.array([number])).any() or SECONDS_FROM <= number <= SECONDS_TO:
        raise UsageProblem(
            f"{text} milliseconds are {time_text(number)}: the number looks like a date or like seconds",
            next=_WRITE,
        )
    return number


def table_of(cluster: Cluster, storage_group: str, table: str) -> TableSchema:
    """The table's schema. Raises `InputProblem` if there is no such table."""
    wanted = storage_group.lower(), table.lower()
    for schema in cluster.schemas():
        if (schema.storage_group, schema.table) == wanted:
            return schema
    raise InputProblem(f"there is no table {'.'.join(wanted)}", next="iotctl data schema")


def scan(
    cluster: Cluster,
    storage_group: str,
    table: str,
    selection: Selection,
    *,
    fields: Sequence[str] | None = None,
    read: str = "strong",
    limit: int | None = None,
    on_age: Callable[[int], None] | None = None,
) -> pa.Table:
    """The first `limit` rows in the order of (tags, time), nulls first."""
    found = [
        cluster.scan(
            storage_group,
            table,
            fields=fields,
            tags=tags,
            time_from=selection.time_from,
            time_to=selection.time_to,
            read=read,
            limit=limit,
            on_age=on_age,
        )
        for tags in selection.parts()
    ]
    if len(found) == 1:
        return found[0]
    rows = pa.concat_tables(found)
    return in_order(rows, table_of(cluster, storage_group, table)).slice(0, limit)


def in_order(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Rows sorted by (tags, time), nulls first."""
    codes = [tag_codes(one_chunk(rows.column(t))) for t in schema.tags if t in rows.column_names]
    series, _ = series_codes(codes, rows.num_rows)
    order = np.lexsort((rows.column("time").to_numpy(), series))
    return rows.take(pa.array(order))


def rows_of(
    cluster: Cluster,
    schema: TableSchema,
    selection: Selection,
    *,
    fields: Sequence[str] | None = None,
    read: str = "strong",
    on_age: Callable[[int], None] | None = None,
) -> Iterator[pa.RecordBatch]:
    """As `scan` but unordered, with a few pages in memory at a time."""
    for tags in selection.parts():
        yield from cluster.scan_batches(
            schema.storage_group,
            schema.table,
            fields=fields,
            tags=tags,
            time_from=selection.time_from,
            time_to=selection.time_to,
            read=read,
            on_age=on_age,
        )


def count_rows(cluster: Cluster, schema: TableSchema, selection: Selection) -> int:
    """The number of rows now. Reads them without their fields, a few pages at a time."""
    return sum(batch.num_rows for batch in rows_of(cluster, schema, selection, fields=()))


def delete_rows(cluster: Cluster, schema: TableSchema, selection: Selection) -> int:
    """Delete the rows that exist when the call begins, and possibly some written during the call. Returns the
    number of deletes sent: a partition counts once per part of the selection.

    Raises:
        NodeAgentError: nothing was deleted.
        OutcomeUnknown: some rows may be deleted; says which parts were deleted completely.
    """
    partitions, done = 0, list[str]()
    for tags in selection.parts():
        try:
            report = cluster.delete(
                schema.storage_group,
                schema.table,
                tags=tags,
                time_from=selection.time_from,
                time_to=selection.time_to,
            )
        except NodeAgentError as error:
            if not done:
                raise
            raise OutcomeUnknown(
                f"rows of {'; '.join(done)} were deleted, the rest may not be: {error.what}",
                next_step="repeat the command: rows that were deleted stay deleted",
                cause=error.code,
            ) from error
        partitions += report.partitions
        done.append(" and ".join(_either(tag, (value,)) for tag, value in tags.items()))
    return partitions


def _either(tag: str, values: tuple[str | None, ...]) -> str:
    words = [f"{tag}={'' if value is None else value}" for value in values]
    return words[0] if len(words) == 1 else f"({' or '.join(words)})"

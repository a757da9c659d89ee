"""Writes single rows, drops tables, sets TTLs, and derives file formats from extensions."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from iotctl.errors import InputProblem, Partly, UsageProblem
from iotctl.observe.cluster import Cluster
from iotctl.rows import exact
from iotctl.rows.selection import Selection, count_rows, delete_rows, table_of
from iotctl.spec.units import parse_duration_ms
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.limits import TTL_MS_MAX
from nodeagent.model.requests import DropTable, NodeStatus
from nodeagent.model.schema import TableSchema
from nodeagent.table.arrow import ARROW_TYPES, infer_schema

CSV, PARQUET, ARROW = "csv", "parquet", "arrow"
NUMBERS = ("INT32", "INT64", "FLOAT", "DOUBLE")
FORMAT_OF = {".csv": CSV, ".parquet": PARQUET, ".arrow": ARROW, ".feather": ARROW, ".ipc": ARROW}


def format_of(path: Path) -> str:
    """The format by the extension. Raises `UsageProblem`."""
    known = FORMAT_OF.get(path.suffix.lower())
    if known is None:
        raise UsageProblem(
            f"{path.name}: the extension is not a known format", next="use .csv, .parquet or .arrow"
        )
    return known


def parse_ttl_ms(text: str) -> int:
    """Parse a duration into milliseconds; `none` is 0.

    Raises:
        UsageProblem: the text is neither `none` nor a positive duration of at most `TTL_MS_MAX`.
    """
    if text.strip() == "none":
        return 0
    found = parse_duration_ms(text)
    if not 0 < found <= TTL_MS_MAX:
        raise UsageProblem(
            f"a TTL of {text} is out of range", next="write it like 30d; `none` retains rows indefinitely"
        )
    return found


def set_ttl_of(cluster: Cluster, schema: TableSchema, ttl_ms: int) -> TableSchema:
    """Set the table's TTL; 0 retains rows indefinitely. Returns the schema in force."""
    return cluster.put_schema(schema, ttl_ms)


def expiring(cluster: Cluster, schema: TableSchema, ttl_ms: int, now_ms: int) -> tuple[int, int]:
    """(number, ms): how many rows a new TTL would delete immediately, and the time before which it deletes.

    Nodes use their own clocks: the latest clock counts.
    """
    if not ttl_ms or 0 < schema.ttl_ms <= ttl_ms:
        return 0, 0
    answers = cluster.statuses().values()
    latest = max([now_ms, *(a.now_ms for a in answers if isinstance(a, NodeStatus))])
    return count_rows(cluster, schema, Selection(time_to=latest - ttl_ms - 1)), latest - ttl_ms


def drop_table(cluster: Cluster, schema: TableSchema) -> int:
    """Delete the table's rows, drop the table, then delete the rows written in between.

    Returns: the number of partitions concerned.

    Raises:
        NodeAgentError: some rows may already have been deleted. If the failure came before the drop, the
            table still exists and the call can be repeated. If it came after the drop, rows written in
            between may be left.
    """
    partitions = delete_rows(cluster, schema, Selection())
    cluster.call_meta(DropTable(schema.storage_group, schema.table, schema.version))
    return max(partitions, delete_rows(cluster, schema, Selection()))


def tables_to_drop(
    cluster: Cluster, storage_group: str, table: str | None, *, all_tables: bool
) -> list[TableSchema]:
    """The table, or all tables of the storage group, by name.

    Raises:
        UsageProblem: neither or both are requested.
        InputProblem: there is no such table, or the storage group has none.
    """
    if all_tables == (table is not None):
        raise UsageProblem("name a table to drop, or all of them", next="--table NAME or --all-tables")
    if table is not None:
        return [table_of(cluster, storage_group, table)]
    group = storage_group.lower()
    found = [s for s in cluster.schemas() if s.storage_group == group]
    if not found:
        raise InputProblem(f"storage group {group} has no tables", next="iotctl data schema")
    return sorted(found, key=lambda s: s.table)


def drop_tables(cluster: Cluster, schemas: Sequence[TableSchema], on_dropped: Callable[[int], None]) -> int:
    """Drop the tables one after the other. `on_dropped` gets the number of tables that are dropped.

    Returns: the number of partitions concerned.

    Raises:
        Partly: a table could not be dropped, but others were.
        NodeAgentError: the first table could not be dropped, for the reasons of `drop_table`.
    """
    partitions = 0
    for done, schema in enumerate(schemas):
        on_dropped(done)
        try:
            partitions += drop_table(cluster, schema)
        except NodeAgentError as error:
            if not done:
                raise
            raise Partly(
                f"{done} of {len(schemas)} tables of {schema.storage_group} are dropped, "
                f"{schema.table} perhaps only in part",
                why=f"{schema.table}: {error.what}",
                next="repeat the command; it drops the tables that still exist",
            ) from error
    on_dropped(len(schemas))
    return partitions


def write_one(
    cluster: Cluster,
    storage_group: str,
    table: str,
    time_ms: int,
    tags: Mapping[str, str],
    values: Sequence[str],
    *,
    create: bool = False,
) -> int:
    """Write one row given as `field=value` words. Values have the table's types; in new columns whole numbers
    are INT64, other numbers (also `nan`, `inf`) DOUBLE, true and false BOOLEAN, the rest (also `007`) STRING.

    Raises:
        UsageProblem: a word is not FIELD=VALUE, or a field is repeated.
        InputProblem: the table or a column is missing, unless `create`, or a value does not fit its type.
        InvalidName: a name is not allowed.
    """
    fields = {}
    for word in values:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise UsageProblem(f"{word!r} is not FIELD=VALUE", next="for example temperature=21.5")
        if name.lower() in fields:
            raise UsageProblem(f"{name} is given twice", next="a row has one value per field")
        fields[name.lower()] = text
    wanted = storage_group.lower(), table.lower()
    known = _schema_of(cluster, wanted)
    if not create:
        _check_known(known, ".".join(wanted), [*tags, *fields])
    types = {c.name: c.type for c in known.columns} if known else {}
    columns = {"time": pa.array([time_ms], pa.int64())}
    columns |= {tag: pa.array([value or None], pa.string()) for tag, value in tags.items()}
    columns |= {name: _value(name, text, types.get(name)) for name, text in fields.items()}
    rows = pa.table(columns)
    infer_schema(rows.schema, storage_group=wanted[0], table=wanted[1], tags=list(tags), known=known)
    return cluster.write(*wanted, rows, tags=list(tags) if create else None).rows


def _schema_of(cluster: Cluster, wanted: tuple[str, str]) -> TableSchema | None:
    """The table's schema from the state of one node; if it is not there, from a strong read."""
    for schemas in (lambda: cluster.meta().schemas, cluster.schemas):
        for schema in schemas():
            if (schema.storage_group, schema.table) == wanted:
                return schema
    return None


def _check_known(known: TableSchema | None, name: str, columns: Sequence[str]) -> None:
    """Raises `InputProblem` for unknown names, so that a typing error creates no table or column."""
    if known is None:
        raise InputProblem(
            f"there is no table {name}",
            next="correct the name (iotctl data schema), or create the table: --create",
        )
    there = [c.name for c in known.columns]
    unknown = [c for c in columns if c not in there]
    if unknown:
        raise InputProblem(
            f"table {name} has no column {unknown[0]!r}",
            why=f"its columns are: {', '.join(there)}",
            next="correct the name, or create the column: --create",
        )


def _value(name: str, text: str, kind: str | None) -> pa.Array:
    if kind is None:
        kind = _looks_like(text)
    is_signed = kind in NUMBERS and re.match(r"\+[\d.]", text)  # Arrow accepts no plus sign
    given = pa.array([text[1:] if is_signed else text])
    try:
        value = given.cast(ARROW_TYPES[kind])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise InputProblem(
            f"{name}: {text!r} is not of type {kind}; nothing was written", next="iotctl data schema"
        ) from None
    if kind in exact.WHOLE and (
        exact.overflowed(given, value).any() or exact.changed(given, value, kind).any()
    ):
        raise InputProblem(
            f"{name}: a {kind} cannot hold {text}; nothing was written", next="give another value"
        )
    return value


def _looks_like(text: str) -> str:
    if text.lower() in ("true", "false"):
        return "BOOLEAN"
    if re.fullmatch(r"[+-]?(0|[1-9]\d*)", text):
        return "INT64"
    try:
        float(text)
    except ValueError:
        return "STRING"
    return "STRING" if re.fullmatch(r"[+-]?0\d+", text) else "DOUBLE"

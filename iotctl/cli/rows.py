"""Rows, counts and schemas as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iotctl.cli.session import Session
from iotctl.humanize import count_text, row_time_text, span_text, time_text
from iotctl.output.document import document, to_json, to_json_line, to_yaml
from iotctl.output.table import Table
from nodeagent.model.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from iotctl.rows.import_report import ImportReport
    from nodeagent.model.schema import TableSchema


def print_rows(session: Session, rows: pa.Table, read: str, age_ms: int | None) -> None:
    """Print rows in the requested format; `-o csv` and `-o jsonl` print one plain row per line."""
    kind = session.options.format
    if kind == "csv":
        import pyarrow as pa
        import pyarrow.csv as pacsv

        sink = pa.BufferOutputStream()
        pacsv.write_csv(_with_hex(rows), sink)
        text = sink.getvalue().to_pybytes().decode()
        # A file or a program gets every value unchanged; a terminal would interpret control characters.
        session.out.write(printable(text, keep="\n") if session.out.isatty() else text)
    elif kind == "jsonl":
        for batch in rows.to_batches():
            session.out.write("".join(to_json_line(r) for r in _plain(batch)))
    elif kind in ("json", "yaml"):
        found = {"columns": rows.column_names, "rows": _plain(rows)}
        body = document("data-query", {"read": read, "age_ms": age_ms, **found})
        session.out.write(to_json(body) if kind == "json" else to_yaml(body))
    else:
        cells = [
            [row_time_text(v) if name == "time" else "" if v is None else v for name, v in row.items()]
            for row in _plain(rows)
        ]
        session.out.write(Table(rows.column_names, cells).render(wide=True))
    session.out.flush()


def _plain(rows: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """Rows with bytes as hex; msgspec itself encodes dates and timestamps as text."""
    return [{k: v.hex() if isinstance(v, bytes) else v for k, v in row.items()} for row in rows.to_pylist()]


def _with_hex(rows: pa.Table) -> pa.Table:
    """The rows with bytes as hex, as in the other formats: CSV has no bytes."""
    import pyarrow as pa

    for at, field in enumerate(rows.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            texts = [None if v is None else v.hex() for v in rows.column(at).to_pylist()]
            rows = rows.set_column(at, field.name, pa.array(texts, pa.string()))
    return rows


def import_tables(report: ImportReport) -> list[Table | str]:
    rows = [
        (
            f"{report.storage_group}.{report.table}",
            count_text(report.rows),
            count_text(report.skipped_rows),
            span_text(report.seconds),
        )
    ]
    return [Table(("table", "rows", "left out", "took"), rows)]


def count_tables(tables: Sequence[dict[str, object]]) -> list[Table | str]:
    rows = [
        (
            t["storage_group"],
            t["table"],
            count_text(_int(t["rows"])),
            time_text(_int(t["time_min_ms"])),
            time_text(_int(t["time_max_ms"])),
        )
        for t in tables
    ]
    return [Table(("storage group", "table", "rows", "first", "last"), rows)]


def schema_body(schemas: Sequence[TableSchema]) -> dict[str, object]:
    return {
        "tables": [
            {
                "storage_group": s.storage_group,
                "table": s.table,
                "version": s.version,
                "ttl_ms": s.ttl_ms,
                "columns": [{"name": c.name, "type": c.type, "tag": c.tag} for c in s.columns],
            }
            for s in schemas
        ]
    }


def schema_tables(schemas: Sequence[TableSchema]) -> list[Table | str]:
    rows = [
        (s.storage_group, s.table, c.name, c.type, "tag" if c.tag else "field")
        for s in schemas
        for c in s.columns
    ]
    kept = [
        f"{s.storage_group}.{s.table}: rows are retained for {span_text(s.ttl_ms / 1000)}"
        for s in schemas
        if s.ttl_ms
    ]
    return [Table(("storage group", "table", "column", "type", "role"), rows), *kept]


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None

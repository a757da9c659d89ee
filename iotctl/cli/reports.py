"""The reports of the Spark jobs as tables, and as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iotctl.cli.session import Session
from iotctl.humanize import bytes_text, count_text, span_text
from iotctl.output.document import document, to_json
from iotctl.output.table import Table

if TYPE_CHECKING:
    from iotctl.demo.run import DemoReport
    from iotctl.pipeline.report import MigrateReport, VerifyReport

MISMATCHES_SHOWN = 20


def migrate_tables(r: MigrateReport) -> list[Table | str]:
    speed = bytes_text(r.bytes / r.seconds) + "/s" if r.seconds else "-"
    rows = [
        ("units", f"{r.units_done}/{r.units_total}"),
        ("files", count_text(r.files)),
        ("copied", f"{bytes_text(r.bytes)} in {span_text(r.seconds)} ({speed})"),
        ("retries", r.retries),
        ("released slots", count_text(r.released_slots)),
    ]
    v = r.verified
    if v is not None:
        verdict = "PASS" if not v.mismatches and not v.unread else "FAIL"
        rows.append(
            (
                "verified",
                f"{verdict} at depth {v.depth}: {v.files} files, {count_text(v.rows)} rows,"
                f" {v.series} series",
            )
        )
        rows.append(("mismatches", v.mismatches))
    return [Table(("operation", r.operation), rows)]


def verify_tables(r: VerifyReport) -> list[Table | str]:
    verdict = "PASS" if r.passed else "FAIL" if r.remaining else "NOT VERIFIED"
    rows = [
        ("replicas compared", r.replicas_compared),
        ("files", count_text(r.files)),
        ("bytes", bytes_text(r.bytes)),
        ("rows", count_text(r.rows)),
        ("series", count_text(r.series)),
        ("could not be read", len(r.unread)),
        ("mismatches", r.mismatches_total),
        ("repaired", r.mismatches_total - r.remaining),
    ]
    parts: list[Table | str] = [Table((f"depth {r.depth}", verdict), rows)]
    if r.mismatches:
        found = [
            (
                m.node,
                m.slot,
                m.file,
                m.series,
                m.time_ms if m.time_ms is not None else "-",
                m.expected,
                m.found,
                "yes" if m.repaired else m.reason or "no",
            )
            for m in r.mismatches[:MISMATCHES_SHOWN]
        ]
        headers = ("node", "slot", "file", "series", "time_ms", "expected", "found", "repaired")
        parts.append(Table(headers, found, title=f"mismatches (first {len(found)} of {r.mismatches_total})"))
    if r.repairs:
        kept = [(p.node, p.slot, p.file, ", ".join(p.sources), p.quarantined or "-") for p in r.repairs]
        heads = ("node", "slot", "file", "from", "damaged copy archived at")
        parts.append(Table(heads, kept[:MISMATCHES_SHOWN], title=f"replaced ({len(kept)})"))
    if r.unread:
        unread = [(u.node, u.group, "-" if u.slot is None else u.slot, u.reason) for u in r.unread]
        parts.append(Table(("node", "group", "slot", "reason"), unread[:MISMATCHES_SHOWN], title="not read"))
    return parts


def save(session: Session, kind: str, body: object, directory: str | None) -> None:
    """Write `DIR/<kind>.json` if a directory is given."""
    if directory is None:
        return
    path = session.cwd / directory
    path.mkdir(parents=True, exist_ok=True)
    file = path / f"{kind}.json"
    file.write_text(to_json(document(kind, body)))
    session.output.note(f"report: {file}")


def demo_tables(r: DemoReport) -> list[Table | str]:
    """The one-screen summary."""
    nodes = sorted({n for c in r.changes for n, got in c.received_bytes.items() if got})
    moved = [
        (
            c.what,
            c.slots,
            c.lower_bound,
            c.nonempty,
            bytes_text(c.planned_bytes),
            bytes_text(sum(c.received_bytes.values())),
            span_text(c.seconds),
            *(bytes_text(c.received_bytes.get(n, 0)) for n in nodes),
        )
        for c in r.changes
    ]
    heads = ("change", "slots", "bound", "with data", "planned", "received", "took", *nodes)
    equal = "equal" if not r.failures else "see below"
    checks = [
        ("rows", f"{count_text(r.rows_before)} before, {count_text(r.rows_after)} after"),
        ("series", f"{count_text(r.series)} checksums before and after: {equal}"),
        ("writer", f"{r.acknowledged} acknowledged rows, read back: {equal}"),
        ("reader", f"{count_text(r.strong_reads)} strong reads during the changes"),
        ("longest write", ", ".join(f"{h} {ms} ms" for h, ms in r.write_pause_ms.items())),
        ("verified", f"{r.verified}, at depth content"),
        ("took", span_text(r.seconds)),
    ]
    parts: list[Table | str] = [
        Table(heads, moved, title="what moved"),
        Table(("demo", "PASS" if r.passed else "FAIL"), checks),
    ]
    if r.failures:
        parts.append(Table(("failed",), [(f,) for f in r.failures]))
    return parts

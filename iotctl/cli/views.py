"""Results as tables for the operator; JSON does not use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iotctl.humanize import bytes_text, count_text, or_dash, row_time_text, span_text, time_text
from iotctl.output.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iotctl.change.draining import Drained
    from iotctl.change.levels import FeatureLevel
    from iotctl.change.recover import Recovery
    from iotctl.change.zones import Zones
    from iotctl.observe.audit import AuditLog
    from iotctl.observe.bundle import Bundle
    from iotctl.observe.events import Events
    from iotctl.observe.layout import RingView, SlotsView
    from iotctl.observe.model import ClusterStatus
    from iotctl.observe.operations import OperationRow
    from iotctl.observe.route import RouteView
    from iotctl.observe.stopping import OkToStop
    from iotctl.plan.model import Plan


def status_tables(s: ClusterStatus) -> list[Table | str]:
    from iotctl.observe.problems import FINALIZE

    leader = s.meta.leader or "none"
    head = (
        f"cluster {s.name}  id {s.cluster_id or '-'}  table version {s.table_version}\n"
        f"{'healthy' if s.healthy else 'NOT healthy'}, {'quorum' if s.quorum else 'QUORUM LOST'}, "
        f"meta leader {leader} (term {s.meta.term}), "
        f"as reported by {s.source or 'no node'} at {time_text(s.as_of_ms)}"
    )
    if s.feature_level_possible > s.feature_level:
        known = f"feature level {s.feature_level}, all nodes support {s.feature_level_possible}"
        head += f"\n{known}: {FINALIZE}"
    parts: list[Table | str] = [head, node_table(s)]
    if s.lost_groups:
        start = f"\nstart: {', '.join(s.start_nodes)}" if s.start_nodes else ""
        parts.append(f"lost groups: {', '.join(s.lost_groups)}{start}")
    if s.operations:
        parts += operation_tables(s.operations)
    if s.problems:
        rows = [(p.severity, p.message, p.next) for p in s.problems]
        parts.append(Table(("severity", "problem", "next"), rows, title="problems"))
    return parts


def node_table(s: ClusterStatus) -> Table:
    rows = [
        (
            n.id,
            f"{n.host}:{n.port}",
            n.state if n.reachable else f"unreachable ({n.state})",
            n.role,
            or_dash(n.slots),
            or_dash(n.groups_led),
            bytes_text(n.bytes),
            count_text(n.rows),
            span_text(None if n.lag_ms is None else n.lag_ms / 1000),
            bytes_text(n.disk_free_bytes),
            time_text(n.cert_expires_ms),
            n.version or "-",
            n.error,
        )
        for n in s.nodes
    ]
    headers = (
        *("node", "address", "state", "meta", "slots", "leads", "bytes", "rows", "last heard", "disk free"),
        *("certificate until", "version", "error"),
    )
    return Table(headers, rows, title="nodes", wide=3)


def audit_table(log: AuditLog) -> Table:
    rows = [(r.number, time_text(r.time_ms), r.by or "-", r.what, r.digest) for r in log.lines]
    return Table(("line", "time", "by", "what", "digest"), rows, wide=1)


def group_table(s: ClusterStatus) -> Table:
    rows = [
        (
            g.group,
            " ".join(m if m in g.live else f"{m}!" for m in g.members),
            g.leader or "-",
            "yes" if g.quorum else "LOST",
            g.slots,
            g.files,
            bytes_text(g.bytes),
            count_text(g.rows),
            g.lag,
            g.state if not g.dissolving else f"{g.state}, dissolving",
            g.term,
            g.commit,
            g.error,
        )
        for g in s.groups
    ]
    headers = (
        *("group", "members", "leader", "quorum", "slots", "files", "bytes", "rows", "lag", "state"),
        *("term", "commit", "error"),
    )
    return Table(headers, rows, title="groups (! is down)", wide=3)


def ring_tables(r: RingView) -> list[Table | str]:
    zoned = any(n.zone for n in r.nodes)
    rows = [
        (
            *(n.node, *((n.zone,) if zoned else ()), " ".join(n.members), n.slots),
            *(f"{100 * n.share:.2f} %", n.weight, n.group, n.position),
        )
        for n in r.nodes
    ]
    headers = (
        *("node", *(("zone",) if zoned else ()), "group", "slots", "share", "weight"),
        *("group id", "position"),
    )
    warned = [
        f"group {c.owner} loses its quorum if zone {c.zone} fails ({', '.join(c.nodes)})" for c in r.crowded
    ]
    return [
        Table(headers, rows, title=f"ring, table version {r.table_version}", wide=2),
        *(["\n".join(warned)] if warned else []),
    ]


def slot_tables(s: SlotsView) -> list[Table | str]:
    rows = [
        (f"{r.start}-{r.end - 1}", r.end - r.start, r.owner, " ".join(r.members), r.moving_from or "-")
        for r in s.ranges
    ]
    by_group: dict[str, list[float]] = {}
    for load in s.loads:
        total = by_group.setdefault(load.group, [0, 0, 0, 0])
        total[0] += 1
        total[1] += load.rows
        total[2] += load.bytes
        total[3] += load.write_bytes_per_s
    loads = [
        (g, int(n), count_text(int(rows_)), bytes_text(size), bytes_text(rate))
        for g, (n, rows_, size, rate) in by_group.items()
    ]
    parts: list[Table | str] = [
        Table(("slots", "count", "owner", "members", "moving from"), rows, title="owners"),
        Table(
            ("group", "non-empty slots", "rows", "bytes", "written per s"),
            loads,
            title=f"{s.nonempty} slots hold rows",
        ),
    ]
    if s.unread:
        parts.append(f"did not respond: {', '.join(s.unread)}")
    return parts


def route_tables(r: RouteView) -> list[Table | str]:
    span = f"{row_time_text(r.time_from_ms)} to {row_time_text(r.time_to_ms)}"
    title = f"{r.storage_group}, time partition {r.time_partition}: {span}"
    places = [
        (p.slot, p.shard, p.owner, " ".join(p.members), p.moving_from or "-", len(p.files)) for p in r.routes
    ]
    files = [
        (p.slot, f.name, f.table, count_text(f.rows), bytes_text(f.bytes)) for p in r.routes for f in p.files
    ]
    parts: list[Table | str] = [
        Table(("slot", "shard", "owner", "members", "moving from", "files"), places, title=title)
    ]
    if files:
        parts.append(Table(("slot", "file", "table", "rows", "bytes"), files))
    silent = sorted({p.group for p in r.routes if not p.read_from})
    parts += [f"no member of {group} answered: its files are not listed" for group in silent]
    parts += [
        f"slot {p.slot} migrates: files that are still with {p.moving_from} are not listed"
        for p in r.routes
        if p.moving_from
    ]
    return parts


def operation_tables(operations: Sequence[OperationRow], *, stages: bool = False) -> list[Table | str]:
    rows = [
        (
            o.id,
            o.title,
            o.stage,
            o.state,
            f"{o.slots_done}/{o.slots_total}",
            bytes_text(o.bytes_done),
            span_text(o.eta_s),
            o.blocked_on or "-",
            o.next or "-",
            o.by,
            time_text(o.started_ms),
            o.last_error,
        )
        for o in operations
    ]
    headers = (
        *("operation", "change", "stage", "state", "slots", "copied", "eta", "blocked on", "next"),
        *("by", "started", "last error"),
    )
    parts: list[Table | str] = [Table(headers, rows, title="operations", wide=3)]
    for o in operations if stages else ():
        steps = [
            (
                s.name,
                time_text(s.entered_ms),
                span_text((s.left_ms - s.entered_ms) / 1000) if s.left_ms else "now",
                "; ".join(s.reports),
            )
            for s in o.stages
        ]
        parts.append(Table(("stage", "entered", "took", "progress reports"), steps, title=o.id))
    return parts


def event_table(e: Events) -> Table:
    rows = [
        (
            time_text(r.time_ms),
            r.node or "-",
            r.group or "-",
            r.event,
            f"{r.message} by {r.by}" if r.by else r.message,
        )
        for r in e.events
    ]
    return Table(("time", "node", "group", "event", "what"), rows)


def bundle_tables(b: Bundle) -> list[Table | str]:
    parts: list[Table | str] = [Table(("file", "bytes"), [(f.name, bytes_text(f.bytes)) for f in b.files])]
    if b.unreachable:
        parts.append(f"did not answer: {', '.join(s.node for s in b.unreachable)}")
    if b.missing:
        parts.append("\n".join(f"without {m.what}: {m.why}" for m in b.missing))
    parts.append(f"{b.path}  {bytes_text(b.bytes)}")
    return parts


def level_tables(found: FeatureLevel) -> list[Table | str]:
    rows = [(node, or_dash(level)) for node, level in found.nodes.items()]
    return [f"feature level {found.level}", Table(("node", "supports up to"), rows)]


def zone_tables(found: Zones) -> list[Table | str]:
    rows = [(n, zone or "-", "yes" if n in found.changed else "-") for n, zone in found.zones.items()]
    return [Table(("node", "zone", "changed"), rows)]


def drain_tables(d: Drained) -> list[Table | str]:
    if d.leads is None:
        return [f"{d.node} is {'draining' if d.draining else 'no longer draining'}; it does not answer"]
    if d.draining:
        return [f"{d.node} is draining and leads no group"]
    return [f"{d.node} may lead again"]


def stop_tables(s: OkToStop) -> list[Table | str]:
    if s.ok:
        return [f"{', '.join(s.nodes)} may stop: every group keeps a live, caught-up quorum"]
    rows = [
        (g.group, " ".join(g.voters), " ".join(g.stopping) or "-", f"{len(g.left)}/{g.needed}", g.why or "-")
        for g in s.lost
    ]
    subset = ", ".join(s.may_stop) or "no node"
    return [
        Table(
            ("group", "voters", "stopping", "left/needed", "reason"), rows, title="would lose their quorum"
        ),
        f"may stop at the same time: {subset}",
    ]


def recover_tables(r: Recovery) -> list[Table | str]:
    parts: list[Table | str] = []
    if r.groups:
        rows = [
            (
                g.group,
                " ".join(g.lost),
                g.head,
                max(s.last for s in g.survivors if s.node == g.head),
                " ".join(f"{s.node} -{s.behind}" for s in g.survivors if s.node != g.head) or "-",
                sum(b - a for a, b in g.slots),
            )
            for g in r.groups
        ]
        title = "recovered" if r.done else "lost their majority"
        parts.append(
            Table(
                ("group", "lost", "recovery leader", "last entry", "others behind", "slots"),
                rows,
                title=title,
            )
        )
        parts.append(
            "lost: writes after the last entry shown that only the lost nodes held; the amount is unknown"
        )
    if r.gone:
        ranges = [(g.group, " ".join(g.lost), " ".join(f"{a}-{b - 1}" for a, b in g.slots)) for g in r.gone]
        parts.append(
            Table(("group", "members, all lost", "slots"), ranges, title="no member is left: rows are lost")
        )
    return parts


def plan_tables(plan: Plan) -> list[Table]:
    """The rows of `iotctl.plan.render`, with units for bytes and seconds."""
    from iotctl.plan.render import render

    units = {"bytes": bytes_text, "seconds": span_text}

    tables = []
    for part in render(plan):
        of_column = [next((t for u, t in units.items() if u in c), None) for c in part.columns]
        rows = [
            [
                text(cell) if text and isinstance(cell, int | float) else _plan_cell(row, i, cell)
                for i, (text, cell) in enumerate(zip(of_column, row, strict=True))
            ]
            for row in part.rows
        ]
        headers = [
            c.replace("_bytes", "").replace("bytes_", "bytes ").replace("_", " ") for c in part.columns
        ]
        tables.append(Table(headers, rows, title=part.title))
    return tables


def _plan_cell(row: Sequence[object], at: int, cell: object) -> object:
    """A cell of the summary, whose rows name their unit in the first column."""
    if cell is None:
        return "-"
    if at > 0 and isinstance(row[0], str) and isinstance(cell, int | float):
        if row[0].startswith("bytes"):
            return bytes_text(cell)
        if row[0] == "seconds":
            return span_text(cell)
    return cell

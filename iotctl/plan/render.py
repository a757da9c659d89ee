"""A plan as tables of plain values; `iotctl.output` formats them."""

from dataclasses import dataclass

from iotctl.plan.model import Plan, SlotMove

Cell = str | int | float | None
HOT_ROWS = 5


@dataclass(frozen=True, slots=True)
class Rows:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def render(plan: Plan) -> tuple[Rows, ...]:
    """The non-empty tables of a plan. A refused plan shows only its refusals; a rebalance that moves nothing
    shows the present groups and hot slots."""
    if plan.refusals:
        return (refusals(plan),)
    if plan.kind == "rebalance" and not plan.has_changes:
        return tuple(t for t in (group_loads(plan), hot_slots(plan)) if t.rows)
    if plan.kind == "none":
        return tuple(t for t in (differences(plan),) if t.rows)
    tables = (
        *(steps(plan), summary(plan), nodes(plan), groups(plan), group_loads(plan)),
        *(flows(plan), hot_slots(plan), differences(plan)),
    )
    return tuple(t for t in tables if t.rows)


def summary(plan: Plan) -> Rows:
    """`bytes, any placement`: the least for the same shares if groups did not have to follow the ring."""
    s = plan.summary

    def beside(what: str, planned: int, least: int) -> tuple[Cell, ...]:
        return (what, planned, least, f"{planned / least:.2f} x" if least else None)

    def alone(what: str, planned: Cell) -> tuple[Cell, ...]:
        return (what, planned, None, None)

    rows = [
        beside("slots moved", s.slots_moved, s.lower_bound_slots),
        alone("non-empty slots moved", s.nonempty_slots_moved),
        beside("bytes copied", s.bytes_copied, s.lower_bound_bytes),
        beside("bytes, any placement", s.bytes_copied, s.free_placement_bytes),
        alone("max - min before", s.max_minus_min_before),
        alone("max - min after", s.max_minus_min_after),
    ]
    if s.max_over_mean_after is not None:
        rows.append(alone("max / mean before", s.max_over_mean_before))
        rows.append(alone("max / mean after", s.max_over_mean_after))
    rows.append(alone("nodes that copy simultaneously", s.copying_at_once_max))
    rows.append(alone("seconds", s.eta_s))
    return Rows("summary", ("what", "planned", "least possible", "ratio"), tuple(rows))


def steps(plan: Plan) -> Rows:
    rows = tuple(
        (
            *(i + 1, s.kind, s.node or None, s.replaces or None, s.after or None, s.slots, s.bytes_copied),
            *(" ".join(s.copies) or None, s.eta_s),
        )
        for i, s in enumerate(plan.steps)
    )
    columns = ("step", "kind", "node", "for", "after", "slots", "bytes_copied", "copied by", "seconds")
    return Rows("steps", columns, rows)


def nodes(plan: Plan) -> Rows:
    """One row per node: slots and bytes before and after, bytes copied, peak and free disk."""
    s = plan.summary
    before = {n.node: n for n in s.before}
    after = {n.node: n for n in s.after}
    rows: list[tuple[Cell, ...]] = []
    for p in s.peak_disk:
        b, a = before.get(p.node), after.get(p.node)
        rows.append(
            (
                p.node,
                b.slots if b else None,
                a.slots if a else None,
                b.bytes if b else None,
                a.bytes if a else None,
                p.copied_bytes,
                p.bytes,
                p.free_bytes,
            )
        )
    columns = (
        "node",
        "slots_before",
        "slots_after",
        "bytes_before",
        "bytes_after",
        "bytes_copied",
        "peak_bytes",
        "free_bytes",
    )
    return Rows("nodes", columns, tuple(rows))


def groups(plan: Plan) -> Rows:
    rows = tuple((g.group, " ".join(g.joins), " ".join(g.leaves), g.bytes) for g in plan.group_changes)
    return Rows("group changes", ("group", "joins", "leaves", "catch_up_bytes"), rows)


def flows(plan: Plan) -> Rows:
    """Moves summed per (from, to)."""
    total: dict[tuple[str, str], list[SlotMove]] = {}
    for move in plan.moves:
        total.setdefault((move.source, move.target), []).append(move)
    rows = tuple((a, b, len(m), sum(x.bytes for x in m)) for (a, b), m in sorted(total.items()))
    return Rows("moves", ("from", "to", "slots", "bytes"), rows)


def group_loads(plan: Plan) -> Rows:
    """The load of each group before and after a rebalance."""
    columns = ("group", "weight", "slots_before", "slots_after", "bytes_before", "bytes_after")
    written = plan.strategy == "write-rate"
    rows = tuple(
        (
            *(g.group, g.weight, g.slots_before, g.slots_after, g.bytes_before, g.bytes_after),
            *((g.write_bytes_per_s_before, g.write_bytes_per_s_after) if written else ()),
        )
        for g in plan.group_loads
    )
    return Rows(
        f"groups by {plan.strategy}",
        (*columns, *(("bytes_per_s_before", "bytes_per_s_after") if written else ())),
        rows,
    )


def hot_slots(plan: Plan) -> Rows:
    """The hottest `HOT_ROWS` slots; the document lists up to `HOT_SLOTS_MAX` (`cost`)."""
    rows = tuple(
        (h.slot, h.owner or h.header, h.bytes, h.bytes_share, h.write_bytes_per_s, h.write_share)
        for h in plan.hot_slots[:HOT_ROWS]
    )
    columns = ("slot", "group", "bytes", "of_group", "bytes_per_s", "of_group_written")
    advice = f": {plan.hot_slots[0].advice}" if rows else ""
    return Rows(f"hot slots{advice}", columns, rows)


def differences(plan: Plan) -> Rows:
    rows = tuple((d.node or None, d.what, d.present, d.wanted, d.next) for d in plan.differences)
    return Rows(
        "cannot be changed by a plan", ("node", "what", "in the cluster", "cluster.yaml", "next"), rows
    )


def refusals(plan: Plan) -> Rows:
    rows = tuple((r.code, r.subject, r.reason, r.next) for r in plan.refusals)
    return Rows("refused", ("code", "subject", "reason", "next"), rows)

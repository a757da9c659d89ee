"""How an operation proceeds from stage to stage; docs/internals/scaling.md describes the stages.

Progress reports are recorded as sets: a report that arrives twice, late or from an old leader changes
nothing. The entry with the last report that a stage needs also ends the stage.
"""

from collections.abc import Collection

import msgspec

from nodeagent.meta import commands as c
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.operation import (
    ENDED,
    NEXT,
    PAUSABLE,
    CopyRecord,
    Lease,
    Operation,
    Options,
    SealResult,
    Stage,
    StageSpan,
)
from nodeagent.model.requests import ErrorReply
from nodeagent.partition.ranges import SlotRanges, subtract, to_slots, union

CANCELLABLE = (Stage.PLANNED, Stage.SEALED)
"""Before OPEN, no slot can have accepted a write in its new group."""


def record(op: Operation, report: c.ProgressReport, level: int = FIRST) -> ErrorReply | None:
    """Record a progress report at the cluster's feature `level`; return a refusal only for a
    `ControlOperation` that is not allowed now."""
    match report:
        case c.MetaReady():
            op.meta_ready = True
        case c.GroupReady():
            op.group_ready |= report.group == op.created_group
        case c.SealedBy():
            if op.stage in (Stage.SEALED, Stage.OPEN) and report.result.group in op.losing:
                op.sealed.setdefault(report.result.group, report.result)
        case c.UnsealedBy():
            _add(op.unsealed, report.group, op.stage is Stage.CANCELLING)
        case c.SourceReady():
            if (report.group, report.node) not in op.sources_ready:
                op.sources_ready.append((report.group, report.node))
        case c.JoinReady():
            is_current = report.recovery == op.recovered.get(report.group, "")
            if is_current and (report.group, report.node) not in op.joined:
                op.joined.append((report.group, report.node))
        case c.OpenedBy():
            _add(op.opened, report.group, op.stage is Stage.OPEN)
        case c.FormedBy():
            _add(op.formed, report.group, op.stage is Stage.RECONFIGURING)
        case c.Copied():
            if op.stage is Stage.COPYING:
                _copied(op, report.record, may_replace=level >= Feature.RECOVERY_IN_CHANGE)
        case c.AdoptedBy():
            _add(op.adopted, report.group, op.stage in (Stage.COPYING, Stage.CLEANUP))
        case c.ReleasedBy():
            _add(op.released, report.group, op.stage is Stage.CLEANUP)
        case c.ReportError():
            op.last_error, op.error_group = report.what, report.group
        case c.ControlOperation():
            return _control(op, report)
    return None


def _add(into: list[str], value: str, allowed: bool) -> None:
    if allowed and value not in into:
        into.append(value)


def _copied(op: Operation, copy: CopyRecord, *, may_replace: bool) -> None:
    """Record a copy, and drop the copies for its `target` that another incarnation of its node recorded. A
    copy that was made again from other files replaces the former one."""
    same = [r for r in op.copies if (r.target, r.node) == (copy.target, copy.node)]
    former = [r for r in same if r.incarnation == copy.incarnation and r.slots == copy.slots]
    if former and (not may_replace or former[0].digest == copy.digest):
        return
    if former:
        op.copies = [r for r in op.copies if r is not former[0]]
    if any(r.incarnation != copy.incarnation for r in same):
        op.copies = [r for r in op.copies if r not in same or r.incarnation == copy.incarnation]
    op.copies.append(copy)


def _control(op: Operation, s: c.ControlOperation) -> ErrorReply | None:
    match s.verb:
        case "go":
            op.migrate_go = True
        case "sign-off":
            if op.stage is not Stage.COPYING or not set(op.adopted) >= set(op.gaining):
                return ErrorReply(
                    "refused",
                    f"{op.id} cannot be signed off in stage {op.stage}: a sign-off is possible in COPYING, "
                    "once every gaining group has adopted its copies",
                    f"iotctl ops wait {op.id}",
                )
            op.signed_off = True
        case "release":
            op.release_go = True
        case "pause":
            if op.stage not in PAUSABLE:
                return ErrorReply(
                    "refused",
                    f"{op.id} cannot be paused in stage {op.stage}: nothing is left to pause",
                    f"iotctl ops wait {op.id}",
                )
            op.paused = True
        case "resume":
            op.paused = False
        case "cancel":
            if op.stage not in CANCELLABLE:
                return ErrorReply(
                    "refused",
                    f"{op.id} cannot be cancelled in stage {op.stage}: slots may be open in their new groups",
                    f"plan the reverse change once it is done: iotctl ops wait {op.id}",
                )
            cancel(op, s.now, f"cancelled by {s.by}")
        case "lease":
            if op.lease is not None and op.lease.owner != s.owner and op.lease.ttl_ms:
                return ErrorReply(
                    "busy", f"{s.owner} got no lease of {op.id}: {op.lease.owner} holds it", "retry in 30 s"
                )
            serial = op.lease.serial + 1 if op.lease else 1
            op.lease = Lease(s.owner, serial, s.ttl_ms)
        case "unlease":
            lapsed = op.lease is not None and s.by == "" and s.report == str(op.lease.serial)
            if op.lease is not None and (lapsed or op.lease.owner == s.owner):
                op.lease = None
        case "set":
            if s.rate_bytes_per_s >= 0:
                op.options = _with_rate(op, s.rate_bytes_per_s)
        case _:
            return ErrorReply(
                "invalid_input",
                f"{op.id} was not changed: this release does not know the verb {s.verb!r}",
                "upgrade the cluster (`iotctl cluster upgrade`), or use the release that it runs",
            )
    return None


def _with_rate(op: Operation, rate: int) -> Options:
    return msgspec.structs.replace(op.options, rate_bytes_per_s=rate)


def advance(op: Operation, now: int) -> list[Stage]:
    """End every stage whose progress reports are complete; return the stages entered, in order."""
    entered = []
    while (following := _following(op)) is not None:
        _enter(op, following[0], now, following[1])
        entered.append(following[0])
    if op.is_held and not op.held_since_ms:
        op.held_since_ms = now
    return entered


def _following(op: Operation) -> tuple[Stage, str] | None:
    match op.stage:
        case Stage.PLANNED if op.joining is None or (op.meta_ready and op.group_ready):
            return Stage.SEALED, "meta ready" if op.joining is None else f"meta ready, {op.created_group} led"
        case Stage.SEALED if set(op.sealed) >= set(op.losing):
            return Stage.OPEN, ", ".join(f"{g}@{op.sealed[g].index}" for g in op.losing)
        case Stage.OPEN if (
            set(op.opened) >= set(op.gaining)
            and set(op.sealed) >= set(op.losing)  # a source that was recovered seals again
            and (op.leaving is None or op.meta_ready)
        ):
            return Stage.RECONFIGURING, ", ".join(sorted(op.opened))
        case Stage.RECONFIGURING if set(op.formed) >= {g.group for g in op.changes}:
            return Stage.COPYING, ", ".join(sorted(op.formed))
        case Stage.COPYING if set(op.adopted) >= set(op.gaining) and op.state() == "running":
            return Stage.CLEANUP, f"{len(op.copies)} copy records"
        case Stage.CLEANUP if set(op.released) >= set(op.losing):
            return Stage.DONE, ", ".join(sorted(op.released))
        case Stage.CANCELLING if set(op.unsealed) >= affected(op):
            return Stage.CANCELLED, ", ".join(sorted(op.unsealed))
    return None


def _enter(op: Operation, stage: Stage, now: int, reason: str) -> None:
    assert stage in NEXT[op.stage], (op.id, op.stage, stage)
    if op.stages:
        op.stages[-1].left_ms = now
        op.stages[-1].reports.append(reason)
    op.stages.append(StageSpan(stage.value, now))
    op.stage = stage
    drop_reports(op)


def cancel(op: Operation, now: int, why: str) -> None:
    _enter(op, Stage.CANCELLING, now, why)


def forget_reports(op: Operation, groups: Collection[str]) -> None:
    """Forget what these groups reported in the stage of the operation: each of them continues with a log that
    may lack the entries. Their leaders log what is missing, and report it again."""
    due = {
        Stage.OPEN: [op.opened],
        Stage.RECONFIGURING: [op.formed],
        Stage.COPYING: [op.adopted],
        Stage.CLEANUP: [op.adopted, op.released],
        Stage.CANCELLING: [op.unsealed],
    }
    for reports in due.get(op.stage, []):
        reports[:] = [g for g in reports if g not in groups]
    if op.stage is Stage.OPEN:
        op.sealed = {g: result for g, result in op.sealed.items() if g not in groups}
    if op.stage in (Stage.OPEN, Stage.RECONFIGURING):
        op.joined = [(g, n) for g, n in op.joined if g not in groups]
    if op.stage is Stage.COPYING:
        op.copies = _copies_to_keep(op, groups)
        op.signed_off = op.release_go = False
        op.held_since_ms = 0


def _copies_to_keep(op: Operation, sources: Collection[str]) -> list[CopyRecord]:
    """The copies that count after a recovery of `sources`, which may have sealed again, with other files. A
    copy from them counts if every required member has an equal one, or if no previous holder is left."""
    again = {target: set[int]() for target in op.gaining}
    for move in op.moves:
        if move.source in sources and not set(move.source_members) <= set(op.dead):
            again[move.target].update(to_slots(move.slots))
    required = {target: op.required(target) for target in op.gaining}
    equal: dict[tuple[str, SlotRanges, str], set[str]] = {}
    for copy in op.copies:
        equal.setdefault(_content(copy), set()).add(copy.node)
    # The slots of a copy are of one move.
    return [
        c
        for c in op.copies
        if c.slots[0][0] not in again[c.target] or equal[_content(c)] >= required[c.target]
    ]


def _content(copy: CopyRecord) -> tuple[str, SlotRanges, str]:
    return copy.target, copy.slots, copy.digest


def drop_reports(op: Operation) -> None:
    """Drop progress reports of stages that have ended, except what later stages and operators need."""
    if op.stage not in (Stage.PLANNED, Stage.SEALED, Stage.OPEN):
        op.sealed = {group: SealResult(group, result.index) for group, result in op.sealed.items()}
    if op.stage in (Stage.CLEANUP, *ENDED):
        op.copies = _by_member(op.copies)
        op.sources_ready = []
    if op.ended:
        op.joined = []


def _by_member(copies: list[CopyRecord]) -> list[CopyRecord]:
    """One record per member for all of its copies, without digests, which were compared before."""
    parts: dict[tuple[str, str, str], list[CopyRecord]] = {}
    for copy in copies:
        parts.setdefault((copy.target, copy.node, copy.incarnation), []).append(copy)
    return [
        CopyRecord(
            *member,
            slots=union(*(c.slots for c in of_member)),
            digest="",
            files=sum(c.files for c in of_member),
            bytes_received=sum(c.bytes_received for c in of_member),
            refetched=sum(c.refetched for c in of_member),
        )
        for member, of_member in parts.items()
    ]


def affected(op: Operation) -> set[str]:
    """Groups that existed before the operation and have something to undo if it is cancelled."""
    return set(op.losing) | {g.group for g in op.changes}


def wanted(op: Operation, target: str, node: str) -> SlotRanges:
    """Slots `node` must hold a copy of for group `target`."""
    return union(*(m.slots for m in op.moves if m.target == target and node in m.target_members))


def missing(op: Operation, target: str, node: str, incarnation: str) -> SlotRanges:
    """Slots of `wanted` without a copy record of this incarnation."""
    have = union(
        *(r.slots for r in op.copies if (r.target, r.node, r.incarnation) == (target, node, incarnation))
    )
    return subtract(wanted(op, target, node), have)


def copies_disagree(op: Operation, target: str) -> str:
    """Why the release must wait: the members of `target` whose copies of the same slots differ; "" if none
    do.

    Nodes that were declared dead do not count: an operator continues by declaring dead the member that has
    the wrong copy. The copies do not show which member that is: a previous holder uses its own files and the
    newcomer copied from one of the holders, so two members that agree may share one source.
    """
    members = op.required(target)
    digests: dict[SlotRanges, dict[str, str]] = {}
    for r in op.copies:
        if r.target == target and r.node in members:
            digests.setdefault(r.slots, {})[r.node] = r.digest
    for slots, by_node in digests.items():
        alike: dict[str, list[str]] = {}
        for node in sorted(by_node):
            alike.setdefault(by_node[node], []).append(node)
        if len(alike) > 1:
            sides = " and ".join(", ".join(nodes) for nodes in alike.values())
            return f"{target}: copies of slots {slots[0]}… differ between {sides}"
    return ""

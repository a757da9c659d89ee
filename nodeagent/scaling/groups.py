"""What the leader of one data group must do now for the open operation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nodeagent.data import commands as data
from nodeagent.data.slot_migration import seal_result
from nodeagent.data.slots import Slots
from nodeagent.data.state import DataState
from nodeagent.meta import changes
from nodeagent.meta import commands as meta
from nodeagent.model.entries import Config
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import GroupChange, Operation, Ranges, SealResult, Stage, order_of
from nodeagent.partition.ranges import union
from nodeagent.scaling import membership

_AFTER_OPEN = (Stage.RECONFIGURING, Stage.COPYING, Stage.CLEANUP, Stage.DONE)
PARTS_AT_ONCE = 8
"""Parts of sessions that one step requests or logs."""


@dataclass(frozen=True, slots=True)
class Log:
    """Propose this command in the group."""

    command: data.Command


@dataclass(frozen=True, slots=True)
class Reconfigure:
    step: membership.Change | membership.Transfer


@dataclass(frozen=True, slots=True)
class Report:
    """Send this progress report to the meta leader; repeated until the operation's record shows it."""

    command: meta.Command


@dataclass(frozen=True, slots=True)
class AdoptNow:
    """Every required copy is recorded and equal: propose `Adopt` for the staged files."""

    operation: str


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number` of the session table of `source`; its `members` have it once they apply the seal."""

    source: GroupId
    number: int
    digest: str
    """"" while the seal is not known to be committed."""

    members: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class PrefetchParts:
    """Prefetch these parts, which are needed once all groups have sealed."""

    operation: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class TakeParts:
    """Log these parts, followed directly by `then`."""

    operation: str
    parts: tuple[Part, ...]
    then: data.Open | None
    """None if more parts are missing than one step takes."""


Action = Log | Reconfigure | Report | AdoptNow | PrefetchParts | TakeParts


@dataclass(frozen=True, slots=True)
class GroupView:
    """One data group as its leader sees it. `config` is committed, and no change of it is in progress."""

    group: GroupId
    me: NodeId
    state: DataState
    config: Config
    caught_up: Callable[[NodeId], bool]
    incarnations: dict[NodeId, str]
    has_left: Callable[[NodeId], bool]
    """Whether a node is dead or no longer in the cluster, so that the operation does not wait for it."""

    now: int
    """Wall clock, for records."""

    writer: str = ""
    """As in `Seal`."""

    level: int = FIRST
    """The cluster's feature level."""


def next_actions(op: Operation, view: GroupView) -> list[Action]:
    if order_of(view.config.operation)[:1] > order_of(op.id):
        return []  # the group is in a later operation: the meta state here is old
    match op.stage:
        case Stage.PLANNED if view.group == op.created_group and not op.group_ready:
            return [Report(meta.GroupReady(view.now, op.id, view.group))]
        case Stage.SEALED:
            return _prefetch_parts(op, view) + _seal(op, view) + _learners(op, view)
        case Stage.OPEN:
            return _seal(op, view) + _open(op, view) + _learners(op, view)
        case Stage.RECONFIGURING:
            return _reconfigure(op, view)
        case Stage.COPYING:
            return _adopt(op, view)
        case Stage.CLEANUP:
            return _adopt(op, view) + _release(op, view)
        case Stage.CANCELLING:
            return _cancel(op, view)
        case _:
            return []


def entries_before_recovery(
    operations: Iterable[Operation], group: GroupId, slots: Slots, writer: str
) -> list[data.Command]:
    """What the group must have in its log before it accepts writes again after a force recovery.

    Its log may lack the ends of changes that went on, or were done, without the survivors. Without its seal
    the group would accept writes for slots that are open in another group. Nobody else would unseal, open
    or release slots of a change that has ended. Sessions of slots that are opened here were lost with the
    majority. Each of these entries has no effect if the log has it already.
    """
    entries: list[data.Command] = []
    for op in operations:
        if op.stage is Stage.CANCELLED and group in changes.affected(op):
            entries.append(data.Unseal(op.id, op.table_version))
        if op.stage not in (Stage.OPEN, *_AFTER_OPEN):
            continue
        has_begun = op.id in slots.ended
        if group in op.losing and not has_begun and op.id not in slots.sealed:
            entries.append(data.Seal(op.id, op.table_version, slots_from(op, group), writer))
        if group in op.gaining and not has_begun and op.id not in slots.arriving and op.stage in _AFTER_OPEN:
            results = tuple(SealResult(source, 0) for source in _sources(op, group))
            entries.append(data.Open(op.id, op.table_version, slots_to(op, group), results))
        if group in op.losing and op.stage is Stage.DONE and slots.ended.get(op.id) != "released":
            entries.append(data.Release(op.id, op.table_version))
    return entries


def _sources(op: Operation, group: GroupId) -> list[GroupId]:
    return sorted({m.source for m in op.moves if m.target == group})


def _config_name(op: Operation, view: GroupView) -> str:
    """The operation of the group's next config: that of the last force recovery during this change, if there
    was one, so that the log never looks as if that recovery had yet to take place."""
    return max(op.id, view.config.operation, key=order_of)


def slots_from(op: Operation, group: GroupId) -> Ranges:
    return union(*(m.slots for m in op.moves if m.source == group))


def slots_to(op: Operation, group: GroupId) -> Ranges:
    return union(*(m.slots for m in op.moves if m.target == group))


def _seal(op: Operation, view: GroupView) -> list[Action]:
    if view.group not in op.losing or view.group in op.sealed:
        return []
    sealed = view.state.slots.sealed.get(op.id)
    if sealed is None:
        return [Log(data.Seal(op.id, op.table_version, slots_from(op, view.group), view.writer))]
    result = seal_result(view.group, sealed.index, sealed.sessions)
    return [Report(meta.SealedBy(view.now, op.id, result))]


def _learners(op: Operation, view: GroupView) -> list[Action]:
    """Add the joining node as a learner once it reported its replica, and the slots that leave this group are
    sealed here with all their files made."""
    change = next((g for g in op.changes if g.group == view.group), None)
    if change is None or change.joins is None or change.joins in view.config.members:
        return []
    if view.has_left(change.joins) or view.state.slots.ended.get(op.id) == "cancelled":
        return []  # cancelled: the meta state here is old
    if (view.group, change.joins) not in op.joined:
        return []
    if view.group in op.losing and not view.state.is_source_ready(op.id):
        return []  # the joining node must not receive files of slots that leave this group
    return [Reconfigure(membership.add_learner(view.config, change.joins, _config_name(op, view)))]


def _open(op: Operation, view: GroupView) -> list[Action]:
    if view.group not in op.gaining or view.group in op.opened:
        return []
    slots = view.state.slots
    if op.id in slots.arriving or op.id in slots.ended:
        return [Report(meta.OpenedBy(view.now, op.id, view.group, view.state.applied))]
    sources = _sources(op, view.group)
    if not set(sources) <= set(op.sealed):
        return []  # a source was recovered, and has to seal again
    results = tuple(op.sealed[s] for s in sources)
    opening = data.Open(op.id, op.table_version, slots_to(op, view.group), results)
    missing = view.state.slot_migration.staged.missing(op.id, results)
    if not missing:
        return [Log(opening)]
    holders = _holders(op)
    first = tuple(Part(source, number, wanted, holders[source]) for source, number, wanted in missing)
    return [TakeParts(op.id, first[:PARTS_AT_ONCE], opening if len(first) <= PARTS_AT_ONCE else None)]


def _prefetch_parts(op: Operation, view: GroupView) -> list[Action]:
    """Prefetch the first part of each session table while the seals are being committed: it is nearly always
    the only one, and until it arrives the slots accept no writes."""
    if view.group not in op.gaining:
        return []
    holders = _holders(op)
    sources = _sources(op, view.group)[:PARTS_AT_ONCE]
    return [PrefetchParts(op.id, tuple(Part(source, 0, "", holders[source]) for source in sources))]


def _holders(op: Operation) -> dict[GroupId, tuple[NodeId, ...]]:
    """The nodes that may have the sessions that a group seals, by group: its members, and a joining node."""
    return {
        m.source: tuple(
            n
            for n in (*m.source_members, *(node for group, node in op.joined if group == m.source))
            if n not in op.dead
        )
        for m in op.moves
    }


def _reconfigure(op: Operation, view: GroupView) -> list[Action]:
    """Change the group's members to those on the new ring, in single steps.

    Dead voters that are not among those are dropped first: while they count as voters, an added voter
    raises the majority too, so that no more live members may fail than before. A dead node never joins; in
    its place a member that would leave stays, so that the group has as many live members as possible.
    """
    change = next((g for g in op.changes if g.group == view.group), None)
    if change is None or view.group in op.formed:
        return []
    voters = view.config.voters
    strays = [n for n in view.config.learners if n != change.joins or view.has_left(n)]
    strays += [n for n in voters if n not in change.after and view.has_left(n)]
    stray = next(iter(strays), None)
    if stray is not None:
        return [Reconfigure(membership.drop(view.config, stray, _config_name(op, view)))]
    joins = change.joins if change.joins is not None and not view.has_left(change.joins) else None
    if joins is not None and joins not in view.config.members:
        return _learners(op, view)
    leaves = _leaver(op, change, view)
    if leaves is None and not view.config.learners:
        if set(voters) == {op.leaving}:
            return _report_error(op, view, f"{view.group}: {op.leaving} leaves, and no other member is left")
        members = tuple(sorted(voters, key=_ring_order(change)))
        return [Report(meta.FormedBy(view.now, op.id, view.group, view.state.applied, members))]
    is_source = view.group in op.losing and leaves is not None
    step = membership.group_step(
        view.config,
        joins,
        leaves,
        me=view.me,
        operation=_config_name(op, view),
        caught_up=view.caught_up,
        may_leave=not is_source or (view.group, leaves) in op.sources_ready,
    )
    return [Reconfigure(step)] if step else []


def _leaver(op: Operation, change: GroupChange, view: GroupView) -> NodeId | None:
    """The next live voter to be dropped. One that stays in place of a dead member does not if it leaves the
    cluster too, and the group would have no majority without it."""
    voters = view.config.voters
    lacking = sum(view.has_left(n) for n in change.after if n not in voters)
    extra = sorted((n for n in voters if n not in change.after), key=_ring_order(change))
    staying = [n for n in voters if n != op.leaving and not view.has_left(n)]
    if op.leaving in extra and staying and 2 * len(staying) <= len(voters):
        return op.leaving
    return next(iter(extra[lacking:]), None)


def _ring_order(change: GroupChange) -> Callable[[NodeId], int]:
    places = [*change.after, *(n for n in change.before if n not in change.after)]
    return lambda node: places.index(node) if node in places else len(places)


def _adopt(op: Operation, view: GroupView) -> list[Action]:
    if view.group not in op.gaining or view.group in op.adopted:
        return []
    slots = view.state.slots
    if op.id not in slots.arriving and op.id in slots.ended:
        return [Report(meta.AdoptedBy(view.now, op.id, view.group, view.state.applied))]
    members = op.required(view.group)
    if any(changes.missing(op, view.group, n, view.incarnations.get(n, "")) for n in members):
        return []
    trouble = changes.copies_disagree(op, view.group)
    if trouble:
        return _report_error(op, view, trouble)
    is_repaired = bool(op.last_error) and op.error_group == view.group
    said: list[Action] = [Report(meta.ReportError(view.now, op.id, ""))] if is_repaired else []
    return said if view.state.adoptions.waiting else [*said, AdoptNow(op.id)]


def _report_error(op: Operation, view: GroupView, what: str) -> list[Action]:
    about = view.group if view.level >= Feature.REASONS else ""
    return [] if op.last_error == what else [Report(meta.ReportError(view.now, op.id, what, about))]


def _release(op: Operation, view: GroupView) -> list[Action]:
    if view.group not in op.losing or view.group in op.released:
        return []
    if not set(op.adopted) >= set(op.gaining):
        return []  # a gaining group was recovered, and has to adopt again
    if view.state.slots.ended.get(op.id) == "released":
        return [Report(meta.ReleasedBy(view.now, op.id, view.group, view.state.applied))]
    return [Log(data.Release(op.id, op.table_version))]


def _cancel(op: Operation, view: GroupView) -> list[Action]:
    if view.group not in changes.affected(op) or view.group in op.unsealed:
        return []
    change = next((g for g in op.changes if g.group == view.group), None)
    if change is not None and change.joins in view.config.learners:
        return [Reconfigure(membership.drop(view.config, change.joins, _config_name(op, view)))]
    if view.state.slots.ended.get(op.id) == "cancelled":
        return [Report(meta.UnsealedBy(view.now, op.id, view.group))]
    return [Log(data.Unseal(op.id, op.table_version))]


def joins_to_report(op: Operation, node: NodeId, made: set[GroupId], now: int) -> list[Report]:
    """Reports for the groups in `made` (replicas created here for this operation) that this node can join and
    has not reported yet."""
    return [
        Report(meta.JoinReady(now, op.id, change.group, node, op.recovered.get(change.group, "")))
        for change in op.changes
        if change.joins == node and change.group in made and (change.group, node) not in op.joined
    ]


def sources_to_report(
    op: Operation, node: NodeId, states: dict[GroupId, DataState], now: int
) -> list[Report]:
    """Reports for the groups in which this node can serve as a source and has not reported that yet."""
    if op.stage not in (Stage.SEALED, Stage.OPEN, Stage.RECONFIGURING, Stage.COPYING):
        return []
    return [
        Report(meta.SourceReady(now, op.id, group, node))
        for group in op.losing
        if (group, node) not in op.sources_ready
        and group in states
        and any(m.source == group and node in m.source_members for m in op.moves)
        and states[group].is_source_ready(op.id)
    ]

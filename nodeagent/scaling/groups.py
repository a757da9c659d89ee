"""What the leader of one data group must do now for the open operation."""

from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.data import commands as data
from nodeagent.data.handover import seal_result
from nodeagent.data.state import DataState
from nodeagent.meta import changes
from nodeagent.meta import commands as meta
from nodeagent.model.entries import Config
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import GroupChange, Operation, Ranges, Stage
from nodeagent.partition.ranges import union
from nodeagent.scaling import membership

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
    """Part `number` of the sessions that `source` seals; `members` have it, or get it with the seal."""

    source: GroupId
    number: int
    digest: str
    """"" while the seal is not known to be committed."""

    members: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class FetchAhead:
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


Action = Log | Reconfigure | Report | AdoptNow | FetchAhead | TakeParts


@dataclass(frozen=True, slots=True)
class Look:
    """One data group as its leader sees it. `config` is committed, and no change of it is in progress."""

    group: GroupId
    me: NodeId
    state: DataState
    config: Config
    caught_up: Callable[[NodeId], bool]
    incarnations: dict[NodeId, str]
    gone: Callable[[NodeId], bool]
    """Whether a node is dead or no longer in the cluster: nobody waits for it."""

    now: int
    """Wall clock, for records."""

    writer: str = ""
    """As in `Seal`."""

    level: int = FIRST
    """The cluster's feature level."""


def due(op: Operation, look: Look) -> list[Action]:
    if op_number(look.config.operation) > op_number(op.id):
        return []  # the group is in a later operation: the meta state here is old
    match op.stage:
        case Stage.PLANNED if look.group == op.created_group and not op.group_ready:
            return [Report(meta.GroupReady(look.now, op.id, look.group))]
        case Stage.SEALED:
            return _fetch_ahead(op, look) + _seal(op, look) + _learners(op, look)
        case Stage.OPEN:
            return _open(op, look) + _learners(op, look)
        case Stage.FORMAL:
            return _formal(op, look)
        case Stage.MOVING:
            return _adopt(op, look)
        case Stage.RELEASED:
            return _release(op, look)
        case Stage.CANCELLING:
            return _cancel(op, look)
        case _:
            return []


def op_number(operation: str) -> int:
    """The operation's number in the order of all operations; 0 for none."""
    return int(operation.removeprefix("op-") or 0)


def slots_from(op: Operation, group: GroupId) -> Ranges:
    return union(*(m.slots for m in op.moves if m.source == group))


def slots_to(op: Operation, group: GroupId) -> Ranges:
    return union(*(m.slots for m in op.moves if m.target == group))


def _seal(op: Operation, look: Look) -> list[Action]:
    if look.group not in op.losing or look.group in op.sealed:
        return []
    sealed = look.state.slots.sealed.get(op.id)
    if sealed is None:
        return [Log(data.Seal(op.id, op.table_version, slots_from(op, look.group), look.writer))]
    result = seal_result(look.group, sealed.index, sealed.sessions)
    return [Report(meta.SealedBy(look.now, op.id, result))]


def _learners(op: Operation, look: Look) -> list[Action]:
    """Add the joining node as a learner as soon as the slots that leave are sealed here."""
    change = next((g for g in op.changes if g.group == look.group), None)
    if change is None or change.joins is None or change.joins in look.config.members:
        return []
    if look.gone(change.joins) or look.state.slots.ended.get(op.id) == "cancelled":
        return []  # cancelled: the meta state here is old
    if (look.group, change.joins) not in op.joined:
        return []
    if look.group in op.losing and not look.state.sealed_ready(op.id):
        return []  # the newcomer must not be sent files of slots that leave this group
    return [Reconfigure(membership.add_learner(look.config, change.joins, op.id))]


def _open(op: Operation, look: Look) -> list[Action]:
    if look.group not in op.gaining or look.group in op.opened:
        return []
    slots = look.state.slots
    if op.id in slots.arriving or op.id in slots.ended:
        return [Report(meta.OpenedBy(look.now, op.id, look.group, look.state.applied))]
    sources = sorted({m.source for m in op.moves if m.target == look.group})
    results = tuple(op.sealed[s] for s in sources)
    opening = data.Open(op.id, op.table_version, slots_to(op, look.group), results)
    lacking = look.state.handover.staged.lacking(op.id, results)
    if not lacking:
        return [Log(opening)]
    holders = _holders(op)
    first = tuple(Part(source, number, wanted, holders[source]) for source, number, wanted in lacking)
    return [TakeParts(op.id, first[:PARTS_AT_ONCE], opening if len(first) <= PARTS_AT_ONCE else None)]


def _fetch_ahead(op: Operation, look: Look) -> list[Action]:
    """Prefetch the first part of each session table while the seals are being committed: nearly always it is
    the only one, and slots are closed until it is here."""
    if look.group not in op.gaining:
        return []
    holders = _holders(op)
    sources = sorted({m.source for m in op.moves if m.target == look.group})[:PARTS_AT_ONCE]
    return [FetchAhead(op.id, tuple(Part(source, 0, "", holders[source]) for source in sources))]


def _holders(op: Operation) -> dict[GroupId, tuple[NodeId, ...]]:
    """The nodes that may have the sessions that a group seals, by group."""
    return {m.source: tuple(n for n in m.source_members if n not in op.dead) for m in op.moves}


def _formal(op: Operation, look: Look) -> list[Action]:
    """Change the group's members to those on the new ring, in single steps.

    Dead voters that do not belong there are dropped first: while they vote, a newcomer would raise the
    majority so far that the live members could not lose one. A dead node never joins; a member that would
    leave stays in its place, so that the group has as many live members as possible.
    """
    change = next((g for g in op.changes if g.group == look.group), None)
    if change is None or look.group in op.formed:
        return []
    voters = look.config.voters
    strays = [n for n in look.config.learners if n != change.joins or look.gone(n)]
    strays += [n for n in voters if n not in change.after and look.gone(n)]
    stray = next(iter(strays), None)
    if stray is not None:
        return [Reconfigure(membership.drop(look.config, stray, op.id))]
    joins = change.joins if change.joins is not None and not look.gone(change.joins) else None
    if joins is not None and joins not in look.config.members:
        return _learners(op, look)
    leaves = _leaver(change, look)
    if leaves is None and not look.config.learners:
        members = tuple(sorted(voters, key=_ring_order(change)))
        return [Report(meta.FormedBy(look.now, op.id, look.group, look.state.applied, members))]
    is_source = look.group in op.losing and leaves is not None
    step = membership.group_step(
        look.config,
        joins,
        leaves,
        me=look.me,
        operation=op.id,
        caught_up=look.caught_up,
        may_leave=not is_source or (look.group, leaves) in op.sources_ready,
    )
    return [Reconfigure(step)] if step else []


def _leaver(change: GroupChange, look: Look) -> NodeId | None:
    """The next live voter to be dropped."""
    lacking = sum(look.gone(n) for n in change.after if n not in look.config.voters)
    extra = sorted((n for n in look.config.voters if n not in change.after), key=_ring_order(change))
    return next(iter(extra[lacking:]), None)


def _ring_order(change: GroupChange) -> Callable[[NodeId], int]:
    places = [*change.after, *(n for n in change.before if n not in change.after)]
    return lambda node: places.index(node) if node in places else len(places)


def _adopt(op: Operation, look: Look) -> list[Action]:
    if look.group not in op.gaining or look.group in op.adopted:
        return []
    slots = look.state.slots
    if op.id not in slots.arriving:
        return [Report(meta.AdoptedBy(look.now, op.id, look.group, look.state.applied))]
    members = op.required(look.group)
    if any(changes.missing(op, look.group, n, look.incarnations.get(n, "")) for n in members):
        return []
    trouble = changes.copies_disagree(op, look.group)
    if trouble:
        about = look.group if look.level >= Feature.REASONS else ""
        report = Report(meta.ReportError(look.now, op.id, trouble, about))
        return [] if op.last_error == trouble else [report]
    is_repaired = bool(op.last_error) and op.error_group == look.group
    said: list[Action] = [Report(meta.ReportError(look.now, op.id, ""))] if is_repaired else []
    return said if look.state.adoptions.waiting else [*said, AdoptNow(op.id)]


def _release(op: Operation, look: Look) -> list[Action]:
    if look.group not in op.losing or look.group in op.released:
        return []
    if look.state.slots.ended.get(op.id) == "released":
        return [Report(meta.ReleasedBy(look.now, op.id, look.group, look.state.applied))]
    return [Log(data.Release(op.id, op.table_version))]


def _cancel(op: Operation, look: Look) -> list[Action]:
    if look.group not in changes.affected(op) or look.group in op.unsealed:
        return []
    change = next((g for g in op.changes if g.group == look.group), None)
    if change is not None and change.joins in look.config.learners:
        return [Reconfigure(membership.drop(look.config, change.joins, op.id))]
    if look.state.slots.ended.get(op.id) == "cancelled":
        return [Report(meta.UnsealedBy(look.now, op.id, look.group))]
    return [Log(data.Unseal(op.id, op.table_version))]


def joins_due(op: Operation, node: NodeId, made: set[GroupId], now: int) -> list[Report]:
    """Reports for the groups in `made` (replicas created here for this operation) that this node can join and
    has not reported yet."""
    return [
        Report(meta.JoinReady(now, op.id, change.group, node))
        for change in op.changes
        if change.joins == node and change.group in made and (change.group, node) not in op.joined
    ]


def sources_due(op: Operation, node: NodeId, states: dict[GroupId, DataState], now: int) -> list[Report]:
    """Reports for the groups in which this node can serve as a source and has not reported that yet."""
    if op.stage not in (Stage.SEALED, Stage.OPEN, Stage.FORMAL, Stage.MOVING):
        return []
    return [
        Report(meta.SourceReady(now, op.id, group, node))
        for group in op.losing
        if (group, node) not in op.sources_ready
        and group in states
        and any(m.source == group and node in m.source_members for m in op.moves)
        and states[group].sealed_ready(op.id)
    ]

"""Copies moved slots to this node: find a source, stage its files, record the copy.

Units come from the operation's record alone, so after a restart, under another leader or without an operator,
the missing units are simply started again; files that are already staged are not fetched twice. While the
operation has a lease, units start only on the order of the lease owner, or if a leader lacks their
descriptions for its `Adopt`; once the lease has expired by a node's own clock, the node continues without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from nodeagent.host.data_replica import DataReplica
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.sources import source_slots
from nodeagent.host.space import GO_ON
from nodeagent.host.staged_units import Key, StagedUnits
from nodeagent.host.suspects import request_hashes
from nodeagent.meta import commands as meta
from nodeagent.model.files import FileRef, PulledSlot, StagedUnit
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import DropStaging, FilesStaged, JobResult, StagedFile, StageFiles
from nodeagent.model.operation import CopyRecord, Lease, Operation, Ranges, Stage
from nodeagent.model.requests import ErrorReply, OpenSource, Reply, SourceOpened, UnitPulled
from nodeagent.partition.ranges import intersect, to_slots
from nodeagent.scaling import moving
from nodeagent.scaling.moving import Unit

PARALLEL_UNITS = 4
RETRY_MS = 300
OWN_WAIT_MS = 5_000
"""A previous holder waits this long for its own files to be made before it pulls them from another node."""
REPORT_AGAIN_MS = 1_000


@dataclass(slots=True)
class _Order:
    """Slots that the lease owner waits for; `waiting` are the units not copied yet."""

    token: int
    slots: Ranges
    waiting: set[Key]
    files: int = 0
    received: int = 0
    refetched: int = 0


@dataclass(slots=True)
class _Pull:
    unit: Unit
    own_until: int
    """Until then (ms) the pull waits for files that this node makes itself."""

    attempt: int = 0
    busy: bool = False
    is_stale: bool = False
    """Its source was recovered meanwhile: begin again once the files are staged."""

    not_before: int = 0
    orders: list[_Order] = field(default_factory=list)
    received: int = 0
    refetched: int = 0


class SlotCopier:
    """The slot copier of this node.

    Args:
        replicas: the replicas of this node's data groups.
        report: sends a progress report to the meta leader.
    """

    def __init__(
        self,
        node: NodeId,
        incarnation: str,
        effects: EffectQueue,
        replicas: dict[GroupId, DataReplica],
        report: Callable[[meta.Command], None],
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.effects = effects
        self._replicas = replicas
        self._report = report
        self._pulls: dict[Key, _Pull] = {}
        self._staged = StagedUnits(node, incarnation, effects)
        self._recorded: dict[Key, tuple[CopyRecord, int]] = {}
        """Copies made here, and when each was last reported to the meta leader."""

        self._recovered: dict[GroupId, str] = {}
        """As in the open operation, when the units to copy were last examined."""

        self._copied: set[tuple[GroupId, Ranges]] = set()
        """What the record has of any member's copies; filled only if groups were recovered."""

        self._touched: set[str] = set()
        """Operations that may have something in staging."""

        self._known: set[str] = set()
        self._dead: set[NodeId] = set()
        """Nodes of the open operation that are dead and no longer sources."""

        self._units_of: tuple[str, list[Unit]] = ("", [])
        """An operation and its units."""

        self._lease: tuple[Lease | None, int] = (None, 0)
        self._paused = False
        self.rate_bytes_per_s = 0
        """This node's share of the operation's rate; 0 for no limit."""

    # --- driving -----------------------------------------------------------------------------------

    def drive(self, operations: list[Operation], wanted: set[GroupId], mine: set[GroupId]) -> None:
        """Start the pulls that the open operation needs now.

        Args:
            operations: all operations that the meta group remembers.
            wanted: groups whose `Adopt` this node must compose and for which it lacks descriptions.
            mine: groups this node is a member of, whether or not a replica runs yet.
        """
        op = next((o for o in operations if not o.ended), None)
        known = {o.id for o in operations}
        self._touched |= known - self._known  # an earlier process may have left staged files
        self._known = known
        self._forget_ended(self._touched, op, {o.id for o in operations if self._owes(o, mine)})
        self.rate_bytes_per_s = moving.rate_share(op, self.node) if op is not None else 0
        self._paused = op is not None and op.paused
        if op is not None and self._paused:
            self._hold_back(op)
        if op is None or op.stage not in (Stage.COPYING, Stage.CLEANUP):
            return
        if op.state() in ("waiting_migrate", "paused"):
            return
        self._dead = set(op.dead)
        self._copied = {(c.target, c.slots) for c in op.copies} if op.recovered else set()
        leased = self._is_leased(op)
        copying = op.stage is Stage.COPYING  # in CLEANUP only a recovered group needs descriptions
        due = moving.units_to_copy(op, self._units(op), self.node, self.incarnation) if copying else []
        if self._recovered != op.recovered:
            self._recovered = dict(op.recovered)
            self._copy_again(op, due)
        for unit in due:
            if unit in self._staged and unit.key in self._recorded:
                self._report_again(unit.key)
            elif not leased or self._has_order(unit):
                self._pull_of(unit)
        for unit in self._units(op):
            group = unit.move.target
            if group in wanted and unit not in self._staged and self._staged.is_read(op, group):
                self._pull_of(unit)
        for record in op.copies if copying and op.recovered else ():
            key = (op.id, record.target, record.slots)
            if record.node == self.node and key in self._recorded and self._recorded[key][0] != record:
                self._report_again(key)  # a late report of the former copy arrived after that of the new one
        self._start()

    def _copy_again(self, op: Operation, due: list[Unit]) -> None:
        """Begin the copies again that are not in the operation's record and come from a group that was
        recovered: it may have other files now."""
        for unit in due:
            if unit.move.source not in op.recovered:
                continue
            self._staged.drop(unit.key)
            self._recorded.pop(unit.key, None)
            if unit.key in self._pulls:
                self._pulls[unit.key].is_stale = True

    def _units(self, op: Operation) -> list[Unit]:
        if self._units_of[0] != op.id:
            self._units_of = (op.id, moving.units(op))
        return self._units_of[1]

    def _hold_back(self, op: Operation) -> None:
        """Drop the pulls that are not running, also those that wait for a retry, and refuse their orders."""
        waiting = {o.token for p in self._pulls.values() if not p.busy for o in p.orders}
        for token in sorted(waiting):
            self._refuse_paused(token, op)
        self._pulls = {k: p for k, p in self._pulls.items() if p.busy}
        for pull in self._pulls.values():
            pull.orders = [o for o in pull.orders if o.token not in waiting]

    def _refuse_paused(self, token: int, op: Operation) -> None:
        self.effects.refuse(token, "refused", f"{op.id} is paused", f"iotctl ops resume {op.id}")

    def _has_order(self, unit: Unit) -> bool:
        pull = self._pulls.get(unit.key)
        return pull is not None and bool(pull.orders)

    def _owes(self, op: Operation, mine: set[GroupId]) -> bool:
        """Whether a replica here still has to adopt files that are staged for `op`.

        The operation proceeds when the leaders have adopted; a member that lags needs its staged files until
        a durable checkpoint names the adopted files.
        """
        if op.stage is not Stage.DONE:
            return False
        for move in op.moves:
            if move.target in mine and self.node in move.target_members:
                replica = self._replicas.get(move.target)
                if replica is None or op.id not in replica.ended_here:
                    return True
        return False

    def _forget_ended(self, touched: set[str], op: Operation | None, owed: set[str]) -> None:
        current = op.id if op is not None else ""
        for name in sorted(touched - {current} - owed):
            touched.discard(name)
            self.effects.remove(DropStaging(name))
        over = {o.token for k, p in self._pulls.items() if k[0] != current for o in p.orders}
        for token in sorted(over):
            self.effects.refuse(token, "refused", "the operation has ended")
        self._pulls = {k: v for k, v in self._pulls.items() if k[0] == current}
        self._staged.keep({current, *owed})
        self._recorded = {k: v for k, v in self._recorded.items() if k[0] == current}

    def _is_leased(self, op: Operation) -> bool:
        known, since = self._lease
        if op.lease != known:
            self._lease = (op.lease, self.effects.now)
            since = self.effects.now
        return op.lease is not None and self.effects.now - since < op.lease.ttl_ms

    def order(self, op: Operation | None, group: GroupId, slots: Ranges, token: int) -> None:
        """Copy these slots now, for the owner of the lease; `token` is answered when all are copied.

        Slots are pulled in whole units, so an order may copy a few more than it names.
        """
        if op is None or op.stage is not Stage.COPYING:
            return self.effects.refuse(
                token, "refused", "the operation is not open, or does not copy slots now"
            )
        if op.paused:
            return self._refuse_paused(token, op)
        if self.effects.space.is_low:
            return self.effects.refuse(token, "overloaded", self.effects.space.why, GO_ON)
        mine = [
            u
            for u in self._units(op)
            if u.move.target == group and self.node in u.move.target_members and intersect(u.slots, slots)
        ]
        if not mine:
            return self.effects.refuse(token, "refused", f"{self.node} gains none of these slots for {group}")
        to_copy = {u.key for u in moving.units_to_copy(op, self._units(op), self.node, self.incarnation)}
        order = _Order(
            token, slots, {u.key for u in mine if u.key in to_copy and u.key not in self._recorded}
        )
        for unit in mine:
            if unit.key in order.waiting:
                self._pull_of(unit).orders.append(order)
        if not order.waiting:
            self._answer(order, group)
        return self._start()

    def _answer(self, order: "_Order", group: GroupId) -> None:
        copy = CopyRecord(
            group, self.node, self.incarnation, order.slots, "", order.files, order.received, order.refetched
        )
        self.effects.reply(order.token, UnitPulled(copy))

    def _pull_of(self, unit: Unit) -> _Pull:
        return self._pulls.setdefault(unit.key, _Pull(unit, self.effects.now + OWN_WAIT_MS))

    def _start(self) -> None:
        if self._paused or self.effects.space.is_low:
            return
        busy = sum(p.busy for p in self._pulls.values())
        for pull in self._pulls.values():
            if busy >= PARALLEL_UNITS:
                return
            if not pull.busy and pull.not_before <= self.effects.now:
                busy += 1
                self._part_of(pull, self._find_source)(pull)

    # --- one unit ----------------------------------------------------------------------------------

    def _part_of(self, pull: _Pull, then: Callable[..., None]) -> Callable[..., None]:
        """`then`, as a part of this pull: an exception in it counts as a failed try of this pull only."""
        return self.effects.isolated("a pull", then, lambda why: self._again(pull, why))

    def _find_source(self, pull: _Pull) -> None:
        pull.busy = True
        unit = pull.unit
        local = self._replicas.get(unit.move.source)
        # After a failed try from this node's own files, the other holders are tried in turn.
        if local is not None and pull.attempt % len(unit.move.source_members) == 0:
            if self._has_own(unit):
                slots = source_slots(local, set(to_slots(unit.slots)))
                return self._stage(pull, slots, "", self.node)
            if self.node in unit.move.source_members and self.effects.now < pull.own_until:
                return self._later(pull)
        useless = {self.node, *self._dead}
        candidates = [n for n in moving.sources(unit.move, self.node, pull.attempt) if n not in useless]
        is_lost = unit.move.source in self._recovered and self._dead >= set(unit.move.source_members)
        if is_lost and (unit.move.target, unit.slots) not in self._copied:
            return self._stage(pull, (), "", self.node)  # the loss was accepted, and nobody holds the rows
        if not candidates:
            return self._again(pull, "no other previous holder is left")
        source = candidates[0]
        request = OpenSource(unit.operation, unit.move.source, unit.slots)
        found = self._part_of(pull, self._on_source)
        return self.effects.call(source, request, lambda r: found(pull, source, r))

    def _has_own(self, unit: Unit) -> bool:
        """Whether this node holds the slots as a previous holder itself."""
        local = self._replicas.get(unit.move.source)
        return local is not None and local.state.is_source_ready(unit.operation)

    def _on_source(self, pull: _Pull, source: NodeId, reply: Reply) -> None:
        if isinstance(reply, SourceOpened):
            self._stage(pull, reply.slots, reply.snapshot, source)
        else:
            what = reply.what if isinstance(reply, ErrorReply) else "unexpected reply"
            self._again(pull, f"{source}: {what}")

    def _stage(self, pull: _Pull, slots: tuple[PulledSlot, ...], snapshot: str, source: NodeId) -> None:
        unit = pull.unit
        local = unit.move.source if self._has_own(unit) else None
        files = tuple(
            StagedFile(
                f,
                () if source == self.node else (FileRef(source, snapshot, f.name, f.size, f.xxh3),),
                local,
            )
            for slot in slots
            for f in slot.files
        )
        self._touched.add(unit.operation)
        job = StageFiles(unit.operation, unit.move.target, files, StagedUnit(unit.slots, slots))
        staged = self._part_of(pull, self._on_staged)
        self.effects.job(job, lambda r: staged(pull, slots, r))

    def _on_staged(self, pull: _Pull, slots: tuple[PulledSlot, ...], result: JobResult) -> None:
        if self._pulls.get(pull.unit.key) is not pull:
            self._touched.add(pull.unit.operation)  # the pull ended, perhaps before these files were staged
            return
        if not isinstance(result, FilesStaged):
            return self._again(pull, getattr(result, "what", "failed"))
        if pull.is_stale:
            pull.is_stale = False
            return self._again(pull, f"{pull.unit.move.source} was recovered")
        request_hashes(self.effects, self._replicas, pull.unit.move.source, result.suspects)
        pull.received += result.bytes_received
        pull.refetched += result.refetched
        if result.failed:
            return self._again(pull, f"{result.failed[0][0]}: {result.failed[0][1]}")
        unit = pull.unit
        copy = CopyRecord(
            target=unit.move.target,
            node=self.node,
            incarnation=self.incarnation,
            slots=unit.slots,
            digest=moving.digest(slots),
            files=sum(len(s.files) for s in slots),
            bytes_received=pull.received,
            refetched=pull.refetched,
        )
        del self._pulls[unit.key]
        self._staged.put(unit, slots)
        for order in pull.orders:
            self.effects.guarded(order.token, "a pull", self._credit)(order, unit, copy)
        if self.node in unit.move.target_members:
            self._recorded[unit.key] = (copy, self.effects.now)
            self._report(meta.Copied(self.effects.wall, unit.operation, copy))
        return self._start()

    def _credit(self, order: _Order, unit: Unit, copy: CopyRecord) -> None:
        order.waiting.discard(unit.key)
        order.files += copy.files
        order.received += copy.bytes_received
        order.refetched += copy.refetched
        if not order.waiting:
            self._answer(order, unit.move.target)

    def _again(self, pull: _Pull, why: str) -> None:
        """Retry the pull after a moment, unless its operation ends before that."""
        pull.attempt += 1
        self.effects.note("pull_again", unit=str(pull.unit.key), attempt=pull.attempt, why=why)
        self._later(pull)

    def _later(self, pull: _Pull) -> None:
        pull.busy = False
        pull.not_before = self.effects.now + RETRY_MS
        self.effects.later(RETRY_MS, self._start)

    def _report_again(self, key: Key) -> None:
        copy, reported = self._recorded[key]
        if self.effects.now - reported > REPORT_AGAIN_MS:
            self._recorded[key] = (copy, self.effects.now)
            self._report(meta.Copied(self.effects.wall, key[0], copy))

    # --- adopting ----------------------------------------------------------------------------------

    def adopt_commands(self, op: Operation, group: GroupId, open_index: int) -> list[bytes]:
        """`Adopt` entries for all units of `group`; none while the description of one is missing."""
        units = [u for u in self._units(op) if u.move.target == group]
        return (
            [] if self._staged.lacks(op, group, units) else self._staged.adopt_commands(op, units, open_index)
        )

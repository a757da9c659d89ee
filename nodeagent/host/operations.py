"""Carries out what `scaling` finds due, on this node: for its groups and for the meta group."""

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nodeagent.data import commands as data
from nodeagent.data.state import DataState
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.replica import as_reply
from nodeagent.host.session_parts import SessionParts
from nodeagent.meta import commands as meta
from nodeagent.meta.nodes import DEAD
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Config
from nodeagent.model.errors import NodeAgentError, Refused
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import BeginChange, ErrorReply, Forward, GiveUp, NodeRecord, Reply
from nodeagent.partition.change import Change, ChangeKind, change_between
from nodeagent.partition.planner import plan_add, plan_remove, plan_replace
from nodeagent.partition.table import PartitionTable
from nodeagent.scaling import groups, holds, membership

if TYPE_CHECKING:
    from nodeagent.host.host import Host

NOBODY = NodeRecord("", "", 0, 0, "", 0)
"""In the place of the node that comes or leaves when none does."""

REPORT_AGAIN_MS = 500
REFUSED_AGAIN_MS = 100
"""After a leader did not take a report."""

SEAL_TIMEOUT_MS = 30_000
PLANNED_TIMEOUT_MS = 60_000
"""A newcomer that never follows the meta log must not keep other changes from beginning."""

KINDS = {
    "add-node": ChangeKind.ADD,
    "remove-node": ChangeKind.REMOVE,
    "replace-node": ChangeKind.REPLACE,
    "rebalance": ChangeKind.MOVE,
}
SILENT_TIMEOUTS = 10
LISTENED_TIMEOUTS = 5
"""So long must a leader have listened: followers do not hear one another, so before it led it may have heard
nothing of a node that lives. Half of the silence is left for its election."""

"""A node heard from within so many election timeouts is not dead."""


class Operations:
    """One step of every group per call; nothing is remembered but what was last proposed and reported."""

    def __init__(self, host: "Host") -> None:
        self.host = host
        self._reported: dict[str, tuple[int, NodeId, int]] = {}
        """report -> (when it was last handed over, to which leader, of which term)"""

        self._proposed: dict[GroupId, tuple[int, int]] = {}
        """group -> (term, index) of the last command proposed; no other before it is applied"""

        self._awaited: dict[GroupId, tuple[int, int]] = {}
        """Those of `_proposed`, and configs, that were not seen applied yet."""

        self._parts = SessionParts(host.node, host.desk, host.data, self._propose)
        self.holds: frozenset[str] = frozenset()
        """Points of `scaling.holds`."""

        self.may_hold = False
        """Whether this agent was started for tests, which alone set any."""

        self._waiting_since: tuple[str, Stage, int] = ("", Stage.DONE, 0)
        self._lease_since: tuple[str, int, int] = ("", 0, 0)
        """(operation, serial, when this leader first saw it)"""

        self._lock_since: tuple[int, int] = (0, 0)
        """(index of the last renewal, when this leader first saw it)"""

    def hold(self, points: Collection[str]) -> ErrorReply | None:
        """Stop at these points from now on, and at no other."""
        if not self.may_hold:
            return ErrorReply(
                "refused", "hold points are for tests", "start the agent with `nodeagent run --test-holds`"
            )
        unknown = sorted(set(points) - set(holds.POINTS))
        if unknown:
            return ErrorReply("invalid_input", f"no hold point {unknown[0]}", ", ".join(holds.POINTS))
        self.holds = frozenset(points)
        return None

    def drive(self) -> None:
        host = self.host
        op = host.meta.operations.open()
        wanted: set[GroupId] = set()
        stopped = op is not None and holds.is_stopped(op, self.holds)
        self._parts.begin(op.id if op is not None and op.stage in (Stage.SEALED, Stage.OPEN) else "")
        if op is not None and not stopped:
            states = {g: r.state for g, r in host.data.items() if r.state.rows.recovered}
            for report in groups.sources_due(op, host.node, states, host.record_now):
                self.report(report.command)
            for report in groups.joins_due(op, host.node, host.joined(op.id), host.record_now):
                self.report(report.command)
            for replica in host.data.values():
                if replica.leads:
                    self._drive_group(op, replica, wanted)
        if host.meta.applied and not stopped:
            groups_here = host.meta.image.groups.values()
            mine = {g.group for g in groups_here if host.node in g.members}
            host.mover.drive(host.meta.image.operations, wanted, mine)
        if host.is_current:
            self._recover()
        if host.meta_replica is not None and host.meta_replica.leads:
            self._drive_meta(op)

    def _recover(self) -> None:
        """Groups that lost their majority and were given up: this node may be the one to go on with.

        The log itself tells whether it was done: its last config is the recovery's, or of a later operation.
        """
        host = self.host
        for group, record in host.meta.image.groups.items():
            replica = host.data.get(group)
            if record.recovery is None or replica is None or replica.installing or replica.rebasing:
                continue
            recovery = record.recovery
            done = groups.op_number(replica.raft.log.config.operation) >= groups.op_number(recovery.operation)
            if done and replica.leads and replica.raft.can_change():
                self.report(meta.LedAgain(host.record_now, group, recovery.operation))
            elif not done and recovery.head == host.node:
                config = Config(record.members, (), recovery.operation)
                try:
                    replica.raft.force(config, recovery.term, host.desk.now)
                except Refused as error:  # a lost leader is heard for an election timeout longer
                    host.desk.note("recover_later", group=group, why=error.what)
                else:
                    host.desk.note(
                        "recovered", group=group, term=replica.raft.term, first=replica.raft.log.last_index
                    )

    # --- data groups -------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether an entry that `drive` logged was applied since the last call, or sessions came: the next
        step waits for it.

        Slots stand closed between these steps, so they do not wait for the clock.
        """
        came = self._parts.have_come()
        if not self._awaited:
            return came
        due = [g for g, at in self._awaited.items() if self._has_applied(g, at)]
        for group in due:
            del self._awaited[group]
        return came or bool(due)

    def _has_applied(self, group: GroupId, proposed: tuple[int, int]) -> bool:
        replica = self.host.data.get(group)
        return replica is None or (replica.raft.term, replica.seen) >= proposed

    def _drive_group(self, op: Operation, replica: DataReplica, wanted: set[GroupId]) -> None:
        term, index = self._proposed.get(replica.group, (0, 0))
        if (term == replica.raft.term and replica.seen < index) or not replica.state.rows.recovered:
            return
        if not replica.raft.can_change() or replica.seen < replica.led_from:
            return
        nodes = self.host.meta.image.nodes
        look = groups.Look(
            group=replica.group,
            me=self.host.node,
            state=replica.state,
            config=replica.raft.log.config,
            caught_up=partial(self.host.leadership.is_at_hand, replica),
            incarnations={n: r.incarnation for n, r in nodes.items()},
            gone=lambda n: n not in nodes or nodes[n].state == DEAD,
            now=self.host.record_now,
            writer=self.host.writer.named,
            level=self.host.level,
        )
        for action in groups.due(op, look):
            self._act(op, replica, action, wanted)

    def _act(self, op: Operation, replica: DataReplica, action: groups.Action, wanted: set[GroupId]) -> None:
        match action:
            case groups.Log():
                self._propose(replica, [data.encode(action.command)])
            case groups.Reconfigure():
                self._reconfigure(replica, action.step)
            case groups.Report():
                self.report(action.command)
            case groups.FetchAhead():
                self._parts.fetch_ahead(replica, action)
            case groups.TakeParts():
                self._parts.take(replica, action)
            case groups.AdoptNow():
                if self.host.mover.lacks(op, replica.group):
                    wanted.add(replica.group)
                    return
                open_index = replica.state.slots.arriving[op.id].index
                adopt = self.host.mover.adopt_commands(op, replica.group, open_index)
                self._propose(replica, [*schemas_due(self.host.meta, replica.state, adopt), *adopt])

    def _propose(self, replica: DataReplica, batch: list[bytes]) -> bool:
        first = replica.propose(batch)
        if first is None:
            return False
        at = (replica.raft.term, first + len(batch) - 1)
        self._proposed[replica.group] = self._awaited[replica.group] = at
        return True

    def _reconfigure(self, replica: DataReplica, step: membership.Change | membership.Transfer) -> None:
        try:
            if isinstance(step, membership.Transfer):
                self.host.leadership.transfer(replica, step.target)
            else:
                index = replica.raft.change(step.config, self.host.desk.now)
                self._awaited[replica.group] = (replica.raft.term, index)
        except NodeAgentError as error:
            self.host.desk.note("reconfigure_later", group=replica.group, why=error.what)

    # --- the meta group ----------------------------------------------------------------------------

    def _drive_meta(self, op: Operation | None) -> None:
        host = self.host
        replica = host.meta_replica
        assert replica is not None
        if not replica.raft.can_change() or replica.seen < replica.led_from or not host.meta.cluster_id:
            return
        self._watch_lock(replica)
        settings = host.meta.image.settings
        assert settings is not None
        config = replica.raft.log.config
        unfit = {n for n, r in host.meta.image.nodes.items() if r.state == DEAD}
        if op is not None and op.leaving is not None:
            unfit.add(op.leaving)
        step = membership.meta_step(
            config,
            set(host.meta.image.nodes),
            unfit,
            voters_max=settings.meta_voters,
            me=host.node,
            caught_up=partial(host.leadership.is_at_hand, replica),
        )
        if isinstance(step, membership.Change):
            try:
                replica.raft.change(step.config, host.desk.now)
            except NodeAgentError as error:
                host.desk.note("reconfigure_later", group="meta", why=error.what)
            return
        if isinstance(step, membership.Transfer):
            host.leadership.transfer(replica, step.target)
            return
        if op is not None and holds.is_stopped(op, self.holds):
            return
        if op is not None and not op.meta_ready and self._meta_ready(op):
            self.report(meta.MetaReady(host.record_now, op.id))
        self._watch_stage(op)
        self._watch_lease(op)
        self._watch_hold(op)

    def _meta_ready(self, op: Operation) -> bool:
        replica = self.host.meta_replica
        assert replica is not None
        config = replica.raft.log.config
        if op.joining is not None and not (
            op.joining in config.members and replica.raft.caught_up(op.joining)
        ):
            return False
        return op.leaving not in config.voters

    def _watch_stage(self, op: Operation | None) -> None:
        """One sick node must not keep everybody's slots closed, nor the next change waiting."""
        limits = {Stage.PLANNED: PLANNED_TIMEOUT_MS, Stage.SEALED: SEAL_TIMEOUT_MS}
        if op is None or op.stage not in limits or self.holds:
            return
        if self._waiting_since[:2] != (op.id, op.stage):
            self._waiting_since = (op.id, op.stage, self.host.desk.now)
        elif self.host.desk.now - self._waiting_since[2] > limits[op.stage]:
            late = op.created_group if op.meta_ready and op.created_group else op.node
            missing = sorted(set(op.losing) - set(op.sealed)) if op.stage is Stage.SEALED else [late]
            self.report(
                meta.SteerOperation(
                    self.host.record_now,
                    op.id,
                    "cancel",
                    f"{op.stage.value.lower()} timeout",
                    report=f"not ready within {limits[op.stage]} ms: {', '.join(missing)}",
                )
            )

    def _watch_lease(self, op: Operation | None) -> None:
        """An owner that died must not keep the lease from others; by this leader's own clock."""
        if op is None or op.lease is None:
            return
        if self._lease_since[:2] != (op.id, op.lease.serial):
            self._lease_since = (op.id, op.lease.serial, self.host.desk.now)
        elif self.host.desk.now - self._lease_since[2] > op.lease.ttl_ms:
            lapsed = str(op.lease.serial)
            self.report(meta.SteerOperation(self.host.record_now, op.id, "unlease", "", report=lapsed))

    def _watch_lock(self, replica: MetaReplica) -> None:
        """As with a lease: who died must not keep the cluster's lock from others."""
        lock, now = self.host.meta.image.lock, self.host.desk.now
        renewed = lock.renewed if lock is not None else 0
        if renewed != self._lock_since[0]:
            self._lock_since = (renewed, now)
        elif lock is not None and now - self._lock_since[1] > lock.ttl_ms:
            self._lock_since = (renewed, now)
            lapsed = meta.DropLock(self.host.record_now, lock.serial, "", "it lapsed", renewed)
            replica.propose([meta.encode(lapsed)])

    def _watch_hold(self, op: Operation | None) -> None:
        """The hold ends by the voters' wall clocks: a hold of days must survive every change of leader, and
        no single clock may end it."""
        if op is None or not op.is_held or not op.held_since_ms:
            return
        assert self.host.meta_replica is not None
        passed = self.host.clocks.passed(self.host.meta_replica.raft.log.config.voters)
        if passed is not None and passed >= op.held_since_ms + op.options.hold_release_ms:
            over = meta.SteerOperation(self.host.record_now, op.id, "release", "--hold-release is over")
            self.report(over)

    # --- evidence ----------------------------------------------------------------------------------

    def report(self, command: meta.Command) -> None:
        """Hand evidence to the meta leader, until the record shows it: to each leader at once, for what went
        to the one before may be lost (slots stand closed until then), and to the same one every
        `REPORT_AGAIN_MS`."""
        host = self.host
        op = host.meta.operations.open()
        if op is not None and holds.is_kept_back(op, command, self.holds):
            return
        replica = host.meta_replica
        if replica is None or replica.raft.leader is None:
            return
        leader, term = replica.raft.leader, replica.raft.term
        key = _key(command)
        when, *last = self._reported.get(key, (0, "", 0))
        if last == [leader, term] and host.desk.now - when < REPORT_AGAIN_MS:
            return
        if len(self._reported) > 4096:
            self._reported.clear()
        self._reported[key] = (host.desk.now, leader, term)
        if replica.leads:
            replica.propose([meta.encode(command)])
        else:
            host.desk.call(leader, Forward(meta.encode(command)), partial(self._on_handed, key))

    def _on_handed(self, key: str, reply: Reply) -> None:
        """A leader that lags behind its predecessor, or is not reached yet, takes it a moment later."""
        if isinstance(reply, ErrorReply) and key in self._reported:
            _, leader, term = self._reported[key]
            self._reported[key] = (self.host.desk.now + REFUSED_AGAIN_MS - REPORT_AGAIN_MS, leader, term)


def _key(command: meta.Command) -> str:
    """Equal for repetitions of one report (they differ in the time only)."""
    copy = msgspec.structs.replace(command, now=0)
    return f"{type(copy).__name__}:{msgspec.msgpack.encode(copy).hex()[:512]}"


# --- beginning a change ----------------------------------------------------------------------------


def plan_begin(host: "Host", request: BeginChange) -> meta.Begin | Reply:
    """The entry for a change, planned against the table as it is now; or why not."""
    state = host.meta
    table, settings = state.placement.table, state.image.settings
    kind = KINDS.get(request.kind)
    if table is None or settings is None:
        return ErrorReply("unavailable", "the cluster is not bootstrapped yet")
    if kind is None:
        return ErrorReply("invalid_input", f"unknown kind of change {request.kind!r}")
    if request.table_version not in (0, table.version):
        return ErrorReply(
            "refused",
            f"the plan was made for table version {request.table_version}, it is {table.version} now",
            "plan again",
        )
    try:
        change = _change(kind, request, table, settings.replicas)
    except NodeAgentError as error:
        return as_reply(error)
    if kind is ChangeKind.MOVE and (request.node or not change.moves):
        return ErrorReply("invalid_input", "a rebalance names slots that change groups, and no node")
    refusal = _check(host, request, table, settings.replicas)
    if refusal is not None:
        return refusal
    record = state.image.nodes.get(request.node, NOBODY)
    if change.created is not None:
        place = change.new.ring.nodes[change.new.ring.index(request.node)]
        record = NodeRecord(
            request.node,
            request.host,
            request.port,
            request.http_port,
            request.incarnation,
            place.position,
            place.weight,
        )
    begin = meta.Begin(
        now=host.record_now,
        kind=request.kind,
        node=record,
        by=request.by,
        base_version=table.version,
        table=change.new.to_wire(),
        moves=tuple(meta.PlannedMove(m.slots, m.source, m.target) for m in change.moves),
        members=tuple(
            meta.PlannedMembers(
                m.group,
                m.joins[0] if m.joins else None,
                m.leaves[0] if m.leaves else None,
                m.before,
                m.after,
            )
            for m in change.members
        ),
        created=change.created.after if change.created else (),
        options=request.options,
        replaces=request.replaces,
        lock=request.lock,
    )
    return state.operations.check_begin(begin) or begin


def _change(kind: ChangeKind, request: BeginChange, table: PartitionTable, replicas: int) -> Change:
    if kind is ChangeKind.MOVE:
        gains = {header: slots for header, slots in request.gains if slots}
        return change_between(kind, "", table, table.moved(gains, table.ring, table.version + 1), replicas)
    if kind is ChangeKind.ADD:
        change = plan_add(table, request.node, request.after, replicas, request.weight)
    elif kind is ChangeKind.REPLACE:
        return plan_replace(table, request.replaces, request.node, replicas)
    else:
        change = plan_remove(table, request.node, replicas)
    if not request.gains:
        return change
    # The caller showed these moves to the operator, so these they are.
    new = table.moved(dict(request.gains), change.new.ring, change.new.version)
    return change_between(kind, request.node, table, new, replicas)


def _check(host: "Host", request: BeginChange, table: PartitionTable, replicas: int) -> ErrorReply | None:
    if request.kind == "remove-node" and len(table.ring) <= replicas:
        return ErrorReply(
            "refused",
            f"{len(table.ring)} nodes cannot lose one: every group keeps {replicas} replicas"
            " (cluster too small)",
            f"iotctl cluster replace-node {request.node} NEW --dead"
            if request.options.dead
            else "add a node first",
        )
    comes = request.kind in ("add-node", "replace-node")
    if comes and not (request.host and request.port and request.incarnation):
        return ErrorReply("invalid_input", "a change names the newcomer's host, port and incarnation")
    leaves = request.node if request.kind == "remove-node" else request.replaces
    dead = {n for n, r in host.meta.image.nodes.items() if r.state == DEAD}
    if dead and leaves not in dead:
        names = ", ".join(sorted(dead))
        spare = len(table.ring) > replicas
        helps = "remove-node NODE --dead" if spare else "replace-node NODE NEW --dead"
        return ErrorReply("refused", f"dead and still in the cluster: {names}", f"iotctl cluster {helps}")
    if leaves in dead and not request.options.dead:
        return ErrorReply(
            "refused", f"{leaves} is dead: an earlier change went on without it", "repeat with --dead"
        )
    return check_silent(host, leaves) if request.options.dead else None


def check_silent(host: "Host", node: NodeId) -> ErrorReply | None:
    """Why `node` cannot be called dead, if so."""
    timeout_ms = host.config.raft.election_timeout_ms
    silent_ms = host.desk.now - host.heard.get(node, -(1 << 62))
    limit_ms = SILENT_TIMEOUTS * timeout_ms
    if node == host.node:
        return ErrorReply("refused", f"{node} is not dead: it leads the meta group", "leave --dead out")
    if silent_ms < limit_ms:
        return ErrorReply(
            "refused",
            f"{node} is not dead: {host.node} heard from it {max(0, silent_ms)} ms ago",
            f"repeat when it has been silent for {limit_ms / 1000:g} s, or leave --dead out",
        )
    assert host.meta_replica is not None  # it leads
    listened_ms = host.desk.now - host.meta_replica.led_since
    if listened_ms < LISTENED_TIMEOUTS * timeout_ms:
        return ErrorReply(
            "refused",
            f"{node} is not known to be dead: {host.node} has led the meta group for only {listened_ms} ms",
            f"repeat in {LISTENED_TIMEOUTS * timeout_ms / 1000:g} s, or leave --dead out",
        )
    return None


def schemas_due(known: MetaState, state: DataState, adopt: list[bytes]) -> list[bytes]:
    """`UseSchema` for every table with files to adopt that the group knows less of than this node. So no
    file of the group has a column that its schema in use lacks: what is made of it would lack it too."""
    tables = {
        (item.meta.partition.storage_group, item.meta.table)
        for entry in adopt
        if isinstance(command := data.decode(entry), data.Adopt)
        for item in command.files
    }
    wanted = [known.tables.schemas[name] for name in sorted(tables & set(known.tables.schemas))]
    return [
        data.encode(data.UseSchema(schema))
        for schema in wanted
        if (used := state.schemas.get((schema.storage_group, schema.table))) is None
        or used.version < schema.version
    ]


def plan_without(
    host: "Host", operation: str, node: NodeId
) -> dict[GroupId, tuple[NodeId, ...]] | ErrorReply:
    """Groups that must answer before an open operation may go on without `node`, with whom to ask: those it
    votes in, or may vote in by now. Or why it may not.
    """
    op = host.meta.operations.find(operation)
    if op is None or op.ended or node in op.dead:
        return {}  # the entry says what there is to say
    refusal = check_silent(host, node)
    if refusal is not None:
        return refusal
    joins = {c.group: (c.joins,) for c in op.changes if c.joins is not None}
    voters = {
        g.group: (*g.members, *joins.get(g.group, ()))
        for g in host.meta.image.groups.values()
        if g.group != op.created_group or op.group_ready
    }
    return {group: tuple(n for n in names if n != node) for group, names in voters.items() if node in names}


def plan_give_up(host: "Host", request: GiveUp) -> meta.GiveUp | ErrorReply:
    """The entry that gives nodes up, or why not."""
    command = meta.GiveUp(host.record_now, request.nodes, request.heirs, request.table_version, request.by)
    silent = (check_silent(host, n) for n in request.nodes)
    return host.meta.recovery.check(command) or next(filter(None, silent), None) or command

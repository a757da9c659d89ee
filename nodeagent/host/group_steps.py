"""The steps of the open operation in the data groups led here."""

from functools import partial

from nodeagent.data import commands as data
from nodeagent.data.state import DataState
from nodeagent.host.context import Context
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.leadership import Leadership
from nodeagent.host.lifecycle import Lifecycle
from nodeagent.host.replicas import Replicas
from nodeagent.host.reports import Reports
from nodeagent.host.session_parts import SessionParts
from nodeagent.host.slot_copier import SlotCopier
from nodeagent.host.writer import FileWriter
from nodeagent.meta import commands as meta
from nodeagent.meta.nodes import DEAD
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Config
from nodeagent.model.errors import NodeAgentError, Refused
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation, Stage, order_of
from nodeagent.model.requests import Recovery
from nodeagent.scaling import groups, membership


class GroupSteps:
    """Takes one step of every group per call; only the last proposals are remembered."""

    def __init__(
        self,
        context: Context,
        replicas: Replicas,
        lifecycle: Lifecycle,
        leadership: Leadership,
        slot_copier: SlotCopier,
        reports: Reports,
        writer: FileWriter,
    ) -> None:
        self._node = context.node
        self._effects = context.effects
        self._replicas = replicas
        self._cluster = replicas.cluster
        self._lifecycle = lifecycle
        self._leadership = leadership
        self._mover = slot_copier
        self._reports = reports
        self._writer = writer
        self._parts = SessionParts(context.node, context.effects, replicas.data, self.propose)
        self._proposed: dict[GroupId, tuple[int, int]] = {}
        """group -> (term, index) of the last command proposed; no other before it is applied"""

        self._awaited: dict[GroupId, tuple[int, int]] = {}
        """Entries of `_proposed`, and configurations, that are not known to be applied yet."""

    def begin(self, op: Operation | None) -> None:
        """Fetch sessions for the open operation only, and only in the stages that need them."""
        self._parts.begin(op.id if op is not None and op.stage in (Stage.SEALED, Stage.OPEN) else "")

    def drive(self, op: Operation) -> set[GroupId]:
        """Take the next step of every group led here.

        Returns:
            The groups whose `Adopt` this node must compose and for which it lacks descriptions.
        """
        self._report_ready(op)
        wanted: set[GroupId] = set()
        for replica in self._replicas.data.values():
            if replica.leads:
                self._drive_group(op, replica, wanted)
        return wanted

    def adopt_rest(self) -> None:
        """Adopt the slots of changes that are done, in groups led here that were recovered without their
        `Adopt`: this node described the files when it staged them."""
        for replica in self._replicas.data.values():
            if not replica.leads or not replica.state.slots.arriving or not self._may_propose(replica):
                continue
            for name in list(replica.state.slots.arriving):
                op = self._cluster.meta.operations.find(name)
                if op is not None and op.stage is Stage.DONE and not replica.state.adoptions.waiting:
                    self._adopt(op, replica)

    def _report_ready(self, op: Operation) -> None:
        """Report the groups in which this node can be a source, and those that it can join."""
        states = {g: r.state for g, r in self._replicas.data.items() if r.state.rows.recovered}
        now = self._cluster.record_now
        for report in groups.sources_to_report(op, self._node, states, now):
            self._reports.report(report.command)
        for report in groups.joins_to_report(op, self._node, self._lifecycle.joined(op.id), now):
            self._reports.report(report.command)

    def recover(self) -> None:
        """Force the recovery of groups without a majority if this node is their recovery leader.

        The log itself says whether that was done: its last configuration is then that of the recovery or of a
        later operation.
        """
        for group, record in self._cluster.meta.image.groups.items():
            replica = self._replicas.data.get(group)
            if record.recovery is None or replica is None or replica.installing or replica.rebasing:
                continue
            recovery = record.recovery
            done = order_of(replica.raft.log.config.operation) >= order_of(recovery.operation)
            if replica.leads and replica.raft.can_change():
                if done:
                    self._complete(group, recovery)
                else:  # it had no leader for a moment only: its majority lives
                    config = replica.raft.log.config
                    named = Config(config.voters, config.learners, recovery.operation)
                    self._reconfigure(replica, membership.Change(named))
            elif not done and recovery.head == self._node:
                try:
                    self._force(replica, record.members, recovery)
                except Refused as error:  # for one election timeout the lost leader still counts
                    self._effects.note("recover_later", group=group, why=error.what)
                else:
                    self._effects.note(
                        "recovered", group=group, term=replica.raft.term, first=replica.raft.log.last_index
                    )

    def _complete(self, group: GroupId, recovery: Recovery) -> None:
        self._reports.report(meta.RecoveryCompleted(self._cluster.record_now, group, recovery.operation))

    def _force(self, replica: DataReplica, members: tuple[NodeId, ...], recovery: Recovery) -> None:
        if replica.raft.log.last_index < replica.state.rows.recovered_to:
            raise Refused("the state is newer than the log", next_step="restore the node's directory")
        operations = self._cluster.meta.image.operations
        entries = groups.entries_before_recovery(
            operations, replica.group, replica.state.slots, self._writer.named
        )
        replica.raft.force(
            Config(members, (), recovery.operation),
            recovery.term,
            self._effects.now,
            [data.encode(entry) for entry in entries],
            observer=True,
        )

    def is_due(self) -> bool:
        """Whether an entry that `drive` logged was applied since the last call, or sessions came, so that the
        next step can be taken. That step does not wait for a timer, because no group accepts writes for the
        slots between a seal and an open."""
        came = self._parts.have_come()
        if not self._awaited:
            return came
        due = [g for g, at in self._awaited.items() if self._has_applied(g, at)]
        for group in due:
            del self._awaited[group]
        return came or bool(due)

    def _has_applied(self, group: GroupId, proposed: tuple[int, int]) -> bool:
        replica = self._replicas.data.get(group)
        return replica is None or (replica.raft.term, replica.applied_index) >= proposed

    def _drive_group(self, op: Operation, replica: DataReplica, wanted: set[GroupId]) -> None:
        if not self._may_propose(replica):
            return
        nodes = self._cluster.meta.image.nodes
        view = groups.GroupView(
            group=replica.group,
            me=self._node,
            state=replica.state,
            config=replica.raft.log.config,
            caught_up=partial(self._leadership.may_take_over, replica),
            incarnations={n: r.incarnation for n, r in nodes.items()},
            has_left=lambda n: n not in nodes or nodes[n].state == DEAD,
            now=self._cluster.record_now,
            writer=self._writer.named,
            level=self._cluster.level,
        )
        for action in groups.next_actions(op, view):
            self._act(op, replica, action, wanted)

    def _may_propose(self, replica: DataReplica) -> bool:
        """Whether the leader's state is that of its log, and what was proposed before is applied."""
        term, index = self._proposed.get(replica.group, (0, 0))
        if (term == replica.raft.term and replica.applied_index < index) or not replica.state.rows.recovered:
            return False
        return replica.raft.can_change() and replica.applied_index >= replica.led_from

    def _act(self, op: Operation, replica: DataReplica, action: groups.Action, wanted: set[GroupId]) -> None:
        match action:
            case groups.Log():
                self.propose(replica, [data.encode(action.command)])
            case groups.Reconfigure():
                self._reconfigure(replica, action.step)
            case groups.Report():
                self._reports.report(action.command)
            case groups.PrefetchParts():
                self._parts.prefetch(replica, action)
            case groups.TakeParts():
                self._parts.take(replica, action)
            case groups.AdoptNow():
                if not self._adopt(op, replica):
                    wanted.add(replica.group)

    def _adopt(self, op: Operation, replica: DataReplica) -> bool:
        """Log `Adopt` for all slots that the group gains; returns False if descriptions are missing here."""
        open_index = replica.state.slots.arriving[op.id].index
        adopt = self._mover.adopt_commands(op, replica.group, open_index)
        if not adopt:
            return False
        self.propose(replica, [*schemas_due(self._cluster.meta, replica.state, adopt), *adopt])
        return True

    def propose(self, replica: DataReplica, batch: list[bytes]) -> bool:
        """Log entries; the group's next step waits until they are applied. Returns False if refused."""
        first = replica.propose(batch)
        if first is None:
            return False
        at = (replica.raft.term, first + len(batch) - 1)
        self._proposed[replica.group] = self._awaited[replica.group] = at
        return True

    def _reconfigure(self, replica: DataReplica, step: membership.Change | membership.Transfer) -> None:
        try:
            if isinstance(step, membership.Transfer):
                self._leadership.transfer(replica, step.target)
            else:
                index = replica.raft.change(step.config, self._effects.now)
                self._awaited[replica.group] = (replica.raft.term, index)
        except NodeAgentError as error:
            self._effects.note("reconfigure_later", group=replica.group, why=error.what)


def schemas_due(known: MetaState, state: DataState, adopt: list[bytes]) -> list[bytes]:
    """`UseSchema` for every table with files to adopt whose schema in the group is older than the one known
    here. Otherwise a file could have a column that the schema in use lacks, and a file made from it would
    lose that column."""
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

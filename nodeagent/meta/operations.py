"""Changes of the cluster: at most one is open (`changes` defines how it proceeds from stage to stage).

The entry that enters a stage also changes nodes, groups and the table: OPEN puts the next table in force,
DONE removes the node and the group that leave, and CANCELLED reverts what `Begin` changed.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from nodeagent.meta import changes
from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.meta.groups import Groups
from nodeagent.meta.nodes import Nodes
from nodeagent.meta.placement import Placement
from nodeagent.meta.runs import Runs
from nodeagent.model.features import Feature
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import GroupChange, Operation, SlotMove, Stage, StageSpan
from nodeagent.model.requests import Accepted, ErrorReply, OperationReply, Reply

OPERATIONS_KEPT = 64
"""Records of operations that are retained, the newest ones."""
CANCELLED = (Stage.CANCELLING, Stage.CANCELLED)


class Kept(Protocol):
    """The fields of the image that this module needs; it changes the operations."""

    operations: list[Operation]
    level: int


class Operations:
    def __init__(
        self, kept: Kept, nodes: Nodes, groups: Groups, placement: Placement, runs: Runs, audit: Audit
    ) -> None:
        self._kept = kept
        self._nodes = nodes
        self._groups = groups
        self._placement = placement
        self._runs = runs
        self._audit = audit
        self._short: dict[str, Operation] = {}
        """The short records of ended operations, by id."""

    def find(self, name: str) -> Operation | None:
        return next((o for o in self._kept.operations if o.id == name), None)

    def open(self) -> Operation | None:
        return next((o for o in self._kept.operations if not o.ended), None)

    def listed(self) -> tuple[Operation, ...]:
        """Open operations with whole records, ended ones with short records: every client polls this list."""
        ended = {o.id: o for o in self._kept.operations if o.ended}
        self._short = {name: self._short.get(name) or o.shortened() for name, o in ended.items()}
        return tuple(self._short.get(o.id, o) for o in self._kept.operations)

    # --- the begin ---------------------------------------------------------------------------------

    def check_begin(self, b: c.Begin) -> ErrorReply | None:
        """Why the change cannot begin in this state; None if it can."""
        if (refusal := self._runs.fenced(b.lock)) is not None:
            return refusal
        if (other := self.open()) is not None:
            return ErrorReply(
                "busy",
                f"the change was not begun: {other.id} ({other.title}, stage {other.stage}) is open, "
                "and one change runs at a time",
                f"iotctl ops wait {other.id}",
                {"operation": other.id, "owner": other.by, "started_ms": other.started_ms},
            )
        if b.base_version != self._placement.version:
            return ErrorReply(
                "refused",
                f"the change was not begun: it was planned for table version {b.base_version}, "
                f"and the version is {self._placement.version} now",
                "plan again",
            )
        waiting = self._groups.in_recovery()
        if waiting is not None and waiting.recovery is not None:
            return ErrorReply(
                "refused",
                f"the change was not begun: group {waiting.group} is being recovered; "
                f"{waiting.recovery.head} does not lead it yet",
                "wait for its leader (`iotctl cluster groups`), then retry",
            )
        if b.kind != "remove-node" and self._nodes.is_retired(b.node.incarnation):
            return ErrorReply(
                "refused",
                f"the change was not begun: the incarnation of {b.node.node} was retired from this cluster",
                f"give {b.node.node} an empty data directory, start it, and retry",
            )
        return None

    def begin(self, index: int, b: c.Begin) -> Reply:
        refusal = self.check_begin(b)
        if refusal is not None:
            return refusal
        ids = self._groups.by_owner()
        created = None
        if b.created:
            created = self._groups.create(index, b.node.node, b.created)
            ids[b.node.node] = created
            self._nodes.join(b.node)
        op = self._planned(index, b, ids, created)
        if op.leaving is not None:
            op.dissolved_group = ids[op.leaving]
            if op.options.dead:
                self._fence(op, op.leaving)
            else:
                self._nodes.set_state(op.leaving, "leaving")
        self._placement.plan(b.table)
        self._kept.operations = [*self._kept.operations, op][-OPERATIONS_KEPT:]
        self._audit.note(b.now, b.by, f"begin {op.id}: {op.title}")
        self._advance(index, op, b.now)
        return OperationReply(op)

    def _planned(
        self, index: int, b: c.Begin, ids: dict[NodeId, GroupId], created: GroupId | None
    ) -> Operation:
        """The record of a change whose plan names group owners; `ids` maps owners to groups."""
        members = self._groups.members()
        after = {m.owner: m.after for m in b.members}
        dead = set(self._nodes.dead)
        if self._kept.level >= Feature.RECOVERY_IN_CHANGE:  # members of 0.1.0 record dead nodes only
            dead |= self._departed(members)
        return Operation(
            id=f"op-{index}",
            kind=b.kind,
            node=b.node.node,
            by=b.by,
            started_ms=b.now,
            base_version=b.base_version,
            table_version=index,
            moves=[
                SlotMove(
                    m.slots,
                    ids[m.source],
                    members[ids[m.source]],
                    ids[m.target],
                    after.get(m.target, members[ids[m.target]]),
                )
                for m in b.moves
            ],
            changes=[GroupChange(ids[m.owner], m.joins, m.leaves, m.before, m.after) for m in b.members],
            options=b.options,
            created_group=created,
            created_members=b.created,
            replaces=b.replaces,
            meta_ready=b.kind == "rebalance",
            dead=sorted(dead),
            stages=[StageSpan(Stage.PLANNED.value, b.now)],
        )

    def _departed(self, members: Mapping[GroupId, Collection[NodeId]]) -> set[NodeId]:
        """Nodes that left the cluster and are still members: the node that was to replace them died."""
        return {n for of_group in members.values() for n in of_group if n not in self._nodes}

    # --- progress reports --------------------------------------------------------------------------

    def apply_report(self, index: int, e: c.ProgressReport) -> Reply:
        op = self.find(e.operation)
        if op is None:
            return ErrorReply("not_found", f"there is no operation {e.operation}", "iotctl ops list")
        if isinstance(e, c.ControlOperation) and e.verb == "cancel" and op.stage in CANCELLED:
            return OperationReply(op)  # a retry: the reply to the first cancel may have been lost
        if op.ended:
            if isinstance(e, c.ControlOperation):
                what = f"{op.id} was not changed: it has ended in stage {op.stage}"
                return ErrorReply("refused", what, "iotctl ops list")
            return Accepted(index)
        if isinstance(e, c.FormedBy) and e.group not in self._groups:
            what = f"the report that {e.group} was formed has no effect: there is no group {e.group}"
            return ErrorReply("not_found", what, "iotctl cluster groups")
        is_formed = isinstance(e, c.FormedBy) and op.stage is Stage.RECONFIGURING and e.group not in op.formed
        if isinstance(e, c.ControlOperation) and e.verb == "dead":
            refusal = self._amend(op, e.node)
        else:
            refusal = changes.record(op, e, self._kept.level)
        if refusal is not None:
            return refusal
        if isinstance(e, c.ControlOperation) and e.verb not in ("lease", "unlease"):
            self._audit.note(e.now, e.by, " ".join(filter(None, (e.verb, op.id, e.node, e.report))))
        if isinstance(e, c.FormedBy) and is_formed:
            self._groups.form(e.group, e.members)
        self._advance(index, op, e.now)
        return OperationReply(op) if isinstance(e, c.ControlOperation) else Accepted(index)

    def _fence(self, op: Operation, node: NodeId) -> None:
        """Retire a node that is permanently lost."""
        if node in op.dead:
            return  # an earlier operation or a force recovery fenced it
        op.dead.append(node)
        op.fenced.append(node)
        self._nodes.retire(node)

    def lose(self, node: NodeId) -> None:
        """Retire a node that is permanently lost, whether or not the groups retain a quorum. If the open
        change is cancelled, the node stays retired: a group was recovered without it."""
        op = self.open()
        if op is not None and node not in op.dead:
            op.dead.append(node)
        if op is not None and node in op.fenced:
            op.fenced.remove(node)
        if node in self._nodes.living:
            self._nodes.retire(node)

    def recovered(self, index: int, groups: Collection[GroupId], recovery: str, now: int) -> None:
        """Cancel the open change if that is still possible, because `groups` lost their majority; otherwise
        these groups report again what the stage waits for. `recovery` is the name of their recovery."""
        op = self.open()
        if op is None:
            return
        if op.stage in changes.CANCELLABLE:
            changes.cancel(op, now, "groups lost their majority")
            self._audit.note(now, "", f"{op.id} ({op.title}) enters {op.stage.name}")
        else:
            changes.forget_reports(op, groups)
            op.recovered |= dict.fromkeys(groups, recovery)
        self._advance(index, op, now)

    def _amend(self, op: Operation, node: NodeId) -> ErrorReply | None:
        """Declare `node` dead during `op`: nothing is required of it any more, if every group retains a
        quorum without it."""
        if node not in self._nodes:
            what = f"no node was declared dead: the cluster has no node {node}"
            return ErrorReply("not_found", what, "iotctl cluster nodes")
        if node in op.dead:
            return None
        dead = self._nodes.dead | {node}
        now = self._groups.members()
        groups = [(group, members, dead | self._departed(now)) for group, members in now.items()]
        if self._kept.level < Feature.RECOVERY_IN_CHANGE:
            groups += [(change.group, change.after, dead) for change in op.changes]
        else:  # after a recovery, a formed group may have other members than `after`
            to_form = [c for c in op.changes if c.group not in op.formed and node in c.after]
            groups += [(change.group, change.after, dead) for change in to_form]
        for group, members, lost in groups:
            dead_members = [n for n in members if n in lost]
            if 2 * len(dead_members) >= len(members):
                return ErrorReply(
                    "refused",
                    f"{node} was not declared dead: group {group} ({', '.join(members)}) would have "
                    f"no quorum without {', '.join(dead_members)}",
                    f"start {' or '.join(dead_members)}",
                )
        self._fence(op, node)
        return None

    # --- stages ------------------------------------------------------------------------------------

    def _advance(self, index: int, op: Operation, now: int) -> None:
        for stage in changes.advance(op, now):
            # The audit log is part of the state: members of 0.1.0 must write the same line.
            shown = stage.name if self._kept.level >= Feature.REASONS else stage.value
            self._audit.note(now, "", f"{op.id} ({op.title}) enters {shown}")
            if stage is Stage.OPEN:
                self._switch_table(index, op)
            elif stage is Stage.DONE:
                self._finish(op)
            elif stage is Stage.CANCELLED:
                self._undo(op)

    def _switch_table(self, index: int, op: Operation) -> None:
        self._placement.switch(index)
        if op.created_group and op.node not in op.dead:
            self._nodes.set_state(op.node, "active")
        if op.dissolved_group:
            self._groups.dissolve(op.dissolved_group)

    def _finish(self, op: Operation) -> None:
        if op.dissolved_group:
            self._groups.remove(op.dissolved_group)
        if op.leaving is not None:
            self._nodes.leave(op.leaving)

    def _undo(self, op: Operation) -> None:
        self._placement.cancel()
        for node in op.fenced:
            self._nodes.revive(node)
        if op.leaving is not None and op.leaving not in op.dead:
            self._nodes.set_state(op.leaving, "active")
        if op.created_group:
            self._groups.remove(op.created_group)
            self._nodes.forget(op.node)

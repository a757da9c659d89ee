"""Force recovery: a group that permanently lost its majority continues from one living member's data.

The lost nodes are retired: if they come back, the other nodes ignore them. A force recovery is refused
if the table is not the one that the caller read. It names one recovery leader for each lost group, and none
for any other group.

A change that is open is cancelled if that is still possible, and continues if not. The log of a recovered
group may lack entries that the group has reported for the change, so that the group reports them again.
"""

from collections.abc import Collection
from typing import Protocol

from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.meta.groups import Groups
from nodeagent.meta.nodes import Nodes
from nodeagent.meta.operations import Operations
from nodeagent.meta.placement import Placement
from nodeagent.model.features import Feature
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import recovery_name
from nodeagent.model.requests import Accepted, ErrorReply, Recovery, Reply
from nodeagent.partition.recovery import Lost


class Kept(Protocol):
    """The fields of the image that this module needs."""

    level: int


class ForceRecovery:
    def __init__(
        self,
        kept: Kept,
        nodes: Nodes,
        groups: Groups,
        placement: Placement,
        operations: Operations,
        audit: Audit,
    ) -> None:
        self._kept = kept
        self._nodes = nodes
        self._groups = groups
        self._placement = placement
        self._operations = operations
        self._audit = audit

    def lost(self, nodes: Collection[NodeId]) -> dict[GroupId, Lost]:
        """Each group without a living majority once `nodes` are dead too."""
        return self._groups.lost(self._nodes.living - set(nodes), self._operations.open())

    def check(self, g: c.ForceRecover) -> ErrorReply | None:
        """Why this force recovery cannot begin; None if it can."""
        op = self._operations.open()
        if op is not None and self._kept.level < Feature.RECOVERY_IN_CHANGE:
            return ErrorReply(
                "refused",
                f"no group was recovered: {op.id} ({op.title}, stage {op.stage}) is open, and a force "
                f"recovery during a change needs feature level {Feature.RECOVERY_IN_CHANGE:d}",
                "iotctl cluster finalize-upgrade",
            )
        if g.table_version != self._placement.version:
            return ErrorReply(
                "refused",
                f"no group was recovered: the request was made for table version {g.table_version}, "
                f"the version is {self._placement.version} now",
                "run `iotctl cluster recover` again",
            )
        unknown = next((n for n in g.nodes if n not in self._nodes), None)
        if unknown is not None or not g.nodes:
            why = f"the cluster has no node {unknown}" if unknown is not None else "no lost node is named"
            return ErrorReply("not_found", f"no group was recovered: {why}", "iotctl cluster nodes")
        lost = self.lost(g.nodes)
        if not any(found.is_certain for found in lost.values()) and not g.leaders:
            return ErrorReply(
                "refused",
                f"no group was recovered: every group has a majority without {', '.join(g.nodes)}",
                "iotctl cluster remove-node NODE --dead",
            )
        return self._check_leaders(g, lost)

    def _check_leaders(self, g: c.ForceRecover, lost: dict[GroupId, Lost]) -> ErrorReply | None:
        leaders = {h.group: h for h in g.leaders}
        for group, found in lost.items():
            if group not in leaders and not found.is_certain:
                continue
            if not found.survivors:
                return ErrorReply(
                    "refused",
                    f"no group was recovered: group {group} has no living member to continue from",
                    f"start {' or '.join(self._groups.members()[group])}",
                )
            if group not in leaders or leaders[group].head not in found.survivors:
                return ErrorReply(
                    "refused",
                    f"no group was recovered: group {group} needs one of {', '.join(found.survivors)} "
                    "as recovery leader",
                    "run `iotctl cluster recover` again",
                )
        extra = next((h for h in leaders if h not in lost), None)
        if extra is not None:
            what = f"no group was recovered: group {extra} has not lost its majority"
            return ErrorReply("refused", what, "run `iotctl cluster recover` again")
        return None

    def begin(self, index: int, g: c.ForceRecover) -> Reply:
        refusal = self.check(g)
        if refusal is not None:
            return refusal
        op = self._operations.open()
        lost = self.lost(g.nodes)
        for node in g.nodes:
            self._operations.lose(node)
        name = recovery_name(index, op.id if op is not None else "")
        for leader in g.leaders:
            recovery = Recovery(leader.head, leader.term, name)
            self._groups.recover(leader.group, lost[leader.group].survivors, recovery)
        self._operations.recovered(index, {leader.group for leader in g.leaders}, name, g.now)
        continued = ", ".join(f"{h.group} goes on from {h.head}" for h in g.leaders)
        self._audit.note(
            g.now, g.by, f"recover, data loss accepted: {', '.join(g.nodes)} given up; {continued}"
        )
        return Accepted(index)

    def of_meta(self, index: int, m: c.RecoverMeta) -> Reply:
        """Retire the nodes with which the meta group lost its majority. This is not refused: the group
        continues without them already. An open change requires nothing of them any more."""
        for node in m.nodes:
            if node in self._nodes:
                self._operations.lose(node)
        self._audit.note(
            m.now,
            m.by,
            f"meta recover, data loss accepted: {', '.join(m.nodes)} permanently lost; "
            f"the journal of {m.leader} continues at entry {index}",
        )
        return Accepted(index)

    def complete(self, index: int, e: c.RecoveryCompleted) -> Reply:
        record = self._groups.complete_recovery(e.group, e.operation)
        if record is not None:
            self._audit.note(e.now, "", f"{e.group} is led again by {', '.join(record.members)}")
        return Accepted(index)

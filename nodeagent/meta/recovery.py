"""Groups that lost their majority for good go on from a member that is left, with what that one has.

The nodes that are given up are retired: nobody hears them if they come back with what was lost. It is done
outside of changes and by the table that was looked at, with one survivor for each lost group and for no
other.
"""

from collections.abc import Collection

from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.meta.groups import Groups
from nodeagent.meta.nodes import Nodes
from nodeagent.meta.operations import Operations
from nodeagent.meta.placement import Placement
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import Accepted, ErrorReply, Recovery, Reply


class LostMajorities:
    def __init__(
        self, nodes: Nodes, groups: Groups, placement: Placement, operations: Operations, audit: Audit
    ) -> None:
        self._nodes = nodes
        self._groups = groups
        self._placement = placement
        self._operations = operations
        self._audit = audit

    def lost(self, nodes: Collection[NodeId]) -> dict[GroupId, tuple[NodeId, ...]]:
        """Of each group that has no living majority once `nodes` are dead too: who is left."""
        return self._groups.lost(self._nodes.living - set(nodes))

    def check(self, g: c.GiveUp) -> ErrorReply | None:
        """Why these nodes cannot be given up with these groups, if so."""
        if (op := self._operations.open()) is not None:
            return ErrorReply(
                "refused",
                f"{op.id} ({op.title}, stage {op.stage}) is open: recover works outside of changes",
                f"iotctl ops show {op.id}",
            )
        if g.table_version != self._placement.version:
            return ErrorReply(
                "refused",
                f"the look was at table version {g.table_version}, it is {self._placement.version} now",
                "look again",
            )
        unknown = next((n for n in g.nodes if n not in self._nodes), None)
        if unknown is not None or not g.nodes:
            return ErrorReply("not_found", f"no node {unknown or ''}".rstrip(), "iotctl cluster nodes")
        lost = self.lost(g.nodes)
        if not lost:
            return ErrorReply(
                "refused",
                f"no group lost its majority by {', '.join(g.nodes)}",
                "iotctl cluster remove-node NODE --dead",
            )
        return self._check_heirs(g, lost)

    def _check_heirs(self, g: c.GiveUp, lost: dict[GroupId, tuple[NodeId, ...]]) -> ErrorReply | None:
        heirs = {h.group: h for h in g.heirs}
        for group, survivors in lost.items():
            if not survivors:
                return ErrorReply(
                    "refused",
                    f"nobody is left of group {group}: its rows are gone",
                    f"start {' or '.join(self._groups.members()[group])}",
                )
            if group not in heirs or heirs[group].head not in survivors:
                return ErrorReply(
                    "refused",
                    f"group {group} needs one of {', '.join(survivors)} to go on with",
                    "look again",
                )
        extra = next((h for h in heirs if h not in lost), None)
        if extra is not None:
            return ErrorReply("refused", f"group {extra} has not lost its majority", "look again")
        return None

    def give_up(self, index: int, g: c.GiveUp) -> Reply:
        refusal = self.check(g)
        if refusal is not None:
            return refusal
        lost = self.lost(g.nodes)
        for node in g.nodes:
            if node in self._nodes.living:
                self._nodes.retire(node)
        for heir in g.heirs:
            self._groups.recover(heir.group, lost[heir.group], Recovery(heir.head, heir.term, f"op-{index}"))
        heirs = ", ".join(f"{h.group} goes on from {h.head}" for h in g.heirs)
        self._audit.note(g.now, g.by, f"recover, data loss accepted: {', '.join(g.nodes)} given up; {heirs}")
        return Accepted(index)

    def led_again(self, index: int, e: c.LedAgain) -> Reply:
        record = self._groups.led_again(e.group, e.operation)
        if record is not None:
            self._audit.note(e.now, "", f"{e.group} is led again by {', '.join(record.members)}")
        return Accepted(index)

"""Which feature levels the other nodes support, and whether the cluster's can be raised
(`model.features`)."""

from collections.abc import Callable, Collection

from nodeagent.meta.image import Image
from nodeagent.meta.nodes import DEAD
from nodeagent.model.errors import Refused
from nodeagent.model.features import FIRST, Levels
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import NodeRecord

PEERS_SPARE = 64
"""Levels of nodes that are not members (any more, or yet) are kept until these are this many more than the
members; then all of them are forgotten."""


class PeerLevels:
    """
    Args:
        own: the levels of this node; peers send theirs in their hellos.
    """

    def __init__(self, node: NodeId, own: Levels) -> None:
        self.own = own
        self._node = node
        self._heard: dict[str, Levels] = {}

    def meet(self, incarnation: str, levels: Levels) -> None:
        """Note the levels in a peer's hello."""
        self._heard[incarnation] = levels

    def common(self, nodes: Collection[NodeRecord]) -> int:
        """The highest level that all of these nodes support, but no lower than this node's oldest, for a
        cluster that they form; a node whose levels are unknown counts as supporting only the first."""
        spoken = [self._levels_of(n) or Levels(FIRST, FIRST) for n in nodes]
        return max(self.own.oldest, min((levels.newest for levels in spoken), default=FIRST))

    def prune(self, members: Collection[str]) -> None:
        """Forget incarnations that are not members, once there are many."""
        if len(self._heard) > 2 * len(members) + PEERS_SPARE:
            self._heard = {i: levels for i, levels in self._heard.items() if i in members}

    def check_raise(self, level: int, image: Image, is_silent: Callable[[NodeId], bool]) -> None:
        """Check that the cluster may be raised to `level`, on the meta leader, which hears from every node.

        Raises:
            Refused: a node does not support `level`, or it is not known whether it does; nothing was changed.
        """
        if level <= image.level:
            return
        joining = next((o for o in image.operations if not o.ended and o.created_members), None)
        if joining is not None:
            raise Refused(
                f"{joining.id} ({joining.title}) is open: the node that joins may be of an earlier release",
                next_step=f"iotctl ops wait {joining.id}",
            )
        for record in image.nodes.values():
            if record.state == DEAD:
                continue
            levels = self._levels_of(record)
            if levels is None or (record.node != self._node and is_silent(record.node)):
                raise Refused(
                    f"{record.node} does not respond: whether it supports feature level {level} is not known",
                    next_step="start it (iotctl cluster status), then run iotctl cluster finalize-upgrade",
                )
            if level not in levels:
                raise Refused(
                    f"{record.node} supports feature level {levels}, not {level}",
                    next_step="iotctl cluster upgrade",
                )

    def _levels_of(self, record: NodeRecord) -> Levels | None:
        return self.own if record.node == self._node else self._heard.get(record.incarnation)

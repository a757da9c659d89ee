"""From which nodes this node accepts messages: those that the meta state lists, by name and incarnation.

A certificate with the role `node` only proves that its holder was a node once. Before a node answers a
request of a peer, pulls from it or takes its Raft messages, it checks the peer's membership here, at every
frame, because membership changes while connections are open.

The meta state of this node may be old: it does not name a member that joined later, and that member may be
the very leader that would send the newer state. So an unknown node is neither accepted nor refused
permanently: this node asks some members that it knows (a joining node asks the seeds), and accepts messages
from the unknown node if one of them vouches for it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.meta.image import Image
from nodeagent.meta.nodes import DEAD
from nodeagent.model.ids import NodeId
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.requests import CheckStatus, GetMeta, MetaView, Reply, StatusChecked

if TYPE_CHECKING:
    import random

ASK_AGAIN_MS = 300
"""Members are asked about unknown nodes at most this often."""

ASKED_AT_ONCE = 3
"""Members asked at a time, because some of them may be down or not know the node either."""

VOUCHED_MS = 30_000
"""A member vouches for another node for this long; members are asked again after half of this time."""


def membership_status(
    image: Image,
    named: Callable[[], Collection[NodeId]],
    vouched: Mapping[NodeId, str],
    node: NodeId,
    incarnation: str,
) -> MembershipStatus:
    """The membership status of `node` by the meta state `image`.

    Args:
        named: nodes that are members by name if the state does not know them: those of the newest
            configuration in the meta log, which may be newer than the state, and the seeds of `node.yaml` as
            long as there is no state.
        vouched: incarnations that members vouched for recently.
    """
    found = known_status(image, node, incarnation)
    if found is not None:
        return found
    if vouched.get(node) == incarnation or (node not in image.nodes and node in named()):
        return MembershipStatus.MEMBER
    return MembershipStatus.UNKNOWN


def known_status(image: Image, node: NodeId, incarnation: str) -> MembershipStatus | None:
    """The membership status of `node` by the meta state alone; None if it does not name the incarnation."""
    if incarnation in image.retired:
        return MembershipStatus.RETIRED
    record = image.nodes.get(node)
    return MembershipStatus.MEMBER if record is not None and record.incarnation == incarnation else None


def members_of(image: Image) -> tuple[tuple[NodeId, str], ...]:
    """(name, incarnation) of all nodes of the cluster that are not dead."""
    return tuple((n.node, n.incarnation) for n in image.nodes.values() if n.state != DEAD)


class Members:
    """Determines the membership status of peers, and asks members about unknown nodes.

    Args:
        known: the other nodes with a known address.
        question: the request to members; a node that is not a member yet may send it too.
    """

    def __init__(
        self,
        effects: EffectQueue,
        rng: "random.Random",
        *,
        image: Callable[[], Image],
        named: Callable[[], Collection[NodeId]],
        known: Callable[[], Collection[NodeId]],
        question: CheckStatus,
    ) -> None:
        self._effects = effects
        self._random = rng
        self._image = image
        self._named = named
        self._known = known
        self._question = question
        self._vouched: dict[NodeId, str] = {}
        self._vouched_at: dict[NodeId, int] = {}
        self._ask_at = effects.now
        self._forget_at = effects.now

    def membership_status(self, node: NodeId, incarnation: str) -> MembershipStatus:
        """The membership status of a peer now. If the meta state does not know it, members are asked."""
        image = self._image()
        known = known_status(image, node, incarnation)
        if known is not None:  # as at nearly every frame
            return known
        self._forget()
        found = membership_status(image, self._named, self._vouched, node, incarnation)
        if found is MembershipStatus.UNKNOWN or (found is MembershipStatus.MEMBER and self._is_ageing(node)):
            self._ask()
        return found

    def _is_ageing(self, node: NodeId) -> bool:
        """Whether the node is accepted only because members vouched for it, and that was some time ago."""
        at = self._vouched_at.get(node)
        return at is not None and self._effects.now - at > VOUCHED_MS // 2 and node not in self._image().nodes

    def _forget(self) -> None:
        if self._effects.now < self._forget_at:
            return  # this runs at every frame, and there may be a thousand nodes
        self._forget_at = self._effects.now + ASK_AGAIN_MS
        before = self._effects.now - VOUCHED_MS
        for node in [n for n, at in self._vouched_at.items() if at < before]:
            del self._vouched[node], self._vouched_at[node]

    def _ask(self) -> None:
        if self._effects.now < self._ask_at:
            return
        self._ask_at = self._effects.now + ASK_AGAIN_MS
        known = sorted(self._known())
        for node in self._random.sample(known, min(ASKED_AT_ONCE, len(known))):
            self._effects.call(node, self._question, lambda reply, n=node: self._on_answer(n, reply))  # type: ignore[misc]

    def _on_answer(self, node: NodeId, reply: Reply) -> None:
        mine = self._image().cluster_id
        if isinstance(reply, StatusChecked) and reply.cluster_id and mine in ("", reply.cluster_id):
            if reply.members:
                self._vouch(reply.members)
            else:  # an older release, which names no members here and answers any node
                self._effects.call(node, GetMeta(any_age=True), lambda view: self._on_answer(node, view))
        elif isinstance(reply, MetaView) and mine in ("", reply.cluster_id):
            self._vouch((n.node, n.incarnation) for n in reply.nodes if n.state != DEAD)

    def _vouch(self, members: Iterable[tuple[NodeId, str]]) -> None:
        retired = self._image().retired
        for node, incarnation in members:
            if incarnation not in retired:
                self._vouched[node] = incarnation
                self._vouched_at[node] = self._effects.now

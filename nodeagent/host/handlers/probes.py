"""Checks, before a change is logged, that every affected group has a leader that a majority follows."""

from collections.abc import Callable, Mapping

from nodeagent.host.context import Context
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.replica import Replica
from nodeagent.host.replicas import Replicas
from nodeagent.meta import commands as meta
from nodeagent.meta.state import MetaState
from nodeagent.model import requests as q
from nodeagent.model.ids import GroupId, NodeId


def answer_probe(effects: EffectQueue, token: int, replica: Replica) -> None:
    """Answer whether the replica's group has a leader that a majority follows."""
    replica.read(
        lambda: effects.reply(token, q.Accepted()), lambda why: effects.refuse(token, "unavailable", why)
    )


class Probes:
    """Asks the members of every affected group for a read index until one member has it, and proposes the
    command if every group answers in time.

    Args:
        still: called before the proposal; returns why the command may no longer be proposed, None if it may.
    """

    WITHIN_MS = 1_500
    """Clients wait at least 2 s for an answer."""

    AGAIN_MS = 100

    def __init__(
        self,
        context: Context,
        replicas: Replicas,
        token: int,
        replica: MetaReplica,
        command: meta.Begin | meta.ControlOperation,
        groups: Mapping[GroupId, tuple[NodeId, ...]],
        still: Callable[[], q.ErrorReply | None],
    ) -> None:
        self._node = context.node
        self._effects = context.effects
        self._replicas = replicas
        self.token = token
        self.replica = replica
        self.command = command
        self.waiting = dict(groups)
        self.still = still
        self.why: dict[GroupId, str] = {}
        self.ended = False

    def start(self) -> None:
        if not self.waiting:
            return self._finish()
        self._effects.later(self.WITHIN_MS, self._finish)
        for group, members in list(self.waiting.items()):
            for node in members:
                self._ask(group, node)
        return None

    def _ask(self, group: GroupId, node: NodeId) -> None:
        if self.ended or group not in self.waiting:
            return
        own = self._replicas.data.get(group)
        if node == self._node and own is not None:  # a recovered group may have no other member
            own.read(
                lambda: self._on_reply(group, node, q.Accepted()),
                lambda why: self._on_reply(group, node, q.ErrorReply("unavailable", why)),
            )
            return
        self._effects.call(node, q.ProbeGroup(group), lambda r: self._on_reply(group, node, r))

    def _on_reply(self, group: GroupId, node: NodeId, reply: q.Reply) -> None:
        if isinstance(reply, q.ErrorReply):
            self.why.setdefault(group, reply.what)
            self._effects.later(self.AGAIN_MS, lambda: self._ask(group, node))
            return
        self.waiting.pop(group, None)
        if not self.waiting:
            self._finish()

    def _finish(self) -> None:
        if self.ended:
            return None
        self.ended = True
        if self.waiting:
            lost = "; ".join(f"{g}: {self.why.get(g, 'no member answers')}" for g in sorted(self.waiting))
            return self._effects.refuse(
                self.token,
                "refused",
                f"nothing was changed: no live quorum in {lost}",
                "start the missing nodes (`iotctl cluster status`); if they are permanently lost:"
                " iotctl cluster recover NODE...",
            )
        return self._effects.guarded(self.token, "a change", self._propose)()

    def _propose(self) -> None:
        refusal = self.still()
        if refusal is not None:
            return self._effects.reply(self.token, refusal)
        self.replica.propose([meta.encode(self.command)], self.token)
        return None


def groups_of(begin: meta.Begin, state: MetaState) -> dict[GroupId, tuple[NodeId, ...]]:
    """Groups that lose or gain slots or change members, with their current members."""
    owners = {m.source for m in begin.moves} | {m.target for m in begin.moves}
    owners |= {m.owner for m in begin.members}
    return {g.group: g.members for g in state.image.groups.values() if g.owner in owners}

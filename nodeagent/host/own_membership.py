"""Whether this node is still a member, by its peers' answers and its own log."""

from collections.abc import Collection

from nodeagent.host.admission import status_question
from nodeagent.host.cluster import Cluster
from nodeagent.host.context import Context
from nodeagent.model.errors import retired_sentence
from nodeagent.model.ids import NodeId

RETIRED_MS = 10_000
"""A retired node dials its peers, and is refused, more often than this."""

ASK_MS = 2_000
"""How often a node that hears no leader of the meta group asks a peer."""


class OwnMembership:
    def __init__(self, context: Context, cluster: Cluster) -> None:
        self._config = context.config
        self._node = context.node
        self._incarnation = context.incarnation
        self._effects = context.effects
        self._cluster = cluster
        self._retired_until, self._retired_why = context.effects.now, ""
        self._ask_at = context.effects.now + ASK_MS
        self._asked = 0
        self.older_copy = ""
        """Why a peer takes this node's directory for an older copy, "" if none does."""

    def retired(self, why: str) -> None:
        """A peer refuses this node because its incarnation was retired.

        Several nodes that were fenced together may still be the majority of a group, and writes that they
        accept would be lost, so they serve nobody. The refusal lapses, because a removal may be cancelled.
        """
        self._retired_until, self._retired_why = self._effects.now + RETIRED_MS, why

    def ask(self, peers: Collection[NodeId]) -> None:
        """Called at every housekeeping. A node that was down while it was removed gets no messages, and may
        have no reason to send any. So it asks its peers, one after the other, as long as it hears no leader
        of the meta group; a peer that knows better refuses it."""
        meta, now = self._cluster.meta_replica, self._effects.now
        if meta is None or not self._cluster.id or meta.raft.hears_leader():
            self._ask_at = now + ASK_MS
        elif now >= self._ask_at and peers:
            self._ask_at = now + ASK_MS
            self._asked += 1
            question = status_question(self._config, self._incarnation)
            self._effects.call(sorted(peers)[self._asked % len(peers)], question, lambda _: None)

    @property
    def fenced_reason(self) -> str:
        """Why this node is fenced and serves nobody for now; "" if it is not.

        The node may learn of its retirement from its own log before a peer refuses it.
        """
        if self._incarnation in self._cluster.retired:
            return retired_sentence(self._incarnation, self._node)
        return self._retired_why if self._effects.now < self._retired_until else ""

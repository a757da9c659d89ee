"""Whether this node is still a member, by its peers' answers and its own log."""

from nodeagent.host.cluster import Cluster
from nodeagent.host.context import Context
from nodeagent.model.errors import retired_sentence

RETIRED_MS = 10_000
"""A retired node dials its peers, and is refused, more often than this."""


class OwnMembership:
    def __init__(self, context: Context, cluster: Cluster) -> None:
        self._node = context.node
        self._incarnation = context.incarnation
        self._effects = context.effects
        self._cluster = cluster
        self._retired_until, self._retired_why = context.effects.now, ""
        self.older_copy = ""
        """Why a peer takes this node's directory for an older copy, "" if none does."""

    def retired(self, why: str) -> None:
        """A peer refuses this node because its incarnation was retired.

        Several nodes that were fenced together may still be the majority of a group, and writes that they
        accept would be lost, so they serve nobody. The refusal lapses, because a removal may be cancelled.
        """
        self._retired_until, self._retired_why = self._effects.now + RETIRED_MS, why

    @property
    def fenced_reason(self) -> str:
        """Why this node is fenced and serves nobody for now; "" if it is not.

        The node may learn of its retirement from its own log before a peer refuses it.
        """
        if self._incarnation in self._cluster.retired:
            return retired_sentence(self._incarnation, self._node)
        return self._retired_why if self._effects.now < self._retired_until else ""

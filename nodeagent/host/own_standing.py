"""Whether this node itself still counts, as its peers and its own log say."""

from nodeagent.host.cluster import Cluster
from nodeagent.host.context import Context
from nodeagent.model.errors import retired_sentence

RETIRED_MS = 10_000
"""A retired node dials again, and is told again, more often than this."""


class OwnStanding:
    def __init__(self, context: Context, cluster: Cluster) -> None:
        self._node = context.node
        self._incarnation = context.incarnation
        self._desk = context.desk
        self._cluster = cluster
        self._retired_until, self._retired_why = context.desk.now, ""
        self.older_copy = ""
        """Why this node's directory is an older copy, when a peer said so."""

    def retired(self, why: str) -> None:
        """A peer will not hear this node, because its incarnation was retired.

        Several that were given up together may still be a majority among themselves: what they let a client
        write would be lost, so they serve nobody. Not for ever: a removal that is cancelled takes it back.
        """
        self._retired_until, self._retired_why = self._desk.now + RETIRED_MS, why

    @property
    def outcast(self) -> str:
        """Why this node serves nobody for now; "" when it does.

        It may read in its own log that it was retired before a peer tells it so.
        """
        if self._incarnation in self._cluster.retired:
            return retired_sentence(self._incarnation, self._node)
        return self._retired_why if self._desk.now < self._retired_until else ""

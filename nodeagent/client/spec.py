"""How to reach a cluster, as a picklable value (Spark sends it to its tasks)."""

import msgspec

from nodeagent.model.ids import NodeId
from nodeagent.transport.tls import Identity

__all__ = ["TIMEOUT_S", "ClusterSpec", "Endpoint", "Identity"]

TIMEOUT_S = 10.0


class Endpoint(msgspec.Struct, frozen=True):
    """The address of a node. `node` is "" while its name is unknown."""

    node: NodeId
    host: str
    port: int

    @property
    def target(self) -> str:
        """The name by which calls address it: the node, or `host:port` (a node id never contains a colon)."""
        return self.node or f"{self.host}:{self.port}"


class ClusterSpec(msgspec.Struct, frozen=True):
    """`timeout_s` bounds the retries of one call, and how long a read continues without progress. `identity`
    is None for a cluster without TLS."""

    endpoints: tuple[Endpoint, ...]
    identity: Identity | None = None
    timeout_s: float = TIMEOUT_S

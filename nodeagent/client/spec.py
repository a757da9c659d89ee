"""How to reach a cluster, as a value that travels (Spark ships it to its tasks)."""

import msgspec

from nodeagent.model.ids import NodeId
from nodeagent.transport.tls import Identity

__all__ = ["TIMEOUT_S", "ClusterSpec", "Endpoint", "Identity"]

TIMEOUT_S = 10.0


class Endpoint(msgspec.Struct, frozen=True):
    """Where a node listens. `node` is "" while its name is not known."""

    node: NodeId
    host: str
    port: int

    @property
    def target(self) -> str:
        """What calls name it: the node, or `host:port` (a node id never holds a colon)."""
        return self.node or f"{self.host}:{self.port}"


class ClusterSpec(msgspec.Struct, frozen=True):
    """Picklable. `timeout_s` bounds the retries of one call, and how long a read goes on without progress;
    `identity` None is a cluster without TLS."""

    endpoints: tuple[Endpoint, ...]
    identity: Identity | None = None
    timeout_s: float = TIMEOUT_S

"""The planner's input: the state of the cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.ids import NodeId
from nodeagent.partition.table import PartitionTable

RATE_BYTES_PER_S = 32 * 1024 * 1024
"""Cluster-wide copy rate assumed for the ETA when none is given."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """With `disk_free_bytes` None, free disk is unknown and not checked."""

    disk_free_bytes: int | None = None
    live: bool = True


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """`slot_bytes`: one replica's bytes of each non-empty slot. `write_rates`: acknowledged bytes per second
    of each written slot; empty if not requested. A node missing in `nodes` counts as live with unknown
    free disk, as in a plan from a saved status."""

    table: PartitionTable
    replicas: int
    slot_bytes: Mapping[int, int]
    nodes: Mapping[NodeId, NodeFacts] = field(default_factory=dict)
    rate_bytes_per_s: int = RATE_BYTES_PER_S
    spec_hash: str = ""
    write_rates: Mapping[int, float] = field(default_factory=dict)
    members: Mapping[NodeId, tuple[NodeId, ...]] = field(default_factory=dict)
    """Members by group owner; a recovered group has other members than the ring gives."""

    zones: Mapping[NodeId, str] = field(default_factory=dict)
    weights: Mapping[NodeId, float] = field(default_factory=dict)
    """Zones and weights of cluster.yaml; without an entry, no zone and weight 1."""

    start: str = ""
    """The command that starts the nodes that are down."""

    def members_of(self, owner: NodeId) -> tuple[NodeId, ...]:
        """The present members of the group of `owner`."""
        return self.members.get(owner) or self.table.ring.members(owner, self.replicas)

    def node(self, name: NodeId) -> NodeFacts:
        return self.nodes.get(name, NodeFacts())

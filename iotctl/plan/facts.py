"""What the planner knows of the cluster when it plans."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.ids import NodeId
from nodeagent.partition.table import PartitionTable

RATE_BYTES_PER_S = 32 * 1024 * 1024
"""Cluster-wide copy rate assumed for the ETA when none is given."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """`disk_free_bytes` None: not known, so the disk is not checked."""

    disk_free_bytes: int | None = None
    live: bool = True


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """`slot_bytes`: one replica's bytes of each non-empty slot; `write_rates`: bytes per second acknowledged
    for each slot that is written (empty where nobody asked). A node missing in `nodes` is taken as live
    with unknown disk (a dry plan from a saved status knows no more)."""

    table: PartitionTable
    replicas: int
    slot_bytes: Mapping[int, int]
    nodes: Mapping[NodeId, NodeFacts] = field(default_factory=dict)
    rate_bytes_per_s: int = RATE_BYTES_PER_S
    spec_hash: str = ""
    write_rates: Mapping[int, float] = field(default_factory=dict)
    members: Mapping[NodeId, tuple[NodeId, ...]] = field(default_factory=dict)
    """By header, where they are known not to be the ring's: of a group that was recovered."""

    zones: Mapping[NodeId, str] = field(default_factory=dict)
    weights: Mapping[NodeId, float] = field(default_factory=dict)
    """What cluster.yaml says of its nodes; no zone and weight 1 where it says nothing."""

    start: str = ""
    """How nodes that are down are started here."""

    def members_of(self, header: NodeId) -> tuple[NodeId, ...]:
        """As they are now."""
        return self.members.get(header) or self.table.ring.members(header, self.replicas)

    def node(self, name: NodeId) -> NodeFacts:
        return self.nodes.get(name, NodeFacts())

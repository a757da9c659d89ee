"""Clusters for the tests of plans."""

from iotctl.plan.facts import ClusterFacts, NodeFacts
from nodeagent.partition.ring import initial_ring
from nodeagent.partition.table import initial_table


def facts_of(
    n: int,
    slots: int = 10_000,
    data: dict[int, int] | None = None,
    nodes: dict[str, NodeFacts] | None = None,
    rate_bytes_per_s: int = 1 << 20,
) -> ClusterFacts:
    """`n` nodes n1, n2, ... with the initial table, version 7; every fifth slot holds 1 000 bytes."""
    table = initial_table(initial_ring([f"n{i + 1}" for i in range(n)]), slots, version=7)
    sizes = dict.fromkeys(range(0, slots, 5), 1000) if data is None else data
    return ClusterFacts(table, 3, sizes, nodes or {}, rate_bytes_per_s, "h")

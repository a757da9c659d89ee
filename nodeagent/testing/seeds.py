"""A seed of the simulator: one in each of its worlds, from the smallest to a whole cluster."""

import time

import msgspec

from nodeagent.testing import alone, cluster_swarm, log_swarm, scenario, swarm, walks


class Evidence(msgspec.Struct):
    seed: int
    log: log_swarm.Report
    walks: walks.Report
    groups: swarm.Report
    alone: cluster_swarm.Report
    cluster: scenario.Report | cluster_swarm.Report
    """Every second seed has the swarm's operations and faults."""


def evidence(seed: int) -> str:
    """The reports as a line, and how long they took."""
    began = time.monotonic()
    cluster = scenario.run if seed % 2 else cluster_swarm.run
    smaller = log_swarm.run(seed), walks.run(seed), swarm.run(seed), alone.run(seed)
    found = Evidence(seed, *smaller, cluster(seed))
    return f"{msgspec.json.encode(found).decode()} {time.monotonic() - began:.1f} s"

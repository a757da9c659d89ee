"""A seed of the simulator: a run of Raft groups alone, and one of a whole cluster."""

import time

import msgspec

from nodeagent.testing import scenario, swarm


class Evidence(msgspec.Struct):
    seed: int
    groups: swarm.Report
    cluster: scenario.Report


def evidence(seed: int) -> str:
    """Both reports as a line, and how long they took."""
    began = time.monotonic()
    found = Evidence(seed, swarm.run(seed), scenario.run(seed))
    return f"{msgspec.json.encode(found).decode()} {time.monotonic() - began:.1f} s"

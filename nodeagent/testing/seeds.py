"""A seed of the simulator: one run in each of its worlds, from the smallest to a whole cluster."""

import time
from collections.abc import Callable, Mapping

import msgspec

from nodeagent.testing import alone, client_run, cluster_swarm, log_swarm, scenario, swarm, walks

SMALL: Mapping[str, Callable[[int], msgspec.Struct]] = {
    "log": log_swarm.run,
    "walks": walks.run,
    "groups": swarm.run,
    "alone": alone.run,
}
WHOLE: tuple[Mapping[str, Callable[[int], msgspec.Struct]], ...] = (
    {"cluster_swarm": cluster_swarm.run},
    {"scenario": scenario.run, "client": client_run.run},
)
"""These by turns: the first takes twice as long as the other two."""


def evidence(seed: int) -> str:
    """The report of each world as a line, and how long they took."""
    began = time.monotonic()
    worlds = {**SMALL, **WHOLE[seed % len(WHOLE)]}
    reports = {name: run(seed) for name, run in worlds.items()}
    return f"{msgspec.json.encode(reports).decode()} {time.monotonic() - began:.1f} s"

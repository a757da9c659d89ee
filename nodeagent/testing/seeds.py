"""A seed of the simulator: some runs in each of its worlds, from a single log to a whole cluster."""

import time
from collections.abc import Callable, Mapping

import msgspec

from nodeagent.testing import (
    client_run,
    cluster_swarm,
    files_swarm,
    log_swarm,
    scenario,
    single_node,
    swarm,
    walks,
)

Runs = Mapping[str, tuple[Callable[[int], msgspec.Struct], int]]
"""By name of a world: the function that runs one of its seeds, and how many of them a simulator seed runs."""

SMALL: Runs = {
    "log": (log_swarm.run, 1),
    "files": (files_swarm.run, 2),
    "walks": (walks.run, 1),
    "groups": (swarm.run, 4),
    "alone": (single_node.run, 1),
}
WHOLE: tuple[Runs, ...] = (
    {"cluster_swarm": (cluster_swarm.run, 1)},
    {"scenario": (scenario.run, 1), "client": (client_run.run, 1)},
)
"""Worlds of whole clusters; each seed runs one of these sets, in turn."""

WORLDS: Runs = {name: runs[name] for runs in (SMALL, *WHOLE) for name in runs}
"""All worlds."""


def result_line(seed: int, world: str = "") -> str:
    """Run a seed in each of its worlds; returns their reports and the duration as one line.

    Args:
        world: run only this world, if the seed includes it.
    """
    began = time.monotonic()
    worlds = {**SMALL, **WHOLE[seed % len(WHOLE)]}
    reports = {
        name: [run(one) for one in range((seed - 1) * count + 1, seed * count + 1)]
        for name, (run, count) in worlds.items()
        if world in ("", name)
    }
    return f"{msgspec.json.encode(reports).decode()} {time.monotonic() - began:.1f} s"

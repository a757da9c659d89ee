"""A single node under a swarm of faults: the real host with its log and files, through many restarts.

No other node can send it what it forgets, and an event costs a fraction of what it costs in a cluster. Bursts
of faults follow one another while clients write and read; after each burst the node must start on its own.

`python -m nodeagent.testing.single_node FIRST [COUNT]` prints one line per seed.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from nodeagent.testing.cluster_plan import Plan, draw_habits
from nodeagent.testing.cluster_swarm import ClusterSwarm, Report, reported
from nodeagent.testing.injector import WHOLE_KINDS
from nodeagent.testing.nemesis import draw_kinds, draw_stragglers
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import timed

KINDS = tuple(k for k in WHOLE_KINDS if k not in ("cut", "alone", "deposed", "transfer", "jump"))
"""Faults that need only one node. Without `jump`: no other node could detect that the clock is wrong."""


class Alone(ClusterSwarm):
    def drawn(self, rng: random.Random) -> Plan:
        plan = Plan.draw(rng)
        plan = replace(
            plan,
            nodes=1,
            replicas=1,
            slots=rng.choice([4, 8, 16]),
            groups=rng.choice([1, 2, 3]),
            operations=rng.choice([10, 20]),
            kinds=draw_kinds(rng, KINDS),
            burst_ms=min(plan.burst_ms, 6_000),
            habits=draw_habits(rng),
        )
        plan.kinds |= draw_stragglers(rng)
        return plan

    def choices(self) -> list[Callable[[], bool]]:
        return [self.endure]

    def endure(self) -> bool:
        self.burst()
        self.sim.run(lambda: self.nemesis.calm, self.plan.burst_ms)
        self._all_up()
        return True


def ran(seed: int) -> tuple[Alone, Report]:
    """Run a seed; returns its world and its report."""
    alone = Alone(seed)
    return alone, reported(alone, f"nodeagent.testing.single_node {seed}")


def run(seed: int) -> Report:
    return ran(seed)[1]


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

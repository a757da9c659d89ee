"""Clusters under a swarm of faults whose nodes are upgraded and downgraded one by one.

All nodes begin with the previous release. Between the operations of `cluster_swarm` nodes are upgraded and
downgraded under faults, and an operator keeps trying to raise the feature level, which must fail until the
last node is upgraded. At the end the level is raised, and nodes switch to a release with another TsFile
library and back: replicas stay equal byte for byte.

`python -m nodeagent.testing.upgrade FIRST [COUNT]` prints one line per seed.
"""

import random
from collections.abc import Callable

from nodeagent.model import requests as q
from nodeagent.model.config import NodeConfig
from nodeagent.model.features import FIRST, SPOKEN
from nodeagent.model.requests import Accepted
from nodeagent.testing.builds import NEXT, PREVIOUS, THIS, Build
from nodeagent.testing.cluster_plan import Plan
from nodeagent.testing.cluster_swarm import ClusterSwarm, Report, reported
from nodeagent.testing.node import SimNode
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import timed
from nodeagent.testing.simulated import LIMIT_MS

DOWN_MS = (50, 1_500)
"""Range of how long a node is down for an upgrade."""

LAST = ("upgrade_all", "raise_level", "change_library", "change_library")
"""The fixed operations at the end of a run."""


class UpgradeSwarm(ClusterSwarm):
    rest_ms = 10 * LIMIT_MS
    """Long, because each merge of a partition waits until all members have copied the previous output."""

    def __init__(self, seed: int) -> None:
        self.newest_build = PREVIOUS
        """The newest release that some node has run."""

        super().__init__(seed)
        self.wanted += len(LAST)

    def drawn(self, rng: random.Random) -> Plan:
        plan = super().drawn(rng)
        plan.operations = max(plan.operations, 4)
        return plan

    def machine(self, config: NodeConfig) -> SimNode:
        """A new machine, with the newest release in use, as an operator would install it."""
        node = super().machine(config)
        node.build = self.newest_build
        return node

    @property
    def level(self) -> int:
        return self.newest().image.level

    # --- operations --------------------------------------------------------------------------------

    def choices(self) -> list[Callable[[], bool]]:
        left = self.wanted - len(self.steps)
        if left <= len(LAST):
            return [getattr(self, LAST[-left])]
        own = [self.upgrade_one, self.upgrade_one, self.go_back_one, self.try_to_raise]
        return [*super().choices(), *own, *own]

    def upgrade_one(self) -> bool:
        return self._run_as(self._any(PREVIOUS), THIS)

    def go_back_one(self) -> bool:
        """Downgrade a node to the previous release, as long as the feature level allows it."""
        return self._run_as(self._any(THIS), PREVIOUS) if self.level == FIRST else True

    def try_to_raise(self) -> bool:
        """Request the feature level, which is refused while a member runs the previous release."""
        reply = self._asked(self.sim.rng.choice(self._names()), q.RaiseLevel(SPOKEN.newest, "sim"))
        self._check_level()
        return isinstance(reply, Accepted)

    def upgrade_all(self) -> bool:
        for name in self._names():
            self._run_as(self.sim.nodes[name], THIS)
        return True

    def raise_level(self) -> bool:
        self._all_up()
        self.request(q.RaiseLevel(SPOKEN.newest, "sim"), Accepted)
        self.until(
            lambda: all(n.alive and n.host.cluster.level == SPOKEN.newest for n in self._members()),
            "every node has the new feature level",
        )
        self._check_level()
        return True

    def change_library(self) -> bool:
        """Switch some nodes to the other TsFile library while rows are written and flushed."""
        for name in self._names():
            node = self.sim.nodes[name]
            if self.sim.rng.random() < 0.6:
                self._run_as(node, THIS if node.build is NEXT else NEXT)
        return True

    def _any(self, build: Build) -> SimNode | None:
        found = [n for n in self._members() if n.build is build and n.alive]
        return self.sim.rng.choice(sorted(found, key=lambda n: n.node)) if found else None

    def _run_as(self, node: SimNode | None, build: Build) -> bool:
        """End the node's process; its next process runs `build`."""
        if node is None or node.build is build or node.gone:
            return True
        rng = self.sim.rng
        node.build = build
        self.newest_build = max(self.newest_build, build, key=[PREVIOUS, THIS, NEXT].index)
        self.kill(node.node, rng.randint(*DOWN_MS), power=rng.random() < 0.3)
        if rng.random() < 0.3:
            self.burst()
        self.sim.pause(rng.randint(0, 3_000))
        self._check_level()
        return True

    def _check_level(self) -> None:
        older = [n.node for n in self._members() if self.level not in n.build.levels and n not in self.dead]
        assert not older, f"the feature level is {self.level}, which {older} do not support"


def run(seed: int) -> Report:
    return reported(UpgradeSwarm(seed), f"nodeagent.testing.upgrade {seed}")


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

"""Clusters under a swarm that are upgraded node by node, and back.

All nodes begin with the release before this one. Between the operations of `cluster_swarm` nodes are
upgraded, and go back, under faults; an operator tries to raise the feature level all the while, which may not
succeed before the last node is upgraded. Then it does; and nodes go to a release with another library for
files, and back: replicas stay equal in every byte.

`python -m nodeagent.testing.upgrade FIRST [COUNT]` prints one line of evidence per seed.
"""

import random
from collections.abc import Callable

from nodeagent.model import requests as q
from nodeagent.model.config import NodeConfig
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.requests import Accepted
from nodeagent.testing.builds import NEXT, PREVIOUS, THIS, Build
from nodeagent.testing.cluster_plan import Plan
from nodeagent.testing.cluster_swarm import ClusterSwarm, Report, reported
from nodeagent.testing.node import SimNode
from nodeagent.testing.parallel import print_evidence
from nodeagent.testing.replay import timed
from nodeagent.testing.scenario import LIMIT_MS

DOWN_MS = (50, 1_500)
"""A node that is upgraded is down for so long."""

LAST = ("upgrade_all", "raise_level", "change_library", "change_library")
"""Operations at the end of a run that are not drawn."""


class UpgradeSwarm(ClusterSwarm):
    rest_ms = 10 * LIMIT_MS
    """After each merge the next one of its partition waits for those that copy what it made."""

    def __init__(self, seed: int) -> None:
        self.newest_build = PREVIOUS
        """Of those that some node has run."""

        super().__init__(seed)
        self.wanted += len(LAST)

    def drawn(self, rng: random.Random) -> Plan:
        plan = super().drawn(rng)
        plan.operations = max(plan.operations, 4)
        return plan

    def machine(self, config: NodeConfig) -> SimNode:
        """One that comes later has what an operator would install on it: the newest that is in use."""
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
        """To the release before, as long as the level lets it."""
        return self._run_as(self._any(THIS), PREVIOUS) if self.level == FIRST else True

    def try_to_raise(self) -> bool:
        """It is refused while a member is of the release before."""
        reply = self._asked(self.sim.rng.choice(self._names()), q.RaiseLevel(Feature.FILE_WRITER, "sim"))
        self._check_level()
        return isinstance(reply, Accepted)

    def upgrade_all(self) -> bool:
        for name in self._names():
            self._run_as(self.sim.nodes[name], THIS)
        return True

    def raise_level(self) -> bool:
        self._all_up()
        self.request(q.RaiseLevel(Feature.FILE_WRITER, "sim"), Accepted)
        self.until(
            lambda: all(n.alive and n.host.cluster.level == Feature.FILE_WRITER for n in self._members()),
            "every node has the new feature level",
        )
        self._check_level()
        return True

    def change_library(self) -> bool:
        """On some of the nodes, each time while rows are written and filed."""
        for name in self._names():
            node = self.sim.nodes[name]
            if self.sim.rng.random() < 0.6:
                self._run_as(node, THIS if node.build is NEXT else NEXT)
        return True

    def _any(self, build: Build) -> SimNode | None:
        found = [n for n in self._members() if n.build is build and n.alive]
        return self.sim.rng.choice(sorted(found, key=lambda n: n.node)) if found else None

    def _run_as(self, node: SimNode | None, build: Build) -> bool:
        """It ends in one way or another, and the next process is of that release."""
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
        assert not older, f"the feature level is {self.level}, which {older} do not speak"


def run(seed: int) -> Report:
    return reported(UpgradeSwarm(seed), f"nodeagent.testing.upgrade {seed}")


def evidence(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    print_evidence(evidence)

"""The ordinary scenario while the nodes' wall clocks jump, drift and stand still.

`python -m nodeagent.testing.clocks [FIRST [LAST]]` prints one line per seed and exits with 1 if a seed
failed.

Every few seconds each node's clock may be set to any time within an hour of the true time, and sometimes
within sixty days; this continues while the run waits for an operation to end, so no operation may depend on a
clock. Before the end the clocks are corrected, and everything that was delayed must happen. The reader knows
the true time and checks that no row with a TTL disappears early. Another reader sends bounded and weak reads
to any member and checks the ages that the replies state; a third one does so with reads of the meta state.
"""

import math
import random
import sys
from bisect import bisect_right
from operator import itemgetter

import msgspec

from nodeagent.model.ids import NodeId
from nodeagent.model.requests import GetMeta, MetaView, Reply
from nodeagent.testing.node import SimNode
from nodeagent.testing.readers import StaleReader
from nodeagent.testing.replay import replayable
from nodeagent.testing.scenario import Report, Scenario
from nodeagent.testing.sim import CLIENT, Sim, WallClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMP_EVERY_MS = 2_000
STALENESS_MS = 1_500
META_READ_EVERY_MS = 50
META_READERS = 5


class MetaReader:
    """Reads the meta state from any node and checks S17 for it: no answer lacks what was committed longer ago
    than the bound, by the clock of the node that answers."""

    def __init__(self, sim: Sim[SimNode]) -> None:
        self.sim = sim
        self.committed: list[tuple[int, int]] = []
        """(time, meta index that some node knew to be committed), both rising."""

        self.answers = 0
        self.stopping = False

    def start(self) -> None:
        for _ in range(META_READERS):  # a node that is down answers only after a timeout
            self._ask()

    def _ask(self) -> None:
        if self.stopping:
            return
        self._note()
        target = self.sim.rng.choice(list(self.sim.nodes))
        began = self.sim.now

        def on_reply(reply: Reply) -> None:
            self._check(target, began, reply)
            self.sim.at(META_READ_EVERY_MS, self._ask)

        self.sim.call(CLIENT, target, GetMeta(), on_reply)

    def _note(self) -> None:
        replicas = [n.host.cluster.meta_replica for n in self.sim.nodes.values() if n.alive]
        index = max((r.raft.commit for r in replicas if r is not None), default=0)
        if not self.committed or index > self.committed[-1][1]:
            self.committed.append((self.sim.now, index))

    def _check(self, node: NodeId, began: int, reply: Reply) -> None:
        if not isinstance(reply, MetaView):
            return
        self.answers += 1
        assert 0 <= reply.age_ms <= STALENESS_MS, f"S17: a read of the meta state has age {reply.age_ms}"
        until = began - math.ceil((STALENESS_MS + 1) / self.sim.nodes[node].pace)
        before = bisect_right(self.committed, until, key=itemgetter(0))
        floor = self.committed[before - 1][1] if before else 0
        assert reply.applied >= floor, (
            f"S17: meta index {floor} was committed before {until} ms, {node} answered with {reply.applied}"
        )


class ClockScenario(Scenario):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.clocks = random.Random(seed)
        """A generator of its own, so that the rest of the run is the seed's run without jumping clocks."""

        for node in self.sim.nodes.values():
            node.config = msgspec.structs.replace(
                node.config,
                staleness_max_ms=STALENESS_MS,
                meta_staleness_max_ms=STALENESS_MS,
                meta_confirm_every_ms=STALENESS_MS // 2,
            )
        self.stale = StaleReader(self.sim, self.view, self.history, self.storage_groups, STALENESS_MS)
        self.meta_reader = MetaReader(self.sim)
        self.jumps = 0
        self.are_wrong = True

    def run(self) -> Report:
        self._jump()
        self.stale.start()
        self.meta_reader.start()
        report = super().run()
        assert self.stale.answers > 10, f"only {self.stale.answers} bounded and weak reads were answered"
        assert self.meta_reader.answers > 10, (
            f"only {self.meta_reader.answers} reads of the meta state were answered"
        )
        return report

    def _jump(self) -> None:
        if not self.are_wrong:
            return
        for node in self.sim.nodes.values():
            if self.clocks.random() < 0.3:
                self.jumps += 1
                node.clock = self._draw()
        self.sim.at(self.clocks.randint(1, JUMP_EVERY_MS), self._jump)

    def _draw(self) -> WallClock:
        rng, now = self.clocks, self.sim.now
        span = rng.choice([0, HOUR_MS, HOUR_MS, 60 * DAY_MS])
        return WallClock(rng.randint(-span, span), now, rng.choice([1.0, 1.0, 1.0, 0.0, 0.9, 1.1, 20.0]))

    def quiet(self) -> None:
        self.are_wrong = False
        for node in self.sim.nodes.values():
            node.clock = WallClock()
        self.stale.stopping = self.meta_reader.stopping = True
        super().quiet()


def run(seed: int) -> Report:
    scenario = ClockScenario(seed)
    with replayable(seed, f"nodeagent.testing.clocks {seed}", scenario.sim):
        return scenario.run()


def main() -> int:
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    last = int(sys.argv[2]) if len(sys.argv) > 2 else first
    failed = []
    for seed in range(first, last + 1):
        try:
            said = msgspec.json.encode(run(seed)).decode()
        except AssertionError as error:
            failed.append(seed)
            said = f"FAILED {error}"
        print(said, flush=True)
    print(f"{last + 1 - first} seeds, {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

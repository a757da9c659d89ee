"""The ordinary scenario while the nodes' wall clocks jump, drift and stand still.

`python -m nodeagent.testing.clocks [FIRST [LAST]]` prints one line per seed and exits with 1 if a seed
failed.

Every few seconds each node's clock may be set to any time within an hour of the true time, and sometimes
within sixty days; this continues while the run waits for an operation to end, so no operation may depend on a
clock. Before the end the clocks are corrected, and everything that was delayed must happen. The reader knows
the true time and checks that no row with a TTL disappears early. Another reader sends bounded and weak reads
to any member and checks the ages that the replies state.
"""

import random
import sys

import msgspec

from nodeagent.testing.readers import StaleReader
from nodeagent.testing.replay import replayable
from nodeagent.testing.scenario import Report, Scenario
from nodeagent.testing.sim import WallClock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
JUMP_EVERY_MS = 2_000
STALENESS_MS = 1_500


class ClockScenario(Scenario):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.clocks = random.Random(seed)
        """A generator of its own, so that the rest of the run is the seed's run without jumping clocks."""

        for node in self.sim.nodes.values():
            node.config = msgspec.structs.replace(node.config, staleness_max_ms=STALENESS_MS)
        self.stale = StaleReader(self.sim, self.view, self.history, self.storage_groups, STALENESS_MS)
        self.jumps = 0
        self.are_wrong = True

    def run(self) -> Report:
        self._jump()
        self.stale.start()
        report = super().run()
        assert self.stale.answers > 10, f"only {self.stale.answers} bounded and weak reads were answered"
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
        self.stale.stopping = True
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

"""Shrink a failing seed of whole clusters to the fewest operations, kinds of faults, nodes, groups and bounds
with which it still fails the same way, and print it as a script (`tests/sim/scripts/clusters`).

`python -m nodeagent.testing.shrink_cluster SEED [RUNS]` prints the script; `... shrink_cluster FILE` runs a
script. A run takes 5 to 40 s; each is reported on standard error.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from nodeagent.host.effect_queue import Effects
from nodeagent.testing.cluster_plan import BURST_MS_MIN, Plan
from nodeagent.testing.cluster_script import ClusterScript
from nodeagent.testing.cluster_swarm import ClusterSwarm
from nodeagent.testing.machine import Machine
from nodeagent.testing.shrink import Ran, Shrinker, failure, shown
from nodeagent.testing.workload import PLAIN_HABITS

RUNS_MAX = 40
LINES = 12
"""Number of last events in a script."""

LONGER = 2
"""Maximum number of events of a candidate, as a multiple of the number in the seed's run."""

REPLICAS = 3
"""The fewest replicas with which every operation is possible."""

PLAIN: dict[str, object] = {
    "limits": {},
    "node": {},
    "restores": False,
    "habits": PLAIN_HABITS,
    "staleness_ms": 0,
}
"""Values of a plan that draws none of these."""


class ClusterShrinker(Shrinker[ClusterScript]):
    """Shrinks a run of `ClusterSwarm`."""

    events_max: int
    """A candidate with more events is not shorter."""

    def __init__(self, seed: int, runs: int = RUNS_MAX) -> None:
        super().__init__(seed, runs)

    def first(self, seed: int) -> Ran[ClusterScript]:
        swarm = ClusterSwarm(seed)
        ran = _ran(swarm, ClusterScript(seed))
        self.events_max = LONGER * swarm.sim.events
        return ran

    def ran(self, candidate: ClusterScript) -> Ran[ClusterScript]:
        swarm = ClusterSwarm(candidate.seed, script=candidate)

        def check(machine: Machine, effects: Effects) -> None:
            if swarm.sim.events > self.events_max:
                raise TimeoutError(f"the candidate has more than {LONGER} times the events of the seed's run")

        swarm.sim.checks.append(check)
        return _ran(swarm, candidate)

    def look(self) -> None:
        """Try to drop many parts at once before single ones: most runs that pass take as long as the
        seed's."""
        self._try(steps=(self.best.plan.steps or ())[-1:])
        self._smaller()
        self._try(kinds={})
        self._try(**PLAIN)
        self.fewer(lambda: self.best.plan.steps or (), lambda steps: self.planned(steps=steps))
        self._fewer_in("kinds")
        while (half := self._plan().burst_ms // 2) >= BURST_MS_MIN and self._try(burst_ms=half):
            pass
        for name, value in PLAIN.items():
            self._try(**{name: value})
        self._fewer_in("limits")
        self._fewer_in("node")

    def _smaller(self) -> None:
        if self._plan().replicas > REPLICAS:
            self._try(replicas=REPLICAS, nodes=REPLICAS + 1)
        self._try(groups=1)
        plan = self._plan()
        any(self._try(nodes=nodes) for nodes in range(plan.replicas, plan.nodes))

    def _try(self, **changes: object) -> bool:
        """Attempt these changes, unless the plan has all of them already."""
        plan = self._plan()
        if all(getattr(plan, name) == value for name, value in changes.items()):
            return False
        return self.attempt(self.planned(**changes))

    def _fewer_in(self, field: str) -> None:
        """Leave out items of a field that is a dict."""
        self.fewer(
            lambda: tuple(getattr(self._plan(), field).items()),
            lambda items: self.planned(**{field: dict(items)}),
        )

    def _plan(self) -> Plan:
        return ClusterSwarm(self.best.seed, script=self.best).plan


def _ran(swarm: ClusterSwarm, script: ClusterScript) -> Ran[ClusterScript]:
    began = time.monotonic()
    kind, said = failure(swarm.report)
    plan = replace(script.plan, steps=_steps(swarm))
    remarks = (swarm.so_far, *swarm.sim.log[-LINES:])
    size = (
        f"{len(swarm.steps)} operations, {len(swarm.plan.kinds)} kinds of faults, {swarm.sim.now} ms, "
        f"{swarm.sim.events} events, {time.monotonic() - began:.0f} s"
    )
    return Ran(kind, replace(script, plan=plan, why=said, remarks=remarks), size)


def _steps(swarm: ClusterSwarm) -> tuple[str, ...]:
    """The steps up to the failure. If the run failed between two operations, a further step is appended, so
    that the faults that begin before a step are injected again. The run fails before it begins that step, so
    any operation that is always possible will do."""
    between = len(swarm.done) == len(swarm.steps) < swarm.wanted
    return (*swarm.steps, "restart_one") if between else tuple(swarm.steps)


def main(words: Sequence[str]) -> int:
    if not words[0].isdecimal():
        script = ClusterScript.from_text(Path(words[0]).read_text())
        return shown(ClusterSwarm(script.seed, script=script).report)
    print(ClusterShrinker(*map(int, words[:2])).shrink().to_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

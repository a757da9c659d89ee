"""Ten operations drawn by a seed, one after the other, while clients write and read.

`python -m nodeagent.testing.random_ops [FIRST [LAST]]` prints one line per seed and a total, and exits with 1
if a seed failed. Nodes join (also under a name used before), leave, are replaced, are permanently lost, lose
power and restart; slots move; operations are cancelled, paused and disturbed. At the end every operation has
ended, replicas are equal, every acknowledged row can be read, and each disk contains exactly what its
manifests name. All of this must hold again after a power cut of the whole cluster.
"""

import sys
import time
from collections.abc import Callable

import msgspec

from nodeagent.model import requests as q
from nodeagent.model.config import Seed
from nodeagent.model.operation import Options
from nodeagent.model.requests import OperationReply
from nodeagent.testing.checks import check_clean, check_converged
from nodeagent.testing.machine import CLEAN_MS
from nodeagent.testing.node import SimNode
from nodeagent.testing.replay import replayable
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.workload import PLAIN_HABITS, WriteProfile

OPERATIONS = 10
GRAVE_MS = 3_000
"""Longer than any duplicate is delayed, so that no message to a machine reaches its successor."""

ENDED = ("DONE", "CANCELLED")


class Outcome(msgspec.Struct):
    """Results of one run."""

    seed: int
    operations: list[str]
    trace: int
    simulated_ms: int
    writes: int
    reads: int
    kills: int


class RandomOps(Scenario):
    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 4,
        slots: int = 24,
        groups: int = 4,
        replicas: int = 3,
        operations: int = OPERATIONS,
        habits: WriteProfile = PLAIN_HABITS,
    ) -> None:
        super().__init__(
            seed, nodes=nodes, slots=slots, groups=groups, spares=3, replicas=replicas, habits=habits
        )
        self.replicas = replicas
        self.nodes_max = nodes + 2
        self.wanted = operations
        """Number of operations to draw."""

        self.grave_ms = GRAVE_MS

        self.leftovers: tuple[str, ...] = ()
        """Kinds of files outside the manifests that may be left on disks at the end."""

        self.steps: list[str] = []
        """Each operation that began, by its name in `choices`."""

        self.done: list[str] = []
        """Each operation that ended, and its result."""

    # --- machines ----------------------------------------------------------------------------------

    def newcomer(self) -> str:
        """The name of a running machine that is not a member: a new one, one whose join was cancelled, or a
        new machine under an old name."""
        members = self._names()
        name = self.sim.rng.choice(sorted(set(self.sim.nodes) - set(members)))
        node = self.sim.nodes[name]
        if node.gone:
            self.sim.pause(self.grave_ms)
            node = self.sim.nodes[name] = self.machine(node.config)
        if not node.alive:
            seeds = tuple(Seed(n, n, 1) for n in members)
            node.config = msgspec.structs.replace(node.config, join=True, seeds=seeds)
            node.start()
        return name

    def retire(self, name: str) -> None:
        """Shut down a machine that left, as an operator does."""
        node = self.sim.nodes[name]
        if node.alive:
            node.stop(power=False)
        node.gone = True
        self.dead = [n for n in self.dead if n is not node]
        self.view.nodes = self._names()

    def die(self, *nodes: str) -> None:
        for node in nodes:
            self.sim.nodes[node].gone = True
        super().die(*nodes)

    # --- operations --------------------------------------------------------------------------------

    def steered(self, begin: Callable[[], str], *, may_cancel: bool = True) -> bool:
        """Begin an operation and disturb it; returns whether it was done rather than cancelled."""
        rng = self.sim.rng
        operation = begin()
        match rng.choice(["", "harass", "harass", "pause", "cancel"] if may_cancel else ["", "pause"]):
            case "harass":
                self.harass(self._names(), operation)
            case "pause":
                self.sim.pause(rng.randint(0, 600))
                self.request(q.ControlOperation(operation, "pause", "sim"), OperationReply)
                self.sim.pause(rng.randint(0, 3_000))
                if may_cancel and rng.random() < 0.5:
                    self.request(q.ControlOperation(operation, "cancel", "sim"), OperationReply)
                self.sim.pause(self.grave_ms)  # else a duplicate of the pause may arrive after the resume
                self.request(q.ControlOperation(operation, "resume", "sim"), OperationReply)
                return self.finish(operation, cancelled=may_cancel)
            case "cancel":
                return self.maybe_cancel(operation)
            case _:
                pass
        return self.finish(operation)

    def add_one(self) -> bool:
        name = self.newcomer()
        return self.steered(lambda: self.change("add-node", name))

    def remove_one(self) -> bool:
        leaver = self.sim.rng.choice(self._names())
        return self._left(leaver, self.steered(lambda: self.change("remove-node", leaver)))

    def replace_one(self) -> bool:
        old, new = self.sim.rng.choice(self._names()), self.newcomer()
        return self._left(old, self.steered(lambda: self.change("replace-node", new, replaces=old)))

    def remove_dead(self) -> bool:
        victim = self.sim.rng.choice(self._names())
        self._all_up()
        self.die(victim)
        return self._fenced(victim, lambda: self.change("remove-node", victim, Options(dead=True)))

    def replace_dead(self) -> bool:
        victim, new = self.sim.rng.choice(self._names()), self.newcomer()
        self._all_up()
        self.die(victim)
        return self._fenced(
            victim, lambda: self.change("replace-node", new, Options(dead=True), replaces=victim)
        )

    def _fenced(self, victim: str, begin: Callable[[], str]) -> bool:
        """Begin the change again until it is done: a cancel does not bring the dead node back."""
        if self.sim.rng.random() < 0.3:
            if self.maybe_cancel(begin()):
                return self._left(victim, True)
            self._all_up()
        return self._left(victim, self.steered(begin, may_cancel=False))

    def _left(self, leaver: str, done: bool) -> bool:
        if done:
            self.retire(leaver)
        return done

    def rebalance_some(self) -> bool:
        return self.steered(self.move_slots)

    def kill_one(self) -> bool:
        self.kill(self.sim.rng.choice(self._names()), self.sim.rng.randint(50, 6_000), power=True)
        self.sim.pause(self.sim.rng.randint(0, 1_500))
        return True

    def restart_one(self) -> bool:
        """Restart a node as a service manager does: it transfers its leaderships, ends, and starts again."""
        node = self.sim.nodes[self.sim.rng.choice(self._names())]
        began = self.sim.now
        while node.alive and node.host.transfer_leadership(self.sim.now) and self.sim.now - began < 2_000:
            node.wake()
            self.sim.pause(20)
        self.kill(node.node, self.sim.rng.randint(50, 1_500), power=False)
        self.sim.pause(self.sim.rng.randint(0, 2_000))
        return True

    def _all_up(self, spoiled: SimNode | None = None) -> None:
        """Wait until all nodes that are not dead run; a spoiled node may stay down if it reports why."""
        self.heal()
        self.until(
            lambda: all(
                n.alive or (n is spoiled and n.damaged) for n in self._members() if n not in self.dead
            ),
            "all nodes are up",
        )

    def disturb(self) -> None:
        """Set the conditions under which the next operation begins."""
        self.sim.faults.duplicate = 0.05
        self.sim.faults.sync_ms = self.sim.rng.choice([(1, 3), (1, 60)])
        self.sim.faults.job_ms = self.sim.rng.choice([(1, 10), (1, 10), (1, 200), (50, 900)])

    @property
    def survives(self) -> bool:
        """Whether groups survive the loss of a member: a group of two loses its quorum, a group of one its
        rows."""
        return self.replicas > 2

    def choices(self) -> list[Callable[[], bool]]:
        """The operations that are possible now, each as often as its weight."""
        count = len(self._names())
        choices = [self.replace_one, *([self.replace_dead] if self.survives else []), self.rebalance_some]
        choices += [self.kill_one, self.restart_one]
        if count < self.nodes_max:
            choices += [self.add_one] * 3
        if count > self.replicas + 1:
            choices += [self.remove_one, self.remove_one, *([self.remove_dead] if self.survives else [])]
        return choices

    def operate(self) -> None:
        chosen = self.sim.rng.choice(self.choices())
        self.steps.append(chosen.__name__)
        kinds = len(self.operations)
        done = chosen()
        words = chosen.__name__.replace("_", "-")
        for word in self.operations[kinds:]:
            words += f" [{word}]"
        self.done.append(words + ("" if done else " cancelled"))

    # --- the run -----------------------------------------------------------------------------------

    def run_operations(self) -> Outcome:
        self.begin()
        self.sim.pause(1_000)
        for _ in range(self.wanted):
            self.disturb()
            self.operate()
            # A node that restarts learns of the end a moment later.
            self.until(lambda: self.newest().operations.open() is None, f"{self.done[-1]} has ended")
        self._all_up()
        self.quiet()
        self.check()
        members = self._members()
        for node in members:
            self.kill(node.node, self.sim.rng.randint(50, 500), power=True)
        self.until(lambda: all(n.alive for n in members), "all nodes are up again")
        self.until(self._at_rest, "every replica has the state that it had before the power cut")
        self.until(lambda: not any(self._staged(n) for n in self._members()), "staging is empty")
        self.sim.pause(2_000)
        self.check()
        return Outcome(
            self.seed,
            self.done,
            self.sim.trace,
            self.sim.now,
            self.history.writes,
            self.history.reads,
            self.kills,
        )

    @property
    def so_far(self) -> str:
        """Summary for the report of a failure."""
        return f"done: {self.done}, then {self.operations[-1:]}"

    def check(self) -> None:
        """Check everything, after all snapshots have expired."""
        self.sim.pause(CLEAN_MS)
        check_converged(self.sim)
        check_clean(self.sim, self.leftovers)
        self.read_everything()


def run(seed: int) -> Outcome:
    scenario = RandomOps(seed)
    with replayable(
        seed, f"nodeagent.testing.random_ops {seed} {seed}", scenario.sim, lambda: scenario.so_far
    ):
        return scenario.run_operations()


def main() -> int:
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    last = int(sys.argv[2]) if len(sys.argv) > 2 else first
    failed = []
    began = time.monotonic()
    for seed in range(first, last + 1):
        since = time.monotonic()
        try:
            said = msgspec.json.encode(run(seed)).decode()
        except AssertionError as error:
            failed.append(seed)
            said = f"FAILED {error}"
        print(f"{said} {time.monotonic() - since:.1f} s", flush=True)
    print(f"{last + 1 - first} seeds, {len(failed)} failed: {failed}, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

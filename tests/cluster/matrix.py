"""The kill matrix on real agents: `python -m tests.cluster.matrix [FIRST [COUNT]]` runs every case.

One fleet serves many cases: node6 is added, then removed, and so on. In each, agents are stopped at a hold
point, the operation's record must show the stage that belongs to it, one process is SIGKILLed there, and
is started again while the others still wait or after they went on. A writer and a reader run through all.
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from iotctl.demo.generate import TAG, generate
from iotctl.demo.generate import Fleet as Devices
from iotctl.fleet.local import LocalFleet
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import SetHolds
from nodeagent.partition.ranges import to_slots
from tests.cluster.world import World, copy_of, kill_session, until

KINDS = ("add-node", "remove-node")
STAGES = ("PLANNED", "SEALED", "OPEN", "FORMAL", "MOVING", "RELEASED", "DONE")
POINTS = tuple(p for a, b in zip(STAGES, STAGES[1:], strict=False) for p in (f"after:{a}", f"before:{b}"))
ROLES = (
    "meta leader",
    "losing leader",
    "newcomer",
    "leaver",
    "overlapping member",
    "iotctl",
    "Spark driver",
)
RETURNS = ("early", "late")
NODE = "node6"
DATA = Devices(storage_groups=40, weeks=13, step_ms=12 * 3_600_000)
"""Enough for some eighty slots with rows to move; more would only take time in every case."""

HELD_S, LATE_S = 0.7, 3.0
RATE = "500MB/s"
"""Not `auto`, which makes way for the writer: on a busy box a case would only wait for copies."""


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    point: str
    role: str
    back: str

    @property
    def stage(self) -> Stage:
        """The stage an operation that is held there is in."""
        when, _, stage = self.point.partition(":")
        return Stage(stage if when == "after" else STAGES[STAGES.index(stage) - 1])

    @property
    def skipped(self) -> str:
        """Why there is nothing to run; "" when there is."""
        if self.role == "newcomer" and self.kind == "remove-node":
            return "nobody comes"
        if self.role == "leaver" and self.kind == "add-node":
            return "nobody leaves"
        if self.kind == "remove-node" and self.stage is Stage.PLANNED:
            return "a removal enters SEALED with its first entry"
        if self.role in ("iotctl", "Spark driver") and self.back == "late":
            return "whoever ordered the change is never started again"
        if self.role == "Spark driver" and self.stage is not Stage.MOVING:
            return "the job has a part in MOVING alone"
        return ""


def cases() -> list[Case]:
    """Those that run first, adding and removing in turn as far as it goes: so one fleet serves them all."""
    every = {k: [Case(k, p, r, b) for p in POINTS for r in ROLES for b in RETURNS] for k in KINDS}
    runs = [[c for c in of_kind if not c.skipped] for of_kind in every.values()]
    in_turn = [c for pair in zip_longest(*runs) for c in pair if c is not None]
    return in_turn + [c for of_kind in every.values() for c in of_kind if c.skipped]


@dataclass
class Fleet:
    """A fleet whose agents know hold points, also those that are started later."""

    directory: Path
    points: tuple[str, ...] = ()
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(LocalFleet(self.directory, self._command), DATA)

    def _command(self, home: Path) -> Sequence[str]:
        return (sys.executable, "-m", "nodeagent", "run", str(home), "--test-holds", ",".join(self.points))

    def hold(self, *points: str) -> None:
        """Told to every agent that runs: one that did not hear it would go on holding."""
        self.points = points

        def told(node: str) -> bool:
            try:
                self.world.cluster.call(node, SetHolds(points), 5.0)
            except NodeAgentError:
                return False
            return True

        left = [n.name for n in self.world.fleet.nodes() if n.pid is not None]
        until(lambda: all(map(told, left)), 60.0, lambda: f"one of {', '.join(left)} takes no hold points")

    def prepare(self, kind: str) -> None:
        """Start the newcomer so that it knows hold points; iotctl finds it running."""
        if kind == "add-node":
            self.world.fleet.add(NODE)
            self.world.fleet.start([NODE])

    def turn(self, kind: str) -> None:
        """Bring node6 in or out, so that a case of `kind` can run."""
        there = NODE in self.world.cluster.meta().ring
        if there == (kind == "add-node"):
            verb = "remove-node" if there else "add-node"
            self.prepare(verb)
            said = self.world.iotctl("cluster", verb, NODE, "--yes", "--rate", RATE)
            assert said.code == 0, said.err
            self.world.reconnect()


def run_case(fleet: Fleet, case: Case) -> float:
    """One case; how many seconds it took. Raises `AssertionError`, which says what did not hold."""
    world, began = fleet.world, time.monotonic()
    fleet.turn(case.kind)
    fleet.hold(case.point)
    fleet.prepare(case.kind)  # the newcomer, which nobody knows yet, starts with the point
    iotctl = world.process("cluster", case.kind, NODE, "--yes", "--rate", RATE)
    operation = world.open_operation()
    world.reconnect()
    moved = {slot for move in operation.moves for slot in to_slots(move.slots)}
    load = world.load(moved)
    record = world.wait_stage(operation.id, case.stage)
    driver = world.process("migrate", "--op", operation.id) if case.role == "Spark driver" else None
    if driver is not None:
        until(lambda: _leased(world, operation.id), 90.0, lambda: "the driver takes no lease")
    time.sleep(HELD_S)
    found = world.operation(operation.id)
    assert found is not None and found.stage is case.stage, f"{case.point}: the operation is in {found}"
    victim = _victim(world, record, case.role)
    if victim:
        assert world.fleet.kill(victim), f"{victim} was not running"
    else:
        kill_session(driver or iotctl)
    found = until(lambda: world.operation(operation.id), 20.0, lambda: "nobody tells the operation")
    assert found.stage is case.stage, f"the kill fell in {found.stage}"
    if case.back == "early" and victim:
        world.fleet.start([victim])
        until(lambda: victim in world.statuses(), 60.0, lambda: f"{victim} does not come back")
    fleet.hold()
    if case.back == "late" and victim:
        time.sleep(LATE_S)
        world.fleet.start([victim])
    world.wait_stage(operation.id, Stage.DONE, 120.0)
    kill_session(iotctl)
    world.reconnect()
    if case.kind == "remove-node":
        _tidy(world)
    until(lambda: world.status().healthy, 60.0, lambda: str(world.status().problems))
    world.check_load(load)
    assert moved & set(world.slots(load.seen.acked).values()), "no row went to a slot that moved"
    said = world.iotctl("verify", "--depth", "hash")
    assert said.code == 0, said.out + said.err
    return time.monotonic() - began


def _leased(world: World, operation: str) -> bool:
    found = world.operation(operation)
    return found is not None and found.lease is not None


def _tidy(world: World) -> None:
    """What the killed iotctl would have done: the leaver is not listed and not running any more."""
    spec = world.fleet.spec_path
    if NODE in spec.read_text():
        from iotctl.change.execute import update_spec
        from iotctl.spec.edit import remove_node

        update_spec(spec, lambda text: remove_node(text, NODE))
    if any(n.name == NODE for n in world.fleet.nodes()):
        world.fleet.retire(NODE)
    world.reconnect()


def _victim(world: World, op: Operation, role: str) -> str:
    match role:
        case "meta leader":
            return world.leader("meta")
        case "losing leader":
            return world.leader(op.moves[0].source)
        case "newcomer" | "leaver":
            return NODE
        case "overlapping member":
            return next(n for m in op.moves for n in m.target_members if n in m.source_members)
        case _:
            return ""


class Lane:
    """Runs cases one after the other on a copy of a stopped fleet; after a failure on a fresh copy of it."""

    def __init__(self, template: LocalFleet, directory: Path) -> None:
        self._template = template
        self._directory = directory
        self._fleets = 0
        self._fleet: Fleet | None = None

    def run(self, case: Case) -> float:
        """How many seconds it took. Raises what `run_case` raises; the directory of that fleet is kept."""
        try:
            return run_case(self._fleet or self._fresh(), case)
        except BaseException:
            self.close()
            raise

    def _fresh(self) -> Fleet:
        self._fleets += 1
        self._fleet = Fleet(copy_of(self._template, self._directory / f"fleet{self._fleets}").directory)
        self._fleet.world.up()
        return self._fleet

    def close(self) -> None:
        if self._fleet is not None:
            self._fleet.world.close()
            self._fleet = None


def loaded_template(directory: Path) -> LocalFleet:
    """Five stopped nodes with `DATA` in files."""
    template = LocalFleet(directory)
    template.create(ClusterSettings(name="plant"), 5, node_settings={})
    world = World(template)
    try:
        world.up()
        world.cluster.write_many(generate(DATA), tags=[TAG])
        world.close_memtables()
        world.fleet.stop()
    finally:
        world.close()
    return template


def tried(lane: Lane, case: Case) -> str:
    """What came of it, in words: whatever it is, the other cases are run."""
    try:
        return f"passed in {lane.run(case):.0f} s"
    except Exception as error:
        return f"FAILED: {type(error).__name__} {str(error)[:2000]}"


def main() -> int:
    options = _options()
    chosen = cases()[options.first : options.first + options.count] * options.runs
    # An add and the removal after it stay together: so one fleet serves both.
    pairs = iter([chosen[i : i + 2] for i in range(0, len(chosen), 2)])
    directory = Path(tempfile.mkdtemp(prefix="matrix-"))
    took, ended = threading.Lock(), {"passed": 0, "skipped": 0, "FAILED": 0}

    def work(number: int) -> None:
        lane: Lane | None = None
        try:
            while True:
                with took:
                    pair = next(pairs, None)
                if pair is None:
                    return
                for case in pair:
                    if not case.skipped and lane is None:
                        home = directory / f"lane{number}"
                        lane = Lane(loaded_template(home / "template"), home)
                    said = tried(lane, case) if lane and not case.skipped else f"skipped: {case.skipped}"
                    with took:
                        ended[said.split()[0].rstrip(":")] += 1
                        print(
                            f"{case.kind:12} {case.point:15} {case.role:19} {case.back:6} {said}", flush=True
                        )
        finally:
            if lane is not None:
                lane.close()

    started = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        for future in [pool.submit(work, number) for number in range(options.jobs)]:
            future.result()
    print(
        f"{ended['passed']} cases passed, {ended['FAILED']} failed, {ended['skipped']} skipped"
        f" in {time.monotonic() - started:.0f} s"
    )
    if ended["FAILED"]:
        print(f"the fleets are in {directory}")
        return 1
    shutil.rmtree(directory)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.cluster.matrix", description=__doc__)
    parser.add_argument("first", nargs="?", type=int, default=0, help="number of the first case")
    parser.add_argument("count", nargs="?", type=int, default=100_000, help="how many cases (all)")
    parser.add_argument("--jobs", type=int, default=1, help="fleets at a time; one fills two processors")
    parser.add_argument("--runs", type=int, default=1, help="how often every case is run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

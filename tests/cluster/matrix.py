"""The kill matrix on real agents: `python -m tests.cluster.matrix [FIRST [COUNT]]` runs every case.

One fleet serves many cases: node6 is added, then removed, and so on. In each case the operation stops at a
failpoint, its record must show the stage of that failpoint, and one process is SIGKILLed and restarted while
the others still wait or after they have continued. A writer and a reader run during all cases.
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
from nodeagent.model.requests import SetFailpoints
from nodeagent.partition.ranges import to_slots
from tests.cluster.world import World, copy_of, kill_session
from tests.waiting import until

KINDS = ("add-node", "remove-node")
STAGES = ("PLANNED", "SEALED", "OPEN", "RECONFIGURING", "COPYING", "CLEANUP", "DONE")
POINTS = tuple(p for a, b in zip(STAGES, STAGES[1:], strict=False) for p in (f"after:{a}", f"before:{b}"))
ROLES = (
    "meta leader",
    "losing leader",
    "joining node",
    "leaving node",
    "overlapping member",
    "iotctl",
    "Spark driver",
)
RETURNS = ("early", "late")
NODE = "node6"
DATA = Devices(storage_groups=40, weeks=13, step_ms=12 * 3_600_000)
"""Enough to move about eighty slots with rows; more data would only make every case slower."""

HELD_S, LATE_S = 0.7, 3.0
RATE = "500MB/s"
"""Not `auto`, which yields to the writer: on a busy machine a case would wait for its copies."""


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    point: str
    role: str
    back: str

    @property
    def stage(self) -> Stage:
        """The stage of an operation that is stopped at this failpoint."""
        when, _, stage = self.point.partition(":")
        return Stage[stage if when == "after" else STAGES[STAGES.index(stage) - 1]]

    @property
    def skipped(self) -> str:
        """Why the case does not apply; "" if it does."""
        if self.role == "joining node" and self.kind == "remove-node":
            return "no node joins"
        if self.role == "leaving node" and self.kind == "add-node":
            return "no node leaves"
        if self.kind == "remove-node" and self.stage is Stage.PLANNED:
            return "a removal enters SEALED with its first entry"
        if self.role in ("iotctl", "Spark driver") and self.back == "late":
            return "the process that requested the change is never restarted"
        if self.role == "Spark driver" and self.stage is not Stage.COPYING:
            return "the job only takes part in the stage COPYING"
        return ""


def cases() -> list[Case]:
    """All cases: those that run first, alternately adding and removing if possible, so that one fleet serves
    all."""
    every = {k: [Case(k, p, r, b) for p in POINTS for r in ROLES for b in RETURNS] for k in KINDS}
    runs = [[c for c in of_kind if not c.skipped] for of_kind in every.values()]
    in_turn = [c for pair in zip_longest(*runs) for c in pair if c is not None]
    return in_turn + [c for of_kind in every.values() for c in of_kind if c.skipped]


@dataclass
class Fleet:
    """A fleet whose agents have failpoints enabled, including agents that are started later."""

    directory: Path
    points: tuple[str, ...] = ()
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(LocalFleet(self.directory, self._command), DATA)

    def _command(self, home: Path) -> Sequence[str]:
        return (
            sys.executable,
            "-m",
            "nodeagent",
            "run",
            str(home),
            "--test-failpoints",
            ",".join(self.points),
        )

    def hold(self, *points: str) -> None:
        """Send the failpoints to every running agent; an agent that misses them would continue to stop
        operations."""
        self.points = points

        def is_set(node: str) -> bool:
            try:
                self.world.cluster.call(node, SetFailpoints(points), 5.0)
            except NodeAgentError:
                return False
            return True

        left = [n.name for n in self.world.fleet.nodes() if n.pid is not None]
        until(
            lambda: all(map(is_set, left)),
            60.0,
            lambda: f"one of {', '.join(left)} does not accept failpoints",
        )

    def prepare(self, kind: str) -> None:
        """Start the joining node with the failpoints; iotctl then finds it running."""
        if kind == "add-node":
            self.world.fleet.add(NODE)
            self.world.fleet.start([NODE])

    def turn(self, kind: str) -> None:
        """Add or remove node6, so that a case of `kind` can run."""
        there = NODE in self.world.cluster.meta().ring
        if there == (kind == "add-node"):
            verb = "remove-node" if there else "add-node"
            self.prepare(verb)
            said = self.world.iotctl("cluster", verb, NODE, "--yes", "--rate", RATE)
            assert said.code == 0, said.err
            self.world.reconnect()


def run_case(fleet: Fleet, case: Case) -> float:
    """Run one case and return its duration in seconds. The `AssertionError` of a failure names the
    condition."""
    world, began = fleet.world, time.monotonic()
    fleet.turn(case.kind)
    fleet.hold(case.point)
    fleet.prepare(case.kind)  # the joining node is not a member yet: it gets the failpoint at its start
    iotctl = world.process("cluster", case.kind, NODE, "--yes", "--rate", RATE)
    operation = world.open_operation()
    world.reconnect()
    moved = {slot for move in operation.moves for slot in to_slots(move.slots)}
    load = world.load(moved)
    record = world.wait_stage(operation.id, case.stage)
    driver = world.process("migrate", "--op", operation.id) if case.role == "Spark driver" else None
    if driver is not None:
        until(lambda: _leased(world, operation.id), 90.0, lambda: "the driver does not take the lease")
    time.sleep(HELD_S)
    found = world.operation(operation.id)
    assert found is not None and found.stage is case.stage, f"{case.point}: the operation is in {found}"
    victim = _victim(world, record, case.role)
    if victim:
        assert world.fleet.kill(victim), f"{victim} was not running"
    else:
        kill_session(driver or iotctl)
    found = until(lambda: world.operation(operation.id), 20.0, lambda: "no node reports the operation")
    assert found.stage is case.stage, f"the process was killed in stage {found.stage}"
    if case.back == "early" and victim:
        world.fleet.start([victim])
        until(lambda: victim in world.statuses(), 60.0, lambda: f"{victim} does not restart")
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
    assert moved & set(world.slots(load.seen.acked).values()), "no row was written to a moved slot"
    said = world.iotctl("verify", "--depth", "hash")
    assert said.code == 0, said.out + said.err
    return time.monotonic() - began


def _leased(world: World, operation: str) -> bool:
    found = world.operation(operation)
    return found is not None and found.lease is not None


def _tidy(world: World) -> None:
    """Do what the killed iotctl would have done: unlist and stop the removed node."""
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
        case "joining node" | "leaving node":
            return NODE
        case "overlapping member":
            return next(n for m in op.moves for n in m.target_members if n in m.source_members)
        case _:
            return ""


class Lane:
    """Runs cases one after the other on a copy of a stopped fleet; after a failure, on a new copy."""

    def __init__(self, template: LocalFleet, directory: Path) -> None:
        self._template = template
        self._directory = directory
        self._fleets = 0
        self._fleet: Fleet | None = None

    def run(self, case: Case) -> float:
        """Return the duration in seconds. Raises what `run_case` raises; then the fleet's directory
        remains."""
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
    """Run one case and return its result as text; a failure does not stop the other cases."""
    try:
        return f"passed in {lane.run(case):.0f} s"
    except Exception as error:
        return f"FAILED: {type(error).__name__} {str(error)[:2000]}"


def main() -> int:
    options = _options()
    chosen = cases()[options.first : options.first + options.count] * options.runs
    # An add and the following removal stay together, so that one fleet serves both.
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
    parser.add_argument("count", nargs="?", type=int, default=100_000, help="number of cases (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="concurrent fleets; one uses two processors")
    parser.add_argument("--runs", type=int, default=1, help="runs of every case")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

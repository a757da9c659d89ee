"""The kill matrix on real agents: `python -m tests.cluster.matrix [FIRST [COUNT]]` runs every case.

One fleet serves all cases: node6 is added, then removed, and so on. In each, agents are stopped at a hold
point, the operation's record must show the stage that belongs to it, one process is SIGKILLed there, and
is started again while the others still wait or after they went on. A writer and a reader run through all.
"""

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iotctl.execute.generate import TAG, generate
from iotctl.fleet.local import LocalFleet
from nodeagent.model.config import ClusterSettings
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import SetHolds
from tests.cluster.world import DATA, World, kill_session, until

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
HELD_S, LATE_S = 0.7, 3.0


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
    """Adding and removing in turn, so that one fleet serves them all."""
    every = {k: [Case(k, p, r, b) for p in POINTS for r in ROLES for b in RETURNS] for k in KINDS}
    return [case for pair in zip(*every.values(), strict=True) for case in pair]


@dataclass
class Fleet:
    """A fleet whose agents know hold points, also those that are started later."""

    directory: Path
    points: tuple[str, ...] = ()
    members: int = 5
    world: World = field(init=False)

    def __post_init__(self) -> None:
        self.world = World(LocalFleet(self.directory, self._command))

    def _command(self, home: Path) -> Sequence[str]:
        return (sys.executable, "-m", "nodeagent", "run", str(home), "--test-holds", ",".join(self.points))

    def hold(self, *points: str) -> None:
        self.points = points
        for node in self.world.statuses():
            self.world.cluster.call(node, SetHolds(points))

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
            said = self.world.iotctl("cluster", verb, NODE, "--yes")
            assert said.code == 0, said.err
            self.world.reconnect()


def run_case(fleet: Fleet, case: Case) -> float:
    """One case; how many seconds it took. Raises `AssertionError`, which says what did not hold."""
    world, began = fleet.world, time.monotonic()
    fleet.turn(case.kind)
    load = world.load()
    fleet.prepare(case.kind)
    fleet.hold(case.point)
    iotctl = world.process("cluster", case.kind, NODE, "--yes")
    operation = world.open_operation()
    world.reconnect()
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
        from iotctl.execute.change import update_spec
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


def load_fleet(directory: Path) -> Fleet:
    """Five agents with rows in at least 1 500 slots."""
    fleet = Fleet(directory)
    fleet.world.fleet.create(ClusterSettings(name="plant"), 5, node_settings={})
    fleet.world.up()
    fleet.world.cluster.write_many(generate(DATA), tags=[TAG])
    fleet.world.close_memtables()
    return fleet


def _table(chosen: list[Case], fleet: Fleet) -> Iterator[tuple[Case, str]]:
    for case in chosen:
        if case.skipped:
            yield case, f"skipped: {case.skipped}"
            continue
        try:
            yield case, f"passed in {run_case(fleet, case):.0f} s"
        except AssertionError as error:
            yield case, f"FAILED: {str(error)[:400]}"
            return  # the fleet is in no known state


def main() -> int:
    first, count = (int(w) for w in (*sys.argv[1:3], *("0", "100000")[len(sys.argv) - 1 :]))
    failed = 0
    with tempfile.TemporaryDirectory(prefix="matrix-") as directory:
        fleet = load_fleet(Path(directory) / "fleet")
        try:
            for case, said in _table(cases()[first : first + count], fleet):
                failed += said.startswith("FAILED")
                print(f"{case.kind:12} {case.point:15} {case.role:19} {case.back:6} {said}", flush=True)
        finally:
            fleet.world.close()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

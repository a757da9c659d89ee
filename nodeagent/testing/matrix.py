"""The kill matrix in the simulator: kill a node of every role at every failpoint and restart it early or
late.

`python -m nodeagent.testing.matrix [SEEDS [FIRST [COUNT]]]` prints the table of cases with their results, and
exits with 1 if a case failed. For a skipped case it prints the reason.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

from nodeagent.model.ids import META
from nodeagent.model.operation import Operation
from nodeagent.scaling.failpoints import POINTS
from nodeagent.testing.checks import check_converged
from nodeagent.testing.parallel import whys
from nodeagent.testing.scenario import Scenario

KINDS = ("add-node", "remove-node", "replace-node")
ROLES = (
    "meta leader",
    "losing leader",
    "gaining leader",
    "newcomer",
    "leaver",
    "overlapping member",
    "iotctl",
    "Spark driver",
)
RETURNS = ("early", "late")
EARLY_MS, HELD_MS = 300, 2_500
OLD = "node2"


class Tabled(Protocol):
    """A case of a table: hashable; `str` gives its columns."""

    @property
    def skipped(self) -> str: ...


C = TypeVar("C", bound=Tabled)


@dataclass(frozen=True, slots=True)
class Case:
    kind: str
    point: str
    role: str
    back: str

    def __str__(self) -> str:
        return f"{self.kind:13} {self.point:15} {self.role:19} {self.back:6}"

    @property
    def skipped(self) -> str:
        """Why the case cannot run; "" if it can."""
        if self.role in ("iotctl", "Spark driver"):
            return "not a process of the simulator: tests.cluster.matrix kills it"
        if self.role == "newcomer" and self.kind == "remove-node":
            return "no node joins"
        if self.role == "leaver" and self.kind == "add-node":
            return "no node leaves"
        if self.kind == "remove-node" and self.point in ("after:PLANNED", "before:SEALED"):
            return "a removal enters SEALED with its first entry"
        return ""


def cases() -> Iterator[Case]:
    for kind in KINDS:
        for point in POINTS:
            for role in ROLES:
                for back in RETURNS:
                    yield Case(kind, point, role, back)


def run_case(case: Case, seed: int) -> None:
    """Raises `AssertionError` if an invariant breaks, or the kill missed the failpoint."""
    scenario = Scenario(seed)
    scenario.begin()
    scenario.sim.pause(1_500)
    newcomer = scenario.newcomers[0]
    if case.kind != "remove-node":
        scenario.sim.nodes[newcomer].start()
    else:
        scenario.add_plainly(newcomer)
    scenario.hold(case.point)
    node = OLD if case.kind == "remove-node" else newcomer
    operation = scenario.change(case.kind, node, replaces=OLD if case.kind == "replace-node" else "")
    stage = stage_at(case.point)
    scenario.until(lambda: scenario.stage(operation) == stage, f"{case.point} is reached")
    scenario.sim.pause(HELD_MS)
    record = scenario.record(operation)
    assert record is not None and record.stage.name == stage, f"{case.point} is not held: {record}"
    victim = _victim(scenario, record, case.role)
    scenario.kill(victim, EARLY_MS if case.back == "early" else 1 << 30, power=bool(seed // 2 % 2))
    _, reached = scenario.kills_at[-1]
    assert reached == stage, f"the kill happened in {reached}, not in {stage}"
    scenario.sim.pause(HELD_MS)
    scenario.hold()
    if case.back == "late":
        scenario.sim.pause(4 * HELD_MS)
        scenario.sim.nodes[victim].start()
    scenario.finish(operation)
    if record.leaving is not None:
        scenario.sim.nodes[record.leaving].alive = False
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()


def stage_at(point: str) -> str:
    """The stage of an operation that is held at `point`."""
    when, _, stage = point.partition(":")
    if when == "after":
        return stage
    return POINTS[POINTS.index(point) - 1].partition(":")[2]


def _victim(scenario: Scenario, op: Operation, role: str) -> str:
    leaders = {
        g: n.node
        for n in scenario.sim.nodes.values()
        if n.alive
        for g, r in [*n.host.replicas.data.items(), (META, n.host.cluster.meta_replica)]
        if r is not None and r.leads
    }
    match role:
        case "meta leader":
            return leaders[META]
        case "losing leader":
            return leaders.get(op.losing[0], op.moves[0].source_members[0])
        case "gaining leader":
            return leaders.get(op.gaining[0], op.moves[0].target_members[0])
        case "newcomer":
            assert op.joining is not None
            return op.joining
        case "leaver":
            assert op.leaving is not None
            return op.leaving
        case _:
            shared = [n for m in op.moves for n in m.target_members if n in m.source_members]
            return shared[0]


def run_all(cases: Iterable[C], run_case: Callable[[C, int], None], seeds: int, first: int = 0) -> int:
    """Run every case with `seeds` seeds of its own and print the results; returns the number of failures.

    Args:
        first: number of the first case in the whole table, which determines its seeds.
    """
    every = list(cases)
    jobs = [
        (case, number * seeds + turn)
        for number, case in enumerate(every, first)
        if not case.skipped
        for turn in range(1, seeds + 1)
    ]
    failed = 0
    results = zip(jobs, whys(run_case, jobs), strict=True)
    for case in every:
        runs = list(islice(results, 0 if case.skipped else seeds))
        bad = [f"seed {seed}: {why[:300]}" for (_, seed), why in runs if why]
        failed += len(bad)
        said = f"skipped: {case.skipped}" if case.skipped else bad[0] if bad else "passed"
        print(f"{case} {said}", flush=True)
    print(f"{len(jobs)} runs, {failed} failed, {sum(bool(c.skipped) for c in every)} cases skipped")
    return failed


def main(cases: Iterable[C], run_case: Callable[[C, int], None]) -> int:
    """Run the part of the table that the command line names: COUNT cases from number FIRST on, with SEEDS
    seeds each."""
    seeds, first, count = (*map(int, sys.argv[1:]), *(1, 0, 1 << 30)[len(sys.argv) - 1 :])
    return 1 if run_all(islice(cases, first, first + count), run_case, seeds, first) else 0


if __name__ == "__main__":
    sys.exit(main(cases(), run_case))

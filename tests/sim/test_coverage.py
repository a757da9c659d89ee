"""What runs did and reached is reported and written into a document."""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from nodeagent.testing import coverage
from nodeagent.testing.cluster_swarm import ClusterSwarm
from nodeagent.testing.coverage import (
    BEGIN,
    END,
    Found,
    Ran,
    Run,
    Total,
    find,
    main,
    report,
    steer,
    universe,
    write,
)
from nodeagent.testing.injections import Ambush, DiskError
from nodeagent.testing.injector import JOBS
from nodeagent.testing.nemesis import Nemesis, focus_kinds
from nodeagent.testing.sim import Sim
from tests.sim.spread import SPREAD


class Told(msgspec.Struct):
    seed: int
    trace: int
    simulated_ms: int
    reads: int


@contextmanager
def world(*reads: int) -> Iterator[dict[str, Any]]:
    """A world whose n-th run does the n-th number of reads; a negative number makes the run fail."""
    left = list(reads)

    def run(run: Run) -> Ran:
        count = left.pop(0)
        assert count >= 0, "S6: a row is lost"
        nemesis = mock.create_autospec(Nemesis, instance=True, faults=Counter(kill=2))
        return Sim(run.seed), nemesis, Told(run.seed, 9, 3_600_000, count)

    with mock.patch.dict(coverage.WORLDS, {"groups": run}) as worlds:
        yield worlds


def test_the_report_names_what_was_reached_and_what_was_not() -> None:
    (fault, *others) = sorted(universe()["fault"])
    text = report({"groups": Counter(seeds=2, simulated_ms=5_400_000, reads=1_234)}, {("fault", fault): 3})
    assert text.startswith("groups: 2 seeds, 1.5 simulated hours, 1,234 reads\n")
    assert f"fault: 1 of {1 + len(others)} reached" in text and f"never: {others[0]}, " in text


def test_a_run_is_counted_and_repeated_on_request() -> None:
    with world(7, 7):
        found = find(Run("groups", 3, twice=True))
    assert found == Found(Counter(seed=3, trace=9, simulated_ms=3_600_000, reads=7, seeds=1), found.seen)
    assert found.seen == {("fault", "kill"): 2}


@pytest.mark.parametrize(
    ("reads", "why"), [((-1,), "S6: a row is lost"), ((7, 8), "two runs differ"), ((), "IndexError")]
)
def test_a_run_that_fails_or_differs_when_repeated_is_reported(reads: tuple[int, ...], why: str) -> None:
    """The other runs continue, whatever the failure."""
    with world(*reads):
        assert why in find(Run("groups", 3, twice=True)).why


def test_a_failure_without_a_message_is_reported() -> None:
    with world() as worlds:
        worlds["groups"] = mock.Mock(side_effect=AssertionError)
        assert find(Run("groups", 3, twice=False)).why == "AssertionError()"


def test_a_run_with_a_focus_that_fails_names_the_focus_too() -> None:
    run = Run("clusters", 5, False, (("kill", JOBS[3]),))
    with mock.patch.object(ClusterSwarm, "report", side_effect=AssertionError("S6")):
        assert f"replay: python -m {run.command}" in find(run).why


def test_a_run_names_the_command_that_repeats_it() -> None:
    focus = (("kill", JOBS[0]), ("operation", "add-node OPEN"))
    run = Run("clusters", 7, True, focus)
    argv = shlex.split(run.command.partition("nodeagent.testing.coverage")[2])
    with mock.patch.object(sys, "argv", ["coverage", *argv]), mock.patch.object(Total, "make") as make:
        main()
    assert make.call_args_list == [mock.call([run])]


@pytest.mark.parametrize(
    "focus", ["note: role", "fault: flip", "failed on disk: read log", "kill: x", "kill"]
)
def test_an_unreachable_focus_is_refused(focus: str, capsys: pytest.CaptureFixture[str]) -> None:
    with mock.patch.object(sys, "argv", ["coverage", "--focus", focus]), pytest.raises(SystemExit):
        main()
    assert "that a run can look for" in capsys.readouterr().err


def test_faults_and_messages_of_a_real_run_are_counted() -> None:
    found = find(Run("groups", 3, twice=False))
    assert found.did["events"] > 1_000 and not found.why
    assert {"fault", "message"} <= {name for name, _ in found.seen}


def test_the_table_is_written_between_the_marks(tmp_path: Path) -> None:
    path = tmp_path / "testing.md"
    path.write_text(f"before\n{BEGIN}old\n{END}after\n")
    write(path, "new")
    write(path, "newer")
    assert path.read_text() == f"before\n{BEGIN}\n```text\nnewer\n```\n\n{END}after\n"


def test_a_document_without_marks_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "testing.md"
    for said in ("cannot be read", "add both marks"):
        with mock.patch.object(sys, "argv", ["coverage", "--write", str(path)]), pytest.raises(SystemExit):
            main()
        assert said in capsys.readouterr().err
        path.write_text("before\n")
    assert path.read_text() == "before\n"


def test_a_run_with_a_focus_looks_for_the_rarest_events() -> None:
    rare = {("kill", JOBS[0]), ("kill", JOBS[3]), ("power cut", JOBS[1]), ("failed job", JOBS[2])}
    rare |= {("failed on disk", "rename staging"), ("fault", "stall"), ("fault", "jump")}
    rare |= {("operation", "add-node OPEN")}
    seen = {(name, m): 1 for name, members in universe().items() for m in members if (name, m) not in rare}
    runs = [steer(seen, seed) for seed in range(20)]
    assert {member for run in runs for member in run.focus} == rare
    assert steer(seen, 3) == runs[3]
    for run in runs:
        kinds = focus_kinds(run.focus)
        assert ("ambush" in kinds) == any(name in ("kill", "power cut") for name, _ in run.focus)


@SPREAD
def test_changes_are_cancelled_if_the_focus_is_a_cancel() -> None:
    """Without the focus, most changes reach OPEN before a random cancel arrives."""
    focus = (("operation", "rebalance CANCELLED"), ("operation", "remove-node CANCELLED"))
    left = set(focus)
    for seed in range(5, 11):  # about every other change of a run is cancelled
        swarm = ClusterSwarm(seed, focus)
        swarm.wanted = 4

        def choices(swarm: ClusterSwarm = swarm) -> list[Callable[[], bool]]:
            may_leave = len(swarm.newest().image.nodes) > swarm.replicas + 1
            return [swarm.rebalance_some, swarm.remove_one if may_leave else swarm.add_one]

        with mock.patch.object(swarm, "choices", choices):
            swarm.report()
        assert all(not node.holds for node in swarm.sim.nodes.values()), "a failpoint stayed set"
        left -= swarm.sim.seen.keys()
        if not left:
            return
    raise AssertionError(left)


@pytest.mark.long
def test_faults_are_drawn_from_the_focus() -> None:
    focus = (("failed on disk", "rename staging"), ("kill", JOBS[3]), ("operation", "rebalance OPEN"))
    swarm = ClusterSwarm(5, focus)
    swarm.wanted = 1
    swarm.report()
    assert swarm.nemesis.faults["ambush"] and swarm.nemesis.faults["files"]
    injected = [injection for _, injection in swarm.nemesis.done]
    assert {i.job for i in injected if isinstance(i, Ambush)} == {JOBS[3]}
    assert ("rename", "staging/") in {(i.operation, i.place) for i in injected if isinstance(i, DiskError)}

"""What runs did and reached: told, and written into a document."""

from collections import Counter
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from nodeagent.testing import coverage
from nodeagent.testing.cluster_swarm import ClusterSwarm
from nodeagent.testing.coverage import BEGIN, END, Found, Ran, Run, find, report, steer, universe, write
from nodeagent.testing.injections import Ambush, DiskError
from nodeagent.testing.nemesis import JOBS, Focus, Nemesis, focus_kinds
from nodeagent.testing.sim import Sim


class Told(msgspec.Struct):
    seed: int
    trace: int
    simulated_ms: int
    reads: int


def world(*reads: int) -> mock._patch_dict:  # type: ignore[name-defined]
    """One whose runs read so often, one after the other; a negative number is a failure."""
    left = list(reads)

    def run(seed: int, focus: Focus) -> Ran:
        count = left.pop(0)
        assert count >= 0, "S6: a row is lost"
        nemesis = mock.create_autospec(Nemesis, instance=True, faults=Counter(kill=2))
        return Sim(seed), nemesis, Told(seed, 9, 3_600_000, count)

    return mock.patch.dict(coverage.WORLDS, {"groups": run})


def test_names_what_was_reached_and_what_was_not() -> None:
    (fault, *others) = sorted(universe()["fault"])
    text = report({"groups": Counter(seeds=2, simulated_ms=5_400_000, reads=1_234)}, {("fault", fault): 3})
    assert text.startswith("groups: 2 seeds, 1.5 simulated hours, 1,234 reads\n")
    assert f"fault: 1 of {1 + len(others)} reached" in text and f"never: {others[0]}, " in text


def test_a_run_is_counted_and_made_twice_on_request() -> None:
    with world(7, 7):
        found = find(Run("groups", 3, twice=True))
    assert found == Found(Counter(seed=3, trace=9, simulated_ms=3_600_000, reads=7, seeds=1), found.seen)
    assert found.seen == {("fault", "kill"): 2}


@pytest.mark.parametrize(("reads", "why"), [((-1,), "S6: a row is lost"), ((7, 8), "the second time")])
def test_a_run_that_fails_or_differs_the_second_time_says_so(reads: tuple[int, ...], why: str) -> None:
    with world(*reads):
        assert why in find(Run("groups", 3, twice=True)).why


def test_faults_and_messages_of_a_real_run_are_seen() -> None:
    found = find(Run("groups", 3, twice=False))
    assert found.did["events"] > 1_000 and not found.why
    assert {"fault", "message"} <= {name for name, _ in found.seen}


def test_the_document_says_it_between_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "testing.md"
    path.write_text(f"before\n{BEGIN}old\n{END}after\n")
    write(path, "new")
    write(path, "newer")
    assert path.read_text() == f"before\n{BEGIN}\n```text\nnewer\n```\n\n{END}after\n"


def test_a_document_without_marks_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "testing.md"
    path.write_text("before\n")
    with pytest.raises(SystemExit, match="to write between"):
        write(path, "new")
    assert path.read_text() == "before\n"


def test_a_steered_run_looks_for_what_was_reached_the_least() -> None:
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


def test_a_focus_is_what_faults_are_drawn_from() -> None:
    focus = (("failed on disk", "rename staging"), ("kill", JOBS[3]), ("operation", "rebalance OPEN"))
    swarm = ClusterSwarm(5, focus)
    swarm.wanted = 1
    swarm.report()
    assert swarm.nemesis.faults["ambush"] and swarm.nemesis.faults["files"]
    injected = [injection for _, injection in swarm.nemesis.done]
    assert {i.job for i in injected if isinstance(i, Ambush)} == {JOBS[3]}
    assert ("rename", "staging/") in {(i.operation, i.place) for i in injected if isinstance(i, DiskError)}

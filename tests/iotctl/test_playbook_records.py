"""Recorded runs are listed, an unfinished run can be abandoned, and none is dropped for a newer one."""

import json
from pathlib import Path
from typing import Any

import pytest

from iotctl.change.lock import HeldLock, kept
from iotctl.playbook.journal import FileJournal, summary
from iotctl.playbook.model import Entry
from nodeagent.meta import runs
from nodeagent.model.errors import Unavailable
from nodeagent.model.features import Feature
from nodeagent.model.limits import RUN_BYTES_MAX, RUNS_KEPT
from nodeagent.model.requests import TakeLock

from .fakes import NOW_MS, SPEC, FakeCluster, Ran, iotctl

BOOK = """\
apiVersion: iotctl/v1
name: night
steps:
  - {id: one, uses: cluster.drain, with: {node: node1}}
  - {id: sure, uses: approve, with: {message: Go on}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    (tmp_path / "p.yaml").write_text(BOOK)
    return tmp_path


def playbook(place: Path, cluster: FakeCluster, *words: str, home: str = "here") -> Ran:
    return iotctl(place, "playbook", *words, cluster=cluster, env={"XDG_STATE_HOME": str(place / home)})


def stopped(place: Path, cluster: FakeCluster, home: str = "here") -> str:
    """The id of a run that waits for an approval."""
    before = {run.id for run in kept(cluster)[1]}
    done = playbook(place, cluster, "run", "p.yaml", home=home)
    assert done.code == 5, done.err
    (run,) = (r.id for r in kept(cluster)[1] if r.id not in before)
    return run


def journal_of(place: Path, run: str) -> Path:
    (path,) = (place / "here").rglob(f"{run}.jsonl")
    return path


def refuse(*args: object, **kwargs: object) -> None:
    raise Unavailable("the meta group has no quorum")


def listed(place: Path, cluster: FakeCluster, home: str = "here") -> list[dict[str, Any]]:
    done = playbook(place, cluster, "runs", "-o", "json", home=home)
    assert done.code == 0, done.err
    found: list[dict[str, Any]] = json.loads(done.out)["runs"]
    return found


def test_runs_are_listed_with_the_places_of_their_records(place: Path) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    (row,) = listed(place, cluster, home="there")
    assert (row["run_id"], row["playbook"], row["by"], row["ended"]) == (run, "night", "tester", False)
    assert (row["in_cluster"], row["here"]) == (True, False)
    assert listed(place, cluster)[0]["here"]
    assert playbook(place, cluster, "run", "p.yaml", "--resume", "--approve", "sure").code == 0
    assert [(r["run_id"], r["ended"]) for r in listed(place, cluster)] == [(run, True)]


def test_without_the_cluster_the_records_of_this_machine_are_listed(place: Path) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    cluster.down = {"node1", "node2", "node3"}
    done = playbook(place, cluster, "runs")
    assert done.code == 0 and "only the unfinished runs recorded on this machine" in done.err, done.err
    line = next(line for line in done.out.splitlines() if run in line)
    assert line.split()[1:] == ["night", "unfinished", "tester", "?", "yes"]
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("home", ["here", "there"])
def test_an_abandoned_run_is_not_resumed(place: Path, home: str) -> None:
    """Wherever the run was abandoned, and wherever somebody tries to resume it."""
    cluster = FakeCluster()
    run = stopped(place, cluster)
    assert playbook(place, cluster, "abandon", run, home=home).code != 0, "without --yes nobody agreed"
    done = playbook(place, cluster, "abandon", run, "--yes", home=home)
    assert done.code == 0, done.err
    assert kept(cluster)[1][0].ended and kept(cluster)[0] is None and cluster.drained == {"node1"}
    for other in ("here", "there", "nowhere"):
        refused = playbook(place, cluster, "run", "p.yaml", "--resume", run, home=other)
        assert refused.code == 2 and f"tester abandoned run {run}" in refused.err, refused.err
        assert playbook(place, cluster, "run", "p.yaml", "--resume", home=other).code == 2
    assert playbook(place, cluster, "abandon", run, "--yes", home=home).code == 5, "it has ended"
    assert playbook(place, cluster, "run", "p.yaml", "--approve", "sure").code == 0


def test_an_older_run_can_be_resumed_after_a_newer_one_was_abandoned(place: Path) -> None:
    """A newer run that ended did the work of the older one; one that was abandoned did not."""
    cluster = FakeCluster()
    older, newer = stopped(place, cluster), stopped(place, cluster)
    assert playbook(place, cluster, "abandon", newer, "--yes").code == 0
    done = playbook(place, cluster, "run", "p.yaml", "--resume", "--approve", "sure", "-o", "json")
    assert done.code == 0 and json.loads(done.out)["run_id"] == older, done.err


def test_a_run_that_is_executed_is_not_abandoned(place: Path) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    cluster.call_meta(TakeLock("bob@there 1", "playbook night", "bob", 30_000))
    done = playbook(place, cluster, "abandon", run, "--yes")
    assert done.code == 10 and "bob@there" in done.err and not kept(cluster)[1][0].ended


def test_without_the_cluster_no_run_is_abandoned(place: Path) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    cluster.down = {"node1", "node2", "node3"}
    assert playbook(place, cluster, "abandon", run, "--yes").code == 4
    cluster.down = set()
    assert [r["ended"] for r in listed(place, cluster)] == [False]


def test_a_run_that_only_this_machine_recorded_is_abandoned(place: Path) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    cluster.kept.image.runs = []
    assert [(r["in_cluster"], r["by"]) for r in listed(place, cluster)] == [(False, "tester")]
    assert playbook(place, cluster, "abandon", run, "--yes").code == 0
    assert not listed(place, cluster), "ended runs of this machine alone are not listed"
    refused = playbook(place, cluster, "abandon", "20260101T000000-abcdef", "--yes")
    assert refused.code == 2 and "no run 2026" in refused.err


def test_a_run_with_a_full_record_is_abandoned(place: Path) -> None:
    cluster = FakeCluster()
    cluster.kept.image.level = Feature.UNFINISHED_RUNS
    run = "20260101T000000-abcdef"
    with HeldLock(cluster, "a run", "ann", NOW_MS) as held:
        held.record(run, "night", 0, bytes(RUN_BYTES_MAX), ended=False)
    assert playbook(place, cluster, "abandon", run, "--yes").code == 0 and kept(cluster)[1][0].ended


def test_a_record_here_that_differs_from_the_clusters_is_moved_aside(place: Path) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    path = journal_of(place, run)
    journal = FileJournal(path)
    journal.append(Entry("intent", 9, "not recorded in the cluster"))
    journal.close()
    assert playbook(place, cluster, "abandon", run, "--yes").code == 0
    (record,) = kept(cluster, run)[1]
    assert path.with_suffix(".lost").exists() and path.read_bytes().splitlines() == record.entries


@pytest.mark.parametrize("full", [False, True])
def test_a_run_that_completed_cannot_be_abandoned(
    place: Path, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the cluster could not record its end. It did the work of older runs, which are not resumed."""
    cluster = FakeCluster()
    cluster.kept.image.level = Feature.UNFINISHED_RUNS
    stopped(place, cluster)
    run = stopped(place, cluster)
    if full:
        monkeypatch.setattr(runs, "RUN_BYTES_MAX", 100)
    else:
        monkeypatch.setattr(HeldLock, "record", refuse)
    done = playbook(place, cluster, "run", "p.yaml", "--resume", run, "--approve", "sure")
    assert done.code == 0 and "no complete record of this run" in done.err and "resume it" not in done.err
    monkeypatch.undo()
    (record,) = kept(cluster, run)[1][-1:]
    assert record.id == run and record.ended is full
    assert [r["ended"] for r in listed(place, cluster)] == [False, True]
    done = playbook(place, cluster, "abandon", run, "--yes")
    assert done.code == 5 and "it has ended" in done.err
    (record,) = kept(cluster, run)[1][-1:]
    assert record.id == run and record.ended and not json.loads(record.entries[-1])["by"]
    assert playbook(place, cluster, "run", "p.yaml", "--resume").code == 2, "nothing is left to do"


def test_an_end_that_only_the_cluster_recorded_is_recorded_here(place: Path) -> None:
    """The machine stopped between the two records, or the run was abandoned on another machine."""
    cluster = FakeCluster()
    run = stopped(place, cluster)
    assert playbook(place, cluster, "abandon", run, "--yes", home="there").code == 0
    assert not summary(journal_of(place, run)).ended
    assert listed(place, cluster)[0]["ended"]
    assert playbook(place, cluster, "abandon", run, "--yes").code == 5
    assert summary(journal_of(place, run)).abandoned_by == "tester"
    assert not journal_of(place, run).with_suffix(".lost").exists()


@pytest.mark.parametrize("in_cluster", [True, False])
@pytest.mark.parametrize("head", [True, False])
def test_a_run_with_a_damaged_journal_is_abandoned(place: Path, in_cluster: bool, head: bool) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    path = journal_of(place, run)
    path.write_bytes(b"?\n" + path.read_bytes() if head else path.read_bytes() + b"?\n")
    if not in_cluster:
        cluster.kept.image.runs = []
    assert playbook(place, cluster, "abandon", run, "--yes").code == 0
    assert path.with_suffix(".lost").exists()
    assert [r["ended"] for r in listed(place, cluster)] == [True] * in_cluster
    assert playbook(place, cluster, "run", "p.yaml", "--resume").code == 2


def test_a_run_that_an_earlier_iotctl_completed_after_all_has_completed(place: Path) -> None:
    """Earlier releases resume a run by its id without looking for its end."""
    cluster = FakeCluster()
    run = stopped(place, cluster)
    assert playbook(place, cluster, "abandon", run, "--yes").code == 0
    journal = FileJournal(journal_of(place, run))
    journal.append(Entry("ended", 9))
    journal.close()
    assert not summary(journal_of(place, run)).abandoned_by


def test_odd_ids_and_names_are_usage_errors_or_listed(place: Path) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    (journal_of(place, run).parent / "20260101T000000-abcdef.jsonl").mkdir()
    for odd in ("", ".", "x" * 300, f"other/{run}", "../../x", "a\nb"):
        refused = playbook(place, cluster, "abandon", odd, "--yes")
        assert refused.code == 2 and "no run" in refused.err, odd
    with HeldLock(cluster, "a run", "ann", NOW_MS) as held:
        held.record("y" * 300, "other", 0, b"{}", ended=False)
    assert len(listed(place, cluster)) == 2
    assert playbook(place, cluster, "abandon", "y" * 300, "--yes").code == 0
    env = {"XDG_STATE_HOME": str(place / "here"), "USER": "\x01" * 5_000}
    cluster.kept.image.level = Feature.UNFINISHED_RUNS
    (record,) = (r for r in cluster.kept.image.runs if r.id == run)
    record.entries.append(bytes(RUN_BYTES_MAX - sum(map(len, record.entries))))
    assert iotctl(place, "playbook", "abandon", run, "--yes", cluster=cluster, env=env).code == 0
    assert all(r.ended for r in kept(cluster)[1])


def test_an_abandoned_run_is_reported_although_the_cluster_then_does_not_respond(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()
    run = stopped(place, cluster)
    record = HeldLock.record

    def last(lock: HeldLock, *args: Any, **kwargs: Any) -> None:
        record(lock, *args, **kwargs)
        cluster.down = {"node1", "node2", "node3"}

    monkeypatch.setattr(HeldLock, "record", last)
    done = playbook(place, cluster, "abandon", run, "--yes", "-o", "json")
    assert done.code == 0 and [r["ended"] for r in json.loads(done.out)["runs"]] == [True], done.err


def test_unfinished_runs_are_not_dropped_for_a_newer_one(place: Path) -> None:
    """The newer run continues with its record on this machine, and says how to have it recorded."""
    cluster = FakeCluster()
    cluster.kept.image.level = Feature.UNFINISHED_RUNS
    with HeldLock(cluster, "runs", "ann", NOW_MS) as held:
        for i in range(RUNS_KEPT):
            held.record(f"r{i}", "other", 0, b"{}", ended=False)
    done = playbook(place, cluster, "run", "p.yaml")
    assert done.code == 5 and cluster.drained == {"node1"}
    assert "only this machine can resume it" in done.err and f"{RUNS_KEPT} unfinished runs" in done.err
    assert "iotctl playbook runs" in done.err and {r.name for r in kept(cluster)[1]} == {"other"}
    assert playbook(place, cluster, "abandon", "r7", "--yes").code == 0
    assert playbook(place, cluster, "run", "p.yaml", "--resume", "--approve", "sure").code == 0
    assert {r.name for r in kept(cluster)[1] if r.ended} == {"night", "other"}
    assert sum(not r.ended for r in kept(cluster)[1]) == RUNS_KEPT - 1

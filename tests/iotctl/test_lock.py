"""The cluster lock and the records of runs, with operators on several machines."""

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from iotctl.change import lock
from iotctl.change.lock import HeldLock, kept, owner_name, plan_digest, process_has_ended
from iotctl.cli.main import run
from iotctl.cli.session import Session
from iotctl.errors import BusyProblem, InputProblem, Partly, RefusedProblem
from iotctl.lifecycle import destroy as destroying
from iotctl.lifecycle.destroy import DestroyTarget
from iotctl.lifecycle.machines import Machines
from iotctl.lifecycle.rolling import RollRequest, rolling
from iotctl.plan.apply import from_json
from iotctl.playbook.journal import RETRY_S, FileJournal, RunJournal, bring
from iotctl.playbook.model import Entry
from iotctl.renewal import Renewal
from nodeagent.client.spec import ClusterSpec
from nodeagent.model.errors import NodeAgentError, Refused, Unavailable
from nodeagent.model.operation import Operation
from nodeagent.model.requests import BeginChange, DropLock, MetaView, NodeStatus, TakeLock
from tests.waiting import until

from .fakes import NOW_MS, SPEC, FakeCluster, Ran, iotctl
from .test_rolling import FakeAgents

BOOK = """\
apiVersion: iotctl/v1
name: night
steps:
  - {id: one, uses: cluster.drain, with: {node: node1}}
  - {id: sure, uses: approve, with: {message: Go on}}
  - {id: two, uses: cluster.drain, with: {node: node2}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    (tmp_path / "p.yaml").write_text(BOOK)
    return tmp_path


def play(place: Path, cluster: FakeCluster, *words: str, home: str = "here") -> Ran:
    env = {"XDG_STATE_HOME": str(place / home)}
    return iotctl(place, "playbook", "run", "p.yaml", *words, cluster=cluster, env=env)


def hold(cluster: FakeCluster, owner: str) -> None:
    cluster.call_meta(TakeLock(owner, "cluster restart node1", "ann", 30_000))


def test_a_run_is_refused_while_another_program_works_and_begins_nothing(place: Path) -> None:
    cluster = FakeCluster()
    hold(cluster, "ann@elsewhere pid 7 (0.0)")
    done = play(place, cluster)
    assert done.code == 10 and not cluster.drained
    assert "ann@elsewhere" in done.err and "cluster restart node1" in done.err and "ops unlock" in done.err
    assert not list(place.glob("here/**/*.jsonl")), "a run that never began cannot be resumed"


@pytest.mark.parametrize(
    "words",
    [
        "cluster stop node1 --yes",
        "cluster stop --yes",
        "cluster restart node1 --yes",
        "cluster destroy --confirm plant",
        "cluster remove-node node3 --yes",
        "cert renew --yes",
    ],
)
def test_nothing_is_done_while_another_command_holds_the_lock(
    place: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands that ask at the same moment would each learn that their node may stop."""
    monkeypatch.setattr(Machines, "of", lambda machines, node: pytest.fail("a machine was asked"))
    monkeypatch.setattr(destroying, "survey", lambda *_: [DestroyTarget("node1", "h", "/d", True, True, "")])
    cluster = FakeCluster()
    hold(cluster, "ann@elsewhere pid 7 (0.0)")
    done = iotctl(place, *words.split(), cluster=cluster)
    assert done.code == 10 and "cluster restart node1" in done.err, done.err
    assert not cluster.begun and (place / "cluster.yaml").read_text() == SPEC


def test_the_audit_log_names_the_executed_plan(place: Path) -> None:
    cluster = FakeCluster()
    words = ("plan", "remove-node", "node3", "--out", "p.json", "-o", "json")
    assert iotctl(place, *words, cluster=cluster).code == 0
    plan = from_json((place / "p.json").read_text())
    assert iotctl(place, "apply", "p.json", "--yes", cluster=cluster).code == 0
    taken, given_up = cluster.kept.image.audit[-2:]
    assert taken[2].endswith(f": remove-node node3, plan {plan_digest(plan)}")
    assert given_up[2].endswith("given up: done") and kept(cluster)[0] is None
    other = msgspec.structs.replace(plan, table_version=plan.table_version + 1)
    assert plan_digest(other) != plan_digest(plan)


def test_the_lock_is_released_once_the_change_has_begun(place: Path) -> None:
    """The agents then complete the change, perhaps for hours; other commands need not wait for the command
    that watches."""

    class Watched(FakeCluster):
        def begin_change(self, change: BeginChange) -> Operation:
            assert kept(self)[0] is not None
            return super().begin_change(change)

        def meta(self, strong: bool = False, any_age: bool = False) -> MetaView:
            assert not self.begun or kept(self)[0] is None
            return super().meta(strong)

    cluster = Watched()
    done = iotctl(place, "cluster", "remove-node", "node3", "--yes", cluster=cluster)
    assert done.code == 0 and len(cluster.begun) == 1, done.err


def test_a_change_uses_the_client_that_is_open_under_the_lock(place: Path) -> None:
    """Nodes that do not answer in time close the client; the change uses the client connected next."""

    class Slow(FakeCluster):
        def statuses(self, timeout_s: float = 2.0) -> dict[str, NodeStatus | NodeAgentError]:
            if self.looks == 0 or self is not made[0]:
                return super().statuses(timeout_s)
            return {name: Unavailable(f"{name} did not answer in time") for name in self.names}

        def meta(self, strong: bool = False, any_age: bool = False) -> MetaView:
            assert not self.closed, "the client is closed"
            return super().meta(strong)

    made: list[Slow] = []

    def connect(_: ClusterSpec) -> FakeCluster:
        made.append(Slow())
        return made[-1]

    out, err = io.StringIO(), io.StringIO()
    session = Session(out, err, io.StringIO(), {"USER": "tester"}, place, connect)
    assert run(("cluster", "remove-node", "node3", "--yes"), session) == 0, err.getvalue()
    assert made[0].closed and [len(c.begun) for c in made] == [0, 1]


def test_another_machine_continues_a_run(place: Path) -> None:
    """The record is in the cluster, so no file of the first machine is needed."""
    cluster = FakeCluster()
    assert play(place, cluster).code == 5 and cluster.drained == {"node1"}
    assert kept(cluster)[0] is None, "a run that stopped holds no lock"
    cluster.drained = set()  # completed steps are not inspected again
    done = play(place, cluster, "--resume", "--approve", "sure", home="there")
    assert done.code == 0 and cluster.drained == {"node2"}, done.err
    (run,) = kept(cluster)[1]
    assert run.ended and run.name == "night" and run.by == "tester"
    assert cluster.kept.image.audit[-1][2].endswith("given up: changed 2, failed 0")
    assert play(place, cluster, "--resume", home="nowhere").code == 2, "nothing is left unfinished"


def test_a_run_is_recorded_in_the_cluster_once_it_answers(place: Path) -> None:
    cluster, now, found = FakeCluster(down={"node1", "node2", "node3"}), [0.0], []

    def keeper() -> HeldLock | None:
        found.append(now[0])
        if len(cluster.down) > 2:
            return None
        return HeldLock(cluster, "a run", "ann", NOW_MS).__enter__()

    journal = RunJournal(FileJournal(place / "r1.jsonl"), "night", keeper, lambda: now[0])
    journal.append(Entry("begun", 1))
    journal.append(Entry("intent", 2, "one"))
    assert found == [0.0], "a cluster that is down is not asked before every step"
    cluster.down, now[0] = set(), RETRY_S
    journal.append(Entry("outcome", 3, "one"))
    (run,) = kept(cluster, "r1")[1]
    assert len(run.entries) == 3 == len(journal.entries())
    cluster.down, now[0] = {"node1", "node2", "node3"}, 2 * RETRY_S
    journal.append(Entry("intent", 4, "two"))  # the local file is sufficient
    assert len(journal.entries()) == 4


def test_an_unreadable_record_of_a_run_is_reported_by_its_line(place: Path) -> None:
    path = place / "r1.jsonl"
    journal = FileJournal(path)
    journal.append(Entry("begun", 1, playbook="night"))
    journal.close()
    path.write_bytes(path.read_bytes() + b'{"event":"in\xfftent","at_ms":2}\n')
    with pytest.raises(InputProblem, match="the journal of the run is damaged") as told:
        FileJournal(path)
    assert told.value.where == f"{path}:2:1"


def test_a_run_that_lost_the_lock_begins_no_further_step(place: Path) -> None:
    """Its lock was taken while the program was suspended: the cluster refuses its next intent."""
    cluster = FakeCluster()
    with suppress(Partly), HeldLock(cluster, "a run", "ann", NOW_MS) as held:
        journal = RunJournal(FileJournal(place / "r1.jsonl"), "night", lambda: held)
        journal.append(Entry("begun", 1))
        number = kept(cluster)[0]
        assert number is not None
        assert iotctl(place, "ops", "unlock", "9999", "--yes", cluster=cluster).code == 5
        done = iotctl(place, "ops", "unlock", str(number.serial), "--yes", cluster=cluster)
        assert done.code == 0 and kept(cluster)[0] is None, done.err
        with pytest.raises(RefusedProblem, match="stopped"):
            journal.append(Entry("intent", 2, "one"))


def test_the_lock_of_a_process_that_died_on_this_machine_is_taken(place: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    mine = owner_name("ann")
    dead = mine.replace(f"pid {os.getpid()}", f"pid {ended.pid}")
    assert process_has_ended(dead) and not process_has_ended(mine)
    assert not process_has_ended(dead.rpartition("(")[0] + "(00000000.1234)"), (
        "a pid of another machine does not count"
    )
    cluster = FakeCluster()
    hold(cluster, dead)
    assert play(place, cluster, "--approve", "sure").code == 0
    hold(cluster, mine)
    with pytest.raises(BusyProblem, match="cluster restart node1"), HeldLock(cluster, "x", "bob", NOW_MS):
        pass


def test_a_lock_is_renewed_and_its_loss_is_detected(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "TTL_MS", 30)
    cluster = FakeCluster()
    with (
        pytest.raises(Partly, match="lost the cluster lock"),
        HeldLock(cluster, "a roll", "ann", NOW_MS) as held,
    ):
        until(lambda: (now := kept(cluster)[0]) is not None and now.renewed > now.serial)
        held.check()
        iotctl(place, "ops", "unlock", str(held.serial), "--yes", cluster=cluster)
        until(lambda: bool(held.lost))
        with pytest.raises(RefusedProblem, match="the cluster lock was lost"):
            held.check()
    assert "given up: taken away by" in cluster.kept.image.audit[-1][2]


def test_a_lock_that_cannot_be_renewed_counts_as_lost() -> None:
    """A program that is cut off or suspended gets no notice, and another command may hold the lock by
    then."""
    now = [100.0]

    def renew() -> None:
        raise Unavailable("no answer")

    renewal = Renewal(renew, 3_000, "lock", lambda error: False, lambda: now[0])
    with renewal:
        now[0] = 102.9
        assert not renewal.lost
        now[0] = 103.0
        assert "3 s" in renewal.lost


def test_a_lock_is_held_again_after_the_cluster_was_silent() -> None:
    """A playbook stops the whole cluster for a minute: the serial shows that no other command had the
    lock."""
    now, down, asked = [0.0], [True], [0]

    def renew() -> None:
        asked[0] += 1
        if down[0]:
            raise Unavailable("no answer")

    with Renewal(renew, 30, "lock", lock.is_lost, lambda: now[0]) as renewal:
        now[0] = 60.0
        until(lambda: asked[0] > 1)
        assert renewal.lost
        down[0] = False
        until(lambda: not renewal.lost)


def test_a_resumed_run_takes_the_lock_before_it_inspects(place: Path) -> None:
    """A state that it inspected without the lock may have changed when the run begins."""
    cluster = FakeCluster()
    (place / "p.yaml").write_text(BOOK.replace("node2", "node9"))
    assert play(place, cluster, "--approve", "sure").code != 0, "there is no node9"
    hold(cluster, "ann@elsewhere pid 7 (0.0)")
    looks = cluster.looks
    assert play(place, cluster, "--resume").code == 10 and cluster.looks == looks


def test_the_list_of_operations_names_who_holds_the_lock(place: Path) -> None:
    cluster = FakeCluster()
    quiet = iotctl(place, "ops", "list", cluster=cluster)
    hold(cluster, "ann@elsewhere pid 7 (0.0)")
    done = iotctl(place, "ops", "list", cluster=cluster)
    assert "lock" not in quiet.err and "lock 1 is held by ann@elsewhere" in done.err
    assert "cluster restart node1" in done.err and done.out == quiet.out


def test_the_report_of_a_run_is_written_though_its_lock_was_lost(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldLock, "lost", property(lambda self: "it could not be renewed"))
    done = play(place, FakeCluster(), "--approve", "sure", "--json", "r.json")
    assert done.code == 6 and "lost the cluster lock" in done.err
    assert (place / "r.json").exists()


def test_a_temporarily_refused_renewal_does_not_lose_the_lock() -> None:
    asked = [0]

    def renew() -> None:
        asked[0] += 1
        if asked[0] == 1:
            raise Refused("not now")
        raise Refused("lock 7 is no longer held", lost=True)

    with Renewal(renew, 30, "lock", lock.is_lost, lambda: 0.0) as renewal:
        until(lambda: bool(renewal.lost))
    assert asked[0] == 2


@pytest.mark.parametrize("at", [3, 4])
def test_a_rolling_restart_stops_when_its_lock_is_taken(place: Path, at: int) -> None:
    """The restart ends before the next node is drained or stopped."""
    cluster, checks = FakeCluster(), [0]

    def check() -> int:
        checks[0] += 1
        if checks[0] == at:
            raise RefusedProblem("the cluster lock was lost")
        return 0

    agents = FakeAgents(cluster)
    with pytest.raises(Partly, match="node1 restarted, node2, node3 not"):
        rolling(
            cluster,
            agents,
            ["node1", "node2", "node3"],
            RollRequest("ann", "again"),
            check=check,
            on_step=lambda *_: None,
        )
    assert not cluster.drained


def test_a_node_outside_the_cluster_is_not_stopped_once_the_lock_is_taken() -> None:
    """Another program may operate on this machine now."""

    def check() -> int:
        if agents.log:
            raise RefusedProblem("the cluster lock was lost")
        return 0

    agents = FakeAgents(FakeCluster(), outside={"node6", "node7"})
    with pytest.raises(Partly, match="node6 restarted, node7, node1 not$"):
        rolling(
            agents.cluster,
            agents,
            ["node1", "node6", "node7"],
            RollRequest("ann", "again"),
            check=check,
            on_step=lambda *_: None,
        )
    assert agents.log == ["stop node6", "start node6"]


def test_a_rolling_restart_that_lost_its_lock_leaves_drains_alone() -> None:
    """The last check of the restart succeeded; the cluster refuses its later requests, and the restart
    reports that."""
    cluster = FakeCluster()

    class Slow(FakeAgents):
        def start(self, names: Sequence[str]) -> list[str]:
            cluster.call_meta(DropLock(serial, "bob", "taken away"))
            return super().start(names)

    serial = HeldLock(cluster, "a roll", "ann", NOW_MS).__enter__().serial
    agents = Slow(cluster)
    with pytest.raises(Partly, match="node1 still draining") as failed:
        rolling(
            cluster,
            agents,
            ["node1", "node2"],
            RollRequest("ann", "again"),
            check=lambda: serial,
            on_step=lambda *_: None,
        )
    assert cluster.drained == {"node1"} and "stop node2" not in agents.log
    assert "undrain node1" in failed.value.next


def test_a_change_is_refused_when_the_lock_it_was_decided_under_is_lost(place: Path) -> None:
    class Slow(FakeCluster):
        def begin_change(self, change: BeginChange) -> Operation:
            self.call_meta(DropLock(change.lock, "bob", "taken away"))
            return super().begin_change(change)

    cluster = Slow()
    done = iotctl(place, "cluster", "remove-node", "node3", "--yes", cluster=cluster)
    assert done.code == 5 and not cluster.begun and "is no longer held" in done.err, done.err


def test_completed_steps_are_recorded_locally_whoever_holds_the_lock(place: Path) -> None:
    """Otherwise --resume would treat a completed step as unfinished."""
    cluster, now = FakeCluster(down={"node1", "node2", "node3"}), [0.0]

    def keeper() -> HeldLock | None:
        return None if cluster.down else HeldLock(cluster, "a run", "ann", NOW_MS).__enter__()

    journal = RunJournal(FileJournal(place / "r1.jsonl"), "night", keeper, lambda: now[0])
    journal.append(Entry("begun", 1))
    journal.append(Entry("intent", 2, "one"))
    cluster.down, now[0] = set(), RETRY_S
    hold(cluster, "bob@elsewhere pid 7 (0.0)")
    with pytest.raises(BusyProblem):
        journal.append(Entry("outcome", 3, "one"))
    with pytest.raises(BusyProblem):
        journal.append(Entry("intent", 4, "two"))
    assert [e.event for e in journal.entries()] == ["begun", "intent", "outcome"]


def test_the_end_of_a_run_is_recorded_although_the_cluster_was_just_silent(place: Path) -> None:
    """Otherwise another machine would continue a run that has ended."""
    cluster = FakeCluster(down={"node1", "node2", "node3"})

    def keeper() -> HeldLock | None:
        return None if cluster.down else HeldLock(cluster, "a run", "ann", NOW_MS).__enter__()

    journal = RunJournal(FileJournal(place / "r1.jsonl"), "night", keeper, lambda: 0.0)
    journal.append(Entry("begun", 1))
    assert not journal.finish()
    cluster.down = set()
    journal.append(Entry("ended", 2))
    assert not kept(cluster)[1] and journal.finish()
    (run,) = kept(cluster, "r1")[1]
    assert run.ended and len(run.entries) == 2


def test_the_record_of_a_lost_run_is_moved_aside_for_the_clusters_record(tmp_path: Path) -> None:
    run = "20260101T000000-abcdef"
    path, ours, theirs = tmp_path / f"{run}.jsonl", [b"{1}", b"{2}"], [b"{1}", b"{3}"]
    bring(tmp_path, run, ours[:1])
    assert path.read_bytes() == b"{1}\n" and path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"{1}\n{2}\n")
    bring(tmp_path, run, ours[:1])
    assert path.read_bytes() == b"{1}\n{2}\n", "the local record stays"
    path.write_bytes(b"{1}\n")
    bring(tmp_path, run, ours)  # another machine continued it
    assert path.read_bytes() == b"{1}\n{2}\n" and not path.with_suffix(".lost").exists()
    bring(tmp_path, run, theirs)
    assert path.read_bytes() == b"{1}\n{3}\n" and path.with_suffix(".lost").exists()
    bring(tmp_path, "../escaped", theirs)
    assert not (tmp_path.parent / "escaped.jsonl").exists()

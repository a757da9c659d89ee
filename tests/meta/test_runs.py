"""The cluster lock and the records of runs: a lock has one fenced owner, and every entry is recorded once, at
its number."""

import pytest

from nodeagent.meta import commands as c
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.features import Feature
from nodeagent.model.limits import RUN_BYTES_MAX, RUN_END_BYTES, RUNS_KEPT
from nodeagent.model.requests import Accepted, ErrorReply, LockReply, Reply
from nodeagent.model.runs import Lock

ANN, BOB = "ann@here 1", "bob@there 2"


class Meta:
    def __init__(self) -> None:
        self.state = MetaState()

    def do(self, command: c.Command) -> Reply:
        entry = Entry(1, int(EntryKind.COMMAND), c.encode(command))
        return self.state.apply(self.state.applied + 1, [entry])[0][1]

    def take(self, owner: str = ANN, serial: int = 0) -> Reply:
        return self.do(c.TakeLock(5, owner, "a roll", owner[:3], 30_000, serial))

    def taken(self, owner: str = ANN) -> Lock:
        reply = self.take(owner)
        assert isinstance(reply, LockReply), reply
        return reply.lock

    def drop(self, serial: int, renewed: int = 0) -> Reply:
        return self.do(c.DropLock(6, serial, "ann", "done", renewed))

    def record(
        self, number: int, entry: bytes, serial: int, run: str = "r1", *, ended: bool = False
    ) -> Reply:
        return self.do(c.RecordRun(7, run, "nightly", number, entry, serial, "ann", ended))

    def again(self) -> "Meta":
        other = Meta()
        other.state = MetaState.decode(self.state.encode())
        return other


@pytest.fixture
def meta() -> Meta:
    return Meta()


def code(reply: Reply) -> str:
    return reply.code if isinstance(reply, ErrorReply) else ""


def test_the_audit_log_records_once_who_took_the_lock(meta: Meta) -> None:
    """The owner renews the lock every few seconds; the audit log must not list the renewals."""
    lock = meta.taken()
    told = list(meta.state.image.audit)
    assert [what for *_, what in told] == [f"lock {lock.serial} taken by {ANN}: a roll"]
    assert isinstance(meta.take(serial=lock.serial), LockReply)
    assert meta.state.image.audit == told


def test_one_owner_at_a_time_and_the_refusal_names_it(meta: Meta) -> None:
    lock = meta.taken()
    refused = meta.take(BOB)
    assert isinstance(refused, ErrorReply) and refused.code == "busy"
    assert ANN in refused.what and refused.details["owner"] == ANN and refused.details["started_ms"] == 5
    assert refused.next_step.endswith(f"iotctl ops unlock {lock.serial}")
    meta.drop(lock.serial)
    assert meta.taken(BOB).serial > lock.serial


def test_a_retried_request_takes_the_same_lock(meta: Meta) -> None:
    assert meta.taken().serial == meta.taken().serial


def test_a_renewed_lock_keeps_its_serial_and_is_not_dropped_by_an_earlier_expiry(meta: Meta) -> None:
    lock = meta.taken()
    renewed = meta.take(serial=lock.serial)
    assert isinstance(renewed, LockReply) and renewed.lock.serial == lock.serial
    assert code(meta.drop(lock.serial, lock.renewed)) == "not_found"
    assert isinstance(meta.drop(lock.serial, renewed.lock.renewed), Accepted)


def test_an_expired_lock_is_not_renewed(meta: Meta) -> None:
    """Otherwise an owner that was suspended would not notice that another owner worked in between."""
    lock = meta.taken()
    meta.drop(lock.serial)
    other = meta.taken(BOB)
    meta.drop(other.serial)
    assert code(meta.take(serial=lock.serial)) == "refused"
    assert meta.state.image.lock is None
    meta.taken()
    assert code(meta.take(serial=lock.serial)) == "refused"


def test_only_the_current_lock_is_released(meta: Meta) -> None:
    first = meta.taken()
    meta.drop(first.serial)
    second = meta.taken(BOB)
    assert code(meta.drop(first.serial)) == "not_found"
    assert meta.state.image.lock == second


def test_entries_are_recorded_once_and_in_order(meta: Meta) -> None:
    serial = meta.taken().serial
    assert [code(meta.record(n, e, serial)) for n, e in ((0, b"a"), (1, b"b"), (1, b"b"), (0, b"a"))] == [
        ""
    ] * 4
    for number, entry in ((1, b"other"), (3, b"c")):
        refused = meta.record(number, entry, serial)
        assert isinstance(refused, ErrorReply) and refused.code == "refused" and refused.details["lost"]
    assert not code(meta.record(2, b"end", serial, ended=True))
    (run,) = meta.again().state.image.runs
    assert (run.entries, run.ended, run.by, run.name) == ([b"a", b"b", b"end"], True, "ann", "nightly")


def test_a_former_owner_records_nothing(meta: Meta) -> None:
    first = meta.taken()
    meta.drop(first.serial)
    assert code(meta.record(0, b"a", first.serial)) == "refused"
    meta.taken(BOB)
    assert code(meta.record(0, b"a", first.serial)) == "refused" and not meta.state.image.runs


def test_below_the_level_the_oldest_ended_run_makes_room(meta: Meta) -> None:
    serial = meta.taken().serial
    for i in range(RUNS_KEPT):
        meta.record(0, b"a", serial, f"r{i}", ended=i in (3, 9))
    assert not code(meta.record(0, b"a", serial, "next", ended=True))
    known = [r.id for r in meta.state.image.runs]
    assert known == [f"r{i}" for i in range(RUNS_KEPT) if i != 3] + ["next"]
    meta.record(1, b"end", serial, "r0", ended=True)
    assert [r.id for r in meta.state.image.runs] == known, "an entry of a known run drops and moves none"


def test_the_runs_that_ended_last_are_retained(meta: Meta) -> None:
    """By the time of their end: a long run is not dropped when it ends."""
    serial = meta.taken().serial
    meta.state.image.level = Feature.UNFINISHED_RUNS
    meta.record(0, b"a", serial, "long")
    for i in range(RUNS_KEPT + 2):
        meta.record(0, b"a", serial, f"r{i}", ended=True)
    assert [r.id for r in meta.state.image.runs] == ["long", *(f"r{i}" for i in range(2, RUNS_KEPT + 2))]
    meta.record(1, b"end", serial, "long", ended=True)
    assert [r.id for r in meta.again().state.image.runs][-2:] == [f"r{RUNS_KEPT + 1}", "long"]
    assert len(meta.state.image.runs) == RUNS_KEPT


def test_unfinished_runs_are_not_dropped_and_refuse_a_newer_one(meta: Meta) -> None:
    serial = meta.taken().serial
    meta.state.image.level = Feature.UNFINISHED_RUNS
    for i in range(RUNS_KEPT):
        assert not code(meta.record(0, b"a", serial, f"ended {i}", ended=True))
        assert not code(meta.record(0, b"a", serial, f"r{i}"))
    before = meta.state.image.runs
    assert len(before) == 2 * RUNS_KEPT
    refused = meta.record(0, b"a", serial, "one too many")
    assert isinstance(refused, ErrorReply) and refused.code == "refused" and "lost" not in refused.details
    assert str(RUNS_KEPT) in refused.what and refused.next_step.endswith("iotctl playbook runs")
    assert meta.state.image.runs == before
    assert not code(meta.record(1, b"end", serial, "r0", ended=True)), "known runs are still recorded"
    assert not code(meta.record(0, b"a", serial, "one too many"))
    unfinished = [r.id for r in meta.again().state.image.runs if not r.ended]
    assert unfinished == [f"r{i}" for i in range(1, RUNS_KEPT)] + ["one too many"]


def test_every_run_can_end(meta: Meta) -> None:
    serial = meta.taken().serial
    meta.state.image.level = Feature.UNFINISHED_RUNS
    meta.record(0, bytes(RUN_BYTES_MAX), serial)
    assert code(meta.record(1, b"x", serial)) == "refused"
    assert code(meta.record(1, bytes(RUN_END_BYTES + 1), serial, ended=True)) == "refused"
    assert not code(meta.record(1, bytes(RUN_END_BYTES), serial, ended=True))


def test_below_the_level_the_records_are_bounded_as_in_the_previous_release(meta: Meta) -> None:
    """Nodes of both releases must compute the same state."""
    serial = meta.taken().serial
    for i in range(RUNS_KEPT + 3):
        meta.record(0, b"a", serial, f"r{i}")
    assert [r.id for r in meta.state.image.runs] == [f"r{i}" for i in range(3, RUNS_KEPT + 3)]
    assert not code(meta.record(0, bytes(RUN_BYTES_MAX), serial, "big"))
    assert code(meta.record(1, b"x", serial, "big", ended=True)) == "refused"


def test_taking_and_releasing_the_lock_is_in_the_audit_log(meta: Meta) -> None:
    serial = meta.taken().serial
    meta.take(serial=serial)
    meta.drop(serial)
    assert meta.state.image.audit == [
        (5, "ann", f"lock {serial} taken by {ANN}: a roll"),
        (6, "ann", f"lock {serial} of {ANN} given up: done"),
    ]

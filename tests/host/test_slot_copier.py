"""Pulls of one node: their sources, the pause of the operation, and the node's share of its rate."""

from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.slot_copier import OWN_WAIT_MS, PARALLEL_UNITS, RETRY_MS, SlotCopier
from nodeagent.model.files import PulledSlot, StagedUnit, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import Done, DropStaging, Failed, FilesStaged, ReadStaged, StagedRead, StageFiles
from nodeagent.model.operation import CopyRecord, GroupChange, Operation, Options, SlotMove, Stage
from nodeagent.model.requests import CheckFiles, ErrorReply, OpenSource, SourceOpened, UnitPulled
from nodeagent.scaling import moving as moving_room
from nodeagent.scaling.moving import UNIT_SLOTS, rate_share, units, units_to_copy

SLOTS = ((0, 6 * UNIT_SLOTS),)
NEW = ("d", "a", "e")


def operation(**more: object) -> Operation:
    """Six units go from {a, b, c} to {d, a, e}."""
    return Operation(
        id="op-1",
        kind="add-node",
        node="d",
        by="me",
        started_ms=0,
        base_version=1,
        table_version=2,
        moves=[SlotMove(SLOTS, "a.1", ("a", "b", "c"), "d.2", NEW)],
        changes=[GroupChange("a.1", "d", "c", ("a", "b", "c"), ("a", "b", "d"))],
        options=Options(rate_bytes_per_s=900),
        stage=Stage.COPYING,
        **more,  # type: ignore[arg-type]
    )


def moving(node: str = "d", **replicas: Any) -> tuple[SlotCopier, EffectQueue]:
    effects = EffectQueue(0, 0)
    return SlotCopier(node, f"i-{node}", effects, replicas, lambda command: None), effects


def drive(slot_copier: SlotCopier, op: Operation) -> None:
    slot_copier.drive([op], set(), set())


def test_a_pause_starts_no_pull_and_lets_running_pulls_finish() -> None:
    """No further source is asked; after the pause the other pulls begin."""
    slot_copier, effects = moving()
    op = operation()
    drive(slot_copier, op)
    assert len(effects.calls) == PARALLEL_UNITS
    op.paused = True
    drive(slot_copier, op)
    first = effects.calls[0][0]
    effects.on_reply(first, SourceOpened("b", "s", ()))  # its files are staged: one job
    assert len(effects.jobs) == 1 and len(effects.calls) == PARALLEL_UNITS
    effects.on_reply(effects.calls[1][0], ErrorReply("unavailable", "no"))
    effects.now = 10_000
    effects.fire()  # the retry of the failed one waits for the end of the pause too
    drive(slot_copier, op)
    assert len(effects.calls) == PARALLEL_UNITS
    op.paused = False
    drive(slot_copier, op)
    assert len(effects.calls) > PARALLEL_UNITS
    assert all(isinstance(request, OpenSource) for _, _, request in effects.calls)


def test_a_node_without_room_begins_no_pull_and_refuses_orders() -> None:
    """Files would fill its disk; pulls resume automatically when there is space."""
    slot_copier, effects = moving()
    op = operation()
    effects.space.measured(1, 1 << 30, 0)
    drive(slot_copier, op)
    slot_copier.order(op, "d.2", SLOTS, 7)
    ((token, reply),) = effects.replies
    assert not effects.calls and token == 7 and isinstance(reply, ErrorReply) and reply.code == "overloaded"
    effects.space.measured(1 << 30, 1 << 30, 0)
    drive(slot_copier, op)
    assert len(effects.calls) == PARALLEL_UNITS


def test_a_pull_waits_a_limited_time_for_files_that_this_node_makes() -> None:
    """Otherwise a member whose last files are still being made would pull all of them over the network."""
    late = SimpleNamespace(state=SimpleNamespace(is_source_ready=lambda operation: False))
    slot_copier, effects = moving("a", **{"a.1": late})
    op = operation()
    drive(slot_copier, op)
    effects.now = OWN_WAIT_MS - 1
    effects.fire()
    assert not effects.calls
    effects.now += 1_000
    effects.fire()
    assert len(effects.calls) == PARALLEL_UNITS and {to for _, to, _ in effects.calls} <= {"b", "c"}


@pytest.mark.parametrize("settled", [False, True])
def test_staged_files_stay_until_a_durable_checkpoint_here_names_them(settled: bool) -> None:
    """The operation ends when the leaders have adopted; this member may still need its staged files."""
    slot_copier, effects = moving("d", **{"d.2": SimpleNamespace(ended_here={"op-1"} if settled else set())})
    op = operation()
    drive(slot_copier, op)
    op.stage = Stage.DONE
    slot_copier.drive([op], set(), {"d.2"})
    dropped = [job for _, job in effects.jobs if isinstance(job, DropStaging)]
    assert dropped == ([DropStaging("op-1")] if settled else [])


def test_the_removal_of_an_ended_operations_staged_files_is_retried() -> None:
    """A failed removal is named and retried; if a pull still ran when its operation ended, its staging area
    is removed once more."""
    slot_copier, effects = moving()
    op = operation()
    drive(slot_copier, op)
    effects.on_reply(effects.calls[0][0], SourceOpened("b", "s", ()))
    ((pull, _),) = effects.jobs
    effects.jobs.clear()
    op.stage = Stage.DONE
    drive(slot_copier, op)
    for _ in range(3):
        assert effects.jobs.pop()[1] == DropStaging("op-1") and not effects.jobs
        effects.on_job(effects._number, Failed("unavailable", "Input/output error"))
        assert effects.unremoved == {"staging/op-1": "Input/output error"}
        effects.now += 10_000
        effects.fire()
    effects.jobs.clear()
    effects.on_job(effects._number, Done())
    assert not effects.unremoved and not effects.jobs
    drive(slot_copier, op)
    assert not effects.jobs, "it is gone"
    effects.on_job(pull, FilesStaged((), (), 0))
    drive(slot_copier, op)
    assert [job for _, job in effects.jobs] == [DropStaging("op-1")]


def test_a_removal_that_waits_for_a_pull_is_not_reported_as_a_disk_problem() -> None:
    effects = EffectQueue(0, 0)
    effects.remove(DropStaging("op-1"))
    effects.on_job(effects._number, Failed("busy", "a pull still writes there"))
    effects.now += 1_000
    effects.fire()
    assert [job for _, job in effects.jobs] == 2 * [DropStaging("op-1")] and not effects.unremoved


def test_orders_are_refused_while_paused_with_the_way_out() -> None:
    """New orders are refused, and those whose pulls have not begun: their owner must not wait for an
    operator."""
    slot_copier, effects = moving()
    op = operation()
    drive(slot_copier, op)
    slot_copier.order(op, "d.2", SLOTS, 7)  # four units are in progress, two wait
    assert not effects.replies
    op.paused = True
    drive(slot_copier, op)
    slot_copier.order(op, "d.2", SLOTS, 8)
    refused = dict(effects.replies)
    assert set(refused) == {7, 8}
    for reply in refused.values():
        assert isinstance(reply, ErrorReply) and reply.code == "refused"
        assert reply.next_step == "iotctl ops resume op-1"
    assert not any(isinstance(r, UnitPulled) for r in refused.values())


def test_only_units_that_this_incarnation_has_not_recorded_are_pulled() -> None:
    """A copy of an earlier incarnation of the node, for another target or of other slots does not count."""
    op = operation()
    cut = units(op)
    assert [u.slots for u in units_to_copy(op, cut, "d", "i-d")] == [u.slots for u in cut]
    first, second, *others = (u.slots for u in cut)
    op.copies = [
        CopyRecord("d.2", "d", "i-d", first, "x", 1, 1),
        CopyRecord("d.2", "d", "i-old", second, "x", 1, 1),
        CopyRecord("d.2", "e", "i-d", second, "x", 1, 1),
        CopyRecord("x.2", "d", "i-d", second, "x", 1, 1),
    ]
    assert [u.slots for u in units_to_copy(op, cut, "d", "i-d")] == [second, *others]
    assert not units_to_copy(op, cut, "b", "i-b"), "b is no member of the target"


def test_the_rate_is_that_of_all_nodes_together() -> None:
    """d and e pull at 450 each, a has its own copies; once e has recorded its copies, d gets the whole
    rate."""
    op = operation()
    assert rate_share(op, "d") == rate_share(op, "e") == 450
    op.copies.append(CopyRecord("d.2", "e", "i-e", SLOTS, "x", 1, 1))
    assert rate_share(op, "d") == 900
    op.stage = Stage.OPEN
    assert rate_share(op, "d") == 900, "before COPYING only the node that joins catches up"
    op.options = Options()
    assert rate_share(op, "d") == 0


def test_a_live_change_of_the_rate_reaches_the_node() -> None:
    """`ops set ID --rate` changes the record, and the next step of the node changes its share."""
    slot_copier, _ = moving("e")
    op = operation()
    drive(slot_copier, op)
    assert slot_copier.rate_bytes_per_s == 450
    op.options = Options(rate_bytes_per_s=100)
    drive(slot_copier, op)
    assert slot_copier.rate_bytes_per_s == 50
    op.stage = Stage.DONE
    drive(slot_copier, op)
    assert slot_copier.rate_bytes_per_s == 0


def test_an_exception_in_a_pull_fails_one_try_of_that_pull_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever part raises it, it is logged, the pull is soon retried, and other pulls continue."""
    slot_copier, effects = moving()
    op = operation()
    drive(slot_copier, op)
    slot_copier.order(op, "d.2", SLOTS, 7)
    (first, _, _), (second, _, _), *_ = effects.calls
    effects.on_reply(first, SourceOpened("b", "s", None))  # type: ignore[arg-type]
    assert effects.failures == 1 and not effects.jobs
    effects.on_reply(second, SourceOpened("b", "s", ()))
    ((number, _),) = effects.jobs
    with monkeypatch.context() as patched:
        patched.setattr(moving_room, "digest", lambda slots: 1 // 0)
        effects.on_job(number, FilesStaged((), (), 0))
    assert effects.failures == 2 and not effects.replies
    effects.now += RETRY_MS
    with monkeypatch.context() as patched:
        patched.setattr(moving_room, "sources", lambda *_: 1 // 0)
        effects.fire()
    assert effects.failures > 2, "the choice of a source is such a part"
    for _ in range(8):
        effects.now += RETRY_MS
        effects.fire()
        drive(slot_copier, op)
        for call, _, _ in effects.calls:
            effects.on_reply(call, SourceOpened("c", "s", ()))
        for number, _ in effects.jobs:
            effects.on_job(number, FilesStaged((), (), 0))
    ((token, reply),) = effects.replies
    assert token == 7 and isinstance(reply, UnitPulled), "all units are copied in the end"


def test_the_record_of_a_copy_counts_the_bytes_and_files_of_every_try() -> None:
    effects, reported = EffectQueue(0, 0), list[Any]()
    slot_copier, op = SlotCopier("d", "i-d", effects, {}, reported.append), operation()
    drive(slot_copier, op)
    for result in (FilesStaged((), (("f", "no source"),), 100, 1), FilesStaged((), (), 50, 2)):
        call, _, _ = effects.calls[0 if effects.now == 0 else -1]  # the other units wait
        effects.on_reply(call, SourceOpened("b", "s", ()))
        number, _ = effects.jobs[-1]
        effects.on_job(number, result)
        effects.now += RETRY_MS
        effects.fire()
    (report,) = reported
    assert (report.record.bytes_received, report.record.refetched) == (150, 3)


def test_the_holder_of_a_copy_that_a_pull_found_damaged_is_asked_to_hash_it() -> None:
    """A source gets a request; this node hashes its own copy itself. The pull continues."""
    looked: list[tuple[str, ...]] = []
    state = SimpleNamespace(is_source_ready=lambda operation: False)
    own = SimpleNamespace(state=state, files=SimpleNamespace(check=looked.append))
    slot_copier, effects = moving("a", **{"a.1": own})
    op = operation()
    drive(slot_copier, op)
    effects.now = OWN_WAIT_MS + RETRY_MS
    effects.fire()
    effects.on_reply(effects.calls[0][0], SourceOpened("b", "s", ()))
    effects.calls.clear()
    ((number, _),) = effects.jobs
    suspects = (("b", "f1"), ("", "f2"), ("b", "f3"))
    effects.on_job(number, FilesStaged((), (("f1", "b: not what it was"),), 0, 1, suspects))
    asked = [(to, request) for _, to, request in effects.calls if isinstance(request, CheckFiles)]
    assert asked == [("b", CheckFiles("a.1", (), ("f1", "f3")))] and looked == [("f2",)]


SLOT = PulledSlot(0, (), (Tombstone((1,), PartitionKey("root.g", 0, 0), "t", (), 0, 9),))


def recorded(op: Operation, incarnation: str = "i-d") -> None:
    op.copies = [CopyRecord("d.2", "d", incarnation, u.slots, "x", 1, 1) for u in units(op)]


def read_from_disk(slot_copier: SlotCopier, effects: EffectQueue, op: Operation, known: int) -> None:
    """A leader composes an `Adopt`, and gets the first `known` descriptions."""
    assert slot_copier.adopt_commands(op, "d.2", 9) == []
    ((number, job),) = effects.jobs
    effects.jobs.clear()
    assert job == ReadStaged("op-1", "d.2")
    effects.on_job(number, StagedRead(tuple(StagedUnit(u.slots, (SLOT,)) for u in units(op)[:known])))


@pytest.mark.parametrize("stage", [Stage.COPYING, Stage.CLEANUP, Stage.DONE])
def test_a_leader_that_restarted_adopts_what_it_described_on_disk(stage: Stage) -> None:
    """No source is asked: it may have released the slots."""
    slot_copier, effects = moving("d", **{"d.2": SimpleNamespace(ended_here=set[str]())})
    op = operation()
    recorded(op)
    op.stage = stage
    read_from_disk(slot_copier, effects, op, 6)
    slot_copier.drive([op], {"d.2"}, {"d.2"})
    assert not effects.calls and not effects.jobs
    assert len(slot_copier.adopt_commands(op, "d.2", 9)) == 6


@pytest.mark.parametrize(("known", "incarnation"), [(4, "i-d"), (6, "i-old")])
def test_only_recorded_descriptions_count_and_the_rest_is_pulled(known: int, incarnation: str) -> None:
    slot_copier, effects = moving()
    op = operation()
    recorded(op, incarnation)
    op.stage = Stage.CLEANUP
    slot_copier.drive([op], {"d.2"}, set())
    assert not effects.calls, "the disk is asked first"
    read_from_disk(slot_copier, effects, op, known)
    slot_copier.drive([op], {"d.2"}, set())
    assert len(effects.calls) == (2 if incarnation == "i-d" else PARALLEL_UNITS)
    assert slot_copier.adopt_commands(op, "d.2", 9) == []


def complete(slot_copier: SlotCopier, effects: EffectQueue, op: Operation) -> None:
    """Let the pulls in progress end."""
    for _ in range(3):
        for call, _, request in list(effects.calls):
            if isinstance(request, OpenSource):
                effects.on_reply(call, SourceOpened("b", "s", (SLOT,)))
        for number, _ in list(effects.jobs):
            effects.on_job(number, FilesStaged((), (), 0))
        effects.calls.clear()
        effects.jobs.clear()
        effects.now += RETRY_MS
        effects.fire()
        drive(slot_copier, op)


def test_copies_that_are_not_recorded_are_made_again_when_their_source_was_recovered() -> None:
    """It may have other files. A pull in progress begins again once its files are staged."""
    effects, reported = EffectQueue(0, 0), list[Any]()
    slot_copier, op = SlotCopier("d", "i-d", effects, {}, reported.append), operation()
    drive(slot_copier, op)
    first = units(op)[0].slots
    effects.on_reply(effects.calls[0][0], SourceOpened("b", "s", ()))
    effects.on_job(effects.jobs.pop()[0], FilesStaged((), (), 0))
    former = reported[0].record
    assert former.slots == first
    op.recovered = {"x.1": "op-1.7"}
    complete(slot_copier, effects, op)
    assert [r.record for r in reported if r.record.slots == first] == [former], "its source was not recovered"
    op.recovered = {"a.1": "op-1.9"}
    drive(slot_copier, op)
    complete(slot_copier, effects, op)
    made = [r.record.digest for r in reported if r.record.slots == first]
    assert len(set(made)) == 2 and made[-1] != former.digest
    op.copies = [former]
    effects.now += 10_000
    drive(slot_copier, op)
    assert reported[-1].record.digest == made[-1], "the record has the former copy"


def test_slots_whose_sources_are_all_lost_are_empty_only_if_that_was_accepted() -> None:
    """A force recovery of the source accepts it; a dead node alone does not. A member that copied the rows
    before has the only copy: then the others' copies must not be empty."""
    op = operation()
    for dead, recovered, others, staged in (
        (["b", "c"], {"a.1": "op-1.9"}, [], 0),
        (["a", "b", "c"], {}, [], 0),
        (["a", "b", "c"], {"a.1": "op-1.9"}, [u.slots for u in units(op)], 0),
        (["a", "b", "c"], {"a.1": "op-1.9"}, [], PARALLEL_UNITS),
    ):
        slot_copier, effects = moving("e")
        op.dead, op.recovered = dead, recovered
        op.copies = [CopyRecord("d.2", "d", "i-d", slots, "x", 1, 1) for slots in others]
        drive(slot_copier, op)
        assert len(effects.jobs) == staged
        assert all(isinstance(job, StageFiles) and not job.files for _, job in effects.jobs)
        assert {to for _, to, _ in effects.calls} == ({"a"} if "a" not in dead else set())

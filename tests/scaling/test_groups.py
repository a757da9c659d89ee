"""The next actions of a data group's leader, from the operation's record and its own state alone."""

from dataclasses import replace

import pytest

from nodeagent.data import commands as data
from nodeagent.data.slot_migration import digest
from nodeagent.data.state import DataState, initial
from nodeagent.meta import commands as meta
from nodeagent.model.entries import Config, Entry, EntryKind
from nodeagent.model.features import Feature
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import AdoptFiles, Adoption
from nodeagent.model.operation import CopyRecord, GroupChange, Operation, Options, SealResult, SlotMove, Stage
from nodeagent.scaling import groups, membership
from nodeagent.scaling.groups import (
    PARTS_AT_ONCE,
    AdoptNow,
    GroupView,
    Log,
    Part,
    PrefetchParts,
    Reconfigure,
    Report,
    TakeParts,
)

OLD, NEW = "a.1", "n.9"
MEMBERS = ("a", "b", "c")


def operation(stage: Stage) -> Operation:
    move = SlotMove(((0, 2),), OLD, MEMBERS, NEW, ("n", "a", "b"))
    change = GroupChange(OLD, "n", "c", MEMBERS, ("a", "b", "n"))
    return Operation("op-9", "add-node", "n", "me", 0, 1, 9, [move], [change], Options(), stage)


def state(group: str, *commands: data.Command) -> DataState:
    made = initial(group, ((0, 5),) if group == OLD else ())
    for command in commands:
        made.apply(made.applied + 1, [Entry(1, int(EntryKind.COMMAND), data.encode(command))], 0)
    return made


def view(group: str, made: DataState, config: Config | None = None, gone: str = "") -> GroupView:
    incarnations = {name: f"i-{name}" for name in (*MEMBERS, "n")}
    return GroupView(
        group, "a", made, config or Config(MEMBERS), lambda _: True, incarnations, gone.__eq__, 7
    )


SEAL = data.Seal("op-9", 9, ((0, 2),))
OPEN = data.Open("op-9", 9, ((0, 2),), ())


def test_a_created_group_says_that_it_is_led_until_the_record_has_it() -> None:
    op = operation(Stage.PLANNED)
    assert groups.next_actions(op, view(NEW, state(NEW))) == []
    op.created_group = NEW
    assert groups.next_actions(op, view(NEW, state(NEW))) == [Report(meta.GroupReady(7, "op-9", NEW))]
    assert groups.next_actions(op, view(OLD, state(OLD))) == []
    op.group_ready = True
    assert groups.next_actions(op, view(NEW, state(NEW))) == []


def test_an_earlier_operation_of_the_group_has_no_next_actions() -> None:
    """Its configuration is of a later operation: this leader's meta state is old."""
    op, later = operation(Stage.SEALED), Config(MEMBERS, (), "op-10")
    assert groups.next_actions(op, view(OLD, state(OLD), later)) == []
    assert groups.next_actions(op, view(OLD, state(OLD), Config(MEMBERS, (), "op-9"))) == [Log(SEAL)]


RECOVERED = Config(MEMBERS, (), "op-9.12")


def test_configs_keep_the_name_of_the_last_recovery() -> None:
    """Else a member with an old meta state would take the recovery for one that has yet to take place."""
    op = operation(Stage.RECONFIGURING)
    op.joined.append((OLD, "n"))
    (action,) = groups.next_actions(op, view(OLD, state(OLD, SEAL), RECOVERED))
    assert isinstance(action, Reconfigure) and isinstance(action.step, membership.Change)
    assert action.step.config == Config(MEMBERS, ("n",), "op-9.12")


def test_a_recovered_source_seals_again_and_nobody_opens_before() -> None:
    op = operation(Stage.OPEN)
    assert groups.next_actions(op, view(OLD, state(OLD), RECOVERED)) == [Log(SEAL)]
    (report,) = groups.next_actions(op, view(OLD, state(OLD, SEAL), RECOVERED))
    assert isinstance(report, Report) and isinstance(report.command, meta.SealedBy)
    assert groups.next_actions(op, view(NEW, state(NEW))) == []
    op.sealed[OLD] = report.command.result
    assert groups.next_actions(op, view(NEW, state(NEW))) != []


def test_a_recovered_group_adopts_again_and_nobody_releases_before() -> None:
    op = operation(Stage.CLEANUP)
    op.copies = [CopyRecord(NEW, n, f"i-{n}", ((0, 2),), "", 1, 1) for n in ("n", "a", "b")]
    assert groups.next_actions(op, view(OLD, state(OLD, SEAL))) == []
    assert groups.next_actions(op, view(NEW, state(NEW, OPEN), RECOVERED)) == [AdoptNow("op-9")]
    adopted = state(NEW, OPEN, data.Adopt("op-9", ((0, 2),), (), ()))
    adopted.on_adopted(AdoptFiles("op-9", NEW, ()))
    (report,) = groups.next_actions(op, view(NEW, adopted, RECOVERED))
    assert isinstance(report, Report) and isinstance(report.command, meta.AdoptedBy)
    op.adopted.append(NEW)
    assert groups.next_actions(op, view(OLD, state(OLD, SEAL))) == [Log(data.Release("op-9", 9))]


RELEASE, UNSEAL = data.Release("op-9", 9), data.Unseal("op-9", 9)
OPEN_AGAIN = data.Open("op-9", 9, ((0, 2),), (SealResult(OLD, 0),))
BEFORE_RECOVERY: dict[Stage, tuple[list[data.Command], list[data.Command]]] = {
    Stage.PLANNED: ([], []),
    Stage.SEALED: ([], []),
    Stage.OPEN: ([SEAL], []),
    Stage.RECONFIGURING: ([SEAL], [OPEN_AGAIN]),
    Stage.COPYING: ([SEAL], [OPEN_AGAIN]),
    Stage.CLEANUP: ([SEAL], [OPEN_AGAIN]),
    Stage.DONE: ([SEAL, RELEASE], [OPEN_AGAIN]),
    Stage.CANCELLING: ([], []),
    Stage.CANCELLED: ([UNSEAL], []),
}
"""What a log needs that ends before the change, of the losing and of the gaining group."""


@pytest.mark.parametrize("stage", list(Stage))
def test_a_log_that_ends_before_the_change_gets_its_steps_with_the_recovery(stage: Stage) -> None:
    op = operation(stage)
    losing, gaining = BEFORE_RECOVERY[stage]
    assert groups.entries_before_recovery([op], OLD, state(OLD).slots, "") == losing
    assert groups.entries_before_recovery([op], NEW, state(NEW).slots, "") == gaining
    assert groups.entries_before_recovery([op], "b.1", state(OLD).slots, "") == []
    # A log that has the steps is not changed by them.
    sealed, opened = state(OLD, SEAL), state(NEW, OPEN)
    again = groups.entries_before_recovery([op], OLD, sealed.slots, "")
    assert SEAL not in again and groups.entries_before_recovery([op], NEW, opened.slots, "") == []
    open_slots = state(OLD, *losing).slots.open
    assert open_slots == ({0, 1, 2, 3, 4} if stage not in AFTER_SEAL else {2, 3, 4})
    assert state(NEW, *gaining).slots.open == ({0, 1} if gaining else set())


def test_a_group_that_gave_and_took_slots_is_released_though_it_adopted() -> None:
    op = operation(Stage.DONE)
    op.moves.append(SlotMove(((7, 8),), NEW, MEMBERS, OLD, MEMBERS))
    took = data.Open("op-9", 9, ((7, 8),), ())
    made = state(OLD, SEAL, took, data.Adopt("op-9", ((7, 8),), (), ()))
    made.on_adopted(AdoptFiles("op-9", OLD, ()))
    assert groups.entries_before_recovery([op], OLD, made.slots, "") == [RELEASE]


LEAVES = GroupChange(OLD, "n", "a", MEMBERS, ("b", "c", "n"))


def leaving(*voters: str) -> tuple[Operation, Config]:
    """a leaves the cluster; b and c are dead, and n has joined if it is a voter."""
    op = operation(Stage.RECONFIGURING)
    op.kind, op.node, op.changes, op.moves = "remove-node", "a", [LEAVES], []
    return op, Config(voters, (), "op-9.12")


def test_the_leaving_node_does_not_stay_where_it_would_be_half_of_the_voters() -> None:
    """It stays in place of a dead member if the group keeps its majority when the node has left."""
    op, config = leaving("a", "n")
    seen = replace(view(OLD, state(OLD), config), me="n", has_left="bc".__contains__)
    (action,) = groups.next_actions(op, seen)
    assert isinstance(action, Reconfigure) and isinstance(action.step, membership.Change)
    assert action.step.config.voters == ("n",)
    op, config = leaving("a", "b", "n")
    seen = replace(view(OLD, state(OLD), config), me="b", has_left="c".__eq__)
    (action,) = groups.next_actions(op, seen)
    assert isinstance(action, Report), "it is formed"


def test_a_group_of_nobody_but_the_leaving_node_is_not_formed() -> None:
    """The end of the change would retire the last copy."""
    op, config = leaving("a")
    seen = replace(view(OLD, state(OLD), config), has_left="bcn".__contains__)
    (action,) = groups.next_actions(op, seen)
    assert isinstance(action, Report) and isinstance(action.command, meta.ReportError)
    op.last_error = action.command.what
    assert groups.next_actions(op, seen) == []


AFTER_SEAL = (Stage.OPEN, Stage.RECONFIGURING, Stage.COPYING, Stage.CLEANUP, Stage.DONE)


def test_a_losing_group_seals_then_reports_it_then_does_nothing() -> None:
    op = operation(Stage.SEALED)
    assert groups.next_actions(op, view(OLD, state(OLD))) == [Log(SEAL)]
    report, *_ = groups.next_actions(op, view(OLD, state(OLD, SEAL)))
    assert isinstance(report, Report) and isinstance(report.command, meta.SealedBy)
    op.sealed[OLD] = report.command.result
    assert not any(isinstance(a, Log | Report) for a in groups.next_actions(op, view(OLD, state(OLD, SEAL))))


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("joined", [False, True])
def test_a_newcomer_is_added_when_all_is_ready_for_it(sealed: bool, cancelled: bool, joined: bool) -> None:
    """The slots that leave are sealed, its replica was made for this change, nothing was cancelled."""
    op = operation(Stage.SEALED)
    if joined:
        op.joined.append((OLD, "n"))
    op.sealed[OLD] = SealResult(OLD, 3, b"")
    made = state(OLD, *([SEAL] if sealed else []), *([data.Unseal("op-9", 9)] if cancelled else []))
    added = any(isinstance(a, Reconfigure) for a in groups.next_actions(op, view(OLD, made)))
    assert added == (sealed and joined and not cancelled)


def test_a_dead_newcomer_is_not_added() -> None:
    op = operation(Stage.SEALED)
    op.joined.append((OLD, "n"))
    op.sealed[OLD] = SealResult(OLD, 3, b"")
    assert groups.next_actions(op, view(OLD, state(OLD, SEAL), gone="n")) == []
    assert groups.next_actions(op, view(OLD, state(OLD, SEAL))) != []


def test_a_gaining_group_reports_once_that_it_opened_and_others_nothing() -> None:
    op = operation(Stage.OPEN)
    op.sealed[OLD] = SealResult(OLD, 3, b"")
    for made in (state(NEW, OPEN), state(NEW, OPEN, data.Adopt("op-9", ((0, 2),), (), ()))):
        assert groups.next_actions(op, view(NEW, made)) == [
            Report(meta.OpenedBy(7, "op-9", NEW, made.applied))
        ]
    op.opened.append(NEW)
    assert groups.next_actions(op, view(NEW, state(NEW))) == []
    assert groups.next_actions(op, view(OLD, state(OLD, SEAL))) == []


@pytest.mark.parametrize(
    "stage", [Stage.PLANNED, Stage.SEALED, Stage.RECONFIGURING, Stage.CANCELLING, Stage.DONE]
)
def test_nothing_opens_in_another_stage(stage: Stage) -> None:
    assert not any(
        isinstance(a, Log) and isinstance(a.command, data.Open)
        for a in groups.next_actions(operation(stage), view(NEW, state(NEW)))
    )


def test_a_gaining_group_opens_with_the_sessions_of_the_losing_ones() -> None:
    op = operation(Stage.OPEN)
    op.sealed[OLD] = SealResult(OLD, 3, b"s")
    (action,) = groups.next_actions(op, view(NEW, state(NEW)))
    assert isinstance(action, Log) and isinstance(action.command, data.Open)
    assert action.command.results == (op.sealed[OLD],) and action.command.slots == ((0, 2),)


@pytest.mark.parametrize("more", [0, 2])
def test_a_gaining_group_takes_the_missing_parts_and_opens_after_the_last(more: int) -> None:
    """A few at a time, from members of the losing group that are not dead."""
    op = operation(Stage.OPEN)
    parts = [bytes([i]) for i in range(PARTS_AT_ONCE + 1 + more)]
    op.sealed[OLD] = SealResult(OLD, 3, parts=tuple(digest(p) for p in parts))
    op.dead = ["b"]
    have = [data.OpenSessions(op.id, OLD, 1, parts[1])]
    wanted = [n for n in range(len(parts)) if n != 1][:PARTS_AT_ONCE]
    all_of_them = [data.OpenSessions(op.id, OLD, n, p) for n, p in enumerate(parts)]
    (last,) = groups.next_actions(op, view(NEW, state(NEW, *all_of_them)))
    assert isinstance(last, Log) and isinstance(last.command, data.Open)
    (action,) = groups.next_actions(op, view(NEW, state(NEW, *have)))
    taken = tuple(Part(OLD, n, digest(parts[n]), ("a", "c")) for n in wanted)
    assert action == TakeParts(op.id, taken, None if more else last.command)


def test_a_gaining_group_asks_for_sessions_before_they_are_sealed() -> None:
    op = operation(Stage.SEALED)
    op.dead = ["b"]
    ahead = PrefetchParts(op.id, (Part(OLD, 0, "", ("a", "c")),))
    assert [a for a in groups.next_actions(op, view(NEW, state(NEW))) if isinstance(a, PrefetchParts)] == [
        ahead
    ]
    assert not any(isinstance(a, PrefetchParts) for a in groups.next_actions(op, view(OLD, state(OLD))))


def test_adoption_waits_for_a_copy_on_every_member_under_its_incarnation() -> None:
    op = operation(Stage.COPYING)
    made = state(NEW, OPEN)
    for name, incarnation in (("n", "i-n"), ("a", "i-a"), ("b", "old")):
        assert groups.next_actions(op, view(NEW, made)) == []
        op.copies.append(CopyRecord(NEW, name, incarnation, ((0, 2),), "d", 1, 1))
    assert groups.next_actions(op, view(NEW, made)) == []
    op.copies.append(CopyRecord(NEW, "b", "i-b", ((0, 2),), "d", 1, 1))
    assert groups.next_actions(op, view(NEW, made)) == [AdoptNow("op-9")]


def test_copies_that_differ_are_reported_and_never_adopted() -> None:
    op = operation(Stage.COPYING)
    op.copies = [CopyRecord(NEW, n, f"i-{n}", ((0, 2),), n, 1, 1) for n in ("n", "a", "b")]
    (action,) = groups.next_actions(op, view(NEW, state(NEW, OPEN)))
    assert isinstance(action, Report) and isinstance(action.command, meta.ReportError)


def test_a_cancel_drops_the_learner_before_the_slots_return() -> None:
    """The learner was sent no files of those slots."""
    op = operation(Stage.CANCELLING)
    (first,) = groups.next_actions(op, view(OLD, state(OLD, SEAL), Config(MEMBERS, ("n",), "op-9")))
    assert first == Reconfigure(membership.Change(Config(MEMBERS, (), "op-9")))
    assert groups.next_actions(op, view(OLD, state(OLD, SEAL))) == [Log(data.Unseal("op-9", 9))]


def test_a_leaving_member_stays_until_it_can_be_a_source_by_itself() -> None:
    op = operation(Stage.RECONFIGURING)
    config = Config((*MEMBERS, "n"), (), "op-9")
    assert groups.next_actions(op, view(OLD, state(OLD, SEAL), config)) == []
    op.sources_ready.append((OLD, "c"))
    (step,) = groups.next_actions(op, view(OLD, state(OLD, SEAL), config))
    assert step == Reconfigure(membership.Change(Config(("a", "b", "n"), (), "op-9")))


def test_a_learner_of_another_operation_is_dropped() -> None:
    op = operation(Stage.RECONFIGURING)
    (step,) = groups.next_actions(
        op, view(OLD, state(OLD, SEAL), Config((*MEMBERS, "n"), ("stray",), "op-1"))
    )
    assert step == Reconfigure(membership.Change(Config((*MEMBERS, "n"), (), "op-9")))


def change_to(*members: str) -> Reconfigure:
    return Reconfigure(membership.Change(Config(members, (), "op-9")))


def formed(members: tuple[str, ...], made: DataState) -> Report:
    return Report(meta.FormedBy(7, "op-9", OLD, made.applied, members))


def test_a_dead_leaving_member_is_not_waited_for() -> None:
    made = state(OLD, SEAL)
    config = Config((*MEMBERS, "n"), (), "op-9")
    assert groups.next_actions(operation(Stage.RECONFIGURING), view(OLD, made, config, gone="c")) == [
        change_to("a", "b", "n")
    ]


def test_a_dead_member_is_dropped_before_a_newcomer_votes() -> None:
    """Of four voters with a dead one, three must live: the newcomer's death would end the group."""
    op, made = operation(Stage.RECONFIGURING), state(OLD, SEAL)
    learner = Config(MEMBERS, ("n",), "op-9")
    assert groups.next_actions(op, view(OLD, made, learner, gone="c")) == [
        Reconfigure(membership.Change(Config(("a", "b"), ("n",), "op-9")))
    ]
    dropped = Config(("a", "b"), ("n",), "op-9")
    assert groups.next_actions(op, view(OLD, made, dropped, gone="c")) == [change_to("a", "b", "n")]


def test_the_leaving_member_stays_if_the_newcomer_is_dead() -> None:
    """The newcomer never joined, or was still a learner. The record names the members."""
    op, made = operation(Stage.RECONFIGURING), state(OLD, SEAL)
    op.sources_ready.append((OLD, "c"))
    learner = Config(MEMBERS, ("n",), "op-9")
    assert groups.next_actions(op, view(OLD, made, learner, gone="n")) == [change_to(*MEMBERS)]
    assert groups.next_actions(op, view(OLD, made, gone="n")) == [formed(MEMBERS, made)]


def test_a_newcomer_that_died_as_a_voter_is_a_member() -> None:
    op, made = operation(Stage.RECONFIGURING), state(OLD, SEAL)
    op.sources_ready.append((OLD, "c"))
    voter = Config((*MEMBERS, "n"), (), "op-9")
    assert groups.next_actions(op, view(OLD, made, voter, gone="n")) == [change_to("a", "b", "n")]
    after = Config(("a", "b", "n"), (), "op-9")
    assert groups.next_actions(op, view(OLD, made, after, gone="n")) == [formed(("a", "b", "n"), made)]


def test_adoption_does_not_wait_for_dead_members() -> None:
    op = operation(Stage.COPYING)
    made = state(NEW, OPEN)
    op.copies = [CopyRecord(NEW, n, f"i-{n}", ((0, 2),), "d", 1, 1) for n in ("a", "b")]
    assert groups.next_actions(op, view(NEW, made)) == []
    op.dead.append("n")
    assert groups.next_actions(op, view(NEW, made)) == [AdoptNow("op-9")]


def test_the_error_is_cleared_once_the_copies_agree() -> None:
    """The member with the wrong copy is declared dead: the error is cleared. Another group's error stays."""
    op = operation(Stage.COPYING)
    made = state(NEW, OPEN)
    op.copies = [CopyRecord(NEW, n, f"i-{n}", ((0, 2),), "d" if n != "n" else "e", 1, 1) for n in "abn"]
    (report,) = groups.next_actions(op, replace(view(NEW, made), level=Feature.REASONS))
    assert isinstance(report, Report) and isinstance(report.command, meta.ReportError)
    assert report.command.group == NEW
    op.last_error, op.error_group = report.command.what, report.command.group
    assert groups.next_actions(op, view(NEW, made)) == []
    op.dead.append("n")
    clear = Report(meta.ReportError(7, "op-9", ""))
    assert groups.next_actions(op, view(NEW, made)) == [clear, AdoptNow("op-9")]
    op.error_group = OLD
    assert groups.next_actions(op, view(NEW, made)) == [AdoptNow("op-9")]


def test_the_group_of_an_error_is_not_named_before_all_nodes_know_the_field() -> None:
    op = operation(Stage.COPYING)
    op.copies = [CopyRecord(NEW, n, f"i-{n}", ((0, 2),), "d" if n != "n" else "e", 1, 1) for n in "abn"]
    (report,) = groups.next_actions(op, view(NEW, state(NEW, OPEN)))
    assert isinstance(report, Report) and isinstance(report.command, meta.ReportError)
    assert report.command.what and not report.command.group


def file() -> FileMeta:
    partition = PartitionKey("root.a", 0, 0)
    return FileMeta("00000-3-0000.tsfile", 0, partition, "m", (4, 1), 10, "aa" * 16, 1, 0, 9, (1, 2, 3))


def test_a_group_adopts_once_and_reports_it_once_its_files_are_in_place() -> None:
    op = operation(Stage.COPYING)
    op.copies = [CopyRecord(NEW, n, f"i-{n}", ((0, 2),), "d", 1, 1) for n in "abn"]
    made = state(NEW, OPEN, data.Adopt("op-9", ((0, 2),), (Adoption("x", file()),), ()))
    assert made.adoptions.waiting and groups.next_actions(op, view(NEW, made)) == []
    job = made.jobs.pop()
    assert isinstance(job, AdoptFiles)
    made.on_adopted(job)
    assert groups.next_actions(op, view(NEW, made)) == [Report(meta.AdoptedBy(7, "op-9", NEW, made.applied))]
    op.adopted.append(NEW)
    assert (
        groups.next_actions(op, view(NEW, made)) == [] == groups.next_actions(op, view(OLD, state(OLD, SEAL)))
    )


def test_a_losing_group_releases_then_reports_it_and_others_do_nothing() -> None:
    op = operation(Stage.CLEANUP)
    op.adopted.append(NEW)
    release = data.Release("op-9", 9)
    assert groups.next_actions(op, view(OLD, state(OLD, SEAL))) == [Log(release)]
    made = state(OLD, SEAL, release)
    assert groups.next_actions(op, view(OLD, made)) == [Report(meta.ReleasedBy(7, "op-9", OLD, made.applied))]
    op.released.append(OLD)
    assert (
        groups.next_actions(op, view(OLD, made)) == [] == groups.next_actions(op, view(NEW, state(NEW, OPEN)))
    )


def test_members_are_reported_in_ring_order() -> None:
    op, made = operation(Stage.RECONFIGURING), state(OLD, SEAL)
    op.changes = [GroupChange(OLD, "n", "c", MEMBERS, ("n", "b", "a"))]
    config = Config(("a", "b", "n"), (), "op-9")
    assert groups.next_actions(op, view(OLD, made, config)) == [formed(("n", "b", "a"), made)]


def test_a_newcomer_that_was_not_added_in_time_is_added_when_members_change() -> None:
    op, made = operation(Stage.RECONFIGURING), state(OLD, SEAL)
    assert groups.next_actions(op, view(OLD, made)) == []
    op.joined.append((OLD, "n"))
    learner = Config(MEMBERS, ("n",), "op-9")
    assert groups.next_actions(op, view(OLD, made)) == [Reconfigure(membership.Change(learner))]


def test_a_group_that_loses_no_slots_does_not_need_its_leaving_member_as_a_source() -> None:
    op = operation(Stage.RECONFIGURING)
    op.moves = [SlotMove(((0, 2),), "b.1", MEMBERS, NEW, ("n", "a", "b"))]
    config = Config((*MEMBERS, "n"), (), "op-9")
    assert groups.next_actions(op, view(OLD, state(OLD), config)) == [change_to("a", "b", "n")]


def test_a_group_that_took_its_slots_back_reports_it_and_others_do_nothing() -> None:
    op = operation(Stage.CANCELLING)
    made = state(OLD, SEAL, data.Unseal("op-9", 9))
    assert groups.next_actions(op, view(OLD, made)) == [Report(meta.UnsealedBy(7, "op-9", OLD))]
    op.unsealed.append(OLD)
    assert groups.next_actions(op, view(OLD, made)) == [] == groups.next_actions(op, view(NEW, state(NEW)))


def test_a_newcomer_reports_once_per_replica_that_it_can_be_added() -> None:
    op = operation(Stage.SEALED)
    report = Report(meta.JoinReady(7, "op-9", OLD, "n"))
    assert groups.joins_to_report(op, "n", {OLD, "b.1"}, 7) == [report]
    assert groups.joins_to_report(op, "a", {OLD}, 7) == [] == groups.joins_to_report(op, "n", set(), 7)
    op.joined.append((OLD, "n"))
    assert groups.joins_to_report(op, "n", {OLD}, 7) == []


def test_a_holder_reports_once_that_it_can_serve_its_sealed_slots() -> None:
    sealed = {OLD: state(OLD, SEAL)}
    report = Report(meta.SourceReady(7, "op-9", OLD, "a"))
    for stage in (Stage.SEALED, Stage.OPEN, Stage.RECONFIGURING, Stage.COPYING):
        assert groups.sources_to_report(operation(stage), "a", sealed, 7) == [report]
    op = operation(Stage.COPYING)
    assert groups.sources_to_report(operation(Stage.CLEANUP), "a", sealed, 7) == []
    assert groups.sources_to_report(op, "n", sealed, 7) == []  # it was no member when they were sealed
    assert (
        groups.sources_to_report(op, "a", {OLD: state(OLD)}, 7)
        == []
        == groups.sources_to_report(op, "a", {}, 7)
    )
    op.moves.append(SlotMove(((7, 8),), "b.1", ("b", "c", "d"), NEW, ("n", "a", "b")))
    assert groups.sources_to_report(op, "a", sealed, 7) == [report], "others' slots are moved, too"
    op.sources_ready.append((OLD, "a"))
    assert groups.sources_to_report(op, "a", sealed, 7) == []

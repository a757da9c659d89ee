"""The stages of an operation: only complete progress reports advance it; repeats and order have no effect."""

import itertools
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from nodeagent.meta import changes
from nodeagent.meta import commands as c
from nodeagent.meta.state import MetaState
from nodeagent.meta.tables import merge_schema
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.operation import NEXT, CopyRecord, Operation, Options, SealResult, Stage
from nodeagent.model.requests import (
    Accepted,
    ErrorReply,
    LockReply,
    NodeRecord,
    OperationReply,
    Reply,
    SchemaInForce,
)
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.change import Change, ChangeKind, change_between
from nodeagent.partition.planner import plan_add, plan_remove, plan_replace
from nodeagent.partition.ranges import from_slots, to_slots
from nodeagent.partition.ring import initial_ring
from nodeagent.partition.table import initial_table

NAMES = ["a", "b", "c", "d"]
PLAIN = Options()


def node(name: str, incarnation: str = "") -> NodeRecord:
    return NodeRecord(name, name, 1, 2, incarnation or f"i-{name}", 0)


class Meta:
    def __init__(self, names: Sequence[str] = (), slots: int = 12) -> None:
        names = names or NAMES
        self.state = MetaState()
        settings = ClusterSettings("c", slots=slots)
        table = initial_table(initial_ring(names), slots).to_wire()
        self.do(c.Bootstrap(1, "id", settings, tuple(node(n) for n in names), table))

    def do(self, command: c.Command) -> Reply:
        entry = Entry(1, int(EntryKind.COMMAND), c.encode(command))
        return self.state.apply(self.state.applied + 1, [entry])[0][1]

    def begin(
        self,
        kind: str = "add-node",
        name: str = "e",
        options: Options = PLAIN,
        version: int = 0,
        lock: int = 0,
    ) -> Reply:
        table = self.state.placement.table
        assert table is not None
        old, _, name = name.rpartition(">")
        change: Change
        if kind == "rebalance":  # "b" both gives and takes
            new = table.moved({"b": ((0, 2),), "c": ((3, 4),)}, table.ring, table.version + 1)
            change = change_between(ChangeKind.MOVE, "", table, new, 3)
        elif kind == "add-node":
            change = plan_add(table, name, None, 3)
        elif kind == "replace-node":
            change = plan_replace(table, old, name, 3)
        else:
            change = plan_remove(table, name, 3)
        return self.do(
            c.Begin(
                2,
                kind,
                node(name) if name else NodeRecord("", "", 0, 0, "", 0),
                "me",
                version or self.state.placement.version,
                change.new.to_wire(),
                tuple(c.PlannedMove(m.slots, m.source, m.target) for m in change.moves),
                tuple(
                    c.PlannedMembers(
                        m.group, next(iter(m.joins), None), next(iter(m.leaves), None), m.before, m.after
                    )
                    for m in change.members
                ),
                change.created.after if change.created else (),
                options,
                old,
                lock,
            )
        )

    @property
    def op(self) -> Operation:
        return self.state.image.operations[-1]


def reports_of(op: Operation, stage: Stage) -> list[c.ProgressReport]:
    """All progress reports that `stage` waits for."""
    match stage:
        case Stage.PLANNED:
            return [c.MetaReady(3, op.id), c.GroupReady(3, op.id, op.created_group or "")]
        case Stage.SEALED:
            return [c.SealedBy(3, op.id, SealResult(g, 9, b"")) for g in op.losing]
        case Stage.OPEN:
            ready: list[c.ProgressReport] = [c.MetaReady(3, op.id)]
            return ready + [c.OpenedBy(3, op.id, g, 9) for g in op.gaining]
        case Stage.RECONFIGURING:
            return [c.FormedBy(3, op.id, g.group, 9, g.after) for g in op.changes]
        case Stage.COPYING:
            return [c.AdoptedBy(3, op.id, g, 9) for g in op.gaining]
        case Stage.CLEANUP:
            return [c.ReleasedBy(3, op.id, g, 9) for g in op.losing]
        case Stage.CANCELLING:
            return [c.UnsealedBy(3, op.id, g) for g in sorted(changes.affected(op))]
        case Stage.DONE | Stage.CANCELLED:
            return []


STAGES = (Stage.PLANNED, Stage.SEALED, Stage.OPEN, Stage.RECONFIGURING, Stage.COPYING, Stage.CLEANUP)


@pytest.mark.parametrize(
    "kind,name", [("add-node", "e"), ("remove-node", "b"), ("replace-node", "b>e"), ("rebalance", "")]
)
def test_each_stage_waits_for_all_of_its_progress_reports(kind: str, name: str) -> None:
    meta = Meta()
    meta.begin(kind, name)
    for stage in STAGES:
        if meta.op.stage is not stage:  # a removal does not wait in PLANNED
            continue
        wanted = reports_of(meta.op, stage)
        for one in wanted[:-1]:
            meta.do(one)
            assert meta.op.stage is stage
            meta.do(one)
            assert meta.op.stage is stage, "a repeated progress report counts once"
        meta.do(wanted[-1])
        assert meta.op.stage is not stage
    assert meta.op.stage is Stage.DONE


def test_progress_reports_are_dropped_when_their_stage_is_left() -> None:
    """Digests are dropped once all groups have opened, copies once all have adopted; settings of operators
    stay."""
    meta = Meta()
    meta.begin()
    for stage in STAGES:
        for one in reports_of(meta.op, stage):
            if isinstance(one, c.SealedBy):
                one = c.SealedBy(3, one.operation, SealResult(one.result.group, 9, b"table", ("digest",)))
            if isinstance(one, c.AdoptedBy):
                for slots in (((0, 1),), ((1, 2),)):
                    copy = CopyRecord("e.1", "a", "i-a", slots, "d", 1, 100)
                    meta.do(c.Copied(3, meta.op.id, copy))
                meta.do(c.SourceReady(3, meta.op.id, meta.op.losing[0], "a"))
            meta.do(one)
        kept = [r for r in meta.op.sealed.values() if r.sessions or r.parts]
        assert bool(kept) == (stage is Stage.SEALED), stage
        assert set(meta.op.sealed) == (set() if stage is Stage.PLANNED else set(meta.op.losing))
    assert meta.op.copies == [CopyRecord("e.1", "a", "i-a", ((0, 2),), "", 2, 200)]
    assert not meta.op.sources_ready and not meta.op.joined


def test_a_record_of_the_first_release_is_read_without_its_tables() -> None:
    """That release stored the tables of every seal and every copy, also of changes that had ended."""
    meta = Meta()
    meta.begin()
    for stage in STAGES:
        for one in reports_of(meta.op, stage):
            meta.do(one)
    op = meta.op
    op.sealed = {g: SealResult(g, 9, bytes(1000)) for g in op.losing}
    op.copies = [CopyRecord("e.1", "a", "i-a", ((n, n + 1),), "d", 1, 100) for n in range(9)]
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(op))
    del fields["moved_slots"], fields["copied_bytes"]
    for result in fields["sealed"].values():
        del result["parts"]
    image = msgspec.msgpack.decode(meta.state.encode())
    image["operations"] = [fields]
    again = MetaState.decode(msgspec.msgpack.encode(image))
    read = again.image.operations[0]
    assert {g: r.index for g, r in read.sealed.items()} == dict.fromkeys(op.losing, 9)
    assert len(again.encode()) < len(meta.state.encode()) and not any(
        r.sessions for r in read.sealed.values()
    )
    assert sum(c.bytes_received for c in read.copies) == 900 and len(read.copies) == 1


def test_ended_operations_are_listed_short_and_stored_whole() -> None:
    """The open operation is listed completely; a short record has its slots, bytes, times and node."""
    meta = Meta()
    meta.begin()
    for stage in STAGES:
        for one in reports_of(meta.op, stage):
            meta.do(one)
    done = meta.op
    done.copies = [CopyRecord("e.1", "a", "i-a", ((0, 2),), "", 2, 200)]
    meta.begin("remove-node", "b")
    short, whole = meta.state.operations.listed()
    assert whole is meta.op and not whole.is_short
    assert short.is_short and not (short.moves or short.changes or short.copies or short.sealed)
    assert (
        short.moved_slots == sum(b - a for m in done.moves for a, b in m.slots) and short.copied_bytes == 200
    )
    assert (short.id, short.title, short.state(), short.joining) == (done.id, done.title, "done", "e")
    assert [s.name for s in short.stages] == [s.name for s in done.stages]
    assert meta.state.operations.find(done.id) is done and done.moves


def test_a_rebalance_changes_owners_and_nothing_else() -> None:
    """No stage waits for members. Nodes, groups and their members stay the same; only the table changes."""
    meta = Meta()
    before = meta.state.encode()
    nodes, groups = dict(meta.state.image.nodes), dict(meta.state.image.groups)
    reply = meta.begin("rebalance", "")
    assert isinstance(reply, OperationReply) and reply.operation.title == "rebalance"
    op = meta.op
    assert op.stage is Stage.SEALED and op.meta_ready, "there is no membership to wait for"
    assert (op.node, op.changes, op.created_group, op.dissolved_group) == ("", [], None, None)
    assert set(op.losing) & set(op.gaining), "a group may give and take"
    assert [m.target_members for m in op.moves] == [groups[m.target].members for m in op.moves]
    for stage in (Stage.SEALED, Stage.OPEN):
        for one in reports_of(op, stage):
            meta.do(one)
    after_open = meta.op.stage
    assert after_open is Stage.COPYING, "RECONFIGURING has nothing to wait for"
    assert meta.state.placement.table is not None and meta.state.placement.table.route(0) == "b"
    for stage in (Stage.COPYING, Stage.CLEANUP):
        for one in reports_of(op, stage):
            meta.do(one)
    assert meta.op.stage is Stage.DONE
    assert (meta.state.image.nodes, meta.state.image.groups) == (nodes, groups)
    assert not meta.state.image.retired and MetaState.decode(meta.state.encode()).encode() != before


def test_a_cancelled_rebalance_leaves_the_table_and_every_node() -> None:
    meta = Meta()
    table, nodes = meta.state.placement.table, dict(meta.state.image.nodes)
    meta.begin("rebalance", "")
    meta.do(c.ControlOperation(3, meta.op.id, "cancel", "me"))
    for one in reports_of(meta.op, Stage.CANCELLING):
        meta.do(one)
    assert meta.op.stage is Stage.CANCELLED
    assert meta.state.placement.table == table and meta.state.image.nodes == nodes


@pytest.mark.parametrize("seed", range(20))
def test_progress_reports_in_any_order_and_number_have_the_same_result(seed: int) -> None:
    """Early, late and repeated reports change only the time of a stage (law 9)."""
    rng = random.Random(seed)
    meta, plain = Meta(), Meta()
    meta.begin()
    plain.begin()
    for stage in STAGES:
        for one in reports_of(plain.op, stage):
            plain.do(one)
    everything = list(itertools.chain(*(reports_of(meta.op, s) for s in STAGES)))
    for _ in range(400):
        before = meta.op.stage
        meta.do(rng.choice(everything))
        assert meta.op.stage is before or meta.op.stage in NEXT[before]
    assert meta.op.stage is Stage.DONE
    assert meta.state.image.groups == plain.state.image.groups
    assert meta.state.placement.table is not None and plain.state.placement.table is not None
    assert meta.state.placement.table.same_layout(plain.state.placement.table)


def run_to(meta: Meta, stage: Stage) -> None:
    for s in STAGES:
        if meta.op.stage is stage:
            return
        if meta.op.stage is s:
            for one in reports_of(meta.op, s):
                meta.do(one)


@pytest.mark.parametrize("stage", STAGES)
def test_a_cancel_is_accepted_only_until_slots_open(stage: Stage) -> None:
    meta = Meta()
    table, groups = meta.state.placement.table, dict(meta.state.image.groups)
    meta.begin()
    run_to(meta, stage)
    reply = meta.do(c.ControlOperation(4, meta.op.id, "cancel", "me"))
    if stage not in (Stage.PLANNED, Stage.SEALED):
        assert isinstance(reply, ErrorReply) and meta.op.stage is stage
        return
    entered = meta.op.stage
    assert isinstance(reply, OperationReply) and entered is Stage.CANCELLING
    before = list(meta.op.stages), list(meta.state.image.audit)
    assert isinstance(meta.do(c.ControlOperation(5, meta.op.id, "cancel", "me")), OperationReply)
    assert (meta.op.stages, meta.state.image.audit) == before, "a repeated cancel records nothing"
    for late in reports_of(meta.op, Stage.SEALED) + reports_of(meta.op, Stage.OPEN):
        meta.do(late)
    for one in reports_of(meta.op, Stage.CANCELLING):
        meta.do(one)
    assert meta.op.stage is Stage.CANCELLED
    assert isinstance(meta.do(c.ControlOperation(6, meta.op.id, "cancel", "me")), OperationReply)
    assert meta.state.placement.table is table and meta.state.image.groups == groups
    assert "e" not in meta.state.image.nodes


@pytest.mark.parametrize("kind,name", [("add-node", "e"), ("remove-node", "b"), ("rebalance", "")])
def test_a_cancel_waits_for_every_group_that_has_slots_to_take_back(kind: str, name: str) -> None:
    """Some slots stay sealed until the last group has reopened its slots: another change must not begin."""
    meta = Meta()
    meta.begin(kind, name)
    run_to(meta, Stage.SEALED)
    meta.do(c.ControlOperation(4, meta.op.id, "cancel", "me"))
    *most, last = reports_of(meta.op, Stage.CANCELLING)
    assert most
    for one in most * 2:
        meta.do(one)
        assert meta.op.stage is Stage.CANCELLING
    busy = meta.begin(name="f")
    assert isinstance(busy, ErrorReply) and busy.details["operation"] == meta.op.id
    meta.do(last)
    assert meta.op.stage is Stage.CANCELLED and isinstance(meta.begin(name="f"), OperationReply)


def test_the_first_report_of_a_seal_counts() -> None:
    """All gaining groups must open with the sessions of the same report, so a later report must not replace
    it."""
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.SEALED)
    first, *others = meta.op.losing
    meta.do(c.SealedBy(3, meta.op.id, SealResult(first, 9, b"sessions")))
    meta.do(c.SealedBy(4, meta.op.id, SealResult(first, 12, b"others")))
    assert meta.op.sealed == {first: SealResult(first, 9, b"sessions")}
    for group in others:
        meta.do(c.SealedBy(5, meta.op.id, SealResult(group, 9, b"")))
    assert meta.op.stage is Stage.OPEN and meta.op.sealed[first] == SealResult(first, 9, b"sessions")


def test_a_node_may_join_again_after_a_cancel_with_a_new_group_id() -> None:
    meta = Meta()
    meta.begin()
    first = meta.op.created_group
    meta.do(c.ControlOperation(4, meta.op.id, "cancel", "me"))
    for one in reports_of(meta.op, Stage.CANCELLING):
        meta.do(one)
    assert isinstance(meta.begin(), OperationReply)
    assert meta.op.created_group != first


def test_a_second_change_and_a_change_from_an_old_plan_are_refused() -> None:
    meta = Meta()
    old = meta.begin(version=99)
    assert isinstance(old, ErrorReply) and old.code == "refused"
    meta.begin()
    busy = meta.begin(name="f")
    assert isinstance(busy, ErrorReply) and busy.details["operation"] == meta.op.id


def test_a_removed_incarnation_never_returns() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.DONE)
    meta.begin("remove-node", "e")
    run_to(meta, Stage.DONE)
    refused = meta.begin()
    assert isinstance(refused, ErrorReply) and "retired" in refused.what


def test_the_table_changes_at_open_and_its_version_only_grows() -> None:
    meta = Meta()
    meta.begin()
    version = meta.state.placement.version
    run_to(meta, Stage.SEALED)
    assert meta.state.placement.version == version
    assert meta.state.image.nodes["e"].state == "joining"
    run_to(meta, Stage.OPEN)
    assert meta.state.placement.version == meta.state.applied > version
    assert meta.state.placement.table is not None and "e" in meta.state.placement.table.ring.names
    assert meta.state.image.nodes["e"].state == "active"


def test_copies_of_another_incarnation_do_not_count() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.COPYING)
    op = meta.op
    target = op.gaining[0]
    slots = changes.wanted(op, target, "e")
    meta.do(c.Copied(5, op.id, CopyRecord(target, "e", "old", slots, "d", 1, 1)))
    assert changes.missing(op, target, "e", "i-e") == slots
    meta.do(c.Copied(5, op.id, CopyRecord(target, "e", "i-e", slots, "d", 1, 1)))
    assert changes.missing(op, target, "e", "i-e") == ()
    assert [r.incarnation for r in op.copies] == ["i-e"]


def test_a_copy_is_recorded_once_and_voids_copies_of_the_node_s_earlier_directory() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.COPYING)
    op, target = meta.op, meta.op.gaining[0]
    first, second, *_ = to_slots(changes.wanted(op, target, "e"))

    def copy(node: str, incarnation: str, slot: int) -> CopyRecord:
        made = CopyRecord(target, node, incarnation, from_slots([slot]), "d", 1, 1)
        meta.do(c.Copied(5, op.id, made))
        return made

    earlier = [copy("e", "i-0", first), copy("e", "i-0", second), copy("a", "i-0", first)]
    assert op.copies == earlier
    copy("e", "i-0", first)
    assert op.copies == earlier
    new = [copy("e", "i-e", second)]
    assert op.copies == [earlier[2], *new]
    new += [copy("e", "i-e", first)]
    assert op.copies == [earlier[2], *new]


def test_a_node_copies_nothing_for_a_group_that_gains_nothing_on_it() -> None:
    meta = Meta()
    meta.begin()
    op = meta.op
    target = op.gaining[0]
    takers = op.moves[0].target_members
    assert all(changes.wanted(op, target, n) for n in takers)
    assert not any(changes.wanted(op, target, n) for n in set(NAMES) - set(takers))
    assert not any(changes.wanted(op, group, n) for group in op.losing for n in takers)


def test_the_record_contains_the_end_and_the_reports_of_each_stage() -> None:
    meta = Meta()
    meta.begin()
    meta.do(c.JoinReady(3, meta.op.id, meta.op.losing[0], "e"))
    for stage in STAGES:
        for one in reports_of(meta.op, stage):
            meta.do(one)
    *left, last = meta.op.stages
    assert [s.name for s in meta.op.stages] == [s.value for s in (*STAGES, Stage.DONE)]
    assert all(s.left_ms == 3 and s.reports for s in left) and not last.reports
    assert left[0].reports == [f"meta ready, {meta.op.created_group} led"]
    assert meta.op.joined == [] and meta.op.sources_ready == []


@pytest.mark.parametrize(
    ("level", "shown"),
    [(FIRST, ["FORMAL", "MOVING", "RELEASED"]), (Feature.REASONS, ["RECONFIGURING", "COPYING", "CLEANUP"])],
)
def test_the_audit_log_has_the_names_of_stages_that_every_member_writes(level: int, shown: list[str]) -> None:
    """It is part of the state: below the level, members of 0.1.0 apply the same entries."""
    meta = Meta()
    meta.state.image.level = level
    meta.begin()
    for stage in STAGES:
        for one in reports_of(meta.op, stage):
            meta.do(one)
    entered = [what.rpartition(" ")[2] for _, _, what in meta.state.image.audit if " enters " in what]
    assert entered == ["SEALED", "OPEN", *shown, "DONE"]


def test_a_node_that_is_ready_is_recorded_once() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.SEALED)
    op, group = meta.op, meta.op.losing[0]
    for name in ("a", "b", "a"):
        meta.do(c.SourceReady(3, op.id, group, name))
        meta.do(c.JoinReady(3, op.id, group, name))
    assert op.sources_ready == [(group, "a"), (group, "b")] == op.joined


def test_an_operation_that_waits_before_copying_continues_on_request() -> None:
    meta = Meta()
    meta.begin(options=Options(no_migrate=True))
    run_to(meta, Stage.COPYING)
    assert meta.op.state() == "waiting_migrate"
    control(meta, "go", "")
    assert meta.op.state() == "running"


def test_the_last_rate_that_was_set_counts() -> None:
    """0 sets no limit; a command that names no rate leaves it unchanged."""
    meta = Meta()
    meta.begin(options=Options(rate_bytes_per_s=7))
    for rate, wanted in ((-1, 7), (9, 9), (0, 0)):
        meta.do(c.ControlOperation(6, meta.op.id, "set", "me", rate_bytes_per_s=rate))
        assert meta.op.options.rate_bytes_per_s == wanted


def test_a_copy_record_counts_only_for_its_slots() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.COPYING)
    op, target = meta.op, meta.op.gaining[0]
    first, *rest = to_slots(changes.wanted(op, target, "e"))
    meta.do(c.Copied(5, op.id, CopyRecord(target, "e", "i-e", from_slots([first]), "d", 1, 1)))
    assert rest and changes.missing(op, target, "e", "i-e") == from_slots(rest)


def test_copies_that_differ_are_named() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.COPYING)
    op, target = meta.op, meta.op.gaining[0]
    slots = changes.wanted(op, target, "e")
    odd, right = sorted(op.required(target) - {"e"})
    for name, digest in (("e", "1"), (odd, "2")):
        meta.do(c.Copied(5, op.id, CopyRecord(target, name, f"i-{name}", slots, digest, 1, 1)))
    assert changes.copies_disagree(op, target).endswith(f"differ between {odd} and e")
    meta.do(c.Copied(5, op.id, CopyRecord(target, right, f"i-{right}", slots, "1", 1, 1)))
    sides = " and ".join(sorted([odd, ", ".join(sorted([right, "e"]))]))
    assert changes.copies_disagree(op, target).endswith(f"differ between {sides}")
    assert isinstance(meta.do(c.ControlOperation(6, op.id, "dead", "me", node=odd)), OperationReply)
    assert not changes.copies_disagree(op, target), "the copy of a dead node is not needed"


@pytest.mark.parametrize(
    "options,verb", [(Options(verify=True), "sign-off"), (Options(hold_release_ms=9), "release")]
)
def test_releases_wait_for_the_requested_approval(options: Options, verb: str) -> None:
    meta = Meta()
    meta.begin(options=options)
    run_to(meta, Stage.COPYING)
    early = meta.do(c.ControlOperation(6, meta.op.id, "sign-off", "me"))
    assert isinstance(early, ErrorReply)
    for one in reports_of(meta.op, Stage.COPYING):
        meta.do(one)
    before = meta.op.stage
    assert before is Stage.COPYING
    meta.do(c.ControlOperation(6, meta.op.id, verb, "me"))
    assert meta.op.stage is Stage.CLEANUP


def test_a_pause_delays_only_the_end_of_copying() -> None:
    """A pause never leaves slots closed: a paused operation leaves every stage before COPYING, but not
    COPYING."""
    meta = Meta()
    meta.begin()
    assert isinstance(control(meta, "pause", ""), OperationReply)
    assert (meta.op.stage, meta.op.state()) == (Stage.PLANNED, "paused")
    run_to(meta, Stage.COPYING)
    for one in reports_of(meta.op, Stage.COPYING):
        meta.do(one)
    assert (meta.op.stage, meta.op.state()) == (Stage.COPYING, "paused")
    control(meta, "resume", "")
    assert meta.op.stage is Stage.CLEANUP
    late = control(meta, "pause", "")
    assert isinstance(late, ErrorReply) and late.code == "refused"
    assert not meta.op.paused


def test_a_hold_starts_once_nothing_else_delays_the_release() -> None:
    """A hold of 24 h after 24 h of copying still takes 24 h. A pause does not change its start."""
    meta = Meta()
    meta.begin(options=Options(hold_release_ms=100, verify=True))
    run_to(meta, Stage.COPYING)
    for one in reports_of(meta.op, Stage.COPYING):
        meta.do(one)
    counts = meta.op.held_since_ms or meta.op.is_held
    assert not counts, "the operation still waits for the sign-off"
    control(meta, "sign-off", "")
    assert meta.op.held_since_ms == 7 and meta.op.is_held
    control(meta, "pause", "")
    meta.do(c.ControlOperation(50, meta.op.id, "resume", "me"))
    assert meta.op.held_since_ms == 7 and meta.op.state() == "waiting_release"
    meta.do(c.ControlOperation(107, meta.op.id, "release", "--hold-release is over"))
    assert meta.op.stage is Stage.CLEANUP


def test_a_node_drains_for_a_restart_only_if_no_operator_drained_it() -> None:
    meta = Meta()
    wanted = []
    for draining, for_restart in [
        (True, True),
        (True, False),
        (True, True),
        (False, True),
        *[(True, True)] * 2,
    ]:
        meta.do(c.SetDraining(5, "b", draining, "me", 0, for_restart))
        wanted.append((meta.state.image.nodes["b"].draining, meta.state.image.nodes["b"].for_restart))
    keeps, only = (True, False), (True, True)
    assert wanted == [only, keeps, keeps, (False, False), only, only]


def test_draining_survives_a_restart_and_a_cancelled_removal() -> None:
    """Draining is a separate state of a node: an operation on the node does not end it."""
    meta = Meta()
    assert isinstance(meta.do(c.SetDraining(5, "b", True, "me")), Accepted)
    meta.do(c.SetDraining(5, "b", True, "me"))
    assert [what for _, _, what in meta.state.image.audit].count("drain b") == 1
    meta.begin("remove-node", "b")
    control(meta, "cancel", "")
    for one in reports_of(meta.op, Stage.CANCELLING):
        meta.do(one)
    assert meta.op.stage is Stage.CANCELLED
    again = MetaState.decode(meta.state.encode())
    assert again.image.nodes["b"].draining and again.image.nodes["b"].state == "active"
    meta.do(c.SetDraining(6, "b", False, "me"))
    assert not meta.state.image.nodes["b"].draining
    unknown = meta.do(c.SetDraining(6, "z", True, "me"))
    assert isinstance(unknown, ErrorReply) and unknown.code == "not_found"


def test_zones_are_set_together_and_noted_once() -> None:
    """Nothing is set if one node is unknown; the audit log has what changed."""
    meta = Meta()
    unknown = meta.do(c.SetZones(4, {"a": "x", "z": "y"}, "me"))
    assert isinstance(unknown, ErrorReply) and unknown.code == "not_found" and " z" in unknown.what
    for _ in range(2):
        assert isinstance(meta.do(c.SetZones(5, {"b": "y", "a": "x"}, "me")), Accepted)
    meta.do(c.SetZones(6, {"b": "y", "a": ""}, "me"))
    zones = {n: r.zone for n, r in MetaState.decode(meta.state.encode()).image.nodes.items() if r.zone}
    assert zones == {"b": "y"}
    said = [what for _, _, what in meta.state.image.audit if "zone" in what]
    assert said == ["set zones: a in x, b in y", "set zones: a in no zone"]


def control(meta: Meta, verb: str, owner: str, by: str = "me", report: str = "") -> Reply:
    return meta.do(c.ControlOperation(7, meta.op.id, verb, by, owner=owner, ttl_ms=1000, report=report))


def test_an_expired_lease_is_free_unless_it_was_renewed() -> None:
    meta = Meta()
    meta.begin()
    control(meta, "lease", "x")
    busy = control(meta, "lease", "y")
    assert isinstance(busy, ErrorReply) and busy.code == "busy"
    control(meta, "lease", "x")
    control(meta, "unlease", "", by="", report="1")
    lease = meta.op.lease
    assert lease is not None, "it was renewed before the expiry was applied"
    control(meta, "unlease", "", by="", report="2")
    assert meta.op.lease is None and isinstance(control(meta, "lease", "y"), OperationReply)


def test_an_image_decodes_to_the_same_state() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.COPYING)
    again = MetaState.decode(meta.state.encode())
    assert again.image == meta.state.image and again.placement.table == meta.state.placement.table


def test_progress_reports_of_an_ended_operation_change_nothing() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.DONE)
    before = meta.state.encode()
    for stage in STAGES:
        for one in reports_of(meta.op, stage):
            assert isinstance(meta.do(one), Accepted)
    after = MetaState.decode(meta.state.encode())
    after.image.applied = MetaState.decode(before).image.applied
    assert after.encode() == before


def test_columns_are_only_added() -> None:
    tag, v, w = Column("d", "STRING", True), Column("v", "INT64", False), Column("w", "INT64", False)
    known = merge_schema(None, TableSchema("root", "m", 7, (tag, v)))
    assert isinstance(known, TableSchema) and known.version == 1
    assert merge_schema(known, TableSchema("root", "m", 1, (v,))) is known
    wider = merge_schema(known, TableSchema("root", "m", 1, (w,)))
    assert isinstance(wider, TableSchema) and wider.version == 2 and wider.columns == (tag, v, w)
    for bad in (Column("v", "DOUBLE", False), Column("x", "STRING", True)):
        assert isinstance(merge_schema(known, TableSchema("root", "m", 1, (bad,))), ErrorReply)


DEAD = Options(dead=True)


@pytest.mark.parametrize("stage", [Stage.OPEN, Stage.DONE])
def test_a_dead_node_is_fenced_from_the_first_entry_of_its_removal(stage: Stage) -> None:
    meta = Meta()
    meta.begin("remove-node", "b", DEAD)
    assert meta.state.image.retired == ["i-b"] and meta.state.image.nodes["b"].state == "dead"
    run_to(meta, stage)
    assert meta.state.image.retired == ["i-b"]
    assert ("b" in meta.state.image.nodes) == (stage is not Stage.DONE)


def test_a_cancelled_removal_of_a_dead_node_leaves_no_trace() -> None:
    meta = Meta()
    before = dict(meta.state.image.nodes)
    meta.begin("remove-node", "b", DEAD)
    run_to(meta, Stage.SEALED)
    meta.do(c.ControlOperation(4, meta.op.id, "cancel", "me"))
    for one in reports_of(meta.op, Stage.CANCELLING):
        meta.do(one)
    assert meta.state.image.nodes == before and meta.state.image.retired == []


def test_a_replacement_takes_the_place_and_the_slots_of_the_old_node() -> None:
    meta = Meta()
    assert meta.state.placement.table is not None
    slots = meta.state.placement.table.slots_of("b")
    meta.begin("replace-node", "b>e")
    assert set(meta.op.losing) == {meta.op.dissolved_group} and meta.op.gaining == [meta.op.created_group]
    run_to(meta, Stage.DONE)
    table = meta.state.placement.table
    assert table.ring.names == ("a", "e", "c", "d") and table.slots_of("e") == slots
    assert set(meta.state.image.nodes) == {"a", "c", "d", "e"} and meta.state.image.retired == ["i-b"]
    assert all("b" not in g.members for g in meta.state.image.groups.values())


def dead(meta: Meta, name: str) -> Reply:
    return meta.do(c.ControlOperation(4, meta.op.id, "dead", "me", node=name))


def test_a_dead_node_amends_an_operation_and_a_second_that_costs_a_quorum_is_refused() -> None:
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.COPYING)
    assert isinstance(dead(meta, "c"), OperationReply)
    assert meta.op.dead == ["c"] and "i-c" in meta.state.image.retired
    assert all("c" not in meta.op.required(g) for g in meta.op.gaining)
    refused = dead(meta, "d")
    assert isinstance(refused, ErrorReply) and "quorum" in refused.what
    assert meta.op.dead == ["c"] and meta.state.image.nodes["d"].state != "dead"
    assert isinstance(dead(meta, "nobody"), ErrorReply)


@pytest.mark.parametrize("others", [("a",), ("a", "b")])
def test_a_death_that_costs_a_quorum_with_a_member_that_left_is_refused(others: tuple[str, ...]) -> None:
    """The member that left stayed a voter in place of a node that died before it joined, so it does not
    count. Half of an even number is no quorum."""
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.COPYING)
    group = next(g for g in meta.state.image.groups.values() if g.members[0] == "c")
    left = msgspec.structs.replace(group, members=("c", "gone", *others))
    meta.state.image.groups[group.group] = left
    refused = dead(meta, "c")
    assert isinstance(refused, ErrorReply) and "without c, gone" in refused.what
    assert meta.op.dead == [] and meta.state.image.retired == []


def test_a_cancelled_removal_does_not_revive_nodes_that_an_earlier_change_fenced() -> None:
    """The earlier change continued without copies of `c`: a revived `c` would lack rows."""
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.COPYING)
    dead(meta, "c")
    run_to(meta, Stage.DONE)
    meta.begin("remove-node", "c", DEAD)
    assert meta.op.dead == ["c"] and meta.op.fenced == []
    meta.do(c.ControlOperation(4, meta.op.id, "cancel", "me"))
    for one in reports_of(meta.op, Stage.CANCELLING):
        meta.do(one)
    assert meta.op.stage is Stage.CANCELLED
    assert meta.state.image.nodes["c"].state == "dead" and meta.state.image.retired == ["i-c"]


def test_the_recorded_members_are_those_that_the_group_reported() -> None:
    """A group whose new member died retains the member that would have left."""
    meta = Meta()
    meta.begin()
    run_to(meta, Stage.RECONFIGURING)
    change = meta.op.changes[0]
    meta.do(c.FormedBy(3, meta.op.id, change.group, 9, change.before))
    meta.do(c.FormedBy(3, meta.op.id, change.group, 9, change.after))
    assert meta.state.image.groups[change.group].members == change.before


def test_a_command_under_a_lost_lock_has_no_effect() -> None:
    """A program that was suspended until its lock expired sends the commands that it had decided before."""
    meta = Meta()
    taken = meta.do(c.TakeLock(1, "ann@here 1", "add-node e", "ann", 30_000))
    assert isinstance(taken, LockReply)
    serial = taken.lock.serial
    assert isinstance(meta.do(c.SetDraining(2, "a", True, "ann", serial)), Accepted)
    meta.do(c.DropLock(3, serial, "bob", "taken away"))
    for _ in range(2):  # first nobody holds the lock, then another program
        late: list[Callable[[], Reply]] = [
            lambda: meta.begin(lock=serial),
            lambda: meta.do(c.SetDraining(4, "a", False, "", serial)),
            lambda: meta.do(c.SetZones(4, {"a": "x"}, "", serial)),
        ]
        for send in late:
            refused = send()
            assert isinstance(refused, ErrorReply) and refused.details == {"lost": True}
        meta.do(c.TakeLock(5, "bob@there 2", "a roll", "bob", 30_000))
    assert meta.state.image.nodes["a"].draining and not meta.state.image.operations
    assert isinstance(meta.do(c.SetDraining(6, "a", False, "ann")), Accepted), (
        "a command without a lock is accepted"
    )
    assert not isinstance(meta.begin(), ErrorReply)


def test_the_last_ttl_that_was_set_counts() -> None:
    """A TTL needs no new column. A request without a TTL leaves it unchanged, and 0 removes it."""
    meta, columns = Meta(), (Column("d", "STRING", True), Column("v", "DOUBLE", False))
    ttls = []
    for said in (5_000, None, 7_000, 7_000, 0):
        meta.do(c.PutSchema(1, TableSchema("root.a", "m", 1, columns), said))
        ttls.append(meta.state.tables.schemas["root.a", "m"].ttl_ms)
    assert ttls == [5_000, 5_000, 7_000, 7_000, 0]


def test_a_ttl_for_a_new_table_leaves_one_that_exists_alone() -> None:
    """Its rows may be older. A table that was dropped has no rows and counts as new."""
    meta, schema = Meta(), TableSchema("root.a", "m", 1, (Column("d", "STRING", True),))

    def ttl_after(command: c.Command) -> int:
        meta.do(command)
        return meta.state.tables.schemas["root.a", "m"].ttl_ms

    assert ttl_after(c.PutSchema(1, schema, 5_000, if_new=True)) == 5_000
    assert ttl_after(c.PutSchema(1, schema, 0)) == 0
    wider = msgspec.structs.replace(schema, columns=(*schema.columns, Column("v", "DOUBLE", False)))
    assert ttl_after(c.PutSchema(1, wider, 5_000, if_new=True)) == 0
    meta.do(c.DropTable(1, "root.a", "m", 2))
    assert ttl_after(c.PutSchema(1, schema, 7_000, if_new=True)) == 7_000


def test_a_dropped_table_accepts_no_rows_and_retains_its_columns() -> None:
    """Files with its columns may still exist: a new table of that name has the same tags and types, and a
    version that no group has used. Every command takes effect once, however often it is retried."""
    state, index = MetaState(), 0
    tag, v, w = Column("d", "STRING", True), Column("v", "DOUBLE", False), Column("w", "INT64", False)

    def do(command: c.Command) -> object:
        nonlocal index
        index += 1
        ((_, reply),) = state.apply(index, [Entry(1, EntryKind.COMMAND, c.encode(command))])
        return reply

    def put(*columns: Column) -> object:
        return do(c.PutSchema(1, TableSchema("root.a", "m", 1, columns), 5))

    assert isinstance(do(c.DropTable(1, "root.a", "m", 1)), ErrorReply)
    put(tag, v)
    assert isinstance(do(c.DropTable(1, "root.a", "m", 2)), ErrorReply), (
        "a drop of another table version is refused"
    )
    for _ in range(2):
        assert isinstance(do(c.DropTable(1, "root.a", "m", 1)), Accepted)
    (kept,) = state.image.schemas
    assert kept.dropped and kept.ttl_ms == 0
    assert MetaState.decode(state.encode()).tables.schemas == state.tables.schemas
    for columns in ((tag, Column("v", "STRING", False)), (Column("e", "STRING", True), v)):
        refused = put(*columns)
        assert isinstance(refused, ErrorReply) and "its columns are retained" in refused.what
    made = put(tag, w)
    assert isinstance(made, SchemaInForce)
    assert (made.schema.version, made.schema.dropped, made.schema.columns) == (2, False, (tag, v, w))
    assert len([a for a in state.image.audit if "dropped" in a[2]]) == 1
    do(c.DropTable(1, "root.a", "m", 2))
    again = put(tag, v)
    assert isinstance(again, SchemaInForce), "a dropped table gets a new version even without a new column"
    assert (again.schema.version, again.schema.dropped) == (3, False)

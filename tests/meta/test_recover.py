"""Force recovery of groups that lost their majority: what is refused, what is recorded.

Six nodes a to f, R = 3: the group of each is itself and the next two.
"""

from collections.abc import Collection

import msgspec
import pytest

from nodeagent.meta import changes
from nodeagent.meta import commands as c
from nodeagent.meta.nodes import DEAD
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.operation import (
    CopyRecord,
    GroupChange,
    Operation,
    Options,
    SealResult,
    Stage,
    order_of,
    recovery_name,
)
from nodeagent.model.requests import (
    Accepted,
    ErrorReply,
    GroupRecord,
    OperationReply,
    Recovery,
    RecoveryLeader,
    Reply,
)
from nodeagent.partition.recovery import Lost, lost_groups
from nodeagent.partition.ring import initial_ring
from nodeagent.partition.table import initial_table

from .test_changes import Meta, control, node, reports_of


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> Meta:
    monkeypatch.setattr("tests.meta.test_changes.NAMES", list("abcdef"))
    return Meta()


def record(meta: Meta, owner: str) -> GroupRecord:
    found = meta.state.groups.of(owner)
    assert found is not None
    return found


def recovery_leaders(meta: Meta, leaders: dict[str, str]) -> tuple[RecoveryLeader, ...]:
    return tuple(RecoveryLeader(record(meta, owner).group, leader, 40) for owner, leader in leaders.items())


BC = {"a": "a", "b": "d"}
"""The groups of a and b, which are lost without b and c, with their recovery leaders."""


def force_recover(
    meta: Meta, nodes: Collection[str] = "bc", leaders: dict[str, str] = BC, version: int = 0
) -> Reply:
    return meta.do(
        c.ForceRecover(
            5, tuple(nodes), recovery_leaders(meta, leaders), version or meta.state.placement.version, "me"
        )
    )


def refused(reply: Reply, text: str) -> None:
    assert isinstance(reply, ErrorReply) and text in f"{reply.what} {reply.next_step}", reply


def test_lost_groups_continue_with_living_members_and_dead_nodes_are_fenced(meta: Meta) -> None:
    reply = force_recover(meta)
    assert isinstance(reply, Accepted)
    recovery = Recovery("a", 40, f"op-{reply.index}")
    assert (record(meta, "a").members, record(meta, "a").recovery) == (("a",), recovery)
    assert record(meta, "b").members == ("d",) and record(meta, "b").recovery is not None
    kept = record(meta, "c")  # c, d, e has a majority: an ordinary removal replaces c
    assert kept.members == ("c", "d", "e") and kept.recovery is None
    assert {n: r.state for n, r in meta.state.image.nodes.items() if r.state == DEAD} == {
        "b": DEAD,
        "c": DEAD,
    }
    assert meta.state.image.retired == ["i-b", "i-c"]
    note = meta.state.image.audit[-1]
    assert note[1] == "me" and "data loss accepted: b, c given up" in note[2] and "goes on from d" in note[2]
    again = MetaState.decode(meta.state.encode())
    assert again.image.groups == meta.state.image.groups


def test_no_change_begins_before_every_recovery_is_completed(meta: Meta) -> None:
    """If a change dropped a recovery, its recovery leader could still execute it later."""
    reply = force_recover(meta)
    assert isinstance(reply, Accepted)
    refused(meta.begin("remove-node", "b", Options(dead=True)), "is being recovered")
    one, two = record(meta, "a").group, record(meta, "b").group
    meta.do(c.RecoveryCompleted(6, one, "op-1"))  # a late report of another recovery has no effect
    assert record(meta, "a").recovery is not None
    for group in (one, one, two):
        meta.do(c.RecoveryCompleted(6, group, f"op-{reply.index}"))
    assert record(meta, "a").recovery is None and record(meta, "b").recovery is None
    begun = meta.begin("remove-node", "b", Options(dead=True))
    assert isinstance(begun, OperationReply)
    assert begun.operation.dead == ["b", "c"] and meta.state.image.retired == ["i-b", "i-c"]
    source = next(m for m in begun.operation.moves if m.source == two)
    assert source.source_members == ("d",), "the members are the present ones, not those of the ring"


@pytest.mark.parametrize(
    ("nodes", "leaders", "text"),
    [
        ("", {}, "no lost node is named"),
        ("bz", BC, "no node z"),
        ("b", {}, "every group has a majority without b"),
        ("bc", {"a": "a"}, "needs one of d"),
        ("bc", {"a": "b", "b": "d"}, "needs one of a"),
        ("bc", {"a": "d", "b": "d"}, "needs one of a"),
        ("bc", {**BC, "d": "e"}, "has not lost its majority"),
        ("abc", {"b": "d", "f": "f"}, "has no living member"),
    ],
)
def test_a_recovery_that_does_not_fit_the_state_is_refused(
    meta: Meta, nodes: str, leaders: dict[str, str], text: str
) -> None:
    """A refused recovery changes nothing."""
    before = (dict(meta.state.image.groups), dict(meta.state.image.nodes), list(meta.state.image.retired))
    refused(force_recover(meta, nodes, leaders), text)
    assert before == (meta.state.image.groups, meta.state.image.nodes, meta.state.image.retired)


def test_a_recovery_is_refused_during_a_change_below_its_level_and_after_the_table_changed(
    meta: Meta,
) -> None:
    """A change gives a group other members than those that the caller read."""
    looked = meta.state.placement.version
    meta.begin("add-node", "g")
    refused(force_recover(meta), "is open")
    control(meta, "cancel", "")
    for one in reports_of(meta.op, meta.op.stage):
        meta.do(one)
    assert isinstance(force_recover(meta, version=looked), Accepted)
    refused(force_recover(meta, version=looked + 7), "table version")


STAGES = (Stage.SEALED, Stage.OPEN, Stage.RECONFIGURING, Stage.COPYING, Stage.CLEANUP)


def report_of(op: Operation, group: str, stage: Stage) -> c.ProgressReport:
    """What the group reports in the stage."""
    return next(r for r in reports_of(op, stage) if group in (getattr(r, "group", ""), sealed_group(r)))


def sealed_group(report: c.ProgressReport) -> str:
    return report.result.group if isinstance(report, c.SealedBy) else ""


def move_to(meta: Meta, stage: Stage) -> None:
    """A change that moves slots from the group of a and b to other groups, in this stage."""
    meta.state.image.level = Feature.RECOVERY_IN_CHANGE
    meta.begin("rebalance", "")
    for earlier in STAGES[: STAGES.index(stage)]:
        for one in reports_of(meta.op, earlier):
            meta.do(one)
    assert meta.op.stage is stage


@pytest.mark.parametrize("stage", [Stage.OPEN, Stage.COPYING, Stage.CLEANUP])
def test_a_recovered_group_reports_again_what_the_stage_waits_for(meta: Meta, stage: Stage) -> None:
    """Its log may lack what its former leader reported; another group's reports stay."""
    move_to(meta, stage)
    op, groups = meta.op, {owner: record(meta, owner).group for owner in "ac"}
    waited = [report_of(op, g, stage) for g in groups.values() if g in reporting(op, stage)]
    for one in waited:
        meta.do(one)
    reply = force_recover(meta, version=meta.state.placement.version)
    assert isinstance(reply, Accepted), reply
    assert record(meta, "a").recovery == Recovery("a", 40, f"{op.id}.{reply.index}")
    assert op.stage is stage and set(op.dead) == {"b", "c"} and not op.fenced
    assert groups["a"] not in reported(op, stage), "it lost its majority"
    assert (groups["c"] in reported(op, stage)) == (groups["c"] in reporting(op, stage)), "it kept it"
    for one in waited:
        meta.do(one)
    assert set(reporting(op, stage)) & set(groups.values()) <= set(reported(op, stage)), "it reports again"


def reporting(op: Operation, stage: Stage) -> list[str]:
    return op.losing if stage is Stage.CLEANUP else op.gaining


def reported(op: Operation, stage: Stage) -> Collection[str]:
    return {
        Stage.OPEN: op.opened,
        Stage.COPYING: op.adopted,
        Stage.CLEANUP: op.released,
    }[stage]


def test_a_change_that_can_be_cancelled_is_cancelled_by_a_recovery(meta: Meta) -> None:
    move_to(meta, Stage.SEALED)
    assert isinstance(force_recover(meta), Accepted)
    op = meta.op
    assert op.stage is Stage.CANCELLING and op.stages[-2].reports == ["groups lost their majority"]
    for one in reports_of(op, Stage.CANCELLING):
        meta.do(one)
    assert op.ended and meta.state.nodes.dead == {"b", "c"}


def test_a_source_that_was_recovered_seals_again_before_others_open(meta: Meta) -> None:
    """The digests of its sessions may be of entries that it lost."""
    move_to(meta, Stage.OPEN)
    op, lost = meta.op, record(meta, "b").group
    assert lost in op.sealed
    force_recover(meta, version=meta.state.placement.version)
    assert lost not in op.sealed and set(op.losing) > {lost}
    meta.do(c.SealedBy(7, op.id, SealResult(lost, 21)))
    assert op.sealed[lost].index == 21


def test_the_next_recovery_and_the_next_change_come_later_in_the_order_of_operations() -> None:
    names = ["", "op-9", "op-9.12", "op-9.30", "op-10", recovery_name(11, ""), recovery_name(40, "op-12")]
    assert [order_of(n) for n in names] == sorted(map(order_of, names))
    assert len({order_of(n) for n in names}) == len(names)


@pytest.mark.parametrize(
    ("dead", "joins", "certain"),
    [
        ("a", True, None),
        ("b", True, None),
        ("ab", True, False),  # a majority if a was dropped already: c and d of b, c, d
        ("bc", True, True),  # d and the leaving a of four
        ("bd", True, False),  # a majority if d never voted: a and c of three
        ("cd", True, False),
        ("bcd", True, True),
        ("ab", False, True),
        ("bc", False, True),
    ],
)
def test_a_group_whose_members_change_may_have_lost_its_majority(
    dead: str, joins: bool, certain: bool | None
) -> None:
    """d joins the group of a, b and c, and a leaves it; in COPYING the record has its members."""
    change = GroupChange("g", "d", "a", ("a", "b", "c"), ("b", "c", "d"))
    stage = Stage.RECONFIGURING if joins else Stage.OPEN
    op = Operation("op-9", "add-node", "d", "me", 0, 1, 9, [], [change], Options(), stage)
    found = lost_groups([GroupRecord("g", "a", ("a", "b", "c"), ())], set("abcd") - set(dead), op)
    survivors = tuple(n for n in "abc" if n not in dead)
    assert found == ({} if certain is None else {"g": Lost(survivors, certain)})
    op.stage = Stage.COPYING
    found = lost_groups([GroupRecord("g", "a", ("b", "c", "d"), ())], set("abcd") - set("bc"), op)
    assert found == {"g": Lost(("d",), True)}, "a has left the group"


def test_a_joining_node_makes_its_replica_again_after_a_recovery(meta: Meta) -> None:
    """It is no survivor: its log may be newer. A report of its former replica does not count any more."""
    meta.state.image.level = Feature.RECOVERY_IN_CHANGE
    meta.begin("add-node", "g")
    for stage in (Stage.PLANNED, Stage.SEALED):
        for one in reports_of(meta.op, stage):
            meta.do(one)
    op = meta.op
    change = next(c for c in op.changes if c.joins == "g")
    group = meta.state.image.groups[change.group]
    former = c.JoinReady(3, op.id, group.group, "g")
    meta.do(former)
    dead = group.members[1:]
    lost = meta.state.recovery.lost(dead)
    assert lost[group.group].survivors == group.members[:1]
    leaders = tuple(RecoveryLeader(g, found.survivors[0], 40) for g, found in lost.items())
    version = meta.state.placement.version
    assert isinstance(meta.do(c.ForceRecover(5, dead, leaders, version, "me")), Accepted)
    assert meta.state.image.groups[group.group].members == group.members[:1]
    meta.do(former)
    assert (group.group, "g") not in op.joined
    meta.do(c.JoinReady(3, op.id, group.group, "g", op.recovered[group.group]))
    assert (group.group, "g") in op.joined


def test_a_created_group_without_rows_is_not_recovered(meta: Meta) -> None:
    """The change is cancelled, and the group with it."""
    meta.state.image.level = Feature.RECOVERY_IN_CHANGE
    meta.begin("add-node", "g")
    created, members = meta.op.created_group, meta.op.created_members
    assert created is not None
    lost = meta.state.recovery.lost(members)
    assert lost and created not in lost
    for one in (*reports_of(meta.op, Stage.PLANNED), *reports_of(meta.op, Stage.SEALED)):
        meta.do(one)
    assert created in meta.state.recovery.lost(members)


@pytest.mark.parametrize("complete", [False, True])
def test_copies_from_a_recovered_source_count_if_every_member_has_them(meta: Meta, complete: bool) -> None:
    """Otherwise all members copy again: the source may have other files now."""
    move_to(meta, Stage.COPYING)
    op = meta.op
    move = next(m for m in op.moves if m.source == record(meta, "b").group)
    living = [n for n in move.target_members if n not in "bc"]
    assert len(living) > 1

    def copied(name: str, digest: str) -> None:
        meta.do(c.Copied(3, op.id, CopyRecord(move.target, name, f"i-{name}", move.slots, digest, 1, 1)))

    for name in living[: None if complete else 1]:
        copied(name, "x")
    op.signed_off = True
    force_recover(meta, version=meta.state.placement.version)
    assert len(op.copies) == (len(living) if complete else 0) and not op.signed_off
    changes.forget_reports(op, {move.source})
    op.dead += move.source_members
    copied(living[0], "x")
    changes.forget_reports(op, {move.source})
    assert living[0] in {r.node for r in op.copies}, "no previous holder is left"
    for digest in ("x", "y"):  # a report of the former copy arrives late
        copied(living[0], digest)
    assert [r.digest for r in op.copies if r.node == living[0]] == ["y"]


def test_a_recovered_group_does_not_keep_another_node_from_being_declared_dead() -> None:
    """Of the members that the change planned for the group, most are dead."""
    meta = Meta(list("abcdefgh"))
    move_to(meta, Stage.COPYING)
    force_recover(meta, version=meta.state.placement.version)
    meta.op.changes = [GroupChange(record(meta, "a").group, None, None, ("a", "b", "c"), ("a", "b", "c"))]
    meta.op.formed = [record(meta, "a").group]
    dead = c.ControlOperation(7, meta.op.id, "dead", "me", node="f")
    assert isinstance(meta.do(dead), OperationReply)
    assert "f" in meta.op.dead


def test_a_recovery_of_the_meta_group_retires_the_lost_nodes(meta: Meta) -> None:
    """It is not refused: the group continues without them already. A repeat retires nobody twice."""
    for nodes in (("b", "d"), ("b", "d", "unknown")):
        assert isinstance(meta.do(c.RecoverMeta(5, nodes, "a", "me")), Accepted)
        assert meta.state.nodes.dead == {"b", "d"} and meta.state.image.retired == ["i-b", "i-d"]
    assert not meta.state.groups.in_recovery(), "data groups are recovered by a request of their own"
    who, what = meta.state.image.audit[-2][1:]
    assert who == "me" and "b, d permanently lost" in what and "journal of a continues" in what


@pytest.mark.parametrize("lost", ["b", "g"])
def test_an_open_change_requires_nothing_of_nodes_that_the_meta_group_lost(meta: Meta, lost: str) -> None:
    """They stay retired if the change is cancelled: the meta group has decided without them. `g` joins."""
    meta.begin("add-node", "g")
    meta.do(c.RecoverMeta(5, (lost,), "a", "me"))
    assert meta.op.dead == [lost] and not meta.op.fenced
    assert all(lost not in meta.op.required(move.target) for move in meta.op.moves)
    control(meta, "cancel", "")
    for one in reports_of(meta.op, meta.op.stage):
        meta.do(one)
    assert meta.op.ended and meta.state.image.retired == [f"i-{lost}"]
    assert (meta.state.nodes.dead == {"b"}) if lost == "b" else ("g" not in meta.state.nodes)


def test_a_cancel_revives_no_node_that_the_meta_group_lost(meta: Meta) -> None:
    """The change had fenced it before; since then the meta group has decided without it."""
    meta.begin("remove-node", "f", Options(dead=True))
    assert meta.op.fenced == ["f"]
    meta.do(c.RecoverMeta(5, ("b", "d", "f"), "a", "me"))
    control(meta, "cancel", "")
    for one in reports_of(meta.op, meta.op.stage):
        meta.do(one)
    assert meta.op.ended and meta.state.nodes.dead == {"b", "d", "f"}
    assert sorted(meta.state.image.retired) == ["i-b", "i-d", "i-f"]


def test_a_second_recovery_replaces_one_whose_leader_died() -> None:
    """With R = 7, the two living members are a majority of three, but those three never elected a leader."""
    names = "abcdefgh"
    meta = Meta()
    meta.state = MetaState()
    settings = ClusterSettings("c", replicas=7, slots=16)
    table = initial_table(initial_ring(list(names)), 16).to_wire()
    meta.do(c.Bootstrap(1, "id", settings, tuple(node(n) for n in names), table))
    lost = meta.state.recovery.lost("defg")
    leaders = {meta.state.image.groups[g].owner: found.survivors[0] for g, found in lost.items()}
    assert isinstance(force_recover(meta, "defg", leaders), Accepted)
    first = record(meta, "a").recovery
    assert first is not None and first.head == "a"
    assert meta.state.recovery.lost("") == {}, "the first recovery is not completed"
    lost = meta.state.recovery.lost("a")
    assert lost[record(meta, "a").group] == Lost(("b", "c"), True)
    leaders = {meta.state.image.groups[g].owner: found.survivors[0] for g, found in lost.items()}
    assert isinstance(force_recover(meta, "adefg", leaders), Accepted)
    second = record(meta, "a").recovery
    assert second is not None and second.head == "b" and second.operation != first.operation
    assert meta.state.image.retired == ["i-d", "i-e", "i-f", "i-g", "i-a"], "each incarnation is retired once"
    meta.do(c.RecoveryCompleted(6, record(meta, "a").group, first.operation))
    assert record(meta, "a").recovery == second


def test_a_member_that_left_the_cluster_does_not_count_as_living(meta: Meta) -> None:
    """The member stayed a voter in place of a node that died before it joined, so it does not count."""
    group = record(meta, "a")
    left = msgspec.structs.replace(group, members=("a", "c", "gone"))
    meta.state.image.groups[group.group] = left
    assert meta.state.recovery.lost("c")[group.group].survivors == ("a",)
    assert group.group not in meta.state.recovery.lost("d")


@pytest.mark.parametrize("level", [FIRST, Feature.RECOVERY_IN_CHANGE])
def test_no_copy_is_required_of_a_member_that_left_the_cluster(meta: Meta, level: int) -> None:
    """At the first level, members of 0.1.0 record only nodes that are dead."""
    group = record(meta, "b")
    meta.state.image.groups[group.group] = msgspec.structs.replace(group, members=("b", "c", "gone"))
    meta.state.image.level = level
    meta.begin("rebalance", "")
    assert group.group in meta.op.gaining
    assert ("gone" in meta.op.required(group.group)) == (level == FIRST)


@pytest.mark.parametrize(
    ("members", "dead", "left"),
    [
        ("ab", "b", "a"),
        ("abc", "c", None),
        ("abc", "bc", "a"),
        ("abcd", "cd", "ab"),
        ("a", "a", ""),
        ("a", "b", None),
    ],
)
def test_half_of_the_members_is_no_majority(members: str, dead: str, left: str | None) -> None:
    """With R = 2 one dead member is enough."""
    living = set("abcdefg") - set(dead)
    found = lost_groups([GroupRecord("g", members[0], tuple(members), ())], living)
    assert found == ({} if left is None else {"g": Lost(tuple(left), True)})

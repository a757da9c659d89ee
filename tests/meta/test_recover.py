"""Force recovery of groups that lost their majority: what is refused, what is recorded.

Six nodes a to f, R = 3: the group of each is itself and the next two.
"""

from collections.abc import Collection

import msgspec
import pytest

from nodeagent.meta import commands as c
from nodeagent.meta.nodes import DEAD
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings
from nodeagent.model.operation import Options
from nodeagent.model.requests import (
    Accepted,
    ErrorReply,
    GroupRecord,
    OperationReply,
    Recovery,
    RecoveryLeader,
    Reply,
)
from nodeagent.partition.recovery import lost_groups
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


def test_a_recovery_is_refused_during_a_change_and_after_it(meta: Meta) -> None:
    """A change gives a group other members than those that the caller read."""
    looked = meta.state.placement.version
    meta.begin("add-node", "g")
    refused(force_recover(meta), "is open")
    control(meta, "cancel", "")
    for one in reports_of(meta.op, meta.op.stage):
        meta.do(one)
    assert isinstance(force_recover(meta, version=looked), Accepted)
    refused(force_recover(meta, version=looked + 7), "table version")


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
    leaders = {meta.state.image.groups[g].owner: left[0] for g, left in lost.items()}
    assert isinstance(force_recover(meta, "defg", leaders), Accepted)
    first = record(meta, "a").recovery
    assert first is not None and first.head == "a"
    assert meta.state.recovery.lost("") == {}, "the first recovery is not completed"
    lost = meta.state.recovery.lost("a")
    assert lost[record(meta, "a").group] == ("b", "c")
    leaders = {meta.state.image.groups[g].owner: left[0] for g, left in lost.items()}
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
    assert meta.state.recovery.lost("c")[group.group] == ("a",)
    assert group.group not in meta.state.recovery.lost("d")


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
    assert found == ({} if left is None else {"g": tuple(left)})

"""Which peers are accepted: those in the meta state, before that the seeds, and those that members
confirm."""

import random

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.members import ASK_AGAIN_MS, VOUCHED_MS, Members, members_of
from nodeagent.meta.image import Image
from nodeagent.meta.nodes import DEAD
from nodeagent.model.config import ClusterSettings
from nodeagent.model.ids import NodeId
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.requests import CheckStatus, GetMeta, MetaView, NodeRecord, StatusChecked

QUESTION = CheckStatus("a", "i-a", "a", 1, 2, ClusterSettings("c"), (), False)


def record(node: NodeId, incarnation: str, state: str = "active") -> NodeRecord:
    return NodeRecord(node, node, 1, 2, incarnation, 0, state=state)


def formed() -> Image:
    nodes = {n: record(n, f"i-{n}") for n in ("a", "b", "c")}
    return Image(cluster_id="id", nodes=nodes)


class World:
    def __init__(self, image: Image) -> None:
        self.image = image
        self.effects = EffectQueue(0, 0)
        self.members = Members(
            self.effects,
            random.Random(1),
            image=lambda: self.image,
            named=lambda: {"a", "b", "l", *(() if self.image.cluster_id else ("s",))},
            known=lambda: ["b", "c"],
            question=QUESTION,
        )

    def of(self, node: NodeId, incarnation: str) -> MembershipStatus:
        return self.members.membership_status(node, incarnation)

    def answer(self, reply: StatusChecked | MetaView) -> None:
        calls, self.effects.calls = self.effects.calls, []
        for number, _, _ in calls:
            self.effects.on_reply(number, reply)


def checked(*members: tuple[NodeId, str]) -> StatusChecked:
    return StatusChecked("b", "i-b", (), "id", False, True, members=members)


def test_the_meta_state_names_members_by_name_and_incarnation() -> None:
    """A certificate of a node that never was, or a member's name with another directory, is not enough; a
    seed that is no node of the formed cluster is none of its members either."""
    world = World(formed())
    assert world.of("b", "i-b") is MembershipStatus.MEMBER
    assert not world.effects.calls, "nobody is asked about a node that the state names"
    for node, incarnation in (("x", "i-x"), ("b", "i-x"), ("x", "i-b"), ("s", "i-s"), ("b", "")):
        assert world.of(node, incarnation) is MembershipStatus.UNKNOWN
    world.image.retired.append("i-b")
    assert world.of("b", "i-b") is MembershipStatus.RETIRED


def test_before_the_cluster_is_formed_the_seeds_are_heard() -> None:
    world = World(Image())
    assert world.of("s", "any") is MembershipStatus.MEMBER
    assert not world.effects.calls
    assert world.of("x", "any") is MembershipStatus.UNKNOWN


def test_the_newest_config_of_the_meta_log_counts_before_it_is_applied() -> None:
    """After a start the state may be older than the log. If the state names a node, the state counts."""
    world = World(formed())
    assert world.of("l", "any") is MembershipStatus.MEMBER
    assert world.of("b", "any") is MembershipStatus.UNKNOWN


def test_an_unknown_node_is_heard_once_a_member_vouches_for_it() -> None:
    """A state that lags does not name the leader that would bring a newer one: members are asked, at a
    bounded rate, and a retired incarnation stays refused even if a member vouches for it."""
    world = World(formed())
    assert world.of("x", "i-x") is MembershipStatus.UNKNOWN
    assert {to for _, to, _ in world.effects.calls} == {"b", "c"}
    asked = len(world.effects.calls)
    assert world.of("y", "i-y") is MembershipStatus.UNKNOWN
    assert len(world.effects.calls) == asked, "members are not asked again for every frame"
    world.image.retired.append("i-z")
    world.answer(checked(("x", "i-x"), ("z", "i-z")))
    assert world.of("x", "i-x") is MembershipStatus.MEMBER
    assert world.of("x", "other") is MembershipStatus.UNKNOWN
    assert world.of("z", "i-z") is MembershipStatus.RETIRED
    world.effects.now = ASK_AGAIN_MS
    world.of("y", "i-y")
    assert world.effects.calls


def test_a_vouched_membership_is_renewed_and_expires() -> None:
    """A newcomer whose change was cancelled was a member once, but does not stay one."""
    world = World(formed())
    world.effects.now = start = VOUCHED_MS
    world.of("x", "i-x")
    world.answer(checked(("x", "i-x")))
    world.effects.now = start + VOUCHED_MS // 2 - 1
    assert world.of("x", "i-x") is MembershipStatus.MEMBER and not world.effects.calls
    world.effects.now = start + VOUCHED_MS // 2 + 1
    assert world.of("x", "i-x") is MembershipStatus.MEMBER and world.effects.calls
    world.answer(checked(("b", "i-b")))
    world.effects.now = start + VOUCHED_MS + 1
    assert world.of("x", "i-x") is MembershipStatus.UNKNOWN


def test_another_cluster_vouches_for_nobody() -> None:
    world = World(formed())
    world.of("x", "i-x")
    world.answer(StatusChecked("b", "i-b", (), "other", False, True, members=(("x", "i-x"),)))
    assert world.of("x", "i-x") is MembershipStatus.UNKNOWN


def test_an_older_release_is_asked_for_its_view() -> None:
    """It names no members in `StatusChecked`."""
    world = World(formed())
    world.of("x", "i-x")
    world.answer(checked())
    calls, world.effects.calls = world.effects.calls, []
    assert {type(request) for _, _, request in calls} == {GetMeta}
    view = MetaView(
        node="b",
        applied=1,
        cluster_id="id",
        settings=ClusterSettings("c"),
        nodes=(record("x", "i-x"), record("d", "i-d", DEAD)),
        table_version=1,
        ring=(),
        owners=(),
        groups=(),
        schemas=(),
        operations=(),
        leader=None,
        term=1,
        voters=(),
        learners=(),
    )
    for number, _, _ in calls:
        world.effects.on_reply(number, view)
    assert world.of("x", "i-x") is MembershipStatus.MEMBER
    assert world.of("d", "i-d") is MembershipStatus.UNKNOWN


def test_a_dead_node_is_not_vouched_for() -> None:
    image = formed()
    image.nodes["c"] = record("c", "i-c", DEAD)
    assert members_of(image) == (("a", "i-a"), ("b", "i-b"))

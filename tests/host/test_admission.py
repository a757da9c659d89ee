"""Whether a starting node may take part, by the answers of the seeds."""

import msgspec
import pytest

from nodeagent.host.admission import (
    ASK_AGAIN_MS,
    ASK_SELDOM_MS,
    ASKED_AT_ONCE,
    Admission,
    check_status,
    first_config,
    status_question,
)
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings, NodeConfig, Seed
from nodeagent.model.entries import Config
from nodeagent.model.requests import ErrorReply, Reply, StatusChecked

SETTINGS = ClusterSettings(name="c", replicas=3, slots=24, shards=1)
OLD = tuple(Seed(n, n, 1) for n in ("a", "b", "c"))
NEW = (*OLD, Seed("d", "d", 1))
CONFLICT = ("seeds",)


def config(node: str, seeds: tuple[Seed, ...], *, join: bool) -> NodeConfig:
    return NodeConfig(node=node, host=node, port=1, http_port=2, seeds=seeds, cluster=SETTINGS, join=join)


class Starting:
    """A starting node. `made`: the first configurations of the meta replicas that it created."""

    def __init__(self, node: str, seeds: tuple[Seed, ...], *, join: bool) -> None:
        self.effects = EffectQueue(0, 0)
        self.made: list[Config] = []
        self.admission = Admission(config(node, seeds, join=join), "i", self.effects, self.made.append)
        self.admission.start()

    def hear(self, **replies: Reply) -> None:
        """The named seeds answer the open questions, the others do not respond."""
        self.effects.now += ASK_AGAIN_MS
        self.effects.fire()
        calls, self.effects.calls = self.effects.calls, []
        asked = {to[0]: number for number, to, _ in calls}
        assert replies.keys() <= asked.keys()
        for seed, number in asked.items():
            reply = replies.get(seed, ErrorReply("unavailable", "no answer"))
            if isinstance(reply, StatusChecked) and not reply.node:
                reply = msgspec.structs.replace(reply, node=seed)
            self.effects.on_reply(number, reply)


def says(
    cluster: str = "k",
    applied: int = 0,
    *,
    known: bool = False,
    conflicts: tuple[str, ...] = (),
    member: bool = False,
    first: Config | None = None,
    node: str = "",
) -> Reply:
    """The answer of `node`, by default the seed that is asked."""
    return StatusChecked(
        node, "j", conflicts, cluster, known, True, member=member, applied=applied, first=first
    )


def test_a_seed_without_meta_state_does_not_check_the_seeds_of_a_joining_node() -> None:
    """It does not know nodes that were added later, and would refuse a newcomer whose seeds are all nodes."""
    seed, newcomer = config("a", OLD, join=False), config("e", NEW, join=True)
    known = Image(cluster_id="k", applied=7)
    asked = status_question(newcomer, "i")
    assert check_status(seed, "s", MetaState(Image()), True, asked).conflicts == ()
    answer = check_status(seed, "s", MetaState(known), True, asked)
    assert answer.conflicts == CONFLICT and answer.applied == 7
    other = msgspec.structs.replace(SETTINGS, slots=25)
    asked = status_question(msgspec.structs.replace(newcomer, cluster=other), "i")
    assert check_status(seed, "s", MetaState(Image()), True, asked).conflicts == ("slots",)


@pytest.mark.parametrize("first", ["bad", "good", "both"])
def test_a_joining_node_follows_the_seed_with_the_newest_meta_state(first: str) -> None:
    """Other seeds may not know an added node yet, or are of an older version and answer too strictly."""
    node = Starting("e", NEW, join=True)
    bad = {"a": says("", conflicts=CONFLICT), "b": says("k", 3, conflicts=CONFLICT)}
    good = {"c": says("k", 9)}
    if first == "bad":
        node.hear(**bad)
        assert not node.made and "b is configured differently: seeds" in node.admission.refused
        node.hear(**good)
    elif first == "good":
        node.hear(**good)
        assert node.made == [Config()]
    else:
        node.hear(**bad, **good)
    assert node.made == [Config()] and not node.admission.refused


def test_a_joining_node_that_the_newest_seed_refuses_keeps_asking() -> None:
    node = Starting("e", NEW, join=True)
    node.hear(b=says("k", 9, known=True))
    assert "with another data directory" in node.admission.refused and not node.made
    node.hear(b=says("k", 12))  # the other directory was removed meanwhile
    assert node.made == [Config()] and not node.admission.refused


def test_an_answer_of_a_lagging_seed_does_not_admit_a_node_permanently() -> None:
    """The lagging seed does not know yet that the node was added with another directory. The newest answer is
    reported until the node follows the meta group, which never happens here."""
    node = Starting("e", NEW, join=True)
    node.hear(a=says("k", 3))
    assert node.made == [Config()] and not node.admission.refused
    node.effects.now += ASK_SELDOM_MS
    node.hear(b=says("k", 9, known=True))
    assert node.made == [Config()] and "with another data directory" in node.admission.refused


@pytest.mark.parametrize("join", [True, False])
def test_a_node_that_knows_its_cluster_asks_no_seed_and_is_not_refused(join: bool) -> None:
    """The meta state then says what it may do. Late answers may still arrive, also at a seed that led before
    another seed formed the cluster."""
    node = Starting("a", OLD, join=join)
    calls = {to[0]: number for number, to, _ in node.effects.calls}
    node.effects.on_reply(calls["b"], says("", conflicts=("slots",)))
    node.admission.end()
    node.effects.on_reply(calls["c"], ErrorReply("forbidden", "the incarnation of a was retired"))
    assert not node.admission.refused and not node.made
    node.effects.calls.clear()
    node.effects.now += ASK_SELDOM_MS
    node.effects.fire()
    assert not node.effects.calls


def test_a_seed_whose_cluster_is_not_formed_keeps_asking() -> None:
    """A conflict with another seed ends when that seed is configured like the others."""
    node = Starting("a", OLD, join=False)
    node.admission.stop()  # there is a meta replica on its disk
    node.hear(b=says("", conflicts=("slots",)))
    assert "b is configured differently" in node.admission.refused
    node.effects.now += ASK_SELDOM_MS
    node.hear(b=says(""), c=says(""))
    assert not node.admission.refused and not node.made


def test_a_first_start_waits_until_all_seeds_are_configured_alike() -> None:
    node = Starting("a", OLD, join=False)
    node.hear(b=says(""), c=says("", conflicts=("slots",)))
    assert not node.made and "c is configured differently: slots" in node.admission.refused
    node.hear(c=says(""))
    assert node.made == [Config(("a", "b", "c"))] and not node.admission.refused


def test_seeds_in_another_order_are_a_conflict() -> None:
    """The first seeds vote: with two orders of six seeds, each half could form a cluster of its own."""
    seeds = tuple(Seed(n, n, 1) for n in "abcdef")
    mine, other = config("a", seeds, join=False), config("d", seeds[3:] + seeds[:3], join=False)
    assert set(first_config(mine).voters) != set(first_config(other).voters)
    empty = MetaState(Image())
    assert check_status(mine, "i", empty, True, status_question(other, "j")).conflicts == CONFLICT
    same = config("d", seeds, join=False)
    assert check_status(mine, "i", empty, True, status_question(same, "j")).conflicts == ()


SIX = tuple(Seed(n, n, 1) for n in "abcdef")
MINE = config("a", SIX, join=False)
TURNED = config("d", SIX[3:] + SIX[:3], join=False)
"""The same seeds in another order, which begin with other voters."""


def test_a_seed_that_began_with_other_voters_is_refused_until_its_directory_is_empty() -> None:
    """Its node.yaml was edited since, and is like ours."""
    empty, asked = MetaState(Image()), status_question(MINE, "i")
    edited = msgspec.structs.replace(TURNED, seeds=SIX)
    began = check_status(edited, "j", empty, True, asked, first_config(TURNED))
    assert began.conflicts == ()
    node = Starting("a", SIX, join=False)
    node.hear(**dict.fromkeys("bce", says("")), d=began)
    node.hear(f=says(""))
    assert "d began a cluster with other first members" in node.admission.refused and not node.made
    node.hear(d=check_status(edited, "k", empty, True, asked))
    assert node.made == [first_config(MINE)] and not node.admission.refused


def test_a_seed_that_began_with_the_same_voters_fits() -> None:
    """Also one of an earlier release, which does not say with what it began."""
    asked = status_question(MINE, "i")
    began = check_status(
        config("d", SIX, join=False), "j", MetaState(Image()), True, asked, first_config(MINE)
    )
    node = Starting("a", SIX, join=False)
    node.hear(**dict.fromkeys("bce", says("")), d=began)
    node.hear(f=says(""))
    assert began.first and node.made == [first_config(MINE)]


def test_a_seed_that_began_without_this_node_is_refused() -> None:
    """The voters are the same, but the new cluster would lack a node."""
    node = Starting("a", SIX, join=False)
    node.hear(b=says(""), c=says("", first=Config(("a", "b", "c", "d", "e"))), d=says(""), e=says(""))
    node.hear(f=says(""))
    assert "c began a cluster" in node.admission.refused and not node.made


def test_a_seed_that_creates_its_replica_late_begins_like_the_cluster() -> None:
    """node.yaml was edited on all nodes since: its voters could form a second cluster. The log of a node that
    joined begins without members, and an earlier release does not say with what its log begins."""
    theirs = Config(("d", "e", "f"), ("a", "b", "c"))
    node = Starting("a", SIX, join=False)
    node.hear(
        b=says(""),
        c=says("k", 9, member=True, first=Config()),
        d=says("k", 7, member=True, first=theirs),
        e=says("k", 5, member=True, first=Config(("e",))),
    )
    node.hear(f=says("k", 8, member=True))
    assert node.made == [theirs] and not node.admission.refused


def test_a_node_is_refused_while_node_yaml_has_other_first_voters_than_its_replica() -> None:
    """It does not write the first entry either. Once the cluster exists, its meta state is in force."""
    node = Starting("a", SIX, join=False)
    node.admission.stop(first_config(TURNED))
    assert "began a cluster with the voters d, e, f, a, b and 1 other" in node.admission.refused
    for seeds in ("bcde", "f"):
        node.hear(**dict.fromkeys(seeds, says("")))
        node.effects.now += ASK_SELDOM_MS
    assert node.admission.refused and not node.admission.ask_missing()
    node.admission.end()
    assert not node.admission.refused

    for reply, why in (
        (says("k", 9), "cluster k exists already"),
        (ErrorReply("forbidden", "the incarnation of a was retired"), "b: the incarnation of a was retired"),
        (says("k", 9, member=True), ""),
    ):
        known = Starting("a", SIX, join=False)
        known.admission.stop(first_config(TURNED))
        known.hear(b=reply)
        assert known.admission.refused.startswith(why) and bool(known.admission.refused) == bool(why)
    fits = Starting("a", SIX, join=False)
    fits.admission.stop(first_config(MINE))
    assert not fits.admission.refused
    joining = Starting("a", SIX, join=False)
    joining.admission.stop(Config())
    assert joining.admission.refused == "this directory waits to join a cluster; set `join: true` and restart"


def test_the_first_voters_are_in_as_many_zones_as_possible() -> None:
    """Without zones they are the first seeds, as in earlier releases."""
    plain = tuple(Seed(n, n, 1) for n in "abcdefg")
    assert first_config(config("a", plain, join=False)) == Config(tuple("abcde"), ("f", "g"))
    zoned = tuple(Seed(n, n, 1, zone=z) for n, z in zip("abcdefg", "xxxxyyz", strict=True))
    assert first_config(config("a", zoned, join=False)) == Config(("a", "e", "g", "b", "f"), ("c", "d"))
    empty = MetaState(Image())
    asked = status_question(config("b", plain, join=False), "j")
    checked = check_status(config("a", zoned, join=False), "i", empty, True, asked)
    assert checked.conflicts == CONFLICT, "seeds with other zones would begin with other voters"


def test_many_seeds_are_asked_in_turn() -> None:
    """Twenty seeds on two cores that all asked each other every 300 ms spent their time on handshakes, none
    of which ended in time. Seeds that fit are asked after those that do not."""
    seeds = tuple(Seed(f"n{i:02}", f"n{i:02}", 1) for i in range(20))
    node = Starting("n00", seeds, join=False)
    asked: list[str] = []
    for _ in range(5):
        calls, node.effects.calls = node.effects.calls, []
        assert len(calls) <= ASKED_AT_ONCE
        node.effects.now += ASK_AGAIN_MS
        node.effects.fire()
        assert not node.effects.calls, "the answers are missing"
        for number, to, _ in calls:
            asked.append(to[0])
            silent = to[0] == "n07" and asked.count("n07") < 3
            node.effects.on_reply(number, ErrorReply("unavailable", "") if silent else says("", node=to[0]))
        node.effects.now += ASK_AGAIN_MS
        node.effects.fire()
    assert sorted(set(asked)) == [s.node for s in seeds[1:]] and not node.made
    assert node.admission.waiting_for == ("n07",)
    while not node.made:
        calls, node.effects.calls = node.effects.calls, []
        assert "n07" in [to[0] for _, to, _ in calls]
        for number, to, _ in calls:
            node.effects.on_reply(number, says("", node=to[0]))


def test_a_seed_at_another_seeds_address_is_refused() -> None:
    """Else the first entry would name the incarnation of another node, which would never be let in."""
    node = Starting("a", OLD, join=False)
    node.hear(b=says("", node="c"), c=says(""))
    assert "c answers at b:1, which node.yaml gives as b" in node.admission.refused and not node.made
    node.hear(b=says(""), c=says(""))
    assert node.made == [first_config(config("a", OLD, join=False))] and not node.admission.refused


def test_the_address_of_a_seed_may_have_another_name_in_an_existing_cluster() -> None:
    """The seed was replaced by a node with another name."""
    node = Starting("a", OLD, join=False)
    node.hear(b=says("k", 9, member=True, node="b2"), c=says("k", 9, member=True))
    assert node.made and not node.admission.refused


def test_a_first_start_is_refused_if_a_cluster_exists() -> None:
    node = Starting("a", OLD, join=False)
    node.hear(b=says("k", 4), c=says("k", 4))
    assert "cluster k exists already" in node.admission.refused and not node.made


def test_a_node_that_the_seeds_forbid_reports_it_until_one_answers() -> None:
    node = Starting("e", NEW, join=True)
    node.hear(a=ErrorReply("forbidden", "the certificate is of another cluster"))
    assert node.admission.refused == "a: the certificate is of another cluster"
    node.hear(b=says("k", 4))
    assert node.made == [Config()] and not node.admission.refused

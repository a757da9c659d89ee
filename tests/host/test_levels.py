"""Whether the feature level can be raised: only what every node currently reports about itself counts."""

from collections.abc import Collection

import pytest

from nodeagent.host.levels import PEERS_SPARE, PeerLevels
from nodeagent.meta.image import Image
from nodeagent.meta.nodes import DEAD
from nodeagent.model.errors import Refused
from nodeagent.model.features import Levels
from nodeagent.model.operation import Operation, Options, Stage
from nodeagent.model.requests import NodeRecord

OLD, NEW = Levels(1, 1), Levels(1, 2)


def image(*, dead: Collection[str] = (), operations: Collection[Operation] = ()) -> Image:
    nodes = {n: NodeRecord(n, n, 1, 2, f"inc-{n}", 0, state=DEAD if n in dead else "active") for n in "abc"}
    return Image(nodes=nodes, operations=list(operations))


def levels(own: Levels = NEW, **peers: Levels) -> PeerLevels:
    found = PeerLevels("a", own)
    for node, spoken in peers.items():
        found.meet(f"inc-{node}", spoken)
    return found


def check(found: PeerLevels, of: Image, silent: Collection[str] = (), level: int = 2) -> None:
    found.check_raise(level, of, lambda node: node in silent)


def test_the_level_can_be_raised_if_every_node_speaks_it() -> None:
    """The leader receives no hello from itself, and the current level needs no confirmation."""
    check(levels(b=NEW, c=NEW), image(), silent="a")
    check(levels(OLD), image(), silent="abc", level=1)


@pytest.mark.parametrize(
    ("found", "silent", "why"),
    [
        (levels(b=NEW, c=OLD), "", "c supports feature level 1, not 2"),
        (levels(OLD, b=NEW, c=NEW), "", "a supports feature level 1, not 2"),
        (levels(b=NEW), "", "c does not respond: whether it supports feature level 2 is not known"),
        (levels(b=NEW, c=NEW), "c", "c does not respond"),
        (levels(b=Levels(3, 4), c=NEW), "", "b supports feature level 3 to 4, not 2"),
    ],
)
def test_a_node_that_does_not_support_the_level_or_respond_blocks_it(
    found: PeerLevels, silent: str, why: str
) -> None:
    with pytest.raises(Refused, match=why):
        check(found, image(), silent)


def test_the_last_hello_of_a_node_counts() -> None:
    """The node was upgraded, then downgraded to the previous release."""
    found = levels(b=NEW, c=NEW)
    found.meet("inc-c", OLD)
    with pytest.raises(Refused, match="c supports"):
        check(found, image())


def test_a_node_of_another_directory_is_another_node() -> None:
    found = levels(b=NEW)
    found.meet("inc-of-before", NEW)
    with pytest.raises(Refused, match="c does not respond"):
        check(found, image())


def test_a_dead_node_does_not_block_the_level() -> None:
    check(levels(b=NEW), image(dead="c"), silent="c")


def test_a_joining_node_blocks_the_level() -> None:
    """The node is not a member yet, and may run an earlier release."""
    operation = Operation("op-7", "add-node", "d", "ann", 1, 1, 2, [], [], Options(), created_members=("d",))
    found = levels(b=NEW, c=NEW)
    with pytest.raises(Refused, match="op-7") as refused:
        check(found, image(operations=[operation]))
    assert refused.value.next_step == "iotctl ops wait op-7"
    operation.stage = Stage.DONE
    check(found, image(operations=[operation]))


def test_a_new_cluster_begins_at_the_highest_level_of_all() -> None:
    """A node that reports no level runs a release without feature levels."""
    nodes = list(image().nodes.values())
    assert levels(b=NEW, c=Levels(2, 5)).common(nodes) == 2
    assert levels(b=NEW, c=OLD).common(nodes) == 1
    assert levels(b=NEW).common(nodes) == 1
    assert levels(Levels(1, 7)).common([nodes[0]]) == 7


def test_nodes_that_left_are_forgotten_once_there_are_many() -> None:
    found = levels(b=NEW, c=NEW)
    for number in range(PEERS_SPARE + 5):
        found.meet(f"left-{number}", OLD)
    found.prune({"inc-a", "inc-b", "inc-c"})
    assert set(found._heard) == {"inc-b", "inc-c"}
    check(found, image())

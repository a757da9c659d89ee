"""To whom a leader without room leaves its group, and to whom it does not."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodeagent.data.slots import Sealed
from nodeagent.host.leadership import PREFER_HEADER_MS, SHORT_MS, Leadership
from nodeagent.host.replicas import Replicas
from nodeagent.model.operation import Operation, Options, SlotMove, Stage
from nodeagent.raft import PeerStatus
from nodeagent.raft.progress import ProgressState
from tests.host.test_host import leads_alone

ROOM, NONE, SILENT = "room", "none", "silent"


class World:
    """Node a leads `group`; `said` is what b and c say of their disks."""

    def __init__(self, group: str, *, low: bool, **said: str) -> None:
        self.asked: list[str] = []
        self.said = said
        self.can_change = True
        self.progress = {n: PeerStatus(9, ProgressState.REPLICATE) for n in ("b", "c")}
        raft = SimpleNamespace(
            log=SimpleNamespace(config=SimpleNamespace(voters=("a", "b", "c"))),
            short_of_room=lambda: [n for n, word in self.said.items() if word == NONE],
            has_room=lambda node: self.said[node] == ROOM if node != "a" else False,
            caught_up=lambda node: True,
            can_change=lambda: self.can_change,
            transfer=lambda node, now: self.asked.append(node),
            status=lambda: SimpleNamespace(progress=self.progress),
        )
        self.sources = {"b", "c"}
        self.sealed: dict[str, Any] = {}
        state = SimpleNamespace(slots=SimpleNamespace(sealed=self.sealed))
        self.replica = replica = SimpleNamespace(
            group=group,
            leads=True,
            raft=raft,
            state=state,
            for_peers=SimpleNamespace(lacks_files_of=lambda n: n in self.sources),
        )
        self.desk = SimpleNamespace(now=0, space=SimpleNamespace(is_low=low), note=lambda *_, **__: None)
        meta = SimpleNamespace(operations=SimpleNamespace(open=lambda: None), image=SimpleNamespace(nodes={}))
        replicas: Any = Replicas(cast(Any, SimpleNamespace(meta=meta, meta_replica=None)))
        replicas.data[group] = replica
        self.heard = {"b": 0, "c": 0}
        context = SimpleNamespace(node="a", desk=self.desk, random=random.Random(1))
        self.leadership = Leadership(cast(Any, context), replicas, cast(Any, self))

    def keep(self, *, after_ms: int = 0) -> list[str]:
        self.desk.now += after_ms
        self.heard = dict.fromkeys(self.heard, self.desk.now)
        self.leadership.keep()
        return self.asked


@pytest.mark.parametrize(
    "b,c,heir",
    [
        (ROOM, ROOM, ["b"]),
        (SILENT, ROOM, ["c"]),
        (NONE, ROOM, []),
        (NONE, NONE, []),
        (SILENT, SILENT, []),
    ],
)
def test_a_group_is_left_to_one_that_said_it_has_room_where_most_have(
    b: str, c: str, heir: list[str]
) -> None:
    """Where no majority has room another leader would refuse rows as well, and one that said nothing may."""
    assert World("a.1", low=True, b=b, c=c).keep() == heir


def test_one_with_room_that_is_not_at_hand_is_waited_for() -> None:
    world = World("a.1", low=True, b=SILENT, c=ROOM)
    del world.heard["c"]
    assert world.keep() == []


def test_a_header_that_was_short_of_room_is_preferred_when_that_is_long_ago() -> None:
    """Room comes and goes while disks fill, and leaders do not follow it."""
    world = World("b.1", low=False, b=NONE, c=ROOM)
    for _ in range(3):
        world.keep(after_ms=PREFER_HEADER_MS)
    world.said["b"] = ROOM
    while world.desk.now + PREFER_HEADER_MS < SHORT_MS:
        assert world.keep(after_ms=PREFER_HEADER_MS) == []
    for _ in range(6):
        world.keep(after_ms=PREFER_HEADER_MS)
    assert world.asked[:1] == ["b"]


def lacking(hollow: bool, waits: str, sources: str) -> World:
    """`waits` need a snapshot, `sources` hold the files of the sealed slots."""
    world = World("c.1", low=False, b=ROOM, c=ROOM)
    world.sealed["op-9"] = SimpleNamespace(hollow=hollow)
    world.sources = set(sources)
    world.progress |= {n: PeerStatus(0, ProgressState.SNAPSHOT) for n in waits}
    return world


@pytest.mark.parametrize(
    "hollow,waits,sources,heir",
    [
        (True, "c", "bc", ["b"]),
        (False, "c", "bc", []),
        (True, "", "bc", []),
        (True, "bc", "bc", []),
        (True, "c", "c", []),
        (True, "c", "b", []),
    ],
)
def test_a_group_is_left_to_one_that_can_bring_a_member_up_to_date(
    hollow: bool, waits: str, sources: str, heir: list[str]
) -> None:
    """A newcomer leads that joined without the files of sealed slots. A member that holds them came back, and
    must not be given a state without them; another one that has them can."""
    world = lacking(hollow, waits, sources)
    assert world.keep() == heir
    world.keep(after_ms=100)
    assert world.asked == heir, "once"


def test_a_group_is_left_to_a_source_only_by_its_leader_and_when_it_may_be_handed_over() -> None:
    """Raft raises what it refuses."""
    world = lacking(True, "c", "bc")
    world.can_change = False
    assert world.keep() == []
    world.can_change, world.replica.leads = True, False
    assert world.keep() == []
    world.replica.leads = True
    assert world.keep() == ["b"]


def test_files_are_lacking_of_the_sources_of_what_is_sealed_without_them() -> None:
    """A source of slots that are sealed with their files here, and no source at all, can be given a state."""
    host = leads_alone()
    replica = host.replicas.data["a.1"]
    for number, (hollow, source) in enumerate([(True, "b"), (False, "c")], start=8):
        slots = ((number, number + 1),)
        moves = [SlotMove(slots, "a.1", ("a", source), "d.1", ("d",))]
        host.cluster.meta.image.operations.append(
            Operation(f"op-{number}", "rebalance", "", "me", 0, 1, 2, moves, [], Options(), Stage.MOVING)
        )
        replica.state.slots.sealed[f"op-{number}"] = Sealed({number}, 9, b"", hollow)
    assert [n for n in "bcd" if replica.for_peers.lacks_files_of(n)] == ["b"]

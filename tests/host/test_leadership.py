"""The voters to which a leader transfers its leadership."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodeagent.data.slots import Sealed
from nodeagent.host.leadership import PREFER_OWNER_MS, SHORT_MS, Leadership
from nodeagent.host.replicas import Replicas
from nodeagent.model.operation import Operation, Options, SlotMove, Stage
from nodeagent.raft import PeerStatus
from nodeagent.raft.progress import ProgressState
from tests.host.test_host import leads_alone

ROOM, NONE, SILENT = "room", "none", "silent"


class World:
    """Node a leads `group`; `said` is what b and c report about their disks."""

    def __init__(self, group: str, *, low: bool, **said: str) -> None:
        self.asked: list[str] = []
        self.said = said
        self.can_change = True
        self.progress = {n: PeerStatus(9, ProgressState.REPLICATE) for n in ("b", "c")}
        raft = SimpleNamespace(
            log=SimpleNamespace(config=SimpleNamespace(voters=("a", "b", "c"))),
            voters_low_on_space=lambda: [n for n, word in self.said.items() if word == NONE],
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
        self.effects = SimpleNamespace(now=0, space=SimpleNamespace(is_low=low), note=lambda *_, **__: None)
        meta = SimpleNamespace(operations=SimpleNamespace(open=lambda: None), image=SimpleNamespace(nodes={}))
        replicas: Any = Replicas(cast(Any, SimpleNamespace(meta=meta, meta_replica=None)))
        replicas.data[group] = replica
        self.heard = {"b": 0, "c": 0}
        context = SimpleNamespace(node="a", effects=self.effects, random=random.Random(1))
        self.leadership = Leadership(cast(Any, context), replicas, cast(Any, self))

    def keep(self, *, after_ms: int = 0) -> list[str]:
        self.effects.now += after_ms
        self.heard = dict.fromkeys(self.heard, self.effects.now)
        self.leadership.keep()
        return self.asked


@pytest.mark.parametrize(
    "b,c,successor",
    [
        (ROOM, ROOM, ["b"]),
        (SILENT, ROOM, ["c"]),
        (NONE, ROOM, []),
        (NONE, NONE, []),
        (SILENT, SILENT, []),
    ],
)
def test_a_group_is_handed_to_a_voter_with_space_if_most_voters_have_some(
    b: str, c: str, successor: list[str]
) -> None:
    """Without a majority that has space another leader would refuse rows as well, and so may a silent
    voter."""
    assert World("a.1", low=True, b=b, c=c).keep() == successor


def test_a_leader_waits_for_a_voter_with_space_that_is_not_heard_or_lags() -> None:
    world = World("a.1", low=True, b=SILENT, c=ROOM)
    del world.heard["c"]
    assert world.keep() == []


def test_a_group_owner_that_was_short_of_space_long_ago_is_preferred() -> None:
    """Space comes and goes while disks fill, and leadership does not follow each change."""
    world = World("b.1", low=False, b=NONE, c=ROOM)
    for _ in range(3):
        world.keep(after_ms=PREFER_OWNER_MS)
    world.said["b"] = ROOM
    while world.effects.now + PREFER_OWNER_MS < SHORT_MS:
        assert world.keep(after_ms=PREFER_OWNER_MS) == []
    for _ in range(6):
        world.keep(after_ms=PREFER_OWNER_MS)
    assert world.asked[:1] == ["b"]


def lacking(metadata_only: bool, waits: str, sources: str) -> World:
    """`waits` need a snapshot, `sources` hold the files of the sealed slots."""
    world = World("c.1", low=False, b=ROOM, c=ROOM)
    world.sealed["op-9"] = SimpleNamespace(metadata_only=metadata_only)
    world.sources = set(sources)
    world.progress |= {n: PeerStatus(0, ProgressState.SNAPSHOT) for n in waits}
    return world


@pytest.mark.parametrize(
    "metadata_only,waits,sources,successor",
    [
        (True, "c", "bc", ["b"]),
        (False, "c", "bc", []),
        (True, "", "bc", []),
        (True, "bc", "bc", []),
        (True, "c", "c", []),
        (True, "c", "b", []),
    ],
)
def test_a_group_is_handed_to_a_voter_that_can_send_a_member_its_snapshot(
    metadata_only: bool, waits: str, sources: str, successor: list[str]
) -> None:
    """The leader is a newcomer that joined without the files of sealed slots. A member that holds them
    is back and must not be sent a state without them; another member that has them can send its own."""
    world = lacking(metadata_only, waits, sources)
    assert world.keep() == successor
    world.keep(after_ms=100)
    assert world.asked == successor, "it asks only once"


def test_only_a_leader_that_may_transfer_hands_its_group_to_a_source() -> None:
    """Raft raises what it refuses."""
    world = lacking(True, "c", "bc")
    world.can_change = False
    assert world.keep() == []
    world.can_change, world.replica.leads = True, False
    assert world.keep() == []
    world.replica.leads = True
    assert world.keep() == ["b"]


def test_a_metadata_only_seal_lacks_the_files_of_its_sources() -> None:
    """A node can be sent a state if it is no source, or a source of slots that are sealed with files here."""
    host = leads_alone()
    replica = host.replicas.data["a.1"]
    for number, (metadata_only, source) in enumerate([(True, "b"), (False, "c")], start=8):
        slots = ((number, number + 1),)
        moves = [SlotMove(slots, "a.1", ("a", source), "d.1", ("d",))]
        host.cluster.meta.image.operations.append(
            Operation(f"op-{number}", "rebalance", "", "me", 0, 1, 2, moves, [], Options(), Stage.COPYING)
        )
        replica.state.slots.sealed[f"op-{number}"] = Sealed({number}, 9, b"", metadata_only)
    assert [n for n in "bcd" if replica.for_peers.lacks_files_of(n)] == ["b"]

"""Disks fill up on whole simulated clusters, usually on all replicas together."""

from collections import Counter

import pytest

from nodeagent.host import leadership
from nodeagent.host.leadership import PREFER_OWNER_MS
from nodeagent.log.identity import LOG_DIR
from nodeagent.log.space import RESERVE
from nodeagent.model import requests as q
from nodeagent.model.ids import META, owner_of
from nodeagent.model.limits import MIB
from nodeagent.model.requests import ErrorReply, Reply
from nodeagent.model.space import Room, floor_of, refuse_below
from nodeagent.testing.checks import check_clean, check_converged
from nodeagent.testing.machine import CLEAN_MS
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.writers import Writer, _Op
from tests.sim.spread import spread

CAPACITY = 8 * MIB
RESUME_MS = 30_000


class Plant:
    """Three nodes with small disks and writers; counts the error codes with which writes are refused."""

    def __init__(self, seed: int) -> None:
        self.scenario = Scenario(seed, nodes=3, spares=0)
        self.sim = self.scenario.sim
        self.nodes = list(self.sim.nodes.values())
        self.refusals: Counter[str] = Counter()
        self.last = ""
        self.rows = self.deletes = 0
        """Acknowledged writes, acknowledged deletes."""

        for node in self.nodes:
            node.disk.capacity_bytes = CAPACITY
        for writer in self.scenario.writers:
            self._listen(writer)
        self.scenario.begin()
        self.sim.pause(4_000)

    def _listen(self, writer: Writer) -> None:
        on = writer._on

        def heard(op: _Op, group: str, reply: Reply) -> None:
            if isinstance(reply, ErrorReply):
                self.refusals[reply.code] += 1
                self.last = reply.what if reply.code == "overloaded" else self.last
            elif op.delete:
                self.deletes += 1
            else:
                self.rows += 1
            on(op, group, reply)

        writer._on = heard  # type: ignore[method-assign]

    def fill(self, leave: int) -> None:
        for node in self.nodes:
            node.take_room(leave)

    def most_low(self) -> bool:
        """Whether at least two nodes are low on space: the third may have purged its log."""
        return sum(n.alive and n.host.effects.space.is_low for n in self.nodes) >= 2

    def led(self) -> bool:
        """Whether every group has a leader that can commit."""
        led = {r.group for n in self.nodes if n.alive for r in n.host.replicas if r.raft.can_change()}
        return led >= {META, *self.scenario.newest().image.groups}

    def led_by(self, node: SimNode) -> set[str]:
        return {g for g, r in node.host.replicas.data.items() if r.leads}

    def terms(self) -> int:
        """Grows with every change of a data group's leader."""
        groups: dict[str, int] = {}
        for node in self.nodes:
            for group, replica in node.host.replicas.data.items():
                groups[group] = max(groups.get(group, 0), replica.raft.term)
        return sum(groups.values())

    def refuses(self) -> None:
        """Check that rows are refused with the reason, and that none are acknowledged for a while."""
        self.scenario.until(self.most_low, "most nodes are short of room")
        self.sim.pause(1_000)
        before = self.rows
        self.refusals.clear()
        self.sim.pause(3_000)
        assert self.rows == before and self.refusals["overloaded"], self.refusals
        assert "MiB left" in self.last or "has room" in self.last, self.last
        assert all(n.alive for n in self.nodes)

    def goes_on(self) -> None:
        """Free the disks; check that the cluster continues by itself and that no acknowledged row is lost."""
        self.fill(CAPACITY)
        before = self.rows
        self.scenario.until(lambda: self.rows > before + 20, "writes continue", RESUME_MS)
        self.scenario.quiet()
        check_converged(self.sim)
        self.scenario.read_everything()
        self.sim.pause(CLEAN_MS)
        check_clean(self.sim)


@pytest.mark.parametrize("seed", spread((1, 2)))
def test_replicas_that_fill_together_refuse_rows_and_recover(seed: int) -> None:
    """Below the first watermark every group has a leader, refuses rows with the reason, and accepts them
    again as soon as there is space, although nodes lose power in between."""
    plant = Plant(seed)
    plant.fill(refuse_below(CAPACITY) // 2)
    plant.refuses()
    for node in plant.nodes:
        plant.scenario.kill(node.node, 200, power=True)
        plant.sim.pause(2_000)
    plant.scenario.until(plant.led, "every group has a leader on full disks")
    plant.fill(refuse_below(CAPACITY) // 2)
    plant.refuses()
    plant.goes_on()


@pytest.mark.parametrize("seed", spread((1, 2)))
def test_replicas_without_a_free_byte_recover(seed: int) -> None:
    """Another program uses every byte before a node has measured the disk. The logs retain what they cannot
    write, no node ends, and all nodes continue once there is space."""
    plant = Plant(seed)
    for node in plant.nodes:
        node.host.on_disk = lambda free, total, now: None  # type: ignore[method-assign]
    for _ in range(40):
        plant.fill(0)
        plant.sim.pause(250)
    assert all(n.alive and n.held for n in plant.nodes)
    before = plant.rows
    plant.sim.pause(500)
    assert plant.rows == before
    for node in plant.nodes:
        del node.host.on_disk
    plant.goes_on()


@pytest.mark.parametrize("seed", spread((1, 2)))
def test_nodes_start_without_a_free_byte(seed: int) -> None:
    """A node is killed, or loses power, while its disk is full to the last byte and its reserve is used up.
    It starts again: it runs, reports no damage, and no peer takes it for an older copy."""
    plant = Plant(seed)
    plant.scenario.until(lambda: plant.rows > 20, "rows are written")
    for turn in range(6):
        node = plant.nodes[turn % 3]
        node.stop(power=turn % 2 == 0)
        for _ in range(8):
            plant.fill(0)
            plant.sim.pause(100)
        if node.disk.exists(f"{LOG_DIR}/{RESERVE}"):
            node.disk.unlink(f"{LOG_DIR}/{RESERVE}")
        node.take_room(0)
        node.start()
        plant.fill(0)
        plant.sim.pause(2_000)
        assert node.alive and not node.damaged and not node.host.replicas.damaged
    assert not any(n.host.peers.starts.older or n.host.own_membership.older_copy for n in plant.nodes)
    plant.goes_on()


@pytest.mark.parametrize("seed", spread((1, 2)))
def test_one_full_node_does_not_stop_the_others(seed: int) -> None:
    """Groups that other nodes lead continue; once the full node has space, it catches up."""
    plant = Plant(seed)
    victim = plant.nodes[seed % 3]
    rooms = []
    for _ in range(10):
        victim.take_room(floor_of(CAPACITY) // 2)
        plant.sim.pause(200)
        rooms.append(victim.host.effects.space.room)  # a purge of its log may free a little
    assert Room.FULL in rooms and Room.ENOUGH not in rooms
    others = [
        (n, r) for n in plant.nodes if n is not victim for r in n.host.replicas.data.values() if r.leads
    ]
    refusals = [n.host.effects.space.refusal(r.raft.voters_low_on_space(), 3) for n, r in others]
    assert others and not any(refusals), refusals
    assert any(victim.node in r.raft.voters_low_on_space() for _, r in others)
    plant.goes_on()


@pytest.mark.long
@pytest.mark.parametrize(("seed", "share"), spread([(1, 0.5), (2, 0.25)]))
def test_a_leader_that_alone_lacks_space_transfers_its_leadership(
    seed: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes of all its groups continue. Leaders do not change again and again while its space comes and
    goes; its own group returns to it once it has had space for a while."""
    monkeypatch.setattr(leadership, "SHORT_MS", 12_000)
    plant = Plant(seed)
    victim = next(n for n in plant.nodes if plant.led_by(n))
    own = {g for g in plant.led_by(victim) if owner_of(g) == victim.node}
    assert own
    low, before = int(refuse_below(CAPACITY) * share), plant.terms()
    for turn in range(2):
        victim.take_room(low)
        plant.scenario.until(lambda: not plant.led_by(victim), "others lead", 2_000)
        plant.refusals.clear()
        rows = plant.rows
        for _ in range(6):
            victim.take_room(low)
            plant.sim.pause(250)
        assert plant.rows > rows and not plant.refusals["overloaded"], plant.refusals
        if turn == 0:
            victim.take_room(CAPACITY)
            plant.sim.pause(2 * PREFER_OWNER_MS + 500)
            assert not plant.led_by(victim)
    assert plant.terms() - before == len(own)
    victim.take_room(CAPACITY)
    plant.scenario.until(lambda: own <= plant.led_by(victim), "its own group comes back", 20_000)
    plant.goes_on()


def test_leaders_stay_if_all_nodes_lack_space() -> None:
    """If no majority has space, another leader would not help: when the disks fill one after the other, only
    the first full node transfers its leaderships."""
    plant = Plant(1)
    before, groups = plant.terms(), len(plant.scenario.newest().image.groups)
    plant.nodes[0].take_room(refuse_below(CAPACITY) // 2)
    plant.sim.pause(1_500)
    settled = plant.terms()
    assert before < settled <= before + groups
    for node in plant.nodes:
        node.take_room(refuse_below(CAPACITY) // 2)
        plant.sim.pause(1_500)
    for _ in range(20):
        plant.fill(refuse_below(CAPACITY) // 2)
        plant.sim.pause(500)
    assert plant.terms() == settled


def test_commands_that_free_space_are_accepted_without_space_for_rows() -> None:
    """Deletes and commands of operators are not refused with the rows."""
    plant = Plant(3)
    plant.fill(refuse_below(CAPACITY) // 2)
    plant.refuses()
    for writer in plant.scenario.writers:
        writer._next()
    plant.sim.pause(3_000)
    assert plant.deletes
    assert isinstance(plant.scenario.request(q.Drain("node1", True, "sim"), q.Accepted), q.Accepted)

"""Exactly-once writes to a moved slot: what the source group applied is a duplicate in the target group."""

import pytest

from nodeagent.data import slot_migration
from nodeagent.model import requests as q
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.requests import ErrorReply, Reply, SessionOpened, Written
from nodeagent.partition.hash import slot_of
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT
from nodeagent.testing.workload import RETRY_MS, TABLE
from tests.sim.spread import spread

WEEKS = 4


class Client:
    """Sends a delete (it counts once, like a write) to the group that owns its slot, until it is answered."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.sim, self.view = scenario, scenario.sim, scenario.view
        assert self.view.meta is not None
        self.settings = self.view.meta.settings
        self.sessions: dict[GroupId, str] = {}

    def ask(self, slot: int, request: q.Request, group: GroupId) -> Reply:
        got: list[Reply] = []
        _, members = self.view.group(slot) or ("", ())
        self.sim.call(CLIENT, self.view.target(group, members), request, got.append)
        self.scenario.until(lambda: bool(got), "one reply")
        return got[0]

    def session(self, group: GroupId, slot: int) -> str:
        while group not in self.sessions:
            reply = self.ask(slot, q.OpenSession(group), group)
            if isinstance(reply, SessionOpened):
                self.sessions[group] = reply.session
            else:
                self.again(group, reply)
        return self.sessions[group]

    def again(self, group: GroupId, reply: Reply) -> None:
        assert isinstance(reply, ErrorReply), reply
        assert reply.code != "session_expired", reply
        self.view.learn(group, reply)
        self.sim.pause(RETRY_MS)

    def write(self, partition: PartitionKey, session: str = "", sequence: int = 1) -> tuple[str, Written]:
        """Write until it is acknowledged; return the session that was used, and the answer."""
        slot = slot_of(partition.storage_group, partition.time_partition, 0, self.settings)
        while True:
            group, _ = self.view.group(slot) or ("", ())
            name = session or self.session(group, slot)
            at = (group, slot, partition, TABLE, name, sequence, sequence - 1)
            reply = self.ask(slot, q.DeleteRows(*at, (), 0, 1), group)
            if isinstance(reply, Written):
                return name, reply
            self.again(group, reply)


@pytest.mark.parametrize("killed", ["nobody", "leader", "newcomer"])
@pytest.mark.parametrize("seed", spread([1, 2, 3]))
def test_a_retry_over_a_moved_slot_is_a_duplicate(
    seed: int, killed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node is added; then every earlier write is retried in the group that owns its slot. The sessions take
    several parts on a network that loses and duplicates messages, and the leader of a losing or gaining group
    loses power during their transfer."""
    monkeypatch.setattr(slot_migration, "SESSIONS_PART_BYTES", 16)
    scenario = Scenario(seed)
    scenario.form()
    scenario.schemas()
    client = Client(scenario)
    every = [PartitionKey(g, week, 0) for g in scenario.storage_groups for week in range(WEEKS)]
    places = list({slot_of(*_key(place), client.settings): place for place in every}.values())
    sent = {place: client.write(place)[0] for place in places}
    before = {place: client.view.group(slot_of(*_key(place), client.settings)) for place in places}
    scenario.sim.nodes[scenario.newcomers[0]].start()
    scenario.sim.faults.drop, scenario.sim.faults.duplicate = 0.02, 0.05
    operation = scenario.change("add-node", scenario.newcomers[0])
    scenario.until(lambda: scenario.stage(operation) not in ("PLANNED", "SEALED"), "slots may be opened")
    record = scenario.record(operation)
    assert record is not None and not any(r.sessions for r in record.sealed.values())
    if killed == "newcomer":
        scenario.kill(scenario.newcomers[0], 300, power=True)
    elif killed == "leader":
        source = record.losing[0]
        alive = [n for n in scenario.sim.nodes.values() if n.alive and source in n.host.replicas.data]
        scenario.kill(next(n.node for n in alive if n.host.replicas.data[source].leads), 300, power=True)
    scenario.finish(operation)
    client.view.refresh()
    scenario.sim.pause(1000)
    moved = 0
    for place in places:
        moved += client.view.group(slot_of(*_key(place), client.settings)) != before[place]
        assert client.write(place, sent[place])[1].duplicate, place
        assert not client.write(place, sent[place], 2)[1].duplicate, place
    assert moved >= 2


def _key(place: PartitionKey) -> tuple[str, int, int]:
    return place.storage_group, place.time_partition, place.shard

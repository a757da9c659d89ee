"""No acknowledged write is lost or applied twice, and an error claims only what is certain."""

import asyncio
import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from nodeagent.client.cluster import Cluster
from nodeagent.client.deadline import BUSY_TIMEOUTS_MAX, Deadline
from nodeagent.client.sessions import WINDOW, Sessions
from nodeagent.model.errors import (
    InvalidInput,
    NodeAgentError,
    NotFound,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    SchemaMismatch,
    Unavailable,
)
from nodeagent.model.requests import OpenSession, Reply, Request, Write
from nodeagent.partition.hash import shard_of, slot_of
from tests.client.clock import run
from tests.client.fake import NODES, SETTINGS, FakeCluster, Faults
from tests.client.rows import SCHEMA, SG, TABLE, rows


def make(seed: int = 0, faults: Faults | None = None) -> tuple[FakeCluster, Cluster]:
    fake = FakeCluster(seed, faults)
    fake.add_table(SCHEMA)
    return fake, Cluster(fake, timeout_s=10, rng=random.Random(seed))


def group_at(fake: FakeCluster, time: int, shard: int = 0) -> tuple[int, str]:
    slot = slot_of(SG, time // 1000, shard, SETTINGS)
    return slot, next(g.name for g in fake.groups.values() if slot in g.slots)


async def move_about(fake: FakeCluster, rng: random.Random) -> None:
    """Cause moves, elections, expiries and outages until cancelled."""
    operation = ""
    steps: list[Callable[[str], None]] = []
    while True:
        await asyncio.sleep(rng.random() * 0.6)
        action = rng.random()
        if steps:
            steps.pop(0)(operation)
        elif action < 0.5:
            source, target = rng.sample(sorted(fake.groups), 2)
            if fake.groups[source].slots:
                slots = set(rng.sample(sorted(fake.groups[source].slots), 1))
                operation = fake.plan(slots, source, target)
                steps = [fake.seal, fake.open, fake.adopt]
        elif action < 0.8:
            fake.elect(rng.choice(sorted(fake.groups)))
        elif action < 0.9:
            fake.expire_sessions(rng.choice(sorted(fake.groups)))
        else:
            fake.down = {rng.choice(["node2", "node3", "node4"])} if not fake.down else set()


async def stop(mover: asyncio.Task[None]) -> None:
    """Raise the error of a task that moves slots, if it ended with one."""
    assert not mover.done(), mover.exception()
    mover.cancel()


async def write_under_faults(seed: int) -> tuple[int, int, int]:
    faults = Faults(lose_request=0.03, late_request=0.03, lose_reply=0.06, stale_meta=0.3, delay_max_s=0.05)
    fake, cluster = make(seed, faults)
    rng = random.Random(seed + 1000)
    mover = asyncio.create_task(move_about(fake, rng))
    outcomes: dict[float, NodeAgentError | None] = {}

    async def one(marker: float) -> None:
        await asyncio.sleep(rng.random() * 15)
        try:
            await cluster.write(SG, TABLE, rows((int(marker) * 317, f"d{marker % 5}", marker, None)))
            outcomes[marker] = None
        except NodeAgentError as error:
            outcomes[marker] = error

    await asyncio.gather(*(one(float(i)) for i in range(60)))
    await stop(mover)
    await fake.settle()
    unknown = 0
    for marker, outcome in outcomes.items():
        times = fake.times_applied(marker)
        if outcome is None:
            assert times == 1, f"seed {seed}: acknowledged {marker} is there {times} times"
        elif isinstance(outcome, OutcomeUnknown):
            unknown += 1
            assert times <= 1, f"seed {seed}: {marker} is there {times} times"
        else:
            assert times == 0, f"seed {seed}: {outcome!r} of {marker}, which is there"
    return sum(o is None for o in outcomes.values()), unknown, len(fake.operations)


def test_a_new_ttl_is_visible_at_once() -> None:
    """A new TTL does not change the table version, yet the client must not return the old TTL."""

    async def body() -> None:
        _, cluster = make()
        (schema,) = await cluster.schemas()
        await cluster.put_schema(schema, 5000)
        (again,) = await cluster.schemas()
        assert (schema.ttl_ms, again.ttl_ms) == (0, 5000) and again.version == schema.version

    run(body())


def test_no_write_is_lost_or_doubled_under_faults() -> None:
    """Lost and late messages, elections, moves, expired sessions, dead nodes: the reported outcome is
    true."""
    done = unknown = moves = 0
    for seed in range(25):
        a, b, c = run(write_under_faults(seed))
        done, unknown, moves = done + a, unknown + b, moves + c
    assert done > 1200 and moves > 100, (done, unknown, moves)


def test_a_retried_write_keeps_its_number_in_the_new_group() -> None:
    """The answer is lost, the slot moves, the write is retried: the new group recognises it."""

    async def scenario() -> None:
        fake, cluster = make()
        slot, old = group_at(fake, 0)
        slot1, _ = group_at(fake, 0, 1)
        new = "node4.1" if old != "node4.1" else "node1.1"
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        fake.faults.lose_reply = 1.0
        task = asyncio.create_task(cluster.write(SG, TABLE, rows((1, "a", 2.0, None))))
        while not fake.times_applied(2.0):
            await asyncio.sleep(0.001)
        fake.faults.lose_reply = 0.0
        moved = {slot, slot1} & fake.groups[old].slots
        operation = fake.plan(moved, old, new)
        fake.seal(operation)
        fake.open(operation)
        report = await task
        assert report.rows == 1 and fake.times_applied(2.0) == 1
        sent = [r for _, r in fake.log if isinstance(r, Write)][1:]
        assert len({(r.session, r.sequence) for r in sent}) == 1
        await cluster.write(SG, TABLE, rows((2, "a", 3.0, None)))
        last = [r for _, r in fake.log if isinstance(r, Write)][-1]
        assert last.session.startswith(last.group), "a new write uses a session of the new group"

    run(scenario())


def test_an_expired_session_is_renewed_if_no_attempt_can_have_taken_effect() -> None:
    """The write was never applied, so a new session cannot duplicate it."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        for name in fake.groups:
            fake.expire_sessions(name)
        await cluster.write(SG, TABLE, rows((1, "a", 2.0, None)))
        assert fake.times_applied(2.0) == 1

    run(scenario())


def test_a_session_can_be_dropped_twice_if_its_successor_failed_to_open() -> None:
    """Two writes learn that the group has no such session; in between, its successor failed to open. The
    second write must continue by its own rules: an error here would claim that it had no effect."""

    async def scenario() -> None:
        fake, cluster = make()
        slot, group = group_at(fake, 0)
        sessions = Sessions(cluster._calls)
        ticket = await sessions.take(group, slot, Deadline(1.0))
        sessions.drop(ticket.session)
        fake.down = set(NODES)
        with pytest.raises(Unavailable):
            await sessions.take(group, slot, Deadline(1.0))
        sessions.drop(ticket.session)
        fake.down = set()
        again = await sessions.take(group, slot, Deadline(1.0))
        assert again.session is not ticket.session

    run(scenario())


def test_an_expired_session_after_a_lost_answer_is_unknown() -> None:
    """The group no longer knows whether it applied the write, so the outcome is unknown."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        fake.faults.lose_reply = 1.0
        task = asyncio.create_task(cluster.write(SG, TABLE, rows((1, "a", 2.0, None))))
        while not fake.times_applied(2.0):
            await asyncio.sleep(0.001)
        fake.faults.lose_reply = 0.0
        for name in fake.groups:
            fake.expire_sessions(name)
        with pytest.raises(OutcomeUnknown):
            await task
        assert fake.times_applied(2.0) == 1

    run(scenario())


def test_an_unknown_error_code_leaves_the_write_unknown() -> None:
    """A code that this client does not know is neither a refusal nor an acknowledgement."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        handle = fake.handle

        def strange(target: str, request: Request) -> Reply:
            reply = handle(target, request)
            if isinstance(request, Write):
                fake.handle = handle  # type: ignore[method-assign]
                for name in fake.groups:
                    fake.expire_sessions(name)
                raise NodeAgentError("of a later release")
            return reply

        fake.handle = strange  # type: ignore[method-assign]  # the fault of this test
        with pytest.raises(OutcomeUnknown, match="of a later release"):
            await cluster.write(SG, TABLE, rows((1, "a", 2.0, None)))
        assert fake.times_applied(2.0) == 1

    run(scenario())


def test_a_sealed_slot_is_waited_for() -> None:
    """Between seal and open a write waits: it is neither refused nor repeatedly sent to the old group."""

    async def scenario() -> None:
        fake, cluster = make()
        slot, old = group_at(fake, 0)
        slots = {slot, group_at(fake, 0, 1)[0]} & fake.groups[old].slots
        operation = fake.plan(slots, old, "node4.1" if old != "node4.1" else "node1.1")
        fake.seal(operation)
        data = rows(*((i, f"d{i}", float(i), None) for i in range(8)))
        task = asyncio.create_task(cluster.write(SG, TABLE, data))
        await asyncio.sleep(2)
        assert not task.done()
        fake.open(operation)
        assert (await task).rows == 8

    run(scenario())


def test_a_session_of_the_target_group_is_opened_before_the_slot_opens() -> None:
    """A writer that waits for a slot has a session and a connection to its new group when the slot opens."""

    async def scenario() -> None:
        fake, cluster = make()
        slot, old = group_at(fake, 0, shard_of(["a"], SETTINGS.shards))
        new = "node4.1" if old != "node4.1" else "node1.1"
        owner = fake.owner[slot]
        operation = fake.plan({slot}, old, new)
        fake.seal(operation)
        coming, fake.owner[slot] = fake.owner[slot], owner  # the table changes when the slot may open
        fake.publish()
        task = asyncio.create_task(cluster.write(SG, TABLE, rows((0, "a", 1.0, None))))
        await asyncio.sleep(1)
        assert [r.group for _, r in fake.log if isinstance(r, OpenSession)] == [old, new]
        fake.owner[slot] = coming
        fake.open(operation)
        assert (await task).rows == 1
        await cluster.write(SG, TABLE, rows((0, "a", 2.0, None)))
        assert (fake.times_applied(1.0), fake.times_applied(2.0)) == (1, 1)
        assert sum(isinstance(r, OpenSession) for _, r in fake.log) == 2

    run(scenario())


def test_a_write_follows_the_previous_group_s_hint() -> None:
    """The write follows the hint even while no requested node has the newest view."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.meta()
        slot, old = group_at(fake, 0, shard_of(["a"], SETTINGS.shards))
        new = "node4.1" if old != "node4.1" else "node1.1"
        fake.groups[old].slots.discard(slot)
        fake.groups[new].slots.add(slot)
        fake.owner[slot] = fake.groups[new].record.owner
        assert (await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))).rows == 1
        assert [r.group for _, r in fake.log if isinstance(r, OpenSession)] == [old, new]

    run(scenario())


def test_a_write_waits_until_the_client_knows_the_target_group() -> None:
    """A node may name the next group owner of the slot before every node has the view that contains its
    group."""

    async def scenario() -> None:
        fake, cluster = make()
        slot, old = group_at(fake, 0, shard_of(["a"], SETTINGS.shards))
        owner, fake.owner[slot] = fake.owner[slot], "node99"
        fake.groups[old].slots.discard(slot)
        task = asyncio.create_task(cluster.write(SG, TABLE, rows((0, "a", 1.0, None))))
        await asyncio.sleep(1)
        assert not task.done()
        fake.owner[slot] = owner
        fake.groups[old].slots.add(slot)
        assert (await task).rows == 1

    run(scenario())


@pytest.mark.parametrize("how", ["down", "leaderless"])
def test_a_write_never_accepted_is_a_definite_failure_at_the_deadline(how: str) -> None:
    """A write that was never sent, or always refused, ends with `Unavailable` and has no effect."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.meta()
        if how == "down":
            fake.down = set(fake.known())
        else:
            for group in fake.groups.values():
                group.leader = "nobody"
        started = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable):
            await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        assert asyncio.get_running_loop().time() - started < 25
        assert not fake.times_applied(1.0)

    run(scenario())


def test_the_deadline_error_is_that_of_the_leader_without_room() -> None:
    """The other members only answer that they do not lead, which is not the reason."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        call = fake.call

        async def full(target: str, request: Request, timeout_s: float) -> Reply:
            reply = await call(target, request, timeout_s) if not isinstance(request, Write) else None
            if reply is not None:
                return reply
            assert isinstance(request, Write)
            leader = fake.groups[request.group].leader
            if target != leader:
                raise NotLeader("this node does not lead", leader=None)
            raise Overloaded("the disk of the leader has 1 MiB left")

        fake.call = full  # type: ignore[method-assign]
        for _ in range(4):
            with pytest.raises(Overloaded, match="1 MiB left"):
                await cluster.write(SG, TABLE, rows((0, "a", 2.0, None)))

    run(scenario())


@pytest.mark.parametrize(("busy_s", "at_work"), [(40.0, True), (1e9, True), (40.0, False)])
def test_a_leader_that_flushes_rows_is_waited_for(busy_s: float, at_work: bool) -> None:
    """The client waits `BUSY_TIMEOUTS_MAX` timeouts. It sends the rows to this leader alone, about once a
    second, unless no time is left for its answer. It waits only one timeout for a leader that is not busy."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        call, clock = fake.call, asyncio.get_running_loop().time
        started, asked, given_s = clock(), [], []

        async def pressed(target: str, request: Request, timeout_s: float) -> Reply:
            if isinstance(request, Write):
                asked.append(target)
                given_s.append(timeout_s)
                if at_work:
                    await asyncio.sleep(min(timeout_s, 0.3))
                if at_work and timeout_s < 0.3:
                    raise OutcomeUnknown("no answer in time")
                if clock() - started < busy_s and target == fake.groups[request.group].leader:
                    raise Overloaded("rows wait for their files", at_work=at_work)
            return await call(target, request, timeout_s)

        fake.call = pressed  # type: ignore[method-assign]
        if at_work and busy_s < BUSY_TIMEOUTS_MAX * 10:
            assert (await cluster.write(SG, TABLE, rows((0, "a", 2.0, None)))).rows == 1
            assert fake.times_applied(2.0) == 1
        else:
            with pytest.raises(Overloaded, match="wait for their files"):
                await cluster.write(SG, TABLE, rows((0, "a", 2.0, None)))
            assert not fake.times_applied(2.0)
        took_s, wanted_s = clock() - started, min(busy_s, BUSY_TIMEOUTS_MAX * 10.0) if at_work else 10.0
        assert wanted_s - 2 < took_s < wanted_s + 2
        assert min(given_s) > (1.0 if at_work else 0.001)
        if at_work:
            assert len(set(asked)) == 1 and len(asked) < 2 * took_s + 10

    run(scenario())


def test_no_answer_until_the_deadline_is_an_unknown_outcome() -> None:
    """A request that may be in the log is never reported as a definite failure."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        fake.hung = set(fake.known())
        with pytest.raises(OutcomeUnknown):
            await cluster.write(SG, TABLE, rows((1, "a", 2.0, None)))

    run(scenario())


def test_a_partly_acknowledged_write_is_unknown_and_counts_its_rows() -> None:
    """One group answers, another is dead: a definite error would be wrong for the first."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.meta()
        for group in list(fake.groups.values())[2:]:
            group.leader = "nobody"
        data = rows(*((i * 500, f"d{i % 7}", float(i), None) for i in range(60)))
        with pytest.raises(OutcomeUnknown) as caught:
            await cluster.write(SG, TABLE, data)
        there = sum(fake.times_applied(float(i)) for i in range(60))
        assert 0 < caught.value.details["rows_acknowledged"] == there < 60

    run(scenario())


def test_bad_rows_are_refused_before_anything_is_sent() -> None:
    """Unknown columns, missing tables and null times never reach a group."""

    async def scenario() -> None:
        fake, cluster = make()
        with pytest.raises(SchemaMismatch):
            await cluster.write(SG, TABLE, pa.table({"time": [1], "nope": [2.0]}))
        with pytest.raises(InvalidInput):
            await cluster.write(SG, TABLE, pa.table({"time": pa.array([None], pa.int64()), "v": [2.0]}))
        with pytest.raises(NotFound):
            await cluster.write(SG, "other", pa.table({"time": [1], "v": [2.0]}))
        assert not [r for _, r in fake.log if isinstance(r, Write)]

    run(scenario())


def test_tags_create_and_extend_a_table() -> None:
    """The first write creates the table, a later write adds a column; the rows of both stay."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write("root.New", "T", pa.table({"time": [1], "Dev": ["x"], "v": [2.0]}), tags=["dev"])
        wider = pa.table({"time": [2], "dev": ["x"], "v": [3.0], "w": [4.0]})
        await cluster.write("root.new", "t", wider, tags=["dev"])
        schema = fake.schemas["root.new", "t"]
        assert [c.name for c in schema.columns] == ["dev", "v", "w"] and schema.version == 2
        assert (await cluster.scan("root.new", "t")).num_rows == 2

    run(scenario())


def test_entries_are_split_by_rows_and_by_slot() -> None:
    """An entry has rows of one slot and partition only, at most `rows_max`."""

    async def scenario() -> None:
        fake, cluster = make()
        data = rows(*((i * 100, f"d{i % 3}", float(i), None) for i in range(200)))
        report = await cluster.write(SG, TABLE, data, rows_max=4)
        applied = [a for g in fake.groups.values() for a in g.rows]
        assert report.rows == 200 and report.entries == len(applied)
        for a in applied:
            assert a.rows.num_rows <= 4
            assert {t // 1000 for t in a.rows.column("time").to_pylist()} == {a.partition.time_partition}
            assert a.slot == slot_of(SG, a.partition.time_partition, a.partition.shard, SETTINGS)

    run(scenario())


def test_at_most_half_the_window_is_in_flight_per_slot() -> None:
    """Writes beyond the window of the group wait for their turn, and all are applied once."""

    async def scenario() -> None:
        fake, cluster = make()
        count = WINDOW + 100
        async with cluster.writer(in_flight=count) as writer:
            for i in range(count):
                await writer.write(SG, TABLE, rows((i % 1000, "a", float(i), None)))
            report = await writer.drain()
        assert report.rows == count
        writes = [r for _, r in fake.log if isinstance(r, Write)]
        assert all(r.sequence - r.acknowledged_through <= WINDOW for r in writes)
        assert sum(a.rows.num_rows for g in fake.groups.values() for a in g.rows) == count

    run(scenario())


def test_a_bulk_writer_raises_the_first_failure() -> None:
    """A caller that drains it cannot mistake a lost row for a written row."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.meta()
        for group in fake.groups.values():
            group.leader = "nobody"
        with pytest.raises(Unavailable):
            async with cluster.writer() as writer:
                await writer.write(SG, TABLE, rows((0, "a", 1.0, None)))

    run(scenario())

"""Reads return every acknowledged row once, also while slots move; a missing slot is an error."""

import asyncio
import random

import msgspec
import pytest

from nodeagent.client.cluster import Cluster
from nodeagent.client.pages import merge_below
from nodeagent.client.query import Query, slots_of
from nodeagent.model.errors import InvalidInput, NodeAgentError, NotFound, OutcomeUnknown, Unavailable
from nodeagent.model.files import ScanSpec, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.requests import ListPartitions, PartitionsListed, Reply, Request, RowsScanned, ScanRows
from nodeagent.model.schema import Column
from nodeagent.partition.hash import shard_of, slot_of
from tests.client.clock import run
from tests.client.fake import NODES, SETTINGS, FakeCluster, Faults
from tests.client.rows import SCHEMA, SG, TABLE, Row, listed, rows
from tests.client.test_writes import make, move_about, stop


def all_slots_of(fake: FakeCluster, group: str) -> set[int]:
    return set(fake.groups[group].slots)


def other(group: str) -> str:
    return "node4.1" if group != "node4.1" else "node1.1"


async def handed_over(fake: FakeCluster, cluster: Cluster, old: list[Row], new: list[Row]) -> list[str]:
    """Write `old` rows, move every slot to another group without adopting the files, then write `new`
    rows."""
    await cluster.write(SG, TABLE, rows(*old))
    moves = [(all_slots_of(fake, g), g, t) for g, t in (("node1.1", "node2.1"), ("node3.1", "node4.1"))]
    moves += [(all_slots_of(fake, g), g, t) for g, t in (("node2.1", "node1.1"), ("node4.1", "node3.1"))]
    operations = [fake.plan(*move) for move in moves]
    for step in (fake.seal, fake.open):
        for operation in operations:
            step(operation)
    if new:
        await cluster.write(SG, TABLE, rows(*new))
    return operations


def test_a_scan_is_sorted_by_tags_and_time_with_null_first() -> None:
    """The order does not depend on the group of a row."""

    async def scenario() -> None:
        _, cluster = make()
        given = [(t, d, float(t), None) for t in range(0, 9000, 450) for d in ("b", None, "a")]
        await cluster.write(SG, TABLE, rows(*given))
        table = await cluster.scan(SG, TABLE)
        expected = sorted(given, key=lambda r: (r[1] is not None, r[1] or "", r[0]))
        assert listed(table) == expected
        assert listed(await cluster.scan(SG, TABLE, limit=4)) == expected[:4]

    run(scenario())


def test_a_scan_keeps_to_times_tags_and_fields() -> None:
    """Times are inclusive; a narrow range asks only the groups that can have rows in it."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows(*((t, d, 1.0, 2.0) for t in range(0, 5000, 500) for d in "ab")))
        fake.log.clear()
        table = await cluster.scan(SG, TABLE, fields=["w"], tags={"d": "a"}, time_from=500, time_to=1000)
        assert table.column_names == ["time", "d", "w"]
        assert table.column("time").to_pylist() == [500, 1000]
        assert len([r for _, r in fake.log if isinstance(r, ScanRows)]) <= 2
        batches = [b async for b in cluster.scan_batches(SG, TABLE)]
        assert sum(b.num_rows for b in batches) == 20

    run(scenario())


def test_an_empty_time_range_has_no_rows() -> None:
    """No group is asked, neither by a scan nor by a delete."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((500, "a", 1.0, 2.0)))
        fake.log.clear()
        for first, last in ((10_000, 0), (500, 499)):
            table = await cluster.scan(SG, TABLE, time_from=first, time_to=last)
            assert table.num_rows == 0 and table.column_names == ["time", "d", "v", "w"]
            assert not [b async for b in cluster.scan_batches(SG, TABLE, time_from=first, time_to=last)]
            assert (await cluster.delete(SG, TABLE, time_from=first, time_to=last)).partitions == 0
        assert not [r for _, r in fake.log if isinstance(r, ScanRows)]
        assert (await cluster.scan(SG, TABLE)).num_rows == 1

    run(scenario())


@pytest.mark.parametrize(
    "read,told", [("strong", set()), ("bounded", {7, 40}), ("mid", {7, 40}), ("weak", {7, 40})]
)
def test_bounded_and_weak_reads_report_the_age_of_every_answer(read: str, told: set[int]) -> None:
    """A11: this holds for one table and for batches; rows of previous holders are sealed and have no age."""

    async def scenario() -> None:
        fake, cluster = make()
        await handed_over(fake, cluster, [(t, "a", 1.0, 2.0) for t in range(0, 9000, 450)], [])
        fake.ages_ms = dict.fromkeys(NODES, 40) | {NODES[0]: 7}
        ages: set[int] = set()
        for _ in range(30):
            await cluster.scan(SG, TABLE, read=read, on_age=ages.add)
            assert [b async for b in cluster.scan_batches(SG, TABLE, read=read, on_age=ages.add)]
        assert ages == told

    run(scenario())


@pytest.mark.parametrize(
    "read,sent", [("strong", "strong"), ("bounded", "mid"), ("mid", "mid"), ("weak", "weak")]
)
def test_a_read_level_is_sent_as_nodes_of_every_release_name_it(read: str, sent: str) -> None:
    """0.1.0 knows bounded reads as `mid` alone, and refuses any other name."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.scan(SG, TABLE, read=read)
        assert {r.read for _, r in fake.log if isinstance(r, ScanRows)} == {sent}

    run(scenario())


def test_an_unknown_read_level_is_refused_before_any_rows_are_requested() -> None:
    async def scenario() -> None:
        fake, cluster = make()
        with pytest.raises(InvalidInput, match="read level 'middle'"):
            await cluster.scan(SG, TABLE, read="middle")
        assert not [r for _, r in fake.log if isinstance(r, ScanRows)]

    run(scenario())


@pytest.mark.parametrize(
    "fields,tags,says",
    [
        (
            None,
            {"v": "3"},
            "no tag 'v' in root.a.m: it is a field, and rows can be filtered only by tags; the tags are: d",
        ),
        (None, {"x": "3"}, "no tag 'x' in root.a.m: there is no such column; the tags are: d"),
        (["u"], {}, "no field 'u' in root.a.m: there is no such column; the fields are: v, w"),
        (["d"], {}, "no field 'd' in root.a.m: it is a tag"),
        (None, {"d": 3}, "tag 'd' is text and cannot equal 3"),
    ],
)
def test_an_unknown_column_is_refused_before_a_group_is_asked(
    fields: list[str] | None, tags: dict[str, str], says: str
) -> None:
    """A node would fail only while it reads a TsFile, once per node and attempt."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.log.clear()
        with pytest.raises(InvalidInput) as caught:
            await cluster.scan(SG, TABLE, fields=fields, tags=tags)
        assert says in caught.value.what
        assert not [r for _, r in fake.log if isinstance(r, ScanRows)]

    run(scenario())


def test_a_weak_read_needs_no_quorum_of_the_meta_group() -> None:
    """Weak reads matter most without a majority; a strong read reports that the quorum is missing."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((1, "a", 1.0, 2.0)))
        fake.meta_lost = True
        fresh = Cluster(fake, timeout_s=2.0, rng=random.Random(1))
        for group in fake.groups:
            fake.elect(group)
        assert listed(await fresh.scan(SG, TABLE, read="weak")) == [(1, "a", 1.0, 2.0)]
        with pytest.raises(Unavailable, match="no quorum"):
            await Cluster(fake, timeout_s=2.0, rng=random.Random(1)).scan(SG, TABLE)

    run(scenario())


def test_a_column_that_was_just_added_is_found() -> None:
    """A client with an older schema fetches the schema before it refuses the column."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((1, "a", 1.0, 2.0)))
        grown = (*SCHEMA.columns, Column("u", "DOUBLE", False))
        fake.add_table(msgspec.structs.replace(SCHEMA, version=2, columns=grown))
        assert "u" in (await cluster.scan(SG, TABLE, fields=["u"])).column_names

    run(scenario())


@pytest.mark.parametrize("page_rows", [1, 3, 7])
def test_the_first_rows_may_all_be_in_the_last_partition(page_rows: int) -> None:
    """Rows that sort later were read first, but are not among the first rows."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.page_rows = page_rows
        given = [(t, "b" if t < 8_000 else "a", float(t), None) for t in range(0, 16_000, 100)]
        await cluster.write(SG, TABLE, rows(*given))
        expected = sorted(given, key=lambda r: (r[1], r[0]))
        for limit in (1, 9, 40):
            assert listed(await cluster.scan(SG, TABLE, limit=limit)) == expected[:limit]

    run(scenario())


def test_old_rows_are_merged_below_new_ones_cell_by_cell() -> None:
    """During a slot migration the newest value of each cell wins; a null hides nothing."""

    async def scenario() -> None:
        fake, cluster = make()
        old: list[Row] = [(0, "a", 1.0, 10.0), (1, "a", 2.0, 20.0), (2000, "b", 3.0, 30.0)]
        new: list[Row] = [(0, "a", None, 11.0), (5, "a", 5.0, None), (2000, "b", 4.0, None)]
        operations = await handed_over(fake, cluster, old, new)
        expected = [(0, "a", 1.0, 11.0), (1, "a", 2.0, 20.0), (5, "a", 5.0, None), (2000, "b", 4.0, 30.0)]
        assert listed(await cluster.scan(SG, TABLE)) == expected
        assert any(r.operation for _, r in fake.log if isinstance(r, ScanRows))
        for operation in operations:
            fake.adopt(operation)
        assert listed(await cluster.scan(SG, TABLE)) == expected

    run(scenario())


@pytest.mark.parametrize("page_rows", [1, 2, 3, 7])
def test_old_rows_in_pages_are_merged_once_each(page_rows: int) -> None:
    """The pages of both holders end at different keys; no row between them is missing or returned twice."""

    async def scenario() -> None:
        fake, cluster = make()
        fake.page_rows = page_rows
        old: list[Row] = [(t, d, 1.0, None) for d in ("a", "b") for t in range(0, 40, 2)]
        new: list[Row] = [(t, d, 2.0, None) for d in ("a", "c") for t in range(0, 40, 5)]
        await handed_over(fake, cluster, old, new)
        want = {(t, d): v for t, d, v, _ in [*old, *new]}
        found = listed(await cluster.scan(SG, TABLE))
        assert {(t, d): v for t, d, v, _ in found} == want and len(found) == len(want)
        first = listed(await cluster.scan(SG, TABLE, limit=5))
        assert first == found[:5]

    run(scenario())


def test_deletes_during_a_migration_hide_old_rows_of_their_partition_only() -> None:
    """A delete in the new group hides rows that the previous holder still has, but no later row."""

    async def scenario() -> None:
        fake, cluster = make()
        await handed_over(fake, cluster, [(t, d, 1.0, 1.0) for t in (0, 500, 1500) for d in "ab"], [])
        report = await cluster.delete(SG, TABLE, tags={"d": "a"}, time_from=0, time_to=600)
        assert report.partitions >= 1
        await cluster.write(SG, TABLE, rows((500, "a", None, 9.0), (500, "b", 2.0, None)))
        assert listed(await cluster.scan(SG, TABLE)) == [
            (500, "a", None, 9.0),
            (1500, "a", 1.0, 1.0),
            (0, "b", 1.0, 1.0),
            (500, "b", 2.0, 1.0),
            (1500, "b", 1.0, 1.0),
        ]

    run(scenario())


def test_one_tombstone_does_not_reach_another_shard() -> None:
    """Partitions are deleted one by one: a tombstone of a partition does not affect its neighbour."""
    old = rows(*((0, f"d{i}", float(i), None) for i in range(12)))
    tombstone = Tombstone((5,), PartitionKey(SG, 0, 0), TABLE, (), 0, 10)
    query = Query(SG, ScanSpec(SCHEMA), "strong")
    left = listed(merge_below(rows(), [old], [tombstone], query, SETTINGS))
    in_other_shard = [r for r in listed(old) if shard_of((r[1],), SETTINGS.shards) == 1]
    assert sorted(left) == sorted(in_other_shard) and 0 < len(left) < 12


def test_a_previous_holder_that_fails_is_replaced_by_another() -> None:
    """One live holder of the old rows is enough."""

    async def scenario() -> None:
        fake, cluster = make()
        await handed_over(fake, cluster, [(0, "a", 1.0, None), (3000, "b", 2.0, None)], [])
        refused = 0
        handle = fake.handle

        def refuse_twice(target: str, request: Request) -> Reply:
            nonlocal refused
            if isinstance(request, ScanRows) and request.operation and refused < 2:
                refused += 1
                raise NotFound("the seal is not applied here")
            return handle(target, request)

        fake.handle = refuse_twice  # type: ignore[method-assign]  # the fault of this test
        assert (await cluster.scan(SG, TABLE)).num_rows == 2 and refused == 2

    run(scenario())


def test_old_rows_that_no_holder_returns_are_an_error() -> None:
    """No previous holder answers: the scan fails by its deadline."""

    async def scenario() -> None:
        fake, cluster = make()
        await handed_over(fake, cluster, [(0, "a", 1.0, None)], [(1, "a", 2.0, None)])
        handle = fake.handle

        def refuse(target: str, request: Request) -> Reply:
            if isinstance(request, ScanRows) and request.operation:
                raise NotFound("gone")
            return handle(target, request)

        fake.handle = refuse  # type: ignore[method-assign]  # the fault of this test
        with pytest.raises(Unavailable, match="slots were not answered"):
            await cluster.scan(SG, TABLE)

    run(scenario())


def test_pages_come_from_one_node() -> None:
    """The node of the first page also returns the others as long as it answers; the pages are complete."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows(*((t, "a", float(t), None) for t in range(0, 1000, 10))))
        fake.page_rows = 7
        fake.log.clear()
        assert (await cluster.scan(SG, TABLE)).num_rows == 100
        pages = [(t, r) for t, r in fake.log if isinstance(r, ScanRows) and r.after and r.after.key]
        assert len({target for target, _ in pages}) == 1 and len(pages) == 14

    run(scenario())


def test_a_busy_node_is_waited_for_and_not_asked_again() -> None:
    """A page that takes longer than the timeout is requested once, also from previous holders."""

    async def scenario() -> None:
        fake, cluster = make()
        await handed_over(fake, cluster, [(t, "d", 1.0, None) for t in range(0, 16_000, 500)], [])
        fake.page_rows, fake.scan_s = 5, dict.fromkeys(NODES, 25.0)
        fake.log.clear()
        assert (await cluster.scan(SG, TABLE)).num_rows == 32
        asked = [r for _, r in fake.log if isinstance(r, ScanRows)]
        assert len(asked) == len(set(msgspec.msgpack.encode(r) for r in asked))

    run(scenario(), limit_s=1000)


def test_a_busy_node_that_falls_silent_is_abandoned() -> None:
    """A node that does not answer is not busy: the next leader is asked within seconds."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows(*((t, "d", 1.0, None) for t in range(0, 16_000, 500))))
        fake.scan_s["node2"] = 1e6

        async def fail_over() -> None:
            await asyncio.sleep(12)
            for group in fake.groups.values():
                if group.leader == "node2":
                    group.leader = "node3"
            fake.hung.add("node2")

        begun = asyncio.get_running_loop().time()
        failing = asyncio.create_task(fail_over())
        table = await cluster.scan(SG, TABLE)
        await failing
        assert table.num_rows == 32
        assert asyncio.get_running_loop().time() - begun < 25

    run(scenario())


@pytest.mark.parametrize("read", ["strong", "weak"])
def test_another_member_is_asked_if_one_never_finishes(read: str) -> None:
    """With a hung disk, a node answers every request except reads of rows."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows(*((t, "d", 1.0, None) for t in range(0, 16_000, 500))))
        fake.scan_s["node2"] = 1e6
        begun = asyncio.get_running_loop().time()
        assert (await cluster.scan(SG, TABLE, read=read)).num_rows == 32
        assert asyncio.get_running_loop().time() - begun < 40

    run(scenario())


def test_a_member_that_cannot_read_yet_is_abandoned_soon() -> None:
    """The member installs a snapshot or leads without a quorum: it answers probes, but would delay the read
    for long."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows(*((t, "d", 1.0, None) for t in range(0, 16_000, 500))))
        fake.behind.add("node2")
        begun = asyncio.get_running_loop().time()
        assert (await cluster.scan(SG, TABLE)).num_rows == 32
        assert asyncio.get_running_loop().time() - begun < 10

    run(scenario())


def test_a_lost_probe_does_not_end_the_wait_for_a_page() -> None:
    """A group without a quorum does not end a weak read either."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "d", 1.0, None)))
        fake.scan_s, fake.behind = dict.fromkeys(NODES, 14.0), set(NODES)
        fake.log.clear()

        async def stall() -> None:
            for pause_s in (2.4, 5.0):
                await asyncio.sleep(pause_s)
                fake.hung |= set(NODES)
                await asyncio.sleep(2.0)
                fake.hung.clear()

        stalling = asyncio.create_task(stall())
        assert (await cluster.scan(SG, TABLE, read="weak")).num_rows == 1
        await stalling
        asked = [r for _, r in fake.log if isinstance(r, ScanRows)]
        assert len(asked) == len(set(msgspec.msgpack.encode(r) for r in asked))

    run(scenario())


def test_a_page_that_arrives_during_a_probe_is_accepted() -> None:
    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "d", 1.0, None)))
        fake.scan_s = dict.fromkeys(NODES, 3.0)
        begun = asyncio.get_running_loop().time()
        reading = asyncio.create_task(cluster.scan(SG, TABLE))
        await asyncio.sleep(1)
        fake.behind |= set(NODES)
        assert (await reading).num_rows == 1 and asyncio.get_running_loop().time() - begun < 3.5

    run(scenario())


def test_a_read_fails_if_a_page_never_finishes() -> None:
    """The read fails even if other pages were answered in between."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows(*((t, "d", 1.0, None) for t in range(0, 16_000, 500))))
        fake.scan_s = dict.fromkeys(NODES[1:], 1e6)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match="slots were not answered"):
            await cluster.scan(SG, TABLE)
        assert asyncio.get_running_loop().time() - begun < 100

    run(scenario())


@pytest.mark.parametrize("shift", [-1, +1])
def test_slots_answered_by_another_table_version_are_requested_again(shift: int) -> None:
    """A node with another table version may serve other slots than the client assumes."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        handle, lied = fake.handle, 0

        def lie_once(target: str, request: Request) -> Reply:
            nonlocal lied
            reply = handle(target, request)
            if isinstance(reply, RowsScanned) and reply.rows and not lied:
                lied += 1
                empty = RowsScanned(b"", 0, 0, fake.version + shift)
                return empty
            return reply

        fake.handle = lie_once  # type: ignore[method-assign]  # the fault of this test
        assert (await cluster.scan(SG, TABLE)).num_rows == 1 and lied == 1

    run(scenario())


def test_a_list_with_pages_of_two_table_versions_is_requested_again() -> None:
    """The group may have gained or lost slots between the two versions."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        handle, lied = fake.handle, 0

        def lie_once(target: str, request: Request) -> Reply:
            nonlocal lied
            reply = handle(target, request)
            if isinstance(reply, PartitionsListed) and reply.partitions and lied < 2:
                lied += 1
                if lied == 1:
                    return PartitionsListed((), (), fake.version, next=(reply.partitions[0].partition, ""))
                return PartitionsListed((), (), fake.version + 1)
            return reply

        fake.handle = lie_once  # type: ignore[method-assign]  # the fault of this test
        assert [c["rows"] for c in await cluster.count()] == [1] and lied == 2

    run(scenario())


def test_a_slot_that_no_group_serves_is_an_error() -> None:
    """A slot that is sealed and never opened gives neither an empty nor a partial result."""

    async def scenario() -> None:
        fake, cluster = make()
        await cluster.write(SG, TABLE, rows((0, "a", 1.0, None)))
        fake.seal(fake.plan({0}, "node1.1", "node2.1"))
        with pytest.raises(Unavailable):
            await cluster.scan(SG, TABLE)
        with pytest.raises(Unavailable):
            await cluster.count()

    run(scenario())


async def scan_under_moves(seed: int) -> int:
    faults = Faults(lose_request=0.01, lose_reply=0.02, stale_meta=0.3, delay_max_s=0.02)
    fake, cluster = make(seed, faults)
    rng = random.Random(seed)
    acknowledged: set[int] = set()
    mover = asyncio.create_task(move_about(fake, rng))

    async def writing() -> None:
        for i in range(40):
            try:
                await cluster.write(SG, TABLE, rows((i * 211, f"d{i % 4}", float(i), None)))
            except NodeAgentError:
                continue
            acknowledged.add(i * 211)

    async def reading() -> int:
        done = 0
        for _ in range(12):
            await asyncio.sleep(rng.random())
            before = set(acknowledged)
            try:
                times = (await cluster.scan(SG, TABLE)).column("time").to_pylist()
            except (Unavailable, OutcomeUnknown):
                continue
            assert before <= set(times), f"seed {seed}: lost {sorted(before - set(times))}"
            assert len(times) == len(set(times)), f"seed {seed}: a row twice"
            done += 1
        return done

    done, _ = await asyncio.gather(reading(), writing())
    await stop(mover)
    return done


def test_a_strong_scan_misses_nothing_while_slots_move() -> None:
    """At every stage of a move, a scan returns every row that was acknowledged before it began, once."""
    assert sum(run(scan_under_moves(seed)) for seed in range(8)) > 60


@pytest.mark.parametrize("stage", ["settled", "inexact", "migrating", "adopted"])
def test_count_is_exact(stage: str) -> None:
    """The count is exact even if a group knows only a bound, and if the previous holder still has rows."""

    async def scenario() -> None:
        fake, cluster = make()
        old: list[Row] = [(t, "a", float(t), None) for t in range(100, 6000, 250)]
        if stage in ("settled", "inexact"):
            await cluster.write(SG, TABLE, rows(*old))
        else:
            new: list[Row] = [(100, "a", None, 1.0), (9000, "b", 1.0, None)]
            operations = await handed_over(fake, cluster, old, new)
            old.append((9000, "b", 1.0, None))
            if stage == "adopted":
                for operation in operations:
                    fake.adopt(operation)
        fake.exact = stage == "settled"
        fake.log.clear()
        expected = {
            "storage_group": SG,
            "table": TABLE,
            "rows": len(old),
            "time_min_ms": 100,
            "time_max_ms": old[-1][0],
        }
        assert await cluster.count() == [expected]
        assert await cluster.count(SG.upper(), TABLE) == [expected]
        assert await cluster.count("root.none") == []
        listed = [r for _, r in fake.log if isinstance(r, ListPartitions)]
        assert listed and all(r.paged for r in listed), "a long list is refused whole"
        assert (stage == "settled") == (not any(isinstance(r, ScanRows) for _, r in fake.log))

    run(scenario())


@pytest.mark.parametrize("opened", [False, True])
def test_a_delete_reaches_slots_sealed_after_the_routes_were_read(opened: bool) -> None:
    """A group lists the slots that it serves. Neither routes from before the change nor the table version,
    which changes later, show that the group now serves fewer slots."""

    async def scenario() -> None:
        fake, cluster = make()
        given: list[Row] = [(100, "a", 1.0, None), (200, "a", 2.0, None), (5100, "a", 3.0, None)]
        await cluster.write(SG, TABLE, rows(*given))
        slot = slot_of(SG, 0, shard_of(("a",), SETTINGS.shards), SETTINGS)
        source = next(g.name for g in fake.groups.values() if slot in g.slots)
        operation = fake.plan({slot}, source, other(source))
        fake.version -= 1  # in the answers, until the slot is open in its new group
        fake.seal(operation)
        deleting = asyncio.create_task(cluster.delete(SG, TABLE, time_from=100, time_to=5100))
        if opened:
            await asyncio.sleep(1)
            fake.version += 1
            fake.open(operation)
            assert (await deleting).partitions == 2
            assert (await cluster.scan(SG, TABLE)).num_rows == 0
        else:
            with pytest.raises(Unavailable):
                await deleting

    run(scenario())


def test_an_empty_table_counts_zero() -> None:
    """A table without rows counts 0; reading a table that does not exist is an error."""

    async def scenario() -> None:
        _, cluster = make()
        counted = await cluster.count()
        assert counted[0]["rows"] == 0 and counted[0]["time_min_ms"] is None
        assert (await cluster.scan(SG, TABLE)).num_rows == 0
        with pytest.raises(NotFound):
            await cluster.scan(SG, "nope")

    run(scenario())


def test_a_bounded_query_asks_only_slots_that_can_contain_its_rows() -> None:
    """With all tags given it asks one shard, else all shards; with an open time range it asks all slots."""
    narrow = ScanSpec(SCHEMA, None, 0, 1999)
    expected = {slot_of(SG, p, s, SETTINGS) for p in (0, 1) for s in (0, 1)}

    def mask(spec: ScanSpec) -> set[int]:
        return set(slots_of(SG, spec, SETTINGS).nonzero()[0].tolist())

    assert mask(narrow) == expected
    assert mask(ScanSpec(SCHEMA, None, 0, 1999, (("d", "a"),))) < expected
    assert len(mask(ScanSpec(SCHEMA))) == SETTINGS.slots

"""Pages of a group's rows, lists and manifests."""

import asyncio
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from nodeagent.client.cluster import Cluster
from nodeagent.client.manifests import joined
from nodeagent.host.handlers import lists, scans, whole
from nodeagent.model import limits
from nodeagent.model.files import CloseSpec, Cursor, FileMeta, RowKey, ScanSpec, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CloseUnit, MemBatch, Scan
from nodeagent.model.operation import SlotMove
from nodeagent.model.requests import (
    ErrorReply,
    GetManifest,
    ListPartitions,
    ManifestReply,
    PartitionsListed,
    Reply,
    Request,
    RowsScanned,
    ScanRows,
)
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage.executor import Storage
from nodeagent.table.arrow import decode, encode
from nodeagent.table.merge import Part, merge
from nodeagent.testing.disk import SimDisk
from tests.client.fake import FakeCluster
from tests.host.test_compactor import FILES, GROUP, Node
from tests.storage.units import close, room, table

SCHEMA = TableSchema("sg", "t", 1, (Column("dev", "STRING", True), Column("v", "DOUBLE", False)))
SLOT = 3
FIRST = PartitionKey("sg", 0, 0)


class Holder:
    """A node that holds files of many partitions, with a storage that reads them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.storage: Storage = room(SimDisk())
        self.node = Node(files=())
        self.parts: dict[PartitionKey, list[Part]] = {}
        self.order = 0
        self.scans: list[Scan] = []
        self.token = 0

    def rows(self, n: int, p: PartitionKey = FIRST) -> pa.Table:
        """Rows with the partition's own times and devices, so that no key is in two partitions."""
        rng = self.rng
        given: dict[str, list[Any]] = {
            "time": [100 * p.time_partition + rng.randrange(30) for _ in range(n)],
            "dev": [rng.choice([None, "b"] if p.shard else ["", "a"]) for _ in range(n)],
            "v": [rng.choice([None, rng.random()]) for _ in range(n)],
        }
        return merge([((1,), table(given, SCHEMA))], (), SCHEMA)

    def add(self, p: PartitionKey, rows: pa.Table, order: int = 0, name: str = "") -> None:
        self.order += 1
        order = order or self.order
        spec = CloseSpec(name or f"f{self.order:06d}", SLOT, p, (order,), SCHEMA)
        files = close(self.storage, CloseUnit(spec, (MemBatch((1,), encode(rows)),)), group=GROUP)
        self.node.replica.state.files.manifest.add(files)
        self.parts.setdefault(p, []).append(((order,), rows))

    def compact(self, p: PartitionKey) -> None:
        """Merge all files of the partition into one, unless a delete is between them."""
        state = self.node.replica.state
        if any(t.partition == p for t in state.files.tombstones) or len(self.parts[p]) < 2:
            return
        merged = merge(self.parts[p], (), SCHEMA)
        order = max(o for o, _ in self.parts[p])[0]
        state.files.manifest.remove([f.name for f in state.files.manifest.of_partition(p)])
        self.parts[p] = []
        self.add(p, merged, order)

    def delete(self, p: PartitionKey) -> None:
        self.order += 1
        first = 100 * p.time_partition + self.rng.randrange(30)
        self.node.replica.state.files.tombstones.add(
            Tombstone((self.order,), p, "t", (), first, first + self.rng.randrange(10))
        )

    def wanted(self, spec: ScanSpec) -> pa.Table:
        dead = self.node.replica.state.files.tombstones
        pieces = [
            merge(parts, [t for t in dead if t.partition == p], SCHEMA, spec)
            for p, parts in self.parts.items()
        ]
        return merge([((), piece) for piece in pieces], (), SCHEMA, spec)

    def ask(self, request: Request) -> Reply:
        self.token += 1
        self.node.host.on_request(self.token, request, self.node.now, self.node.now)
        self.node.take()
        while self.node.under_way(Scan):
            job = self.node.under_way(Scan)[0]
            assert isinstance(job, Scan)
            self.scans.append(job)
            self.node.finish(Scan, self.storage.run(job))
        return self.node.replies[-1]

    def pages(self, request: ScanRows) -> Iterator[RowsScanned]:
        while True:
            page = self.ask(request)
            assert isinstance(page, RowsScanned), page
            yield page
            if page.next is None:
                return
            assert request.after is not None and _place(page.next) > _place(request.after)
            request = msgspec.structs.replace(request, after=page.next)


def _place(cursor: Cursor) -> tuple[object, ...]:
    if cursor.key is None:
        return (cursor.position,)
    tags = tuple((t is not None, t or "") for t in cursor.key.tags)
    return (cursor.position, tags, cursor.key.time)


def _scan(spec: ScanSpec, **more: object) -> ScanRows:
    return ScanRows(GROUP, "sg", spec, "weak", after=Cursor(), **more)  # type: ignore[arg-type]


def _rows(pages: list[RowsScanned], spec: ScanSpec) -> pa.Table:
    return merge([((), decode(p.ipc)) for p in pages if p.ipc], (), SCHEMA, spec)


@pytest.fixture(params=range(12))
def holder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Holder:
    """Random partitions, files and deletes, and limits so small that everything takes several pages."""
    made = Holder(request.param)
    rng = made.rng
    monkeypatch.setattr(limits, "PAGE_BYTES", rng.choice([1, 200, 1000, 1 << 20]))
    monkeypatch.setattr(limits, "PAGE_PARTITIONS", rng.choice([1, 2, 100]))
    monkeypatch.setattr(limits, "PARTITIONS_LOOKED_MAX", rng.choice([1, 3, 100]))
    monkeypatch.setattr(limits, "LIST_FILES_MAX", rng.choice([1, 4, 100]))
    for week in range(-3, 5):
        for _ in range(rng.randrange(3)):
            partition = PartitionKey("sg", week, rng.randrange(2))
            made.add(partition, made.rows(rng.randrange(1, 30), partition))
    made.add(PartitionKey("sg", 9, 0), made.rows(20, PartitionKey("sg", 9, 0)))
    for _ in range(rng.randrange(3)):
        made.delete(rng.choice(list(made.parts)))
    return made


def test_pages_of_a_group_are_its_rows(holder: Holder) -> None:
    """The pages cover all partitions, whatever is compacted between two pages, and no row appears twice."""
    spec = ScanSpec(SCHEMA, fields=holder.rng.choice([None, ()]), time_from=holder.rng.choice([-500, 7]))
    want = holder.wanted(spec)
    pages = []
    for page in holder.pages(_scan(spec)):
        pages.append(page)
        holder.compact(holder.rng.choice(list(holder.parts)))
    rows = _rows(pages, spec)
    assert rows.to_pylist() == want.to_pylist()
    assert limits.PAGE_BYTES == 1 << 20 or max(p.rows for p in pages) <= 2 * limits.PAGE_BYTES // 16 + 1


def test_a_page_ends_where_the_reader_says(holder: Holder) -> None:
    """The rows up to a place and the rows after it are all rows, and no row is in both."""
    spec = ScanSpec(SCHEMA)
    partition = holder.rng.choice(list(holder.parts))
    key = holder.rng.choice([None, RowKey(("a",), 100 * partition.time_partition + 12)])
    place = Cursor(partition.position, key)
    upto = list(holder.pages(_scan(spec, until=place)))
    assert all(_place(p.next) <= _place(place) for p in upto if p.next is not None), "a page ends beyond it"
    behind = list(holder.pages(msgspec.structs.replace(_scan(spec), after=place)))
    assert sum(p.rows for p in [*upto, *behind]) == _rows([*upto, *behind], spec).num_rows
    assert _rows([*upto, *behind], spec).to_pylist() == holder.wanted(spec).to_pylist()


def test_the_first_rows_are_among_those_of_a_limited_read(holder: Holder) -> None:
    """A limit cuts rows off at the end only."""
    spec, limit = ScanSpec(SCHEMA), holder.rng.randrange(1, 6)
    rows = _rows(list(holder.pages(_scan(spec, limit=limit))), spec)
    assert rows.slice(0, limit).to_pylist() == holder.wanted(spec).slice(0, limit).to_pylist()


def test_a_page_ends_after_so_many_partitions_without_a_row_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A small read in a large group must not prolong the node's turn."""
    monkeypatch.setattr(limits, "PARTITIONS_LOOKED_MAX", 2)
    holder = Holder(0)
    for week in range(5):
        holder.add(PartitionKey("sg", week, 0), holder.rows(3, PartitionKey("sg", week, 0)))
    other = ScanSpec(msgspec.structs.replace(SCHEMA, table="other"))
    assert [page.rows for page in holder.pages(_scan(other))] == [0, 0, 0]
    holder.node.replica.state.slots.open.discard(SLOT)
    page = holder.ask(ListPartitions(GROUP, "", "", "weak", paged=True))
    assert isinstance(page, PartitionsListed) and page.next is not None and not page.partitions


def test_a_list_in_pages_is_the_list(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same partitions, tables and sums, each once, in order."""
    pages = []
    request = ListPartitions(GROUP, "", "", "weak", paged=True)
    while True:
        page = holder.ask(request)
        assert isinstance(page, PartitionsListed)
        pages.append(page)
        if page.next is None:
            break
        request = msgspec.structs.replace(request, after=page.next)
    found = [i for page in pages for i in page.partitions]
    monkeypatch.setattr(limits, "LIST_FILES_MAX", 1 << 30)
    monkeypatch.setattr(limits, "PARTITIONS_LOOKED_MAX", 1 << 30)
    whole = holder.ask(ListPartitions(GROUP, "", "", "weak"))
    assert isinstance(whole, PartitionsListed) and tuple(found) == whole.partitions
    assert {i.partition: i.rows for i in found} == {
        p: sum(rows.num_rows for _, rows in parts) for p, parts in holder.parts.items()
    }


def test_a_list_is_refused_unless_all_requested_slots_are_open(holder: Holder) -> None:
    """The list does not show what it lacks, and the reader may not know yet that a slot is leaving."""
    node = holder.node

    def listed(*slots: tuple[int, int]) -> Reply:
        holder.token += 1
        request = ListPartitions(GROUP, "", "", "weak", paged=True, slots=slots)
        # Past the check against the cluster's slots.
        lists.on_list(node.host.cluster, node.replica, holder.token, request)
        node.take()
        return node.replies[-1]

    told = listed((SLOT, SLOT + 1))
    assert isinstance(told, PartitionsListed) and told.partitions
    node.replica.state.slots.open.discard(SLOT)
    refused = listed((SLOT, SLOT + 1))
    assert isinstance(refused, ErrorReply) and refused.code == "moved", refused
    assert isinstance(listed(), PartitionsListed), "readers of earlier versions name none"


def test_a_manifest_in_pages_is_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page has whole slots, however many files a slot has, and no more slots than fill a page."""
    monkeypatch.setattr(limits, "MANIFEST_FILES", 2)
    files = tuple(
        msgspec.structs.replace(FILES[0], name=f"{slot:05d}-{i:03d}.tsfile", slot=slot, order=(i,))
        for slot, count in enumerate((1, 1, 5, 0, 1))
        for i in range(1, count + 1)
    )
    holder = Holder(0)
    holder.node = Node(files)
    pages: list[ManifestReply] = []

    def ask(request: GetManifest) -> ManifestReply:
        reply = holder.ask(request)
        assert isinstance(reply, ManifestReply)
        pages.append(reply)
        return reply

    class Asking(Cluster):
        async def call(self, node: str, request: Request, timeout_s: float | None = None) -> Reply:
            assert isinstance(request, GetManifest)
            return ask(request)

    whole = asyncio.run(Asking(FakeCluster()).files.manifest("a", GROUP))
    assert whole.files == files
    assert [len(p.files) for p in pages] == [2, 5, 1] and [p.next for p in pages] == [2, 3, None]
    assert ask(GetManifest(GROUP)).files == files, "an earlier version asks once"


def test_a_manifest_in_pages_is_as_far_as_its_oldest_page() -> None:
    page = ManifestReply(GROUP, "a", applied=9, materialised=7, pending=0, files=(), at_work=True)
    later = ManifestReply(GROUP, "a", applied=12, materialised=9, pending=3, files=())
    whole = joined([page, later])
    assert (whole.applied, whole.materialised, whole.pending, whole.at_work) == (9, 7, 3, True)
    assert not joined([later]).at_work


def test_readers_of_earlier_versions_are_never_given_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """They continue between partitions only; a page that does not end there is refused, never cut short."""
    holder = Holder(1)
    for week in range(4):
        holder.add(PartitionKey("sg", week, 0), holder.rows(10, PartitionKey("sg", week, 0)))
    monkeypatch.setattr(limits, "PAGE_PARTITIONS", 2)
    monkeypatch.setattr(limits, "LIST_FILES_MAX", 2)
    old = ScanRows(GROUP, "sg", ScanSpec(SCHEMA), "weak")
    first = holder.ask(old)
    assert isinstance(first, RowsScanned) and first.cursor
    second = holder.ask(msgspec.structs.replace(old, cursor=first.cursor))
    assert isinstance(second, RowsScanned) and not second.cursor
    assert _rows([first, second], old.spec).to_pylist() == holder.wanted(old.spec).to_pylist()
    refused = holder.ask(ListPartitions(GROUP, "", "", "weak"))
    assert isinstance(refused, ErrorReply) and refused.code == "refused"
    monkeypatch.setattr(limits, "PAGE_BYTES", 50)
    refused = holder.ask(old)
    assert isinstance(refused, ErrorReply) and refused.code == "refused"


@pytest.mark.parametrize(
    "bad",
    [
        {"after": Cursor(-1)},
        {"after": Cursor(1, RowKey((), 0))},
        {"until": Cursor(1, RowKey(("a", "b"), 0))},
        {"limit": -1},
    ],
)
def test_a_place_that_no_page_returned_is_refused(bad: dict[str, object]) -> None:
    """Tags of another table and negative positions cause an error, not an exception."""
    holder = Holder(1)
    holder.add(PartitionKey("sg", 0, 0), holder.rows(10))
    refused = holder.ask(msgspec.structs.replace(_scan(ScanSpec(SCHEMA)), **bad))
    assert isinstance(refused, ErrorReply) and refused.code == "invalid_input"


def test_a_large_read_does_not_run_among_small_reads() -> None:
    """A read that opens many bytes is heavy; the first rows, or a short time range of a long file, are
    light."""
    big = FileMeta("f", 3, PartitionKey("sg", 0, 0), "t", (1,), 1 << 26, "0" * 32, 10**7, 0, 10**7, (1, 1, 1))
    ask = ScanRows(GROUP, "sg", ScanSpec(SCHEMA), after=Cursor())
    assert scans._is_heavy([big], ask)
    assert not scans._is_heavy([big], msgspec.structs.replace(ask, limit=10))
    short = msgspec.structs.replace(ask.spec, time_from=5, time_to=1000)
    assert not scans._is_heavy([big], msgspec.structs.replace(ask, spec=short))


def test_deletes_from_an_earlier_time_of_a_slot_here_mask_no_rows_of_its_previous_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slot left, received writes elsewhere, and returned. A delete from before it left is older than
    those writes; a delete after the slot was opened again is newer."""
    old, new, other = (Tombstone((order,), FIRST, "t", (), 0, 9) for order in (35, 65, 64))
    moves = [SlotMove(((SLOT, SLOT + 1),), "b.1", ("b",), GROUP, ("a",))]
    operations = SimpleNamespace(find=lambda _: SimpleNamespace(moves=moves))
    host: Any = SimpleNamespace(meta=SimpleNamespace(operations=operations))
    arrival = SimpleNamespace(slots={SLOT}, index=64)
    slots = SimpleNamespace(arriving={"op-9": arrival})
    state = SimpleNamespace(slots=slots, files=SimpleNamespace(tombstones=[old, new, other]))
    replica: Any = SimpleNamespace(group=GROUP, state=state)
    monkeypatch.setattr(whole, "_slot_of", lambda *_: SLOT)
    handover, mine = whole.elsewhere(host, replica, {SLOT})
    assert mine == (new,) and [h.source for h in handover] == ["b.1"]

"""Readers of a simulated cluster, which check every result against the history."""

import math
from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter

import msgspec
import pyarrow as pa

from nodeagent.model import requests as q
from nodeagent.model.files import Cursor, ScanSpec
from nodeagent.model.ids import NodeId, PartitionKey
from nodeagent.model.requests import Reply, RowsScanned
from nodeagent.partition.hash import slot_of
from nodeagent.table import arrow
from nodeagent.table.merge import merge
from nodeagent.testing.node import SimNode
from nodeagent.testing.sim import CLIENT, WALL_START_MS, Sim
from nodeagent.testing.workload import EXPIRING, RETRY_MS, TTL_MS, Cell, History, View

NEWEST = 1 << 62

Pages = Callable[[list[RowsScanned] | None], None]


def _found(rows: pa.Table, spec: ScanSpec) -> dict[Cell, int]:
    """The values that a read returned, by cell."""
    storage_group, fields = spec.schema.storage_group, spec.schema.fields
    devices, times = rows["device"].to_pylist(), rows["time"].to_pylist()
    return {
        Cell(storage_group, device, time, name): value
        for name in fields
        for device, time, value in zip(devices, times, rows[name].to_pylist(), strict=True)
        if value is not None
    }


def _within(cell: Cell, spec: ScanSpec) -> bool:
    schema = spec.schema
    is_asked = spec.time_from <= cell.time <= spec.time_to and cell.field in schema.fields
    return is_asked and cell.storage_group == schema.storage_group


def rows_of(pages: list[RowsScanned], spec: ScanSpec) -> pa.Table:
    found = [arrow.decode(p.ipc) for p in pages if p.ipc]
    return pa.concat_tables([merge((), (), spec.schema, spec), *found])


class Reader:
    """Sends strong reads of whole partitions, also during slot migrations."""

    def __init__(self, sim: Sim[SimNode], view: View, history: History, groups: list[str]) -> None:
        self.sim = sim
        self.view = view
        self.history = history
        self.groups = groups
        self.stopping = False

    def start(self) -> None:
        if not self.stopping:
            if self.view.meta is None:
                self.view.refresh()
                self.sim.at(RETRY_MS, self.start)
                return
            self.read(*self.sim.rng.choice(self.partitions()), lambda _: None)
            self.sim.at(self.sim.rng.randint(20, 120), self.start)

    def partitions(self) -> list[tuple[str, int]]:
        """(storage group, week) of everything that is written."""
        assert self.view.meta is not None
        now = (WALL_START_MS + self.sim.now) // self.view.meta.settings.time_partition_interval_ms
        return [(EXPIRING, now), *((g, w) for g in self.groups for w in range(4))]

    def read(self, storage_group: str, week: int, then: Callable[[bool], None], retry: bool = False) -> None:
        """Read one partition, check it against the history, and call `then` with whether it was read."""
        meta = self.view.meta
        assert meta is not None
        partition = PartitionKey(storage_group, week, 0)
        slot = slot_of(storage_group, week, 0, meta.settings)
        place = self.view.group(slot)
        floor = dict(self.history.acked)
        expired = set(self.history.expired)

        def again() -> None:
            self.view.refresh()
            if retry:
                self.sim.at(RETRY_MS, lambda: self.read(storage_group, week, then, retry))
            else:
                then(False)

        if place is None:
            again()
            return
        group, members = place
        interval = meta.settings.time_partition_interval_ms
        schema = self.history.schema(storage_group)
        spec = ScanSpec(schema, time_from=week * interval, time_to=(week + 1) * interval - 1)
        slots = ((slot, slot + 1),)

        def on_new(pages: list[RowsScanned] | None) -> None:
            if pages is None or len({p.handover for p in pages}) > 1:
                self.view.leaders.pop(group, None)
                return again()
            rows = rows_of(pages, spec)
            if not pages[0].handover:
                self._check(spec, floor, expired, rows)
                return then(True)
            hand = pages[0].handover[0]

            def on_old(older: list[RowsScanned] | None) -> None:
                if older is None:
                    return again()
                # The target group has already applied its deletes to its own rows.
                parts = [((), rows_of(older, spec)), ((NEWEST,), rows)]
                # Deletes of all pages: a later page may lack rows because of a delete that the first page
                # did not know.
                known = dict.fromkeys(t for page in pages for t in page.tombstones)
                deletes = [t for t in known if t.partition == partition]
                whole = merge(parts, deletes, spec.schema, spec)
                self._check(spec, floor, expired, whole)
                return then(True)

            old = q.ScanRows(
                hand.source, storage_group, spec, slots=slots, operation=hand.operation, after=Cursor()
            )
            self._pages(self.sim.rng.choice(hand.members), old, [], on_old)
            return None

        request = q.ScanRows(group, storage_group, spec, slots=slots, after=Cursor())
        self._pages(self.view.target(group, members), request, [], on_new)

    def _pages(self, node: NodeId, request: q.ScanRows, got: list[RowsScanned], then: Pages) -> None:
        """Fetch all pages of a scan from one node and pass them to `then`; None if a page failed."""

        def on_page(reply: Reply) -> None:
            if not isinstance(reply, RowsScanned):
                return then(None)
            got.append(reply)
            if reply.next is None:
                return then(got)
            return self._pages(node, msgspec.structs.replace(request, after=reply.next), got, then)

        self.sim.call(CLIENT, node, request, on_page)

    def _check(self, spec: ScanSpec, floor: dict[Cell, int], expired: set[Cell], rows: pa.Table) -> None:
        """Check the rows of a strong read; `floor` and `expired` are as of the beginning of the read."""
        found = _found(rows, spec)
        self.history.reads += 1
        for cell, value in floor.items():
            if _within(cell, spec):
                value = min(value, self.history.acked.get(cell, 0))  # it may have been lost during the read
                got = found.get(cell, self.history.deleted.get(cell, 0))
                if cell.storage_group == EXPIRING and cell.time < WALL_START_MS + self.sim.now - TTL_MS:
                    if not got:
                        self.history.expired.add(cell)
                    continue
                assert got >= value, (
                    f"S6: {cell} was acknowledged as {value}, a later strong read returned {found.get(cell)}"
                )
        for cell, value in found.items():
            assert value <= self.history.sent.get(cell, 0), f"S6: {cell} = {value} was never sent"
            assert cell not in expired, f"S6: {cell} = {value} had expired and was read"


class StaleReader(Reader):
    """Sends bounded and weak reads to any member and checks S17: the stated ages are true by the clock of the
    member that answers, whatever other clocks show, and no bounded read is older than its bound."""

    def __init__(
        self, sim: Sim[SimNode], view: View, history: History, groups: list[str], bound_ms: int
    ) -> None:
        super().__init__(sim, view, history, groups)
        self.bound_ms = bound_ms
        self.answers = 0

    def partitions(self) -> list[tuple[str, int]]:
        return [(g, w) for g in self.groups for w in range(4)]

    def read(self, storage_group: str, week: int, then: Callable[[bool], None], retry: bool = False) -> None:
        meta = self.view.meta
        assert meta is not None
        slot = slot_of(storage_group, week, 0, meta.settings)
        place = self.view.group(slot)
        if place is None:
            return self.view.refresh()
        group, members = place
        interval = meta.settings.time_partition_interval_ms
        schema = self.history.schema(storage_group)
        spec = ScanSpec(schema, time_from=week * interval, time_to=(week + 1) * interval - 1)
        level = self.sim.rng.choice(("mid", "weak"))
        began = self.sim.now
        member = self.sim.rng.choice(members)

        def on_pages(pages: list[RowsScanned] | None) -> None:
            if pages is not None and not any(page.handover for page in pages):
                self._check_age(spec, level, began, pages, self.sim.nodes[member].pace)
            else:
                self.view.refresh()
            then(True)

        request = q.ScanRows(group, storage_group, spec, level, slots=((slot, slot + 1),), after=Cursor())
        self._pages(member, request, [], on_pages)
        return None

    def _check_age(
        self, spec: ScanSpec, level: str, began: int, pages: list[RowsScanned], pace: float
    ) -> None:
        ages = [page.age_ms for page in pages]
        if level == "mid":
            assert min(ages) >= 0 and max(ages) <= self.bound_ms, (
                f"S17: a bounded read has ages {ages}, its bound is {self.bound_ms}"
            )
        if min(ages) < 0:
            return
        found = _found(rows_of(pages, spec), spec)
        self.answers += 1
        # The member rounds the beginning and the end of an age down, and cannot know that its clock is slow.
        until = began - (max(ages) if pace == 1.0 else math.ceil((max(ages) + 1) / pace))
        for cell, acks in self.history.acked_at.items():
            if _within(cell, spec):
                before = bisect_right(acks, until, key=itemgetter(0))
                floor = acks[before - 1][1] if before else 0
                got = found.get(cell, self.history.deleted.get(cell, 0))
                assert got >= floor, (
                    f"S17: {cell} was acknowledged as {floor} before {began} - {max(ages)} ms, "
                    f"a {level} read returned {found.get(cell)}"
                )

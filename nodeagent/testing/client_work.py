"""What the clients do in `client_run`, and which replies are correct."""

import asyncio
import contextlib
import random
from collections import Counter

import msgspec
import pyarrow as pa

from nodeagent.client.cluster import Cluster
from nodeagent.model.errors import Forbidden, NodeAgentError, OutcomeUnknown, Refused, Unavailable
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import BeginChange, ControlOperation
from nodeagent.model.schema import Column, TableSchema
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import LATE_MS

ROWS, CELLS, WIDE = "rows", "cells", "wide"
WEEKS, WEEK_MS = 3, 604_800_000
OPERATION_S = 120.0
WIDEN_S, WATCH_S = 0.5, 0.02
FOREVER = float("inf")
CELLS_IN_WEEK = 2
AT_ONCE = 12
"""Maximum number of small writes of a bulk writer."""

LIMITS = (6, 40)
"""Bounds on the row limit of a scan: within one partition, and across partitions."""

Cell = tuple[str, int]
"""(storage group, time)"""


class Shared(msgspec.Struct):
    """What all tasks of a run share. Each client learns of changes in the cluster only from its own
    replies."""

    groups: list[str]
    writes: Cluster
    reads: Cluster
    changes: Cluster
    rng: random.Random
    done: Counter[str]
    over: bool = False


class RowsClient:
    """Writes rows with unique keys and deletes some of them; readers check that the others exist."""

    def __init__(self, shared: Shared, table: str) -> None:
        self.shared = shared
        self.table = table
        self.rng, self.done = shared.rng, shared.done
        self.asked: set[Cell] = set()
        self.acked: set[Cell] = set()
        self.never: set[Cell] = set()
        """Cells of writes that were definitely refused."""

        self.gone: set[Cell] = set()
        """Cells whose write and delete were both acknowledged."""

        self._at = 0

    async def write(self) -> None:
        while not self.shared.over:
            group = self.rng.choice(self.shared.groups)
            if self.rng.random() < 0.2:
                await self._write_at_once(group)
            else:
                await self._write_some(group)
            if self.rng.random() < 0.3:
                await self.delete()
            await asyncio.sleep(self.rng.random() * 0.2)

    def _times(self, weeks: list[int]) -> list[int]:
        """New times in each of these weeks."""
        times: list[int] = []
        for week in weeks:
            count = self.rng.randint(1, 6)
            times += range(week * WEEK_MS + self._at, week * WEEK_MS + self._at + count)
            self._at += count
        return times

    async def _write_some(self, group: str) -> None:
        times = self._times(self.rng.sample(range(WEEKS), self.rng.choice([1, 1, 2, 3])))
        keys = {(group, t) for t in times}
        self.asked |= keys
        try:
            rows_max = self.rng.choice([1, AT_ONCE])
            await self.shared.writes.write(group, self.table, _rows(times), tags=["d"], rows_max=rows_max)
        except OutcomeUnknown:
            self.done["unknown"] += 1
        except NodeAgentError:
            self.never |= keys
            self.done["refused"] += 1
        else:
            self.acked |= keys
            self.done["writes"] += 1

    async def _write_at_once(self, group: str) -> None:
        """Send many small writes to one slot; a failure means only that not all of them were written."""
        week = self.rng.randrange(WEEKS)
        pieces = [self._times([week]) for _ in range(self.rng.randint(2, AT_ONCE))]
        keys = {(group, t) for times in pieces for t in times}
        self.asked |= keys
        try:
            async with self.shared.writes.writer(self.rng.choice([2, AT_ONCE])) as writer:
                for times in pieces:
                    await writer.write(group, self.table, _rows(times), tags=["d"])
        except NodeAgentError:
            self.done["bulks that failed"] += 1
        else:
            self.acked |= keys
            self.done["bulks"] += 1

    async def delete(self) -> None:
        """Delete a range of rows of one partition."""
        if not self.acked:
            return
        group, first = self.rng.choice(sorted(self.acked))
        if self.rng.random() < 0.5:  # a reader with a limit reads these
            first = min(_of(self.acked, group))
        last = first + self.rng.randrange(20)
        keys = {(g, t) for g, t in self.acked if g == group and first <= t <= last}
        self.acked -= keys
        try:
            await self.shared.writes.delete(group, self.table, time_from=first, time_to=last)
            self.gone |= keys
            self.done["deletes"] += 1
        except NodeAgentError:
            self.done["deletes that failed"] += 1

    async def read(self) -> None:
        while not self.shared.over:
            await asyncio.sleep(self.rng.random() * 0.5)
            group = self.rng.choice(self.shared.groups)
            times = sorted(_of(self.acked, group))
            if not times:
                continue
            try:
                if self.rng.random() < 0.3:
                    await self._count(group)
                elif self.rng.random() < 0.3:
                    await self._scan(group, tuple(sorted(self.rng.choices(times, k=2))))
                else:
                    await self._scan(group)
            except (Unavailable, OutcomeUnknown, Forbidden):
                self.done["unread"] += 1
            else:
                self.done["reads"] += 1

    async def _count(self, group: str) -> None:
        before, gone = _of(self.acked, group), _of(self.gone, group)
        counts = await self.shared.reads.count(group, self.table)
        rows = sum(int(str(counted["rows"])) for counted in counts)
        before &= _of(self.acked, group)  # without rows deleted during the read
        known = _of(self.asked - self.never, group) - gone
        assert len(before) <= rows <= len(known), (
            f"S6: {group} has {rows} rows, {len(before)} were acknowledged, at most {len(known)} written"
        )

    async def _scan(self, group: str, span: tuple[int, ...] = ()) -> None:
        """Scan all rows, or those of a time range, or the first rows."""
        limit = self.rng.choice([None, self.rng.randint(1, self.rng.choice(LIMITS))])
        first, last = span or (None, None)
        before, gone = _of(self.acked, group, span), _of(self.gone, group)
        rows = await self.shared.reads.scan(group, self.table, limit=limit, time_from=first, time_to=last)
        found = rows.column("time").to_pylist()
        before &= _of(self.acked, group)  # without rows deleted during the read
        known = _of(self.asked - self.never, group, span) - gone
        assert len(found) == len(set(found)), f"the scan of {group} returned a row twice"
        assert set(found) <= known, f"S8, S18: {group} has unexpected rows {sorted(set(found) - known)}"
        missing = sorted(before - set(found))
        if limit is None:
            assert not missing, f"S6: {group} lost {missing}"
            return
        assert min(limit, len(before)) <= len(found) <= limit, (
            f"S6: the scan of {group} with limit {limit} returned {len(found)} of at least {len(before)} rows"
        )
        over = [t for t in missing if _place(t) < _place(found[-1])]
        assert found == sorted(found, key=_place) and not over, f"S6: the first rows of {group} lack {over}"


class CellsClient:
    """Writers that overwrite a few cells. Each value is written once and must take effect once, between the
    beginning and the end of its write."""

    def __init__(self, shared: Shared, table: str) -> None:
        self.shared = shared
        self.table = table
        self.rng, self.done = shared.rng, shared.done
        self.value = 0
        self.sent: set[tuple[Cell, int]] = set()
        self.ended: dict[int, float] = {}
        """When each write was acknowledged. An unacknowledged write may take effect at any time."""

        self.newest: dict[Cell, float] = {}
        """When the newest acknowledged write of each cell began. It replaces all writes that ended before."""

        self.never: set[int] = set()
        """Values of writes that were definitely refused."""

        self.found: dict[Cell, int] = {}
        """Value of each cell at the last read."""

        self.replaced: dict[Cell, set[int]] = {}
        """Values that were read before another value was read."""

    async def write(self) -> None:
        now = asyncio.get_running_loop().time
        while not self.shared.over:
            group = self.rng.choice(self.shared.groups)
            weeks = self.rng.sample(range(WEEKS), self.rng.choice([1, 1, 2]))
            times = [week * WEEK_MS + self.rng.randrange(CELLS_IN_WEEK) for week in weeks]
            self.value = value = self.value + 1
            rows = pa.table({"time": times, "d": ["a"] * len(times), "v": [value] * len(times)})
            self.sent |= {((group, time), value) for time in times}
            began = now()
            try:
                await self.shared.writes.write(group, self.table, rows, tags=["d"])
            except OutcomeUnknown:
                self.done["cells unknown"] += 1
            except NodeAgentError:
                self.never.add(value)
                self.done["cells refused"] += 1
            else:
                self.ended[value] = now()
                for time in times:
                    self.newest[group, time] = max(began, self.newest.get((group, time), 0.0))
                self.done["cells"] += 1
            await asyncio.sleep(self.rng.random() * 0.05)

    async def read(self) -> None:
        while not self.shared.over:
            await asyncio.sleep(self.rng.random() * 0.5)
            group = self.rng.choice(self.shared.groups)
            newest = {cell: began for cell, began in self.newest.items() if cell[0] == group}
            try:
                rows = await self.shared.reads.scan(group, self.table)
            except NodeAgentError:
                continue
            found = dict(zip(rows["time"].to_pylist(), rows["v"].to_pylist(), strict=True))
            back = self.never.intersection(found.values())
            assert not back, f"S18: {back} were refused and are in {group}"
            lost = {cell for cell in newest if cell[1] not in found}
            assert not lost, f"S6: {lost} were acknowledged and are missing"
            for time, value in found.items():
                self._check((group, time), value, newest.get((group, time), 0.0))

    def _check(self, cell: Cell, value: int, newest: float) -> None:
        """Check a value that was read; `newest` is as of the beginning of the read."""
        assert (cell, value) in self.sent, f"S15: {cell} is {value}, which was never written to it"
        assert self.ended.get(value, FOREVER) >= newest, f"S6: {cell} is {value}, which was overwritten"
        replaced, before = self.replaced.setdefault(cell, set()), self.found.get(cell, value)
        if value != before:
            replaced.add(before)
        assert value not in replaced, f"S6: {cell} went back to {value} after {before}"
        self.found[cell] = value


class Changes:
    """Begins changes, cancels some, adds columns to a table, and checks the replies."""

    def __init__(self, scenario: Scenario, shared: Shared) -> None:
        self.scenario = scenario
        self.shared = shared
        self.client = shared.changes
        self.rng, self.done = shared.rng, shared.done

    async def begin(self, change: BeginChange) -> str:
        """Begin a change, sometimes with two concurrent requests; returns its operation."""
        scenario = self.scenario
        with scenario.locked():
            change = scenario.asked(change)
            loop = asyncio.get_running_loop()
            until = loop.time() + OPERATION_S
            while loop.time() < until:
                answers = await asyncio.gather(*(self._ask(change) for _ in range(self.rng.choice([1, 2]))))
                for operation in answers:
                    if isinstance(operation, Operation):
                        return scenario.begun(operation.id, change)
                await asyncio.sleep(2 * LATE_MS / 1000)
                known = scenario.begun_as(change)
                if known:
                    may_be = any(isinstance(error, OutcomeUnknown) for error in answers)
                    assert may_be, f"S18: {known} was refused and exists: {answers}"
                    return scenario.begun(known, change)
        raise AssertionError(f"liveness: {change} is not accepted")

    async def _ask(self, change: BeginChange) -> Operation | NodeAgentError:
        try:
            return await self.client.begin_change(change)
        except NodeAgentError as error:
            self.done["changes unknown" if isinstance(error, OutcomeUnknown) else "changes refused"] += 1
            return error

    async def rejoin(self, node: str) -> None:
        """Request to add a removed node that still has its old directory; this must be refused."""
        scenario, loop = self.scenario, asyncio.get_running_loop()
        with scenario.locked():
            change = scenario.asked(scenario.change_of("add-node", node))
            until = loop.time() + OPERATION_S
            while not isinstance(answer := await self._ask(change), Refused):
                assert isinstance(answer, NodeAgentError), f"S13: {node} is taken back by {answer.id}"
                assert loop.time() < until, f"liveness: adding {node} is not refused: {answer}"
                await asyncio.sleep(LATE_MS / 1000)

    async def cancel(self, operation: str) -> None:
        """Cancel an operation; it may be too late."""
        try:
            await self.client.control(ControlOperation(operation, "cancel", "client"))
        except OutcomeUnknown:
            self.done["cancels unknown"] += 1
        except NodeAgentError as error:
            self.done["cancels refused"] += 1
            await asyncio.sleep(2 * LATE_MS / 1000)
            stage = self.scenario.stage(operation)
            assert not stage.startswith("CANCEL"), (
                f"S18: {operation} is {stage} although its cancel was refused: {error}"
            )

    async def ended(self, operation: str) -> bool:
        """Wait for the end of an operation; returns whether it was done rather than cancelled."""
        loop = asyncio.get_running_loop()
        until = loop.time() + OPERATION_S
        while (record := self.scenario.record(operation)) is None or not record.ended:
            assert loop.time() < until, f"liveness: {operation} stays in {self.scenario.stage(operation)}"
            await asyncio.sleep(0.1)
        return record.stage is Stage.DONE

    async def widen(self) -> None:
        """Add columns to a table, one at a time."""
        tag, version = Column("d", "STRING", True), 0
        while not self.shared.over:
            await asyncio.sleep(WIDEN_S)
            version += 1
            fields = [Column(f"f{i}", "DOUBLE", False) for i in range(version)]
            schema = TableSchema(self.shared.groups[0], WIDE, version, (tag, *fields))
            with contextlib.suppress(NodeAgentError):
                await self.client.put_schema(schema)

    async def watch(self) -> None:
        """Fetch the view of the cluster often, so that views arrive at any time."""
        while not self.shared.over:
            await asyncio.sleep(WATCH_S)
            with contextlib.suppress(NodeAgentError):
                await self.client.meta()


def _of(keys: set[Cell], group: str, span: tuple[int, ...] = ()) -> set[int]:
    """Times of one storage group, within `span` if it is given."""
    first, last = span or (0, WEEKS * WEEK_MS)
    return {t for g, t in keys if g == group and first <= t <= last}


def _place(time: int) -> tuple[str, int]:
    """The sort key of a row: its tag, then its time."""
    return "abc"[time % 3], time


def _rows(times: list[int]) -> pa.Table:
    tags = [_place(t)[0] for t in times]
    return pa.table({"time": times, "d": tags, "v": [float(t) for t in times]})

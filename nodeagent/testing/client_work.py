"""What a client does in `client_run`, and what it may believe of the answers."""

import asyncio
import contextlib
import random
from collections import Counter

import pyarrow as pa

from nodeagent.client.cluster import Cluster
from nodeagent.model.errors import Forbidden, NodeAgentError, OutcomeUnknown, Unavailable
from nodeagent.model.operation import Stage
from nodeagent.model.requests import BeginChange, Steer
from nodeagent.model.schema import Column, TableSchema
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import LATE_MS

GROUPS, TABLE, CELLS, WIDE = ("root.c0", "root.c1", "root.c2"), "m", "cells", "wide"
WEEKS, WEEK_MS = 3, 604_800_000
OPERATION_S = 120.0
WIDEN_S = 1.5
AT_ONCE = 12
"""Small writes of a bulk writer."""

Cell = tuple[str, int]
"""(storage group, time)"""


class RowsClient:
    """Writes rows that all have keys of their own and deletes some of them; readers look for all of them."""

    def __init__(self, client: Cluster, rng: random.Random, done: Counter[str]) -> None:
        self.client = client
        self.rng = rng
        self.done = done
        self.over = False
        self.asked: set[Cell] = set()
        self.acked: set[Cell] = set()
        self.never: set[Cell] = set()
        """Of writes that were refused for good."""

        self.gone: set[Cell] = set()
        """Acknowledged, and then deleted, which was acknowledged too."""

        self._at = 0

    async def write(self) -> None:
        while not self.over:
            group = self.rng.choice(GROUPS)
            if self.rng.random() < 0.2:
                await self._write_at_once(group)
            else:
                await self._write_some(group)
            if self.rng.random() < 0.3:
                await self.delete()
            await asyncio.sleep(self.rng.random() * 0.2)

    def _times(self, weeks: list[int]) -> list[int]:
        """Some new ones in each of these."""
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
            await self.client.write(group, TABLE, _rows(times), tags=["d"])
        except OutcomeUnknown:
            self.done["unknown"] += 1
        except NodeAgentError:
            self.never |= keys
            self.done["refused"] += 1
        else:
            self.acked |= keys
            self.done["writes"] += 1

    async def _write_at_once(self, group: str) -> None:
        """Many small writes to one slot, of which a failure says nothing but that not all are there."""
        week = self.rng.randrange(WEEKS)
        pieces = [self._times([week]) for _ in range(self.rng.randint(2, AT_ONCE))]
        keys = {(group, t) for times in pieces for t in times}
        self.asked |= keys
        try:
            async with self.client.writer(self.rng.choice([2, AT_ONCE])) as writer:
                for times in pieces:
                    await writer.write(group, TABLE, _rows(times), tags=["d"])
        except NodeAgentError:
            self.done["bulks that failed"] += 1
        else:
            self.acked |= keys
            self.done["bulks"] += 1

    async def delete(self) -> None:
        """Some rows in a row of one partition."""
        if not self.acked:
            return
        group, first = self.rng.choice(sorted(self.acked))
        last = first + self.rng.randrange(20)
        keys = {(g, t) for g, t in self.acked if g == group and first <= t <= last}
        self.acked -= keys
        try:
            await self.client.delete(group, TABLE, time_from=first, time_to=last)
            self.gone |= keys
            self.done["deletes"] += 1
        except NodeAgentError:
            self.done["deletes that failed"] += 1

    async def read(self) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.random() * 0.5)
            group = self.rng.choice(GROUPS)
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
        counts = await self.client.count(group, TABLE)
        rows = sum(int(str(counted["rows"])) for counted in counts)
        before &= _of(self.acked, group)  # without what was deleted meanwhile
        known = _of(self.asked - self.never, group) - gone
        assert len(before) <= rows <= len(known), (
            f"S6: {rows} rows of {group}, {len(before)} were acknowledged"
        )

    async def _scan(self, group: str, span: tuple[int, ...] = ()) -> None:
        """All rows, or those of a time range; or the first ones."""
        limit = self.rng.choice([None, None, 5])
        first, last = span or (None, None)
        before, gone = _of(self.acked, group, span), _of(self.gone, group)
        rows = await self.client.scan(group, TABLE, limit=limit, time_from=first, time_to=last)
        found = rows.column("time").to_pylist()
        before &= _of(self.acked, group)  # without what was deleted meanwhile
        known = _of(self.asked - self.never, group, span) - gone
        assert len(found) == len(set(found)), f"a row of {group} twice"
        assert set(found) <= known, f"S8, S18: {group} has {sorted(set(found) - known)}"
        missing = sorted(before - set(found))
        if limit is None:
            assert not missing, f"S6: {group} lost {missing}"
            return
        assert min(limit, len(before)) <= len(found) <= limit, f"S6: {len(found)} rows of {group}"
        over = [t for t in missing if _place(t) < _place(found[-1])]
        assert found == sorted(found, key=_place) and not over, f"S6: the first of {group} without {over}"


class CellsClient:
    """Writes rising values to a few cells, so that one that counts twice takes back what came after it."""

    def __init__(self, client: Cluster, rng: random.Random, done: Counter[str]) -> None:
        self.client = client
        self.rng = rng
        self.done = done
        self.over = False
        self.value = 0
        self.acked: dict[Cell, int] = {}
        self.unknown: dict[Cell, set[int]] = {}
        """May take effect at any time."""

        self.never: set[int] = set()
        """Refused for good."""

    async def write(self) -> None:
        while not self.over:
            group = self.rng.choice(GROUPS)
            times = [week * WEEK_MS for week in self.rng.sample(range(WEEKS), self.rng.choice([1, 1, 2]))]
            self.value = value = self.value + 1
            rows = pa.table({"time": times, "d": ["a"] * len(times), "v": [value] * len(times)})
            cells = [(group, t) for t in times]
            try:
                await self.client.write(group, CELLS, rows, tags=["d"])
            except OutcomeUnknown:
                for cell in cells:
                    self.unknown.setdefault(cell, set()).add(value)
            except NodeAgentError:
                self.never.add(value)
                self.done["cells refused"] += 1
            else:
                self.acked |= dict.fromkeys(cells, value)
                self.done["cells"] += 1
            await asyncio.sleep(self.rng.random() * 0.05)

    async def read(self) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.random() * 0.5)
            group = self.rng.choice(GROUPS)
            floors = {t: value for (g, t), value in self.acked.items() if g == group}
            try:
                rows = await self.client.scan(group, CELLS)
            except NodeAgentError:
                continue
            found = dict(zip(rows["time"].to_pylist(), rows["v"].to_pylist(), strict=True))
            back = self.never.intersection(found.values())
            assert not back, f"S18: {back} were refused and are in {group}"
            for time, floor in floors.items():
                value = found.get(time, 0)
                may_be = value >= floor or value in self.unknown.get((group, time), ())
                assert may_be and value <= self.value, (
                    f"S6: {(group, time)} is {value}, {floor} was acknowledged"
                )


class Changes:
    """Begins changes, cancels some and adds columns to a table, and believes what it is told of that."""

    def __init__(self, scenario: Scenario, client: Cluster, done: Counter[str]) -> None:
        self.scenario = scenario
        self.client = client
        self.done = done
        self.over = False

    async def begin(self, change: BeginChange) -> str:
        scenario = self.scenario
        with scenario.locked():
            change = scenario.asked(change)
            loop = asyncio.get_running_loop()
            until = loop.time() + OPERATION_S
            while loop.time() < until:
                refused = None
                try:
                    return scenario.begun((await self.client.begin_change(change)).id, change)
                except OutcomeUnknown:
                    self.done["changes unknown"] += 1
                except NodeAgentError as error:
                    self.done["changes refused"] += 1
                    refused = error
                await asyncio.sleep(2 * LATE_MS / 1000)
                known = scenario.begun_as(change)
                assert not (refused and known), f"S18: {known} was refused and is there: {refused}"
                if known:
                    return scenario.begun(known, change)
        raise AssertionError(f"liveness: {change} is not accepted")

    async def cancel(self, operation: str) -> None:
        """It may be too late."""
        try:
            await self.client.steer(Steer(operation, "cancel", "client"))
        except OutcomeUnknown:
            self.done["cancels unknown"] += 1
        except NodeAgentError as error:
            self.done["cancels refused"] += 1
            await asyncio.sleep(2 * LATE_MS / 1000)
            stage = self.scenario.stage(operation)
            assert not stage.startswith("CANCEL"), (
                f"S18: {operation} is {stage}; to cancel it was refused: {error}"
            )

    async def ended(self, operation: str) -> bool:
        """Wait for its end; whether it was done and not cancelled."""
        loop = asyncio.get_running_loop()
        until = loop.time() + OPERATION_S
        while (record := self.scenario.record(operation)) is None or not record.ended:
            assert loop.time() < until, f"liveness: {operation} in {self.scenario.stage(operation)}"
            await asyncio.sleep(0.1)
        return record.stage is Stage.DONE

    async def widen(self) -> None:
        """Add columns to a table, one at a time."""
        tag, version = Column("d", "STRING", True), 0
        while not self.over:
            await asyncio.sleep(WIDEN_S)
            version += 1
            fields = [Column(f"f{i}", "DOUBLE", False) for i in range(version)]
            with contextlib.suppress(NodeAgentError):
                await self.client.put_schema(TableSchema(GROUPS[0], WIDE, version, (tag, *fields)))


def _of(keys: set[Cell], group: str, span: tuple[int, ...] = ()) -> set[int]:
    """Times of one storage group, within the span if one is given."""
    first, last = span or (0, WEEKS * WEEK_MS)
    return {t for g, t in keys if g == group and first <= t <= last}


def _place(time: int) -> tuple[str, int]:
    """Rows are sorted by it: the tag, then the time."""
    return "abc"[time % 3], time


def _rows(times: list[int]) -> pa.Table:
    tags = [_place(t)[0] for t in times]
    return pa.table({"time": times, "d": tags, "v": [float(t) for t in times]})

"""Clients that write, delete and read continuously, and a check of everything they read.

A lane is one series with one writer. The writer appends rows that it never overwrites, overwrites one row
(the register), and sometimes deletes a range of its oldest rows. So each strong read has one correct result,
except for writes in progress or with an unknown outcome:

    a row that was acknowledged and not deleted exists with its value;
    a row that was refused (with a definite error) or deleted does not exist;
    the register is not older than the last acknowledged write.
"""

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from nodeagent.client.cluster import Cluster
from nodeagent.client.spec import ClusterSpec
from nodeagent.model.errors import Definite, NodeAgentError
from nodeagent.model.schema import Column, TableSchema

TABLE, TAG, VALUE = "torture", "device", "value"
FRESH = "fresh"
"""A table with a TTL, whose rows have the time at which they are sent."""

TTL_MS = 6 * 3_600_000
STEP_MS = 1_000
DELETE_ROWS = 20
TAIL_ROWS = 400
"""Number of newest rows that most reads cover; some reads cover a whole lane."""

WRITE_PAUSE_S, READ_PAUSE_S = 0.15, 0.05
READERS = 3


@dataclass
class Lane:
    """One series and what is known of it. Row `n` is at `time_of(n)` and holds `n`; the register is at
    `time_of(-1)`."""

    storage_group: str
    table: str
    device: str
    base_ms: int
    times: dict[int, int] = field(default_factory=dict)
    """Row -> its time, if that is not `base_ms + n * STEP_MS`."""

    sent: int = 0
    acked: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    deleted_to: int = 0
    """Rows before it are deleted, by an acknowledged delete."""

    deleting_to: int = 0
    """Rows before it may be deleted."""

    register_sent: int = 0
    register_acked: int = 0
    register_unknown: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        return f"{self.storage_group}.{self.table}/{self.device}"

    def time_of(self, row: int) -> int:
        return self.times.get(row, self.base_ms + row * STEP_MS)

    @property
    def expires(self) -> bool:
        return self.table == FRESH


@dataclass(frozen=True)
class Known:
    """The requirements for a read that begins now."""

    required: frozenset[int]
    deleted_to: int
    register_acked: int


class History:
    """Runs in a thread of its own from `start` to `stop`. `wrong` holds wrong results of reads."""

    def __init__(self, spec: ClusterSpec, lanes: Sequence[Lane], seed: int) -> None:
        self.lanes = lanes
        self.wrong: list[str] = []
        self.writes = self.reads = self.deletes = 0
        self.refused = self.unknown = self.unread = 0
        self._spec = spec
        self._random = random.Random(seed)
        self._running = True
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._running = False
        self._thread.join(60)
        assert not self._thread.is_alive(), "a client did not end"

    def marks(self) -> list[int]:
        """For each lane, a number that grows with each acknowledged append."""
        return [max(lane.acked, default=0) for lane in self.lanes]

    def still(self, before: Sequence[int]) -> list[str]:
        """Lanes without an acknowledged append since `marks` returned `before`."""
        now = zip(self.lanes, before, self.marks(), strict=True)
        return [lane.name for lane, then, mark in now if mark == then]

    async def _run(self) -> None:
        cluster = await Cluster.connect(self._spec)
        try:
            await asyncio.gather(
                *(self._write(cluster, lane) for lane in self.lanes),
                *(self._read(cluster) for _ in range(READERS)),
            )
        finally:
            await cluster.close()

    # --- writers -----------------------------------------------------------------------------------

    async def _write(self, cluster: Cluster, lane: Lane) -> None:
        while self._running:
            await asyncio.sleep(self._random.uniform(0, 2 * WRITE_PAUSE_S))
            chance = self._random.random()
            if chance < 0.6:
                await self._append(cluster, lane)
            elif chance < 0.97:
                await self._overwrite(cluster, lane)
            elif not lane.expires and lane.deleting_to + 3 * DELETE_ROWS < lane.sent:
                await self._delete(cluster, lane)

    async def _append(self, cluster: Cluster, lane: Lane) -> None:
        row, lane.sent = lane.sent, lane.sent + 1
        if lane.expires:
            lane.times[row] = max(int(time.time() * 1000), lane.times.get(row - 1, 0) + 1)
        outcome = await self._send(cluster, lane, lane.time_of(row), row)
        getattr(lane, outcome).add(row)

    async def _overwrite(self, cluster: Cluster, lane: Lane) -> None:
        lane.register_sent += 1
        number = lane.register_sent
        outcome = await self._send(cluster, lane, lane.time_of(-1), number)
        if outcome == "acked":
            lane.register_acked = number
        elif outcome == "unknown":
            lane.register_unknown.add(number)

    async def _send(self, cluster: Cluster, lane: Lane, at: int, value: int) -> str:
        rows = pa.table({"time": [at], TAG: [lane.device], VALUE: [float(value)]})
        try:
            await cluster.write(lane.storage_group, lane.table, rows)
        except Definite:
            self.refused += 1
            return "refused"
        except NodeAgentError:
            self.unknown += 1
            return "unknown"
        self.writes += 1
        return "acked"

    async def _delete(self, cluster: Cluster, lane: Lane) -> None:
        """Delete all of the oldest rows, including one whose write may still be in progress."""
        first, to = lane.deleting_to, lane.deleting_to + DELETE_ROWS
        if any(row in lane.unknown for row in range(first, to)):
            lane.deleting_to = (
                to  # such a write may come after the delete; these rows are not checked any more
            )
            return
        lane.deleting_to = to
        try:
            report = await cluster.delete(
                lane.storage_group,
                lane.table,
                tags={TAG: lane.device},
                time_from=lane.time_of(first),
                time_to=lane.time_of(to - 1),
            )
        except NodeAgentError:
            return
        self.deletes += 1
        if not report.partitions:
            self.wrong.append(f"{lane.name}: a delete found no partition, rows {first} to {to} were there")
        if lane.deleted_to == first:
            lane.deleted_to = to

    # --- readers -----------------------------------------------------------------------------------

    async def _read(self, cluster: Cluster) -> None:
        while self._running:
            await asyncio.sleep(READ_PAUSE_S)
            lane = self._random.choice(self.lanes)
            first = 0 if self._random.random() < 0.1 else max(0, lane.sent - TAIL_ROWS)
            await self.look(cluster, lane, first)

    async def look(self, cluster: Cluster, lane: Lane, first: int) -> bool:
        """Read rows from `first` on and the register with strong reads; returns whether there was a reply."""
        known = Known(
            frozenset(row for row in lane.acked if row >= max(first, lane.deleting_to)),
            lane.deleted_to,
            lane.register_acked,
        )
        try:
            rows = await self._scan(cluster, lane, lane.time_of(first), None)
            register = await self._scan(cluster, lane, lane.time_of(-1), lane.time_of(-1))
        except NodeAgentError:
            self.unread += 1
            return False
        self.reads += 1
        self._judge(lane, known, first, rows, register)
        return True

    async def _scan(self, cluster: Cluster, lane: Lane, since: int, until: int | None) -> dict[int, float]:
        found = await cluster.scan(
            lane.storage_group,
            lane.table,
            fields=[VALUE],
            tags={TAG: lane.device},
            time_from=since,
            time_to=until,
        )
        return dict(zip(found.column("time").to_pylist(), found.column(VALUE).to_pylist(), strict=True))

    def _judge(
        self, lane: Lane, known: Known, first: int, rows: dict[int, float], register: dict[int, float]
    ) -> None:
        by_time = {lane.time_of(row): row for row in range(first, lane.sent)}
        found = {by_time.get(at, -1): value for at, value in rows.items()}
        missing = sorted(row for row in known.required - found.keys() if row >= lane.deleting_to)
        if missing:
            self.wrong.append(
                f"{lane.name}: {len(missing)} acknowledged rows are missing, such as {missing[:3]}"
            )
        altered = [(row, value) for row, value in found.items() if row != value]
        if altered:
            self.wrong.append(f"{lane.name}: row {altered[0][0]} reads {altered[0][1]}")
        refused = sorted(found.keys() & lane.refused)
        if refused:
            self.wrong.append(f"{lane.name}: rows that were refused are there: {refused[:3]}")
        deleted = sorted(row for row in found if 0 <= row < known.deleted_to)
        if deleted:
            self.wrong.append(f"{lane.name}: {len(deleted)} deleted rows are there, such as {deleted[:3]}")
        if known.register_acked:
            value = register.get(lane.time_of(-1), 0.0)
            if value < known.register_acked and value not in lane.register_unknown:
                self.wrong.append(
                    f"{lane.name}: the register reads {value}, acknowledged was {known.register_acked}"
                )

    # --- the end -----------------------------------------------------------------------------------

    def check_all(self, spec: ClusterSpec) -> None:
        """After `stop`, read every lane completely. `spec` names the current nodes, because all of the first
        ones may have been replaced. Raises AssertionError."""

        async def check() -> None:
            cluster = await Cluster.connect(spec)
            try:
                for lane in self.lanes:
                    assert await self.look(cluster, lane, 0), f"{lane.name} cannot be read"
            finally:
                await cluster.close()

        asyncio.run(check())
        assert not self.wrong, self.wrong[:5]

    def summary(self) -> str:
        return (
            f"{self.writes} writes and {self.deletes} deletes acknowledged, {self.refused} refused,"
            f" {self.unknown} unknown; {self.reads} reads checked, {self.unread} not answered"
        )


def make_lanes(storage_groups: int, devices: int, start_ms: int) -> list[Lane]:
    """`devices` lanes in each storage group, every third of them in the table with a TTL."""
    return [
        Lane(f"root.torture{g}", FRESH if d % 3 == 2 else TABLE, f"d{g}-{d}", start_ms)
        for g in range(storage_groups)
        for d in range(devices)
    ]


def schemas(lanes: Sequence[Lane]) -> list[tuple[TableSchema, int | None]]:
    """The tables of the lanes, each with its TTL in ms."""
    columns = (Column(TAG, "STRING", True), Column(VALUE, "DOUBLE", False))
    tables = sorted({(lane.storage_group, lane.table) for lane in lanes})
    return [(TableSchema(sg, t, 1, columns), TTL_MS if t == FRESH else None) for sg, t in tables]

"""The ingest's client: sends Arrow batches directly to the leaders, with a fixed number in progress per
leader."""

import asyncio
import multiprocessing
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from nodeagent.client.cluster import Cluster
from nodeagent.client.spec import ClusterSpec
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import ErrorReply, OpenSession, Reply, SessionOpened, Write, Written
from nodeagent.transport.connection import Connection
from tests.bench.minimal_client import connection_to
from tests.bench.walks import TABLE, Source, sources

TIMEOUT_S = 60.0
PAUSE_S = 0.05


class Load(msgspec.Struct, frozen=True):
    """What one client process writes. It stops after `seconds`, or after `rows_max` rows if that is not 0.

    `rows_per_s` limits its rate; 0 means as fast as the agents accept rows.
    """

    groups: tuple[int, ...]
    devices: int
    fields: int
    rows: int
    in_flight: int
    seconds: float
    partitions: int = 1
    rows_max: int = 0
    rows_per_s: float = 0.0


class WriteCount(msgspec.Struct, frozen=True):
    """Rows acknowledged within `seconds`, and in total, including writes in progress at the end."""

    rows: int
    rows_all: int
    batches: int
    refused: int
    seconds: float
    bytes: int


class _Lane:
    """Batches for one group's leader: a fixed number in progress, alternating between the partitions."""

    def __init__(
        self,
        connections: dict[NodeId, Connection],
        leader: NodeId,
        group: GroupId,
        session: str,
        own: Sequence[Source],
    ) -> None:
        self._connections = connections
        self._leader = leader
        self.group = group
        self.session = session
        self.turn = deque(own)
        self.sequences: dict[int, int] = {}
        self.open: dict[int, set[int]] = {}

    @property
    def connection(self) -> Connection:
        return self._connections[self._leader]

    def on_refusal(self, reply: ErrorReply) -> bool:
        """Whether to retry; the session ensures that a write takes effect once."""
        named = reply.details.get("leader")
        if isinstance(named, str) and named in self._connections:
            self._leader = named
        elif reply.code in ("not_leader", "outcome_unknown", "unavailable"):
            names = sorted(self._connections)
            self._leader = names[(names.index(self._leader) + 1) % len(names)]
        return reply.code in ("not_leader", "outcome_unknown", "unavailable", "overloaded", "refused")


class _Writer:
    def __init__(self, lanes: Sequence[_Lane], load: Load, seed: int) -> None:
        self._lanes = lanes
        self._load = load
        self._random = np.random.default_rng(seed)
        self._running = True
        self._under_way = 0
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.rows = self.batches = self.refused = self.bytes = self._planned = 0
        self._due = self._loop.time()
        """When the next batch may be sent, with a rate."""

    async def run(self) -> WriteCount:
        start = time.perf_counter()
        for lane in self._lanes:
            for _ in range(self._load.in_flight):
                self._next(lane)
        stop = self._loop.call_later(self._load.seconds, self._stop)
        while self._running and not self._ended.done():
            await asyncio.sleep(0.01)
        stop.cancel()
        rows, seconds = self.rows, time.perf_counter() - start
        self._stop()
        await asyncio.wait_for(self._ended, TIMEOUT_S)
        return WriteCount(rows, self.rows, self.batches, self.refused, seconds, self.bytes)

    def _stop(self) -> None:
        self._running = False
        if not self._under_way and not self._ended.done():
            self._ended.set_result(None)

    def _next(self, lane: _Lane) -> None:
        if not self._running:
            return
        if self._load.rows_max and self._planned >= self._load.rows_max:
            self._running = False
            return
        source = lane.turn[0]
        lane.turn.rotate(-1)
        self._planned += source.rows
        if not self._load.rows_per_s:
            return self._begin(lane, source)
        self._due = max(self._due, self._loop.time()) + source.rows / self._load.rows_per_s
        self._loop.call_at(self._due, self._begin, lane, source)

    def _begin(self, lane: _Lane, source: Source) -> None:
        if not self._running:
            return
        sequence = lane.sequences[source.slot] = lane.sequences.get(source.slot, 0) + 1
        under_way = lane.open.setdefault(source.slot, set())
        under_way.add(sequence)
        self._under_way += 1
        self._send(lane, source, sequence, bytes(source.next(self._random)))

    def _send(self, lane: _Lane, source: Source, sequence: int, ipc: bytes) -> None:
        under_way = lane.open[source.slot]
        write = Write(
            group=lane.group,
            slot=source.slot,
            partition=source.partition,
            table=TABLE,
            schema_version=1,
            session=lane.session,
            sequence=sequence,
            acknowledged_through=min(under_way) - 1,
            table_version=1,
            ipc=ipc,
        )

        def on_reply(reply: Reply) -> None:
            if isinstance(reply, ErrorReply) and lane.on_refusal(reply):
                self.refused += 1
                self._loop.call_later(PAUSE_S, self._send, lane, source, sequence, ipc)
                return
            self._under_way -= 1
            under_way.discard(sequence)
            if not isinstance(reply, Written):
                if not self._ended.done():
                    self._ended.set_exception(AssertionError(f"not written: {reply}"))
                return
            self.rows += source.rows
            self.batches += 1
            self.bytes += len(ipc)
            self._next(lane)
            if not self._running:
                self._stop()

        lane.connection.request(write, TIMEOUT_S, on_reply)


async def _write(spec: ClusterSpec, load: Load, leaders: dict[GroupId, NodeId]) -> WriteCount:
    async with await Cluster.connect(spec) as cluster:
        view = await cluster.meta(strong=True)
    by_owner = {g.owner: g.group for g in view.groups if not g.dissolving}
    own: dict[GroupId, list[Source]] = {}
    for source in sources(
        view.settings,
        groups=load.groups,
        devices=load.devices,
        fields=load.fields,
        rows=load.rows,
        partitions=load.partitions,
    ):
        owner = next(h for a, b, h in view.owners if a <= source.slot < b)
        own.setdefault(by_owner[owner], []).append(source)
    connections = {node: await connection_to(spec, node) for node in set(leaders.values())}
    lanes = []
    try:
        for group, mine in sorted(own.items()):
            leader = leaders[group]
            opened = await connections[leader].call(OpenSession(group), TIMEOUT_S)
            assert isinstance(opened, SessionOpened), opened
            lanes.append(_Lane(connections, leader, group, opened.session, mine))
        return await _Writer(lanes, load, seed=load.groups[0]).run()
    finally:
        for connection in connections.values():
            connection.close()


def _process(
    spec: ClusterSpec, load: Load, leaders: dict[GroupId, NodeId], out: "multiprocessing.Queue[bytes]"
) -> None:
    import uvloop

    out.put(msgspec.msgpack.encode(uvloop.run(_write(spec, load, leaders))))


@contextmanager
def clients(
    spec: ClusterSpec, loads: Sequence[Load], leaders: dict[GroupId, NodeId]
) -> Iterator["list[multiprocessing.Queue[bytes]]"]:
    """Running client processes; each puts one `WriteCount` into its queue. They end with the block."""
    spawn = multiprocessing.get_context("spawn")
    queues = [spawn.Queue() for _ in loads]
    started = [
        spawn.Process(target=_process, args=(spec, load, leaders, queue))
        for load, queue in zip(loads, queues, strict=True)
    ]
    for process in started:
        process.start()
    try:
        yield queues
    finally:
        for process in started:
            process.join(10)
            if process.is_alive():
                process.kill()


def wait_written(queue: "multiprocessing.Queue[bytes]", timeout_s: float) -> WriteCount:
    return msgspec.msgpack.decode(queue.get(timeout=timeout_s), type=WriteCount)

"""Clients that overwrite registers on schedule and read them with strong reads.

Each group receives one small write every 17 ms, whether or not the last was answered, so that a pause shows
at its full length. A stream is one cell that is overwritten with its own sequence number: a strong read that
begins after write n was acknowledged must return n or more.
"""

import asyncio
import multiprocessing
import random
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event

import msgspec
import pyarrow as pa

from nodeagent.client.blocking import BlockingCluster
from nodeagent.client.cluster import Cluster
from nodeagent.client.routes import Routes
from nodeagent.client.spec import ClusterSpec
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import GroupId
from nodeagent.partition.hash import shard_of, slot_of, time_partition
from tests.bench.figures import Figure, of

EVERY_S = 0.017
STREAMS_PER_GROUP = 80
READERS = 4
READ_PAUSE_S = 0.25
"""Pause between two reads of one reader. Without it the readers use all the processor time that the writers
leave, and every gap only shows that the machine is busy."""

DEADLINE_S = 10.0
"""Time limit of one write, with all its retries."""

TIME_MS = 1_700_000_000_000
TABLE = "registers"
FIELDS = [pa.field("time", pa.int64()), pa.field("device", pa.string())] + [
    pa.field(f"f{i}", pa.float64()) for i in range(5)
]


class Stream(msgspec.Struct, frozen=True):
    """One device of one storage group: one cell of one slot."""

    storage_group: str
    device: str
    slot: int


class Acknowledged(msgspec.Struct, frozen=True, array_like=True):
    """A write that was due at `due`, and the monotonic time of its acknowledgement."""

    at: float
    due: float
    stream: int


class Seen(msgspec.Struct, frozen=True):
    """What one client process observed. `stale`: (stream, expected at least, found)."""

    acknowledged: list[Acknowledged]
    failed: list[str]
    stale: list[tuple[int, int, int]]
    reads: int
    reads_failed: list[str]


class Writer:
    def __init__(
        self, cluster: Cluster, streams: Sequence[Stream], by_group: Sequence[Sequence[int]]
    ) -> None:
        self._cluster = cluster
        self._streams = streams
        self._by_group = by_group
        self._random = random.Random(7)
        self._sent = [0] * len(streams)
        self._acked = [0] * len(streams)
        self._busy: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen = Seen([], [], [], 0, [])
        self.running = True

    async def write_group(self, own: Sequence[int]) -> None:
        """One write every `EVERY_S`, each to a stream that has none in progress."""
        due = time.monotonic()
        while self.running:
            due = max(due + EVERY_S, time.monotonic() - EVERY_S)  # a client that is late skips a write
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            free = [s for s in own if s not in self._busy]
            if not free:
                continue
            stream = self._random.choice(free)
            self._busy.add(stream)
            task = asyncio.create_task(self._write(stream, due))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _write(self, stream: int, due: float) -> None:
        where = self._streams[stream]
        self._sent[stream] += 1
        number = self._sent[stream]
        columns = [pa.array([TIME_MS]), pa.array([where.device]), *[pa.array([float(number)])] * 5]
        rows = pa.record_batch(columns, schema=pa.schema(FIELDS))
        try:
            await self._cluster.write(where.storage_group, TABLE, rows)
        except NodeAgentError as error:
            self.seen.failed.append(f"{error.code}: {error.what}")
        else:
            self._acked[stream] = number
            self.seen.acknowledged.append(Acknowledged(time.monotonic(), due, stream))
        self._busy.discard(stream)

    async def read(self) -> None:
        count = 0
        while self.running:
            stream = self._random.randrange(len(self._streams))
            where, least = self._streams[stream], self._acked[stream]
            try:
                found = await self._cluster.scan(
                    where.storage_group, TABLE, fields=["f0"], tags={"device": where.device}
                )
            except NodeAgentError as error:
                self.seen.reads_failed.append(f"{error.code}: {error.what}")
                continue
            value = int(found.column("f0")[0].as_py()) if found.num_rows else 0
            if value < least:
                self.seen.stale.append((stream, least, value))
            count += 1
            await asyncio.sleep(READ_PAUSE_S)
        self.seen = msgspec.structs.replace(self.seen, reads=self.seen.reads + count)

    async def run(self, stop: Event) -> Seen:
        tasks = [asyncio.create_task(self.write_group(own)) for own in self._by_group]
        tasks += [asyncio.create_task(self.read()) for _ in range(READERS)]
        while not stop.is_set():
            await asyncio.sleep(0.05)
        self.running = False
        await asyncio.gather(*tasks)
        await asyncio.gather(*self._tasks)
        return self.seen


def _client(
    spec: ClusterSpec,
    streams: Sequence[Stream],
    by_group: Sequence[Sequence[int]],
    stop: Event,
    out: "multiprocessing.Queue[bytes]",
) -> None:
    """Runs in a separate process."""
    import uvloop

    async def main() -> Seen:
        async with await Cluster.connect(spec) as cluster:
            return await Writer(cluster, streams, by_group).run(stop)

    out.put(msgspec.msgpack.encode(uvloop.run(main())))


class Running:
    """Clients in a separate process."""

    def __init__(
        self, spec: ClusterSpec, streams: Sequence[Stream], by_group: Sequence[Sequence[int]]
    ) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._queue: multiprocessing.Queue[bytes] = spawn.Queue()
        self._stop = spawn.Event()
        spec = msgspec.structs.replace(spec, timeout_s=DEADLINE_S)
        self._process = spawn.Process(target=_client, args=(spec, streams, by_group, self._stop, self._queue))
        self._process.start()

    def stop(self) -> Seen:
        self._stop.set()
        return msgspec.msgpack.decode(self._queue.get(timeout=120), type=Seen)

    def end(self) -> None:
        self._stop.set()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


@contextmanager
def clients(
    spec: ClusterSpec, streams: Sequence[Stream], by_group: Sequence[Sequence[int]]
) -> Iterator[Running]:
    """Run clients until `stop`, or until the block ends."""
    running = Running(spec, streams, by_group)
    try:
        yield running
    finally:
        running.end()


def streams_of(cluster: BlockingCluster) -> tuple[list[Stream], list[list[int]]]:
    """Creates the table; returns streams over many slots, equally many for each group."""
    routes = Routes(cluster.meta())
    settings = routes.view.settings
    groups: dict[GroupId, list[int]] = {g.group: [] for g in routes.groups}
    streams: list[Stream] = []
    for number in range(100_000):
        if all(len(own) >= STREAMS_PER_GROUP for own in groups.values()):
            break
        storage_group, device = f"root.register{number % 40:02d}", f"d{number // 40}"
        partition = time_partition(TIME_MS, settings.time_partition_interval_ms)
        slot = slot_of(storage_group, partition, shard_of([device], settings.shards), settings)
        own = groups[routes.group_of(slot).group]
        if len(own) < STREAMS_PER_GROUP:
            own.append(len(streams))
            streams.append(Stream(storage_group, device, slot))
    for one in sorted({s.storage_group for s in streams}):
        empty = pa.schema(FIELDS).empty_table()
        cluster.write(one, TABLE, empty, tags=["device"])
    return streams, list(groups.values())


def gap(seen: Seen, own: Collection[int], start: float, end: float) -> float:
    """The longest time in [start, end] without an acknowledgement of any stream in `own`, in ms."""
    times = sorted(a.at for a in seen.acknowledged if a.stream in own and start <= a.at <= end)
    edges = [start, *times, end]
    return 1e3 * max(b - a for a, b in zip(edges, edges[1:], strict=False))


def losses(seen: Seen) -> list[Figure]:
    """Check that no write failed and that no read returned an old value."""
    return [
        of("failed writes", [float(len(seen.failed))], "writes", ceiling=0.5, limit=_first(seen.failed)),
        of(
            "strong reads that found an older value",
            [float(len(seen.stale))],
            "reads",
            ceiling=0.5,
            limit=f"{seen.reads} reads, {len(seen.reads_failed)} failed {_first(seen.reads_failed)}",
        ),
    ]


def _first(errors: Sequence[str]) -> str:
    return f"({errors[0]})" if errors else ""

"""What writers and readers notice of an add and a remove: failed writes, gaps, old values.

One small write every 20 ms to each group, on schedule whether or not the last one was answered, so that a
pause shows at its full length. A stream is one cell that is overwritten with its own sequence number: a
strong read that begins after write n was acknowledged must find n or more.
"""

import asyncio
import multiprocessing
import random
import time
from collections.abc import Iterable, Sequence
from multiprocessing.synchronize import Event

import msgspec
import pyarrow as pa

from nodeagent.client.blocking import BlockingCluster
from nodeagent.client.cluster import Cluster
from nodeagent.client.routes import make_routes
from nodeagent.client.spec import ClusterSpec
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import GroupId
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import BeginChange
from nodeagent.partition.hash import shard_of, slot_of, time_partition
from tests.bench.agents import Agents, fleet_of
from tests.bench.figures import Figure, Report, of, percentile
from tests.bench.migrate import add_request, fill, first_status, start_node

NODES = 5
STORED_MIB = 200
EVERY_S = 0.018
STREAMS_PER_GROUP = 80
READERS = 4
READ_PAUSE_S = 0.25
"""Between two reads of one reader. Without it the readers take what the writers leave of two processors, and
every gap is that of a busy box."""

DEADLINE_S = 10.0
"""Of one write, with all its retries."""

GAP_MAX_MS = 500.0
CALM_S = 5.0
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
    """At this monotonic time the write that was due at `due` was acknowledged."""

    at: float
    due: float
    stream: int


class Seen(msgspec.Struct, frozen=True):
    """What one client process saw. `stale`: (stream, expected at least, found)."""

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
        """One write every `EVERY_S`, each to a stream that has none under way."""
        due = time.monotonic()
        while self.running:
            due = max(due + EVERY_S, time.monotonic() - EVERY_S)  # a client that is behind skips
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
    """In a process of its own."""
    import uvloop

    async def main() -> Seen:
        async with await Cluster.connect(spec) as cluster:
            return await Writer(cluster, streams, by_group).run(stop)

    out.put(msgspec.msgpack.encode(uvloop.run(main())))


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    with fleet_of(NODES, tls=True) as agents:
        fill(agents, STORED_MIB // 4 if quick else STORED_MIB)
        with agents.connect() as cluster:
            streams, by_group = streams_of(cluster)
            periods, seen = _with_writers(agents, cluster, streams, by_group)
    figures = [f for op, start, end in periods for f in _figures(op, start, end, streams, by_group, seen)]
    figures.append(
        of("failed writes", [float(len(seen.failed))], "writes", ceiling=0.5, limit=_first(seen.failed))
    )
    figures.append(
        of(
            "strong reads that found an older value",
            [float(len(seen.stale))],
            "reads",
            ceiling=0.5,
            limit=f"{seen.reads} reads, {len(seen.reads_failed)} failed {_first(seen.reads_failed)}",
        )
    )
    workload = (
        f"one write of 5 points every {EVERY_S * 1e3:.0f} ms to each of {NODES} groups, {len(streams)}"
        f" streams in {len({s.slot for s in streams})} slots, {READERS} strong readers, TLS on, R=3,"
        f" {STORED_MIB} MiB stored; gaps between acknowledgements while a node is added, then removed"
    )
    return Report("change", workload, tuple(figures), time.monotonic() - started)


def _first(errors: Sequence[str]) -> str:
    return f"({errors[0]})" if errors else ""


def streams_of(cluster: BlockingCluster) -> tuple[list[Stream], list[list[int]]]:
    """Streams over many slots, as many for each group; the table is made."""
    routes = make_routes(cluster.meta())
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


def _with_writers(
    agents: Agents, cluster: BlockingCluster, streams: Sequence[Stream], by_group: Sequence[Sequence[int]]
) -> tuple[list[tuple[Operation, float, float]], Seen]:
    spawn = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[bytes] = spawn.Queue()
    stop = spawn.Event()
    spec = msgspec.structs.replace(agents.spec, timeout_s=DEADLINE_S)
    client = spawn.Process(target=_client, args=(spec, streams, by_group, stop, queue))
    client.start()
    try:
        time.sleep(CALM_S)
        start_node(agents, "node6")
        newcomer = first_status(agents, cluster, "node6")
        time.sleep(CALM_S)
        periods = [change(cluster, add_request(agents, newcomer))]
        time.sleep(CALM_S)
        periods.append(change(cluster, BeginChange(kind="remove-node", node="node2", by="bench")))
        time.sleep(CALM_S)
        stop.set()
        return periods, msgspec.msgpack.decode(queue.get(timeout=120), type=Seen)
    finally:
        client.join(10)
        if client.is_alive():
            client.kill()


def change(cluster: BlockingCluster, request: BeginChange) -> tuple[Operation, float, float]:
    start = time.monotonic()
    operation = cluster.wait(cluster.begin_change(request).id, timeout_s=300.0)
    assert operation.stage is Stage.DONE, (operation.stage, operation.last_error)
    return operation, start, time.monotonic()


def _figures(
    op: Operation,
    start: float,
    end: float,
    streams: Sequence[Stream],
    by_group: Sequence[Sequence[int]],
    seen: Seen,
) -> list[Figure]:
    moving = {s for m in op.moves for a, b in m.slots for s in range(a, b)}
    moved = {i for i, s in enumerate(streams) if s.slot in moving}
    assert moved, "no stream was moved"
    cohorts = {f"group {n + 1}": set(own) for n, own in enumerate(by_group)}
    cohorts["moved slots"] = moved
    gaps = {name: _gap(seen.acknowledged, own, start, end) for name, own in cohorts.items()}
    calm = [a.at - a.due for a in seen.acknowledged if a.at < start]
    during = [a.at - a.due for a in seen.acknowledged if start <= a.due <= end]
    details = {
        "writes_per_s_and_group": len(during) / (end - start) / len(by_group),
        **gaps,
        "calm_p99_ms": 1e3 * percentile(calm, 0.99),
        "p99_ms": 1e3 * percentile(during, 0.99),
        "slowest_ms": 1e3 * max(during),
        **{f"{s.name.lower()}_s": (s.left_ms - s.entered_ms) / 1e3 for s in op.stages if s.left_ms},
    }
    return [of(f"{op.kind}: longest gap", [max(gaps.values())], "ms", ceiling=GAP_MAX_MS, details=details)]


def _gap(acknowledged: Iterable[Acknowledged], own: set[int], start: float, end: float) -> float:
    """The longest time in [start, end] without an acknowledgement of any stream in `own`, in ms."""
    times = sorted(a.at for a in acknowledged if a.stream in own and start <= a.at <= end)
    edges = [start, *times, end]
    return 1e3 * max(b - a for a, b in zip(edges, edges[1:], strict=False))

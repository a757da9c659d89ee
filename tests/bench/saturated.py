"""How much throughput a saturating writer loses to an add at rate `auto`, compared within one run.

A fixed number of batches is in progress, each for one device, through the public client: before, while and
after a node is added. Slots are also written at their new owners.
"""

import asyncio
import multiprocessing
import random
import time
from multiprocessing.synchronize import Event

import msgspec
import numpy as np
import pyarrow as pa

from nodeagent.client.cluster import Cluster
from nodeagent.client.spec import ClusterSpec
from nodeagent.model.errors import NodeAgentError
from tests.bench.agents import fleet_of
from tests.bench.during_changes import change
from tests.bench.figures import Figure, Report, of, percentile
from tests.bench.migrate import add_request, fill, first_status, start_node
from tests.bench.registers import FIELDS, TABLE, TIME_MS, Stream, streams_of

NODES = 5
STORED_MIB = 200
ROWS = 400
IN_FLIGHT = 32
WARM_S, CALM_S = 40.0, 60.0
"""Memtables fill for half a minute before the first files are written. Then phases in which files are made,
with up to one processor, alternate with phases without; each takes up to a minute. The writer alone is
therefore measured for a minute before the change and for a minute after it, and the faster one counts: after
a change, merges that it postponed slow the writer."""

LOSS_MAX = 25.0
P99_MAX = 2.0
STEP_MS = 100


class Sent(msgspec.Struct, frozen=True, array_like=True):
    """A batch: the monotonic time of its acknowledgement, and its latency in seconds."""

    at: float
    seconds: float


class Outcome(msgspec.Struct, frozen=True):
    sent: list[Sent]
    failed: list[str]


async def _write(spec: ClusterSpec, streams: list[Stream], stop: Event) -> Outcome:
    outcome = Outcome([], [])
    draw = random.Random(3)
    walks = np.cumsum(np.random.default_rng(3).normal(size=(5, ROWS)), axis=1)
    fields = [pa.array(w) for w in walks]
    names = pa.schema(FIELDS)
    turns = dict.fromkeys(range(len(streams)), 0)
    async with await Cluster.connect(spec) as cluster:

        async def lane() -> None:
            while not stop.is_set():
                number = draw.randrange(len(streams))
                where = streams[number]
                turns[number] += 1
                first = TIME_MS + turns[number] * ROWS * STEP_MS
                times = pa.array(np.arange(first, first + ROWS * STEP_MS, STEP_MS))
                devices = pa.array([where.device]).take(pa.array(np.zeros(ROWS, np.int32)))
                batch = pa.record_batch([times, devices, *fields], schema=names)
                started = time.monotonic()
                try:
                    await cluster.write(where.storage_group, TABLE, batch)
                except NodeAgentError as error:
                    outcome.failed.append(f"{error.code}: {error.what}")
                    continue
                at = time.monotonic()
                outcome.sent.append(Sent(at, at - started))

        await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
    return outcome


def _client(
    spec: ClusterSpec, streams: list[Stream], stop: Event, out: "multiprocessing.Queue[bytes]"
) -> None:
    """Runs in a separate process."""
    import uvloop

    out.put(msgspec.msgpack.encode(uvloop.run(_write(spec, streams, stop))))


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    with fleet_of(NODES, tls=True) as agents:
        fill(agents, STORED_MIB // 4 if quick else STORED_MIB)
        start_node(agents, "node6")  # another idle agent is not part of the comparison
        with agents.connect() as cluster:
            newcomer = first_status(agents, cluster, "node6")
            streams, _ = streams_of(cluster)
            queue: multiprocessing.Queue[bytes] = spawn.Queue()
            stop = spawn.Event()
            client = spawn.Process(target=_client, args=(agents.spec, streams, stop, queue))
            client.start()
            try:
                time.sleep(WARM_S)
                time.sleep(CALM_S)
                operation, *during = change(cluster, add_request(agents, newcomer))
                time.sleep(CALM_S)
                stop.set()
                outcome = msgspec.msgpack.decode(queue.get(timeout=120), type=Outcome)
            finally:
                client.join(10)
                if client.is_alive():
                    client.kill()
    stages = {f"{s.name.lower()}_s": (s.left_ms - s.entered_ms) / 1e3 for s in operation.stages if s.left_ms}
    workload = (
        f"{IN_FLIGHT} batches of {ROWS} rows x 5 fields always in progress to {len(streams)} streams, TLS,"
        f" R=3, {STORED_MIB} MiB stored; while a sixth node is added at rate auto, and alone for"
        f" {CALM_S:.0f} s before and after that"
    )
    figures = _figures(outcome, during[0], during[1], stages)
    return Report("auto", workload, figures, time.monotonic() - started)


def _figures(outcome: Outcome, begun: float, ended: float, stages: dict[str, float]) -> tuple[Figure, ...]:
    before, after = _speed(outcome, begun - CALM_S, begun), _speed(outcome, ended, ended + CALM_S)
    alone, beside = max(before, after), _speed(outcome, begun, ended)
    loss = 100 * (1 - beside[0] / alone[0])
    return (
        of(
            "writer alone",
            [alone[0]],
            "points/s",
            details={"p99_ms": alone[1], "p50_ms": alone[2], "before": before[0], "after": after[0]},
        ),
        of(
            "writer beside an add",
            [beside[0]],
            "points/s",
            details={"p99_ms": beside[1], "p50_ms": beside[2]},
        ),
        of("loss", [max(loss, 0.001)], "%", ceiling=LOSS_MAX, details=stages),
        of("p99 beside / alone", [beside[1] / alone[1]], "times", ceiling=P99_MAX),
        of(
            "failed writes",
            [float(len(outcome.failed))],
            "batches",
            ceiling=0.5,
            limit="; ".join(outcome.failed[:1]),
        ),
    )


def _speed(outcome: Outcome, start: float, end: float) -> tuple[float, float, float]:
    """(points per second, p99, p50 in ms) of what was acknowledged in [start, end]."""
    times = [s.seconds for s in outcome.sent if start <= s.at <= end]
    rate = len(times) * ROWS * 5 / (end - start)
    return rate, 1e3 * percentile(times, 0.99), 1e3 * percentile(times, 0.5)

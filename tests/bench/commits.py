"""Committed proposals per second: 128 B each, three agents, every commit durable on a majority."""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Callable

import msgspec

from nodeagent.client.spec import ClusterSpec
from nodeagent.model.ids import META, GroupId, NodeId
from nodeagent.model.requests import Accepted, Propose, Reply
from nodeagent.transport.connection import Connection
from tests.bench.agents import fleet_of
from tests.bench.figures import Figure, Report, of, percentile
from tests.bench.minimal_client import connection_to

NODES = 3
PAYLOAD_BYTES = 128
IN_FLIGHT = (1, 64, 2_000)
FLOOR_AT_64 = 10_000
RUNS = 3
TIMEOUT_S = 20.0
PROTOTYPE = {1: "2 700/s, p50 0.36 ms", 64: "114 000/s, p50 0.55 ms", 2_000: "484 000/s, p50 4.1 ms"}


class Outcome(msgspec.Struct, frozen=True):
    """Results of one run; times in milliseconds."""

    commits_per_s: float
    p50_ms: float
    p99_ms: float


class _Stream:
    """Keeps `in_flight` proposals in progress on one connection, and sends a new one for each commit."""

    def __init__(self, connection: Connection, group: GroupId, in_flight: int) -> None:
        self._connection = connection
        self._request = Propose(group, (os.urandom(PAYLOAD_BYTES),))
        self._in_flight = in_flight
        self._open = 0
        self._running = True
        self._clock: Callable[[], float] = time.perf_counter
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.times: list[float] = []
        self.first = 0

    async def run(self, warm_s: float, seconds: float) -> Outcome:
        for _ in range(self._in_flight):
            self._propose()
        await asyncio.sleep(warm_s)
        self.times.clear()
        start = self._clock()
        await asyncio.sleep(seconds)
        committed, elapsed = len(self.times), self._clock() - start
        times = self.times[:committed]
        self._running = False
        await asyncio.wait_for(self._done, TIMEOUT_S)
        assert committed, "nothing was committed"
        return Outcome(committed / elapsed, percentile(times, 0.5) * 1e3, percentile(times, 0.99) * 1e3)

    def _propose(self) -> None:
        begun = self._clock()
        self._open += 1

        def on_reply(reply: Reply) -> None:
            self._open -= 1
            if not isinstance(reply, Accepted):
                if not self._done.done():
                    self._done.set_exception(AssertionError(f"not committed: {reply}"))
                return
            self.times.append(self._clock() - begun)
            if self._running:
                self._propose()
            elif not self._open and not self._done.done():
                self._done.set_result(None)

        self._connection.request(self._request, TIMEOUT_S, on_reply)


async def _measure(
    spec: ClusterSpec, node: NodeId, group: GroupId, seconds: float
) -> dict[int, list[Outcome]]:
    connection = await connection_to(spec, node)
    found: dict[int, list[Outcome]] = {n: [] for n in IN_FLIGHT}
    try:
        for _ in range(RUNS):
            for in_flight in IN_FLIGHT:
                found[in_flight].append(await _Stream(connection, group, in_flight).run(0.3, seconds))
    finally:
        connection.close()
    return found


def _client(
    spec: ClusterSpec, node: NodeId, group: GroupId, seconds: float, out: "multiprocessing.Queue[bytes]"
) -> None:
    """Runs in a separate process."""
    import uvloop

    out.put(msgspec.msgpack.encode(uvloop.run(_measure(spec, node, group, seconds))))


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    figures: list[Figure] = []
    for tls in (True, False):
        figures += _with(tls, 1.0 if quick else 3.0)
    return Report(
        "commits",
        f"{PAYLOAD_BYTES} B proposals to one group's leader, {NODES} agents, R=3, fsync on, each proposal"
        f" its own request, one client process; median of {RUNS} runs",
        tuple(figures),
        time.monotonic() - started,
    )


def _with(tls: bool, seconds: float) -> list[Figure]:
    with fleet_of(NODES, tls=tls) as agents:
        with agents.connect() as cluster:
            leaders = agents.wait_ready(cluster, NODES)
        group, node = next((g, n) for g, n in sorted(leaders.items()) if g != META)
        spawn = multiprocessing.get_context("spawn")
        queue: multiprocessing.Queue[bytes] = spawn.Queue()
        client = spawn.Process(target=_client, args=(agents.spec, node, group, seconds, queue))
        client.start()
        try:
            found = msgspec.msgpack.decode(queue.get(timeout=120), type=dict[int, list[Outcome]])
        finally:
            client.join(10)
            if client.is_alive():
                client.kill()
    return [_figure(tls, in_flight, outcomes) for in_flight, outcomes in found.items()]


def _figure(tls: bool, in_flight: int, outcomes: list[Outcome]) -> Figure:
    rates = [o.commits_per_s for o in outcomes]
    middle = min(outcomes, key=lambda o: abs(o.commits_per_s - sorted(rates)[len(rates) // 2]))
    return of(
        f"{in_flight} in flight, TLS {'on' if tls else 'off'}",
        rates,
        "1/s",
        floor=FLOOR_AT_64 if tls and in_flight == 64 else 0.0,
        limit=f"prototype {PROTOTYPE[in_flight]}",
        details={"p50_ms": middle.p50_ms, "p99_ms": middle.p99_ms},
    )

"""What writers and readers notice during an add and a remove: failed writes, gaps, old values."""

import time
from collections.abc import Sequence

from nodeagent.client.blocking import BlockingCluster
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import BeginChange
from tests.bench.agents import Agents, fleet_of
from tests.bench.figures import Figure, Report, of, percentile
from tests.bench.migrate import add_request, fill, first_status, start_node
from tests.bench.registers import EVERY_S, READERS, Seen, Stream, clients, gap, losses, streams_of

NODES = 5
STORED_MIB = 200
GAP_MAX_MS = 500.0
CALM_S = 5.0


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    with fleet_of(NODES, tls=True) as agents:
        fill(agents, STORED_MIB // 4 if quick else STORED_MIB)
        with agents.connect() as cluster:
            streams, by_group = streams_of(cluster)
            periods, seen = _with_writers(agents, cluster, streams, by_group)
    figures = [f for op, start, end in periods for f in _figures(op, start, end, streams, by_group, seen)]
    figures += losses(seen)
    workload = (
        f"one write of 5 points every {EVERY_S * 1e3:.0f} ms to each of {NODES} groups, {len(streams)}"
        f" streams in {len({s.slot for s in streams})} slots, {READERS} strong readers, TLS on, R=3,"
        f" {STORED_MIB} MiB stored; gaps between acknowledgements while a node is added, then removed"
    )
    return Report("change", workload, tuple(figures), time.monotonic() - started)


def _with_writers(
    agents: Agents, cluster: BlockingCluster, streams: Sequence[Stream], by_group: Sequence[Sequence[int]]
) -> tuple[list[tuple[Operation, float, float]], Seen]:
    with clients(agents.spec, streams, by_group) as running:
        time.sleep(CALM_S)
        start_node(agents, "node6")
        newcomer = first_status(agents, cluster, "node6")
        time.sleep(CALM_S)
        periods = [change(cluster, add_request(agents, newcomer))]
        time.sleep(CALM_S)
        periods.append(change(cluster, BeginChange(kind="remove-node", node="node2", by="bench")))
        time.sleep(CALM_S)
        return periods, running.stop()


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
    gaps = {name: gap(seen, own, start, end) for name, own in cohorts.items()}
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

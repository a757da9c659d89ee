"""How fast an added node and its neighbours receive files: COPYING and catch-up beside a local copy."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from nodeagent.client.blocking import BlockingCluster
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import META, GroupId, NodeId
from nodeagent.model.limits import MIB
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import BeginChange, NodeStatus
from tests.bench import raw
from tests.bench.agents import Agents, fleet_of
from tests.bench.figures import Figure, Report, of
from tests.bench.walks import schema_of, storage_group
from tests.bench.writing import Load, clients, wait_written

NODES = 5
GROUPS = 40
DEVICES = 24
WEEKS = 6
FIELDS = 5
ROWS_MAX = 3_000
BATCHES_MIN = 4_000
"""Enough batches that every partition has some."""

STORED_MIB = 1_800
"""Size of the files, counted once; an add of the sixth node moves about two thirds of it."""

STORED_MIB_QUICK = 120
MOVED_MIB_MIN = 1_024
FILES_MIN = 300
SLOTS_MIN = 1_500
SHARE_MIN = 30.0
OPERATION_S = 600.0
CLOSE_S = 900.0
COPIES = 3
_STAGES = (Stage.SEALED, Stage.OPEN, Stage.RECONFIGURING, Stage.COPYING)


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    stored = STORED_MIB_QUICK if quick else STORED_MIB
    with fleet_of(
        NODES, tls=True, settings={"idle_close_ms": 3_600_000, "compact_files_min": 1_000_000}
    ) as agents:
        fill(agents, stored)
        figures = _add(agents, "node6", quick=quick)
        agents.restart(tls=False)
        figures += _add(agents, "node7", quick=quick)
    workload = (
        f"add of a sixth node (TLS on), then a seventh (TLS off), R=3, {stored} MiB in files of random-walk"
        f" doubles, {GROUPS * DEVICES} devices, {WEEKS} time partitions; MB/s = bytes pulled / time from"
        " SEALED to the end of COPYING; compaction is off, so that the files copied are those moved"
    )
    return Report("migrate", workload, tuple(figures), time.monotonic() - started)


# --- data ------------------------------------------------------------------------------------------


def fill(agents: Agents, stored_mib: int) -> None:
    """Write until about this much is stored, then close all rows."""
    with agents.connect() as cluster:
        leaders = agents.wait_ready(cluster, NODES)
        groups = {g: n for g, n in leaders.items() if g != META}
        for number in range(GROUPS):
            cluster.put_schema(schema_of(storage_group(number), FIELDS))
        row_bytes = 7.7 * FIELDS  # random walks hardly compress
        load = Load(
            groups=tuple(range(GROUPS)),
            devices=DEVICES,
            fields=FIELDS,
            rows=min(ROWS_MAX, int(stored_mib * MIB / row_bytes / BATCHES_MIN)),
            in_flight=16,
            seconds=600.0,
            partitions=WEEKS,
            rows_max=int(stored_mib * MIB / row_bytes),
        )
        with clients(agents.spec, [load], groups) as queues:
            wait_written(queues[0], 700)
        for group in groups:
            cluster.close_all(group)
        _wait_closed(agents, cluster)
        _check_spread(cluster, groups)


def _wait_closed(agents: Agents, cluster: BlockingCluster) -> None:
    deadline = time.monotonic() + CLOSE_S
    while any(g.memtable_bytes for g in agents.groups(cluster).values()):
        assert time.monotonic() < deadline, "the replicas did not finish their files"
        time.sleep(0.2)


def _check_spread(cluster: BlockingCluster, groups: dict[GroupId, NodeId]) -> None:
    files = [f for group, leader in groups.items() for f in cluster.manifest(leader, group).files]
    slots = len({f.slot for f in files})
    assert slots >= SLOTS_MIN, f"only {slots} slots hold rows"


# --- the change ------------------------------------------------------------------------------------


def _add(agents: Agents, name: NodeId, *, quick: bool) -> list[Figure]:
    with agents.connect() as cluster:
        agents.wait_ready(cluster, _size(cluster))
        before = _received(agents, cluster)
        cpu = agents.cpu_seconds()
        start_node(agents, name)
        newcomer = first_status(agents, cluster, name)
        operation = cluster.begin_change(add_request(agents, newcomer))
        operation = cluster.wait(operation.id, timeout_s=OPERATION_S)
        assert operation.state() == "done", (operation.state(), operation.last_error)
        used = sum(agents.cpu_seconds().values()) - sum(cpu.values())
        after = _received(agents, cluster)
        moved, caught_up = _moved(operation, before, after)
    return _figures(agents, operation, moved, caught_up, used, quick=quick)


def _size(cluster: BlockingCluster) -> int:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(NodeAgentError):
            return len(cluster.meta().ring)
        assert time.monotonic() < deadline, "no node answers"
        time.sleep(0.2)


def start_node(agents: Agents, name: NodeId) -> None:
    agents.fleet.add(name)
    if not agents.tls:
        agents.fleet.stop([name])
    agents.fleet.start([name])


def first_status(agents: Agents, cluster: BlockingCluster, name: NodeId) -> NodeStatus:
    """The status of the newcomer, which no member knows yet: the client must know its address."""
    deadline = time.monotonic() + 60
    with agents.connect() as asking:
        while True:
            found = agents.statuses(asking).get(name)
            if found is not None:
                return found
            assert time.monotonic() < deadline, agents.fleet.log_tail(name)
            time.sleep(0.1)


def add_request(agents: Agents, newcomer: NodeStatus) -> BeginChange:
    node = agents.node(newcomer.node)
    return BeginChange(
        kind="add-node",
        node=node.name,
        by="bench",
        host=node.host,
        port=node.port,
        http_port=node.http_port,
        incarnation=newcomer.incarnation,
    )


def _received(agents: Agents, cluster: BlockingCluster) -> dict[NodeId, dict[str, int]]:
    return {name: dict(status.received_bytes) for name, status in agents.statuses(cluster).items()}


def _moved(
    operation: Operation, before: dict[NodeId, dict[str, int]], after: dict[NodeId, dict[str, int]]
) -> tuple[int, int]:
    """Bytes of the moved slots, and of group catch-up; every gaining member must have received some."""
    per_node = {node: received.get(operation.id, 0) for node, received in after.items()}
    gaining = {n for m in operation.moves for n in m.target_members}
    assert gaining and all(per_node[n] > 0 for n in gaining), per_node
    caught_up = sum(
        received.get("catch-up", 0) - before.get(node, {}).get("catch-up", 0)
        for node, received in after.items()
    )
    return sum(per_node.values()), caught_up


def _seconds(operation: Operation, *stages: Stage) -> float:
    return sum(s.left_ms - s.entered_ms for s in operation.stages if s.name in stages) / 1000


def _figures(
    agents: Agents, operation: Operation, moved: int, caught_up: int, used: float, *, quick: bool
) -> list[Figure]:
    total = moved + caught_up
    assert quick or total >= MOVED_MIB_MIN * MIB, f"only {total / MIB:.0f} MiB were moved"
    copies = [_copy(agents, operation.node, total) for _ in range(COPIES)]
    assert quick or copies[0][1] >= FILES_MIN, copies
    seconds = _seconds(operation, *_STAGES)
    rate = total / seconds / 1e6
    local = median(c[0] for c in copies)
    tls = f"TLS {'on' if agents.tls else 'off'}"
    details = {
        "MiB": total / MIB,
        "catch_up_MiB": caught_up / MIB,
        "cpu_s": used,
        **{f"{s.lower()}_s": _seconds(operation, s) for s in _STAGES},
    }
    limit = f"copy + XXH3 + fsync of {copies[0][1]} of these files: {local:.0f} MB/s"
    return [
        of(f"migrate, {tls}", [rate], "MB/s", limit=limit, details=details),
        of(
            f"migrate against a copy, {tls}",
            [100 * rate / local],
            "%",
            floor=SHARE_MIN if agents.tls and not quick else 0.0,
        ),
    ]


def _copy(agents: Agents, name: NodeId, size: int) -> tuple[float, int, int]:
    home = Path(agents.node(name).directory)
    return raw.copy_hash_mb_s(_files(home / "data" / "groups"), home / "bench-copy", size)


def _files(groups: Path) -> Iterator[Path]:
    """The TsFiles; staged copies may be deleted while they are listed."""
    return iter(sorted(groups.rglob("*.tsfile")))

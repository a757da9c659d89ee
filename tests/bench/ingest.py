"""Points per second into three agents, sustained: files are closed, checked and counted while it runs."""

import time

from nodeagent.client.blocking import BlockingCluster
from nodeagent.model.ids import META, GroupId, NodeId
from tests.bench.agents import Agents, fleet_of
from tests.bench.figures import Report, of
from tests.bench.walks import schema_of, storage_group
from tests.bench.writing import Load, WriteCount, clients, wait_written

GROUPS = 40
DEVICES = 25
"""Per storage group."""

FIELDS = 5
ROWS = 2_000
IN_FLIGHT = 24
"""Batches under way per leader."""

FLOOR = 1_500_000
CLOSES_MIN = 3
FULL_S = 60.0
SETTLE_S = 180.0


def run(*, seconds: float, nodes: int) -> Report:
    started = time.monotonic()
    with fleet_of(nodes, tls=True) as agents, agents.connect() as cluster:
        leaders = agents.wait_ready(cluster, nodes)
        groups = {g: n for g, n in leaders.items() if g != META}
        for number in range(GROUPS):
            cluster.put_schema(schema_of(storage_group(number), FIELDS))
        load = Load(tuple(range(GROUPS)), DEVICES, FIELDS, ROWS, IN_FLIGHT, seconds)
        before = agents.cpu_seconds()
        with clients(agents.spec, [load], groups) as queues:
            written = wait_written(queues[0], seconds + 120)
        used = sum(agents.cpu_seconds().values()) - sum(before.values())
        closes = _closes(cluster, groups)
        waiting = max(g.memtable_bytes for g in agents.groups(cluster).values())
        settled_s = _settle(agents, cluster, groups)
        _check_rows(cluster, groups, written)
    points = written.rows * FIELDS / written.seconds
    figure = of(
        f"ingest, {nodes} agents, TLS on",
        [points],
        "points/s",
        floor=FLOOR if seconds >= FULL_S and nodes == 3 else 0.0,
        limit=f"{used / written.seconds:.2f} cores in the agents and their workers",
        details={
            "MB_per_s": written.bytes / written.seconds / 1e6,
            "batches_per_s": written.batches / written.seconds,
            "refused": written.refused,
            "memtable_MiB_max": waiting / 2**20,
            "settle_s": settled_s,
        },
    )
    sustained = of(
        "file closes of the group with the fewest",
        [closes],
        "",
        floor=CLOSES_MIN if seconds >= FULL_S else 0.0,
        limit="fewer say that closing does not keep up: the rate is then not sustained",
    )
    workload = (
        f"random-walk doubles, {FIELDS} fields, {GROUPS * DEVICES} devices in {GROUPS} storage groups,"
        f" batches of {ROWS * FIELDS} points, R=3, fsync on, {seconds:.0f} s; at the end every row is in"
        " equal files on every replica"
    )
    return Report("ingest", workload, (figure, sustained), time.monotonic() - started)


def _closes(cluster: BlockingCluster, groups: dict[GroupId, NodeId]) -> int:
    """Fewest closes of any data or storage group while it was written to."""
    closed: dict[str, set[tuple[GroupId, int]]] = {name: set() for name in groups}
    closed |= {storage_group(number): set() for number in range(GROUPS)}
    for group, leader in groups.items():
        for file in cluster.manifest(leader, group).files:
            close = (group, file.order[0])
            closed[group].add(close)
            closed[file.partition.storage_group].add(close)
    return min(map(len, closed.values()))


def _settle(agents: Agents, cluster: BlockingCluster, groups: dict[GroupId, NodeId]) -> float:
    """Close what is open and wait until every replica has made its files."""
    start = time.monotonic()
    for group in groups:
        cluster.close_all(group)
    while time.monotonic() - start < SETTLE_S:
        if all(g.memtable_bytes == 0 for g in agents.groups(cluster).values()):
            return time.monotonic() - start
        time.sleep(0.2)
    raise TimeoutError("the replicas did not finish their files")


def _check_rows(cluster: BlockingCluster, groups: dict[GroupId, NodeId], written: WriteCount) -> None:
    """Every acknowledged row is in a file of every replica, and every replica's files are the same."""
    members = {g.group: g.members for g in cluster.meta().groups}
    rows = 0
    for group in groups:
        held = {
            n: {(f.name, f.xxh3): f.rows for f in cluster.manifest(n, group).files} for n in members[group]
        }
        first = next(iter(held.values()))
        assert all(h == first for h in held.values()), f"replicas of {group} differ"
        rows += sum(first.values())
    assert rows == written.rows_all, (rows, written.rows_all)

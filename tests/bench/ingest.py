"""Sustained points per second into three agents; files are flushed, checked and counted during the run."""

import time
from collections.abc import Sequence

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
"""Batches in progress per leader."""

FLOOR = 1_500_000
CLOSES_MIN = 3
FULL_S = 60.0
SETTLE_S = 180.0
LOOK_S = 2.0


def run(*, seconds: float, nodes: int) -> Report:
    started = time.monotonic()
    with fleet_of(nodes, tls=True) as agents, agents.connect() as cluster:
        leaders = agents.wait_ready(cluster, nodes)
        groups = {g: n for g, n in leaders.items() if g != META}
        for number in range(GROUPS):
            cluster.put_schema(schema_of(storage_group(number), FIELDS))
        load = Load(tuple(range(GROUPS)), DEVICES, FIELDS, ROWS, IN_FLIGHT, seconds)
        before = agents.cpu_seconds()
        closed: dict[str, set[tuple[GroupId, int]]] = {name: set() for name in groups}
        closed |= {storage_group(number): set() for number in range(GROUPS)}
        with clients(agents.spec, [load], groups) as queues:
            while queues[0].empty():
                _note_closes(cluster, groups, closed)
                time.sleep(LOOK_S)
            written = wait_written(queues[0], seconds + 120)
        _note_closes(cluster, groups, closed)
        used = sum(agents.cpu_seconds().values()) - sum(before.values())
        closes = min(map(len, closed.values()))
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


def _note_closes(
    cluster: BlockingCluster, groups: dict[GroupId, NodeId], closed: dict[str, set[tuple[GroupId, int]]]
) -> None:
    """Closes of each data and storage group that currently have files. Polled, because compaction merges
    files."""
    for group, leader in groups.items():
        for file in cluster.manifest(leader, group).files:
            close = (group, file.order[0])
            closed[group].add(close)
            closed[file.partition.storage_group].add(close)


def _settle(agents: Agents, cluster: BlockingCluster, groups: dict[GroupId, NodeId]) -> float:
    """Flush all rows and wait until every replica has written and compacted its files."""
    start = time.monotonic()
    for group in groups:
        cluster.close_all(group)
    while time.monotonic() - start < SETTLE_S:
        if _is_settled(agents, cluster):
            return time.monotonic() - start
        time.sleep(0.2)
    raise TimeoutError("the replicas did not finish their files")


def _check_rows(cluster: BlockingCluster, groups: dict[GroupId, NodeId], written: WriteCount) -> None:
    """Check that all replicas have equal files that contain every acknowledged row."""
    members = {g.group: g.members for g in cluster.meta().groups}
    rows = 0
    for group in groups:
        rows += _rows_of(cluster, group, members[group])
    assert rows == written.rows_all, (rows, written.rows_all)


def _rows_of(cluster: BlockingCluster, group: GroupId, members: Sequence[NodeId]) -> int:
    """Number of rows in the group's files, compared across members while no member merges files."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        held = [cluster.manifest(n, group) for n in members]
        files = [{(f.name, f.xxh3): f.rows for f in h.files} for h in held]
        if all(f == files[0] for f in files):
            return sum(files[0].values())
        even = len({h.materialised for h in held}) == 1 and not any(h.pending for h in held)
        assert not even, f"replicas of {group} differ"
        assert time.monotonic() < deadline, f"replicas of {group} do not converge"
        time.sleep(0.2)


def _is_settled(agents: Agents, cluster: BlockingCluster) -> bool:
    return not any(g.memtable_bytes or g.compacting for g in agents.groups(cluster).values())

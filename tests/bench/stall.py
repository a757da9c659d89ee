"""Whether the event loop ever stalls: a group with a hundred thousand files under a writer, for ten minutes.

The files are forged while the agents are down: each is a row in the checkpoint and an empty file. They are
never read; the bench tests what grows with their number: checkpoints, compaction planning, status, closes.
"""

import json
import time
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from nodeagent.client.blocking import BlockingCluster
from nodeagent.data.checkpoint import decode_checkpoint, encode_checkpoint
from nodeagent.data.state import DataState
from nodeagent.host.saved import Saved
from nodeagent.model.config import ClusterSettings
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import META, GroupId, NodeId, PartitionKey
from nodeagent.model.limits import TURN_MS_MAX
from nodeagent.partition.hash import slot_of
from nodeagent.runtime.disk import RealDisk
from nodeagent.storage import layout
from nodeagent.storage.checkpoint import load_checkpoint, save_checkpoint
from tests.bench.agents import Agents, fleet_of
from tests.bench.figures import Report, of
from tests.bench.raw import Lateness
from tests.bench.walks import schema_of, storage_group
from tests.bench.writing import Load, clients, wait_written

SETTINGS = ClusterSettings(name="bench", slots=300)
GROUPS = 6
SECONDS = 600.0
ROWS_PER_S = 40_000.0
"""About half of what three agents and a writer can process on two cores. If no processor is ever free, every
turn waits for one, and its duration says nothing about the turn."""


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    seconds, files = (30.0, 10_000) if quick else (SECONDS, 100_000)
    with fleet_of(3, tls=True, cluster=SETTINGS) as agents:
        with agents.connect() as cluster:
            leaders = agents.wait_ready(cluster, 3)
            for number in range(GROUPS):
                cluster.put_schema(schema_of(storage_group(number), 2))
        full = min(g for g in leaders if g != META)
        agents.fleet.stop()
        for node in agents.fleet.nodes():
            forge(Path(node.directory), full, files)
        agents.start_all()
        with agents.connect() as cluster:
            agents.wait_ready(cluster, 3)
            time.sleep(10.0)  # the first checkpoints after a start name all files
            return _measured(agents, cluster, full, seconds, started)


def _measured(
    agents: Agents, cluster: BlockingCluster, full: GroupId, seconds: float, started: float
) -> Report:
    groups = {g: n for g, n in agents.leaders(cluster).items() if g != META}
    before, slow = _leading(agents, cluster, full), _slow(agents)
    load = Load(tuple(range(GROUPS)), 10, 2, 100, 2, seconds, rows_per_s=ROWS_PER_S)
    with Lateness() as machine, clients(agents.spec, [load], groups) as queues:
        written = wait_written(queues[0], seconds + 120)
    held = agents.groups(cluster)[groups[full], full].files
    turns = sorted(map(_told, _slow(agents) - slow), key=itemgetter("ms"))
    for turn in turns:
        print("  a slow turn:", json.dumps(turn), flush=True)
    return Report(
        "stall",
        f"{held} files in {full}, R=3, a writer of {written.rows / written.seconds:.0f} rows/s,"
        f" {seconds:.0f} s",
        (
            of(
                "turns over the limit",
                [len(turns)],
                "",
                ceiling=0.5,
                limit=f"{TURN_MS_MAX} ms",
                details={
                    **({"longest_ms": turns[-1]["ms"]} if turns else {}),
                    "idle_thread_late_ms": machine.longest_ms,
                    "stolen_percent": machine.stolen_percent,
                },
            ),
            of(
                "changes of leader",
                [float(_leading(agents, cluster, full) != before)],
                "",
                ceiling=0.5,
                details={"rows": written.rows, "refused": written.refused},
            ),
        ),
        time.monotonic() - started,
    )


def _leading(agents: Agents, cluster: BlockingCluster, group: GroupId) -> tuple[NodeId, int]:
    """(leader of the group, term)"""
    found = agents.groups(cluster)
    return next((n, s.term) for (n, g), s in sorted(found.items()) if g == group and s.role == "leader")


def _slow(agents: Agents) -> set[str]:
    """The log line of every slow turn of all agents."""
    tails = [agents.fleet.log_tail(node.name, 1 << 20) for node in agents.fleet.nodes()]
    return {line for tail in tails for line in tail.splitlines() if '"slow_turn"' in line}


def _told(line: str) -> dict[str, Any]:
    """What the log says of a slow turn: of its `ms`, `own_ms` were the loop's own work, and `waited_ms` it
    waited for a processor."""
    return {name: value for name, value in json.loads(line).items() if name != "event"}


def forge(directory: Path, group: GroupId, count: int) -> None:
    """Add `count` files to the stopped node's replica, each in its own time partition."""
    disk = RealDisk(directory / "data")
    payload = load_checkpoint(disk, group)
    assert payload is not None
    saved = msgspec.msgpack.decode(payload, type=Saved)
    state = decode_checkpoint(saved.state)
    made: list[FileMeta] = []
    for week in range(1 << 30):
        slot = slot_of("root.old", week, 0, SETTINGS)
        if slot in state.slots.open:
            name = f"{slot:05d}-{1:012d}-{len(made):04d}.tsfile"
            key = PartitionKey("root.old", week, 0)
            made.append(FileMeta(name, slot, key, "t", (1, len(made)), 0, "0" * 32, 1, week, week, (1, 1, 1)))
        if len(made) == count:
            break
    for slot in {m.slot for m in made}:
        (directory / "data" / layout.slot_dir(group, slot)).mkdir(parents=True, exist_ok=True)
    for meta in made:
        (directory / "data" / layout.file_path(group, meta.slot, meta.name)).touch()
    state.files += made
    assert DataState.restore(state, state.applied).files.manifest.rows >= count
    whole = msgspec.structs.replace(saved, state=encode_checkpoint(state))
    save_checkpoint(disk, group, msgspec.msgpack.encode(whole))

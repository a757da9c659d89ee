"""A fleet of real agents in a directory, with the actions that the tests need.

Processes are identified by their pid files or handles; `close` ends all of them in any case.
"""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iotctl.cli.main import run
from iotctl.cli.session import Session
from iotctl.demo.generate import EPOCH_MS, TABLE, TAG, WEEK_MS, Fleet, storage_group_name
from iotctl.demo.load import Load
from iotctl.fleet.local import LocalFleet
from iotctl.observe.cluster import cluster_spec
from iotctl.observe.layout import table_of
from iotctl.observe.model import ClusterStatus
from iotctl.observe.operations import blocked_on, received_bytes, whole
from iotctl.observe.status import cluster_status
from iotctl.pipeline.replicas import FileSelection, view_groups
from iotctl.pipeline.report import Silent
from nodeagent.client.blocking import BlockingCluster
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.files import FileMeta
from nodeagent.model.operation import Operation, Stage
from nodeagent.model.requests import NodeStatus
from nodeagent.partition.hash import shard_of, slot_of, time_partition
from tests.waiting import until

DATA = Fleet(storage_groups=40, weeks=52, step_ms=12 * 3_600_000)
NONEMPTY_MIN = 1_500
PLACES = 48
WRITE_PAUSE_S = 0.025
"""Pause of the writer after each row: it shares its processors with the fleet."""

Place = tuple[str, int]
"""Storage group and time (ms) of a row."""


@dataclass(slots=True)
class Said:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The output parsed as JSON; its shape depends on the command."""
        document: dict[str, Any] = json.loads(self.out)
        return document


@dataclass(slots=True)
class World:
    """A running fleet. The cluster client is created at its first use and lives until `close`."""

    fleet: LocalFleet
    data: Fleet = DATA
    """The data that the fleet was created with."""

    rows_before: int = 0
    victim: str = ""
    _cluster: BlockingCluster | None = None
    _processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    _loads: list[Load] = field(default_factory=list)

    # --- processes ---------------------------------------------------------------------------------

    def up(self, timeout_s: float = 60.0) -> None:
        self.fleet.start()
        self.wait_healthy(timeout_s)

    def wait_healthy(self, timeout_s: float = 60.0) -> ClusterStatus:
        def healthy() -> ClusterStatus | None:
            found = self.status()
            return found if found.healthy else None

        return until(healthy, timeout_s, lambda: f"not healthy: {self.status().problems}")

    def restart(self, name: str) -> None:
        """SIGKILL the agent and restart it at once."""
        assert self.fleet.kill(name), f"{name} was not running"
        self.fleet.start([name])

    def pid(self, name: str) -> int:
        found = next(n.pid for n in self.fleet.nodes() if n.name == name)
        assert found is not None, f"{name} is down"
        return found

    @contextmanager
    def frozen(self, names: Sequence[str]) -> Iterator[None]:
        """SIGSTOP the agents, and SIGCONT them at the end: connections stay open, but the agents do not
        respond."""
        pids = [self.pid(n) for n in names]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        for load in self._loads:
            load.stop()
        for process in self._processes:
            kill_session(process)
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
        if self.fleet.exists:
            for node in self.fleet.nodes():
                self.fleet.kill(node.name)
            self.fleet.stop(grace_s=5.0)

    # --- iotctl ------------------------------------------------------------------------------------

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "IOTCTL_CLUSTER": str(self.fleet.spec_path), "USER": "tester"}

    def iotctl(self, *words: str, client: BlockingCluster | None = None) -> Said:
        """Run a command in this process, without a terminal, with `client` if given, which is then closed."""
        out, err = io.StringIO(), io.StringIO()
        session = Session(out, err, io.StringIO(), self.env, self.fleet.directory.parent)
        if client is not None:
            session.connect = lambda spec: client
        code = run(words, session)
        return Said(code, out.getvalue(), err.getvalue())

    def process(self, *words: str) -> "subprocess.Popen[bytes]":
        """Run a command as a process in a separate session, which `close` ends."""
        log = (self.fleet.directory.parent / f"iotctl-{len(self._processes)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "iotctl", *words],
                env=self.env,
                cwd=self.fleet.directory.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def said_by(self, process: "subprocess.Popen[bytes]") -> str:
        number = self._processes.index(process)
        return (self.fleet.directory.parent / f"iotctl-{number}.log").read_text(errors="replace")

    # --- the cluster -------------------------------------------------------------------------------

    def connect(self) -> BlockingCluster:
        identity = self.fleet.directory / "operator"
        return BlockingCluster.connect(cluster_spec(self.fleet.source(), identity, {}))

    @property
    def cluster(self) -> BlockingCluster:
        if self._cluster is None:
            self._cluster = self.connect()
        return self._cluster

    def reconnect(self) -> None:
        """Create a new client after a change of cluster.yaml, from which a client takes its nodes."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def status(self) -> ClusterStatus:
        return cluster_status(self.cluster, self.fleet.source(), now_ms=int(time.time() * 1000))

    def statuses(self) -> dict[str, NodeStatus]:
        return {n: s for n, s in self.cluster.statuses(2.0).items() if isinstance(s, NodeStatus)}

    def operation(self, operation: str) -> Operation | None:
        """The operation; None if there is none, or while no node answers."""
        try:
            found = next((o for o in self.cluster.meta().operations if o.id == operation), None)
            return whole(self.cluster, found) if found is not None else None
        except NodeAgentError:
            return None

    def open_operation(self) -> Operation:
        def opened() -> Operation | None:
            try:
                return next((o for o in self.cluster.meta().operations if not o.ended), None)
            except NodeAgentError:
                return None

        return until(opened, 60.0, lambda: "no operation was started")

    def operation_is_open(self) -> bool:
        """Whether an operation is open; False while no node answers."""
        try:
            return any(not o.ended for o in self.cluster.meta().operations)
        except NodeAgentError:
            return False

    def wait_stage(self, operation: str, stage: Stage, timeout_s: float = 90.0) -> Operation:
        def there() -> Operation | None:
            found = self.operation(operation)
            return found if found is not None and found.stage is stage else None

        return until(there, timeout_s, lambda: f"not {stage}: {self._progress(operation)}")

    def _progress(self, operation: str) -> str:
        """Progress of the operation and the last events of each agent, for the message of a failure."""
        found = self.operation(operation)
        if found is None:
            return "no node answers"
        said = [f"{found.stage}, {blocked_on(found)}; {found.last_error}"]
        said.append(f"copies by node: {dict(Counter(c.node for c in found.copies))}")
        for node in self.fleet.nodes():
            log = self.fleet.directory / node.name / "agent.log"
            said += [
                f"{node.name}:",
                *(log.read_text(errors="replace").splitlines()[-4:] if log.exists() else []),
            ]
        return "\n".join(said)

    def members(self) -> dict[str, tuple[str, ...]]:
        """Group owner -> voters, according to the group's leader."""
        return {
            g.group.partition(".")[0]: g.voters
            for s in self.statuses().values()
            for g in s.groups
            if g.group != "meta" and g.role == "leader"
        }

    def leader(self, group: str) -> str:
        def led() -> str | None:
            return next(
                (
                    s.node
                    for s in self.statuses().values()
                    for g in s.groups
                    if g.group == group and g.role == "leader"
                ),
                None,
            )

        return until(led, 30.0, lambda: f"{group} has no leader")

    def group_of(self, owner: str) -> str:
        return next(g.group for g in self.cluster.meta().groups if g.owner == owner and not g.dissolving)

    def manifest(self, node: str, group: str) -> tuple[FileMeta, ...]:
        return self.cluster.manifest(node, group).files

    def close_memtables(self) -> None:
        """Write all rows in memory to files, on every replica."""
        groups = self.cluster.meta().groups
        views, unread = view_groups(self.cluster, groups, FileSelection(), Silent())
        assert not unread and all(v.cut is not None for v in views), unread

    def nonempty_slots(self) -> int:
        return len({f.slot for g in self.cluster.meta().groups for f in self.manifest(g.owner, g.group)})

    def received(self, operation: str) -> dict[str, int]:
        return received_bytes(self.cluster.statuses(2.0), operation)

    def rows(self) -> int:
        return sum(int(str(t["rows"])) for t in self.cluster.count())

    # --- a running writer --------------------------------------------------------------------------

    def load(self, moving: Collection[int] = ()) -> Load:
        """Start a writer and a reader on slots of every group, half of them in `moving` if given; `close`
        stops them."""
        load = Load(self.connect, TABLE, TAG, self._places(moving), WRITE_PAUSE_S)
        self._loads.append(load)
        load.start()
        return load

    def _places(self, moving: Collection[int]) -> dict[Place, str]:
        """The places to write, each with the data group that currently serves its slot."""
        # A node that lags still has the table before the last change.
        table = table_of(self.cluster.meta(strong=True))
        groups, weeks = self.data.storage_groups, self.data.weeks
        slots = self.slots(
            (storage_group_name(i % groups), EPOCH_MS + (i * 7 % weeks) * WEEK_MS + 1_800_000)
            for i in range(groups * weeks)
        )
        moved = [place for place, slot in slots.items() if slot in moving][: PLACES // 2]
        assert bool(moved) == bool(moving), "the writer has no place in a moving slot"
        stay = [place for place, slot in slots.items() if slot not in moving][: PLACES - len(moved)]
        return {place: table.route(slots[place]) for place in (*moved, *stay)}

    def slots(self, places: Iterable[Place]) -> dict[Place, int]:
        """The slots of the rows that a writer writes at these places."""
        settings = self.cluster.meta().settings
        shard = shard_of(["probe"], settings.shards)
        return {
            (group, at): slot_of(
                group, time_partition(at, settings.time_partition_interval_ms), shard, settings
            )
            for group, at in places
        }

    def check_load(self, load: Load) -> int:
        """Stop the load, check that every acknowledged row exists, and return the number of rows."""
        seen = load.stop()
        self._loads.remove(load)
        assert not seen.missing, seen.missing[:3]
        for (group, at), value in seen.acked.items():
            rows = self.cluster.scan(
                group, TABLE, fields=["probe"], tags={TAG: "probe"}, time_from=at, time_to=at
            )
            assert rows.column("probe").to_pylist() == [value], (group, at, value)
        assert seen.acked, "the writer wrote nothing"
        return len(seen.acked)

    # --- files on disk -----------------------------------------------------------------------------

    def path_of(self, node: str, group: str, meta: FileMeta) -> Path:
        root = self.fleet.directory / node / "data" / "groups" / group
        return root / "slots" / f"{meta.slot:05d}" / meta.name


def flip(path: Path, at: int, length: int = 1) -> None:
    """Invert bytes of a file by replacing it with a changed copy, so that hard links retain the old bytes."""
    content = bytearray(path.read_bytes())
    for i in range(at, at + length):
        content[i] ^= 0xFF
    temporary = path.with_name(path.name + ".flipped")
    temporary.write_bytes(content)
    temporary.replace(path)


def gaining_members(operation: Operation) -> set[str]:
    """Nodes that must receive bytes: members of gaining groups that were not holders before."""
    return {n for m in operation.moves for n in m.target_members if n not in m.source_members}


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL a process and its session (a Spark driver has a JVM as a child)."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


def copy_of(stopped: LocalFleet, directory: Path) -> LocalFleet:
    """Copy a fleet with its ports: only one of the copies may run at a time."""
    shutil.copytree(stopped.directory, directory)
    return LocalFleet(directory)

"""Real agents on this machine for the length of a bench."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from iotctl.fleet.local import FleetNode, LocalFleet
from nodeagent.client.blocking import BlockingCluster
from nodeagent.client.identity import identity_in
from nodeagent.client.spec import ClusterSpec, Endpoint
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import META, GroupId, NodeId, owner_of
from nodeagent.model.requests import GroupStatus, NodeStatus

READY_S = 90.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Agents:
    """A fleet in its own directory. `fleet_of` ends its processes by id and deletes the directory."""

    def __init__(self, fleet: LocalFleet, tls: bool) -> None:
        self.fleet = fleet
        self.tls = tls

    @property
    def spec(self) -> ClusterSpec:
        endpoints = tuple(Endpoint(n.name, n.host, n.port) for n in self.fleet.nodes())
        identity = identity_in(self.fleet.directory / "operator") if self.tls else None
        return ClusterSpec(endpoints, identity, timeout_s=30.0)

    def connect(self) -> BlockingCluster:
        return BlockingCluster.connect(self.spec)

    def wait_ready(self, cluster: BlockingCluster, nodes: int) -> dict[GroupId, NodeId]:
        """Wait until every group is led by its owner; returns the leaders.

        Raises:
            TimeoutError: with the last observed leaders.
        """
        deadline = time.monotonic() + READY_S
        leaders: dict[GroupId, NodeId] = {}
        while time.monotonic() < deadline:
            with contextlib.suppress(NodeAgentError):
                leaders = self.leaders(cluster)
                groups = [g for g in leaders if g != META]
                if (
                    len(groups) == nodes
                    and META in leaders
                    and all(leaders[g] == owner_of(g) for g in groups)
                ):
                    return leaders
            time.sleep(0.2)
        tails = {n.name: self.fleet.log_tail(n.name, 3) for n in self.fleet.nodes()}
        raise TimeoutError(f"the cluster is not ready: leaders {leaders}, logs {tails}")

    def leaders(self, cluster: BlockingCluster) -> dict[GroupId, NodeId]:
        found: dict[GroupId, NodeId] = {}
        for status in self.statuses(cluster).values():
            found |= {g.group: status.node for g in status.groups if g.role == "leader"}
        return found

    def statuses(self, cluster: BlockingCluster) -> dict[NodeId, NodeStatus]:
        return {n: s for n, s in cluster.statuses().items() if isinstance(s, NodeStatus)}

    def groups(self, cluster: BlockingCluster) -> dict[tuple[NodeId, GroupId], GroupStatus]:
        """Every replica of every data group."""
        return {
            (name, g.group): g
            for name, status in self.statuses(cluster).items()
            for g in status.groups
            if g.group != META
        }

    def restart(self, *, tls: bool) -> None:
        """Stop all agents, switch TLS on or off in their settings, and start them again."""
        self.fleet.stop()
        for node in self.fleet.nodes():
            path = Path(node.directory, "node.yaml")
            path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "tls": tls}, sort_keys=False))
        self.tls = tls
        self.start_all()

    def start_all(self) -> None:
        self.fleet.start([n.name for n in self.fleet.nodes()])

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time used so far per node, with its worker processes."""
        return {n.name: sum(map(_cpu, family(n.pid))) for n in self.fleet.nodes() if n.pid is not None}

    def node(self, name: str) -> FleetNode:
        return next(n for n in self.fleet.nodes() if n.name == name)


@contextlib.contextmanager
def fleet_of(
    nodes: int,
    *,
    tls: bool,
    cluster: ClusterSettings | None = None,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Agents]:
    """Start agents; at the end of the block end them and delete their directory."""
    directory = Path(tempfile.mkdtemp(prefix="bench-fleet-"))
    fleet = LocalFleet(directory / "fleet")
    try:
        wanted = cluster or ClusterSettings(name="bench")
        fleet.create(wanted, nodes, node_settings={"tls": tls, **(settings or {})})
        fleet.start()
        yield Agents(fleet, tls)
    finally:
        with contextlib.suppress(Exception):
            fleet.stop(grace_s=5.0)
        shutil.rmtree(directory, ignore_errors=True)


def family(pid: int | None) -> list[int]:
    """The process and its children."""
    found = [pid] if pid is not None else []
    for parent in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(c) for c in (task / "children").read_text().split()]
    return found


def _cpu(pid: int) -> float:
    """User and system time in seconds; 0 for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS

"""Machines for a cluster, each an sshd on a loopback address, and an operator."""

import io
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from iotctl.cli.main import run
from iotctl.cli.session import Session
from iotctl.fleet.ports import take_ports
from iotctl.fleet.ssh_config import CONFIG
from iotctl.observe.cluster import cluster_spec
from iotctl.spec.cluster import load_cluster
from nodeagent.client.blocking import BlockingCluster
from nodeagent.client.spec import ClusterSpec
from tests.fleet.sshd import Sshd, make_key


@dataclass
class Plant:
    """`directory` holds cluster.yaml, which lists `nodes`, and the deployed files."""

    directory: Path
    nodes: Sequence[str]
    env: dict[str, str]
    lines: dict[str, str] = field(default_factory=dict)
    """The line of each machine in cluster.yaml, spare machines included."""

    hosts: dict[str, Sshd] = field(default_factory=dict)
    http: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Where each agent answers /ready."""

    def iotctl(self, *words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        session = Session(out, err, io.StringIO(), self.env, self.directory)
        return run(words, session), out.getvalue(), err.getvalue()

    def json(self, *words: str) -> Any:
        code, out, err = self.iotctl(*words, "-o", "json")
        assert code == 0, out + err
        return json.loads(out)

    def home(self, node: str) -> Path:
        return self.directory / "nodes" / node

    def pid(self, node: str) -> int:
        """The pid of the node's agent; 0 if there is none."""
        word = f"nodeagent\0run\0{self.home(node)}\0".encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes().endswith(word):
                    return int(path.parent.name)
            except OSError:
                continue
        return 0

    def pids(self) -> dict[str, int]:
        return {n: self.pid(n) for n in self.nodes}

    def files(self) -> dict[str, int]:
        """The time of the last write to the deployed files, in nanoseconds."""
        names = ("node.yaml", "tls/node.pem", "tls/node.key", "tls/ca.pem", "supervise", "app")
        return {f"{n}/{f}": (self.home(n) / f).lstat().st_mtime_ns for n in self.nodes for f in names}

    def spec(self) -> ClusterSpec:
        identity = Path(self.env["XDG_DATA_HOME"]) / "iotctl" / "plant" / "operator"
        return cluster_spec(load_cluster(self.directory / "cluster.yaml"), identity, {})

    def connect(self) -> BlockingCluster:
        return BlockingCluster.connect(self.spec())

    def kill(self) -> None:
        """End all remaining processes."""
        for node in self.lines:
            with suppress(OSError, ValueError):
                os.kill(int((self.home(node) / "supervisor.pid").read_text()), signal.SIGKILL)
            if pid := self.pid(node):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def machines(
    directory: Path, nodes: Sequence[str], spares: Sequence[str] = (), options: tuple[str, ...] = ()
) -> Iterator[Plant]:
    """A machine for each node or spare; cluster.yaml lists `nodes`. `options`: lines for each sshd_config."""
    key = make_key(directory / "id")
    hosts = {
        name: Sshd(directory / name, key, address=f"127.0.0.{i}", options=options)
        for i, name in enumerate((*nodes, *spares), 1)
    }
    made = laid_out(directory, nodes, hosts)
    try:
        yield made
    finally:
        made.kill()
        for host in hosts.values():
            host.stop()


def laid_out(directory: Path, nodes: Sequence[str], hosts: dict[str, Sshd]) -> Plant:
    """Write what an operator has: cluster.yaml lists `nodes`, the other hosts are spare."""
    ports = take_ports(2 * len(hosts), directory)
    lines, http = {}, {}
    for i, (name, host) in enumerate(hosts.items()):
        place = f"port: {ports[2 * i]}, http_port: {ports[2 * i + 1]}, data_dir: {directory / 'nodes' / name}"
        http[name] = (host.address, ports[2 * i + 1])
        reach = f"ssh: {{port: {host.port}, user: {host.user}}}"
        lines[name] = f"  - {{name: {name}, host: {host.address}, {place}, {reach}}}"
    text = [
        "apiVersion: iotctl/v1",
        "cluster: {name: plant}",
        "defaults:",
        f"  install_dir: {directory / 'software'}",
        "  ssh: {key: id}",
        "nodes:",
        *(lines[n] for n in nodes),
    ]
    (directory / "cluster.yaml").write_text("\n".join(text) + "\n")
    (directory / "ssh_config").write_text("UserKnownHostsFile none\n")
    env = {
        **os.environ,
        CONFIG: str(directory / "ssh_config"),
        "SSH_AUTH_SOCK": "",
        "XDG_DATA_HOME": str(directory / "share"),
        "XDG_CACHE_HOME": str(directory / "cache"),
    }
    return Plant(directory, nodes, env, lines, hosts, http)

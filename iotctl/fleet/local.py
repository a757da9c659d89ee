"""A fleet on this machine: DIR with one directory per node, each with its agent process.

    DIR/.iotctl-fleet       marks a directory created by `local up`; without it nothing is ever deleted
    DIR/cluster.yaml        the spec, `transport: local`
    DIR/authority/          ca.pem, ca.key
    DIR/operator/           ca.pem, node.pem, node.key   the operator's certificate (role admin)
    DIR/nodeK/node.yaml     the agent's settings
    DIR/nodeK/tls/          ca.pem, node.pem, node.key
    DIR/nodeK/agent.log, agent.pid

`up` only adds what is missing: a second `up` starts the agents that are down and changes nothing else.
"""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import yaml

from iotctl.errors import RefusedProblem
from iotctl.fleet import process
from iotctl.fleet.ports import LOOPBACK, take_ports
from iotctl.spec.cluster import (
    API_VERSION,
    ClusterSource,
    NodeEntry,
    load_cluster,
)
from iotctl.spec.edit import add_node
from nodeagent.client import identity
from nodeagent.model.config import ClusterSettings, NodeConfig, Seed

MARKER = ".iotctl-fleet"
WEEK_MS = 604_800_000

Command = Callable[[Path], Sequence[str]]


class FleetNode(msgspec.Struct, frozen=True):
    """`pid` is None if the agent is down."""

    name: str
    host: str
    port: int
    http_port: int
    directory: str
    pid: int | None


def agent_command(directory: Path) -> Sequence[str]:
    return (sys.executable, "-m", "nodeagent", "run", str(directory))


class LocalFleet:
    """The fleet in one directory; tests replace `command`."""

    def __init__(self, directory: Path, command: Command = agent_command) -> None:
        self.directory = directory.absolute()
        self._command = command

    @property
    def exists(self) -> bool:
        return self._marked and self.spec_path.is_file()

    @property
    def _marked(self) -> bool:
        return (self.directory / MARKER).is_file()

    @property
    def spec_path(self) -> Path:
        return self.directory / "cluster.yaml"

    def source(self) -> ClusterSource:
        """Raises `InputProblem` if the spec cannot be read, `RefusedProblem` if there is no fleet."""
        self.check_exists()
        return load_cluster(self.spec_path)

    def create(self, settings: ClusterSettings, nodes: int, *, node_settings: dict[str, object]) -> None:
        """Create the directories, ports, certificates and spec of `nodes` nodes; starts nothing.

        Raises:
            RefusedProblem: the directory has other content.
        """
        self.check_free()
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / MARKER).write_text(settings.name + "\n")
        authority = identity.create_authority(settings.name)
        identity.write_authority(self.directory / "authority", authority)
        operator = identity.issue(authority, os.environ.get("USER") or "operator", "admin")
        identity.write_identity(self.directory / "operator", operator, authority.cert)
        ports = take_ports(2 * nodes, self.directory, release_old=True)
        entries = tuple(
            NodeEntry(name=f"node{i + 1}", host=LOOPBACK, port=ports[2 * i], http_port=ports[2 * i + 1])
            for i in range(nodes)
        )
        seeds = tuple(Seed(e.name, e.host, e.port) for e in entries)
        for entry in entries:
            self._make_node(entry, seeds, settings, join=False, node_settings=node_settings)
        # Written last: a fleet exists once its spec does; an incomplete fleet is created again.
        self.spec_path.write_text(_spec_text(settings, entries))

    def add(self, name: str) -> NodeEntry:
        """Create the directory of a node that will join, with the address in cluster.yaml if it is listed.

        A repeated call returns the same node. Starts nothing.
        """
        source = self.source()
        known = self._entry(name)
        if known is not None:
            return known
        listed = next((n for n in source.file.nodes if n.name == name), None)
        if listed is None:
            ports = take_ports(2, self.directory)
            entry = NodeEntry(name=name, host=LOOPBACK, port=ports[0], http_port=ports[1])
        else:
            port, http_port = source.port_of(listed), source.http_port_of(listed)
            entry = msgspec.structs.replace(listed, port=port, http_port=http_port)
        # A listed node without a directory is not a member, and members refuse a node that has it as a seed.
        made = {n.name for n in self.nodes()}
        seeds = tuple(Seed(n.name, n.host, source.port_of(n)) for n in source.file.nodes if n.name in made)
        like = yaml.safe_load((Path(self.nodes()[0].directory) / "node.yaml").read_text())
        extra = {k: v for k, v in like.items() if k not in _OWN_KEYS}
        self._make_node(entry, seeds, source.settings(), join=True, node_settings=extra)
        return entry

    def down(self, names: Sequence[str]) -> list[str]:
        """Those of `names` whose agent does not run."""
        return [n.name for n in self.nodes() if n.pid is None and n.name in names]

    def start(self, names: Sequence[str] | None = None) -> list[str]:
        """Start the named nodes that are down (by default all in the spec); returns those that were started.

        A node that left the cluster is no longer in the spec and stays down.
        """
        wanted = self.source().node_names if names is None else names
        started: list[str] = []
        for node in self.nodes():
            if node.pid is None and node.name in wanted:
                home = Path(node.directory)
                try:
                    process.start(
                        self._command(home),
                        directory=home,
                        log=home / "agent.log",
                        pid_file=home / "agent.pid",
                        word=str(home),
                    )
                except FileNotFoundError:
                    if home.exists():
                        raise
                    continue  # moved aside just now by another command that removes the node
                except OSError as error:
                    raise RefusedProblem(
                        f"{node.name} was not started; started before it: {', '.join(started) or 'none'}",
                        why=f"{home}: {error.strerror or error}",
                        next="end this cause, then repeat the command",
                    ) from error
                started.append(node.name)
        return started

    def stop(self, names: Sequence[str] | None = None, *, grace_s: float = 10.0) -> list[str]:
        """Stop the named nodes (all by default); returns those that were running."""
        up = [n for n in self.nodes() if n.pid is not None and (names is None or n.name in names)]
        process.stop([Path(n.directory) / "agent.pid" for n in up], grace_s=grace_s)
        return [n.name for n in up]

    def kill(self, name: str) -> bool:
        """SIGKILL one agent, as a crash would."""
        return process.kill(self.directory / name / "agent.pid")

    def nodes(self) -> list[FleetNode]:
        """All nodes with a directory, by number and name, including those that have not joined yet."""
        found = map(self._node, sorted(self.directory.glob("*/node.yaml"), key=_by_number))
        return [n for n in found if n is not None]

    def free_name(self) -> str:
        """`nodeN` with the next N."""
        return f"node{max((_by_number(Path(n.directory) / 'x')[0] for n in self.nodes()), default=0) + 1}"

    def destroy(self) -> None:
        """Stop all agents and delete the directory; refused without the marker."""
        self.check_marked()
        self.stop(grace_s=2.0)
        shutil.rmtree(self.directory)

    def retire(self, name: str) -> None:
        """Stop a removed node and move its directory aside, so that `up` does not start it."""
        self.stop([name])
        aside = self.directory / "removed"
        aside.mkdir(exist_ok=True)
        home = self.directory / name
        if home.is_dir():
            home.rename(aside / f"{name}-{sum(1 for _ in aside.glob(f'{name}-*')) + 1}")

    def log_tail(self, name: str, lines: int = 5) -> str:
        """The last lines of an agent's log, for error messages."""
        try:
            text = (self.directory / name / "agent.log").read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    @property
    def name(self) -> str:
        """The cluster's name, which the marker stores."""
        return (self.directory / MARKER).read_text().strip()

    def check_free(self) -> None:
        """Raises `RefusedProblem` for a directory with other content."""
        if self.directory.is_dir() and any(self.directory.iterdir()) and not self._marked:
            raise RefusedProblem(
                f"{self.directory} is not empty and is not a local fleet; nothing was changed",
                why="it was not created by `iotctl local up`",
                next="choose another --dir",
            )

    def check_marked(self) -> None:
        """Raises `RefusedProblem` for a directory that `local up` did not create."""
        if not self._marked:
            self.check_exists()

    def check_exists(self) -> None:
        if not self.exists:
            raise RefusedProblem(
                f"{self.directory} holds no local fleet",
                why=f"it lacks the file {MARKER} or cluster.yaml that `iotctl local up` writes",
                next=f"iotctl local up --dir {self.directory}",
            )

    def _node(self, path: Path) -> FleetNode | None:
        home = path.parent
        try:
            config = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            return None  # moved aside since it was listed
        pid = process.running(home / "agent.pid")
        return FleetNode(config["node"], config["host"], config["port"], config["http_port"], str(home), pid)

    def _entry(self, name: str) -> NodeEntry | None:
        for node in self.nodes():
            if node.name == name:
                return NodeEntry(name=name, host=node.host, port=node.port, http_port=node.http_port)
        return None

    def _make_node(
        self,
        entry: NodeEntry,
        seeds: tuple[Seed, ...],
        settings: ClusterSettings,
        *,
        join: bool,
        node_settings: dict[str, object],
    ) -> None:
        home = self.directory / entry.name
        home.mkdir(exist_ok=True)
        authority = identity.read_authority(self.directory / "authority")
        pair = identity.issue(authority, entry.name, "node", hosts=(entry.host,))
        identity.write_identity(home / "tls", pair, authority.cert)
        config = NodeConfig(
            node=entry.name,
            host=entry.host,
            port=entry.port,
            http_port=entry.http_port,
            seeds=seeds,
            cluster=settings,
            join=join,
        )
        own = {k: v for k, v in msgspec.to_builtins(config).items() if k in _OWN_KEYS}
        text = yaml.safe_dump({**own, **node_settings}, sort_keys=False)
        # Written last and atomically: a directory without node.yaml is not a node.
        temporary = home / ".node.yaml.tmp"
        temporary.write_text(text)
        temporary.replace(home / "node.yaml")


_OWN_KEYS = ("node", "host", "port", "http_port", "seeds", "cluster", "join")
"""Keys that differ between nodes or belong to the cluster; the other keys are tuning, equal on all nodes."""


def _by_number(path: Path) -> tuple[int, str]:
    digits = "".join(c for c in path.parent.name if c.isdigit())
    return (int(digits or 0), path.parent.name)


def _interval_text(interval_ms: int) -> str:
    return f"{interval_ms // 86_400_000}d" if interval_ms % 86_400_000 == 0 else f"{interval_ms}ms"


def _spec_text(settings: ClusterSettings, entries: tuple[NodeEntry, ...]) -> str:
    head = (
        f"# A fleet on this machine, created by `iotctl local up`.\n"
        f"apiVersion: {API_VERSION}\n"
        f"cluster:\n"
        f"  name: {settings.name}\n"
        f"  replicas: {settings.replicas}\n"
        f"  slots: {settings.slots}\n"
        f"  shards: {settings.shards}\n"
        f"  time_partition_interval: {_interval_text(settings.time_partition_interval_ms)}\n"
        f"  meta_voters: {settings.meta_voters}\n"
        f"defaults:\n"
        f"  transport: local\n"
        f"identity: operator\n"
        f"nodes:\n"
    )
    first = entries[0]
    place = f"host: {first.host}, port: {first.port}, http_port: {first.http_port}"
    text = f"{head}  - {{name: {first.name}, {place}}}\n"
    for entry in entries[1:]:
        text = add_node(text, entry)
    return text

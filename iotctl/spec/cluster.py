"""`cluster.yaml`: the desired cluster, and how a node is reached."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol

import msgspec

from iotctl.errors import UsageProblem
from iotctl.spec.hosts import host_problem, jump_problem, user_problem
from iotctl.spec.typed_yaml import Loaded, load_file, raise_problems, suggest
from iotctl.spec.units import parse_duration_ms
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import InvalidName
from nodeagent.model.ids import check_node_id
from nodeagent.model.limits import NODES_MAX, SLOTS_MAX


class _Fail(Protocol):
    def __call__(self, message: str, *path: str | int) -> None: ...


API_VERSION = "iotctl/v1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACE = re.compile(r"(/[A-Za-z0-9_+-][A-Za-z0-9._+-]*)+")
TRANSPORTS = ("ssh", "local")
SECTION_BOUNDS = {"replicas": (1, 9), "slots": (1, SLOTS_MAX), "shards": (1, 65_535), "meta_voters": (1, 9)}
"""(minimum, maximum) of each key, inclusive."""

ZONE_CHARS_MAX = 64
PORT = 9003
HTTP_PORT = 9004


class ClusterSection(msgspec.Struct, frozen=True):
    """Settings fixed when the cluster is created; `time_partition_interval` is a duration such as `7d`."""

    name: str
    replicas: int = 3
    slots: int = 10_000
    shards: int = 8
    time_partition_interval: str = "7d"
    meta_voters: int = 5


class SshSection(msgspec.Struct, frozen=True):
    """How to reach a machine; 0 and "" mean: as in `defaults`, or as in the operator's SSH configuration.

    `key` is the path of a private key, relative to the file; `jump` has the format of `ssh -J`.
    """

    user: str = ""
    port: int = 0
    key: str = ""
    jump: str = ""


class Defaults(msgspec.Struct, frozen=True):
    """Values for nodes without their own.

    `transport` is `ssh`, or `local` for a fleet of processes on this machine.
    """

    transport: str = "ssh"
    port: int = PORT
    http_port: int = HTTP_PORT
    data_dir: str = "/var/lib/nodeagent"
    install_dir: str = "/opt/nodeagent"
    ssh: SshSection = SshSection()


class NodeEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """0 and "" in the ports and `data_dir` stand for the default."""

    name: str
    host: str
    port: int = 0
    http_port: int = 0
    ssh: SshSection | None = None
    data_dir: str = ""
    zone: str = ""
    weight: float = 1.0


class ClusterFile(msgspec.Struct, frozen=True):
    """`identity` is the directory of the operator's certificate, relative to the file."""

    apiVersion: str
    cluster: ClusterSection
    nodes: tuple[NodeEntry, ...]
    defaults: Defaults = Defaults()
    identity: str = ""


class ClusterSource(msgspec.Struct, frozen=True):
    """A loaded `cluster.yaml` with its path and text."""

    path: Path
    text: str
    file: ClusterFile

    @property
    def name(self) -> str:
        return self.file.cluster.name

    @property
    def is_local(self) -> bool:
        return self.file.defaults.transport == "local"

    @property
    def directory(self) -> Path:
        return self.path.parent

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(n.name for n in self.file.nodes)

    @property
    def host_names(self) -> list[str]:
        """Hosts that are names, not addresses."""
        return sorted({n.host for n in self.file.nodes if not _is_address(n.host)})

    @property
    def zones(self) -> dict[str, str]:
        return {n.name: n.zone for n in self.file.nodes if n.zone}

    @property
    def weights(self) -> dict[str, float]:
        return {n.name: n.weight for n in self.file.nodes}

    def settings(self) -> ClusterSettings:
        section = self.file.cluster
        return ClusterSettings(
            name=section.name,
            replicas=section.replicas,
            slots=section.slots,
            shards=section.shards,
            time_partition_interval_ms=parse_duration_ms(section.time_partition_interval),
            meta_voters=section.meta_voters,
        )

    def port_of(self, node: NodeEntry) -> int:
        return node.port or self.file.defaults.port

    def http_port_of(self, node: NodeEntry) -> int:
        return node.http_port or self.file.defaults.http_port

    def data_dir_of(self, node: NodeEntry) -> str:
        """The data directory of the node's agent; in a local fleet, a directory next to the file."""
        if self.is_local:
            return str(self.directory / node.name)
        return node.data_dir or self.file.defaults.data_dir

    def install_dir_of(self, node: NodeEntry) -> str:
        """The software directory of the node's machine, shared by all nodes there."""
        return self.file.defaults.install_dir

    def ssh_of(self, node: NodeEntry) -> SshSection:
        """The node's own values, else those of `defaults`; `key` becomes an absolute path."""
        own, rest = node.ssh or SshSection(), self.file.defaults.ssh
        key = own.key or rest.key
        return SshSection(
            user=own.user or rest.user,
            port=own.port or rest.port,
            key=str(self.directory / Path(key).expanduser()) if key else "",
            jump=own.jump or rest.jump,
        )


def load_cluster(path: Path) -> ClusterSource:
    """Read and check `path`.

    Raises:
        InputProblem: the file is unreadable or invalid; with file:line:col.
    """
    text, loaded = load_file(path, ClusterFile)
    check_cluster(loaded)
    return ClusterSource(path.absolute(), text, loaded.value)


def check_cluster(loaded: Loaded[ClusterFile]) -> None:
    """Check what the types alone cannot.

    Raises:
        InputProblem: with the place of every problem.
    """
    file = loaded.value
    problems: list[tuple[str, str]] = []

    def fail(message: str, *path: str | int) -> None:
        problems.append((loaded.where(*path), message))

    if file.apiVersion != API_VERSION:
        fail(f"apiVersion: {file.apiVersion!r} is not known; use {API_VERSION}", "apiVersion")
    if file.defaults.transport not in TRANSPORTS:
        near = suggest(file.defaults.transport, list(TRANSPORTS))
        fail(f"defaults.transport: unknown {file.defaults.transport!r}{near}", "defaults", "transport")
    _check_section(file.cluster, fail)
    _check_nodes(file, fail)
    _check_reach(file, fail)
    if file.defaults.transport == "ssh":
        _check_places(file, fail)
    raise_problems(problems)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _check_places(file: ClusterFile, fail: _Fail) -> None:
    """Check the values that become part of file names and systemd units."""
    if not _NAME.fullmatch(file.cluster.name):
        fail(
            f"cluster.name: {file.cluster.name!r} must begin with a letter or digit, and may have only"
            " letters, digits, '.', '_', '-'",
            "cluster",
            "name",
        )
    places: list[tuple[str, tuple[str | int, ...]]] = [
        (file.defaults.data_dir, ("defaults", "data_dir")),
        (file.defaults.install_dir, ("defaults", "install_dir")),
        *((n.data_dir, ("nodes", i, "data_dir")) for i, n in enumerate(file.nodes) if n.data_dir),
    ]
    for value, path in places:
        if not _PLACE.fullmatch(value):
            rule = "an absolute path whose parts have only letters, digits and '._+-', with no '.' first"
            fail(f"{path[-1]}: {value!r} is not {rule}", *path)


def _check_reach(file: ClusterFile, fail: _Fail) -> None:
    """Check the values that become part of addresses and commands."""
    for i, node in enumerate(file.nodes):
        if problem := host_problem(node.host):
            fail(f"nodes[{i}].host: {problem}", "nodes", i, "host")
    sections: list[tuple[SshSection, tuple[str | int, ...]]] = [
        (file.defaults.ssh, ("defaults", "ssh")),
        *((n.ssh, ("nodes", i, "ssh")) for i, n in enumerate(file.nodes) if n.ssh is not None),
    ]
    for ssh, at in sections:
        if ssh.user and (problem := user_problem(ssh.user)):
            fail(f"ssh.user: {problem}", *at, "user")
        if problem := jump_problem(ssh.jump):
            fail(f"ssh.jump: {problem}", *at, "jump")


def _check_section(section: ClusterSection, fail: _Fail) -> None:
    for key, (low, high) in SECTION_BOUNDS.items():
        value = getattr(section, key)
        if not low <= value <= high:
            fail(f"cluster.{key}: {value} is not between {low} and {high}", "cluster", key)
    if not section.name.strip():
        fail("cluster.name: empty", "cluster", "name")
    try:
        if parse_duration_ms(section.time_partition_interval) <= 0:
            fail("cluster.time_partition_interval: must be positive", "cluster", "time_partition_interval")
    except UsageProblem as error:
        fail(f"cluster.time_partition_interval: {error.what}", "cluster", "time_partition_interval")


def _zone_problem(zone: str) -> str | None:
    if len(zone) > ZONE_CHARS_MAX:
        return f"has {len(zone)} characters, at most {ZONE_CHARS_MAX} are allowed"
    if not zone.isprintable() or zone != zone.strip():
        return f"{zone!r} is not printable text without blanks at its ends"
    return None


def _check_nodes(file: ClusterFile, fail: _Fail) -> None:
    if not 1 <= len(file.nodes) <= NODES_MAX:
        fail(f"nodes: lists {len(file.nodes)} nodes, but 1 to {NODES_MAX} are allowed", "nodes")
    names: dict[str, int] = {}
    addresses: dict[tuple[str, int], str] = {}
    for i, node in enumerate(file.nodes):
        try:
            check_node_id(node.name)
        except InvalidName as error:
            fail(f"nodes[{i}].name: {error.what}", "nodes", i, "name")
        if node.name in names:
            fail(f"nodes[{i}].name: {node.name!r} is listed twice", "nodes", i, "name")
        names.setdefault(node.name, i)
        port = node.port or file.defaults.port
        if not 0 < port < 65_536:
            fail(f"nodes[{i}].port: {port} is not a port", "nodes", i, "port")
        other = addresses.setdefault((node.host, port), node.name)
        if other != node.name:
            fail(f"nodes[{i}]: {node.host}:{port} is also the address of {other!r}", "nodes", i, "host")
        if (why := _zone_problem(node.zone)) is not None:
            fail(f"nodes[{i}].zone: {why}", "nodes", i, "zone")
        if node.weight <= 0:
            fail(f"nodes[{i}].weight: must be above 0", "nodes", i, "weight")

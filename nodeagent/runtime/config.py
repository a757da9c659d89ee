"""Load and write `node.yaml`; most errors name the line of the mistake."""

import re
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import msgspec
import yaml

from nodeagent.model.config import NodeConfig
from nodeagent.model.errors import InvalidInput, NodeAgentError
from nodeagent.model.ids import check_node_id
from nodeagent.model.limits import SLOTS_MAX

DEPTH_MAX = 8
"""Nesting limit of the settings; an alias inside itself would nest indefinitely."""

BYTES_MAX = 4 << 20
VALUES_MAX = 20_000
"""Values in one file, with every alias expanded: a few aliases of aliases expand to billions. The seeds of a
cluster of `NODES_MAX` nodes are about 10 000 values."""

_EVENTS = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_Value = None | bool | int | float | str | list["_Value"] | dict[str, "_Value"]
_Path = tuple[str | int, ...]
_PLACE = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]")


def load_config(path: Path) -> NodeConfig:
    """Raises `InvalidInput` with one mistake, as `file:line: what`, or without a line if the file cannot be
    read or is too large."""
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be read: {error.strerror}", next_step="create it with `nodeagent init`"
        ) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: is not UTF-8 text") from error
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> NodeConfig:
    """The settings in `text`; `name` is the file name in messages. Raises `InvalidInput`."""
    lines: dict[_Path, int] = {}
    if len(text) > BYTES_MAX:
        raise InvalidInput(f"{name}: the file is larger than {BYTES_MAX >> 20} MiB")
    _check_depth(text, name)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InvalidInput(f"{name}:{line}: {error.problem or 'not valid YAML'}") from error
    if not isinstance(node, yaml.MappingNode):
        raise InvalidInput(f"{name}:1: a mapping of settings is expected")
    plain = _plain(node, (), lines, name)
    _check_keys(plain, NodeConfig, (), lines, name)
    try:
        config = msgspec.convert(plain, NodeConfig)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _PLACE.search(message)
        place = _steps(found["path"]) if found else ()
        what = message[: found.start()] if found else message
        raise _mistake(name, lines, place, what) from error
    _check_values(config, lines, name)
    return config


def dump_config(config: NodeConfig) -> str:
    """YAML that `parse_config` reads back to an equal value."""
    text: str = yaml.safe_dump(msgspec.to_builtins(config, builtin_types=()), sort_keys=False)
    return text


def is_loopback(host: str) -> bool:
    """`localhost` or a loopback address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_depth(text: str, name: str) -> None:
    """Check the depth before the recursive `compose`; invalid YAML is reported by `compose`."""
    depth = 0
    with suppress(yaml.YAMLError):
        for event in yaml.parse(text, Loader=_EVENTS):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEPTH_MAX:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise InvalidInput(f"{name}:{line}: nested too deeply")


def _plain(node: yaml.Node, path: _Path, lines: dict[_Path, int], name: str) -> _Value:
    """The node as plain values; enters the line of each value, and of each key of a mapping, into `lines`."""
    lines.setdefault(path, node.start_mark.line + 1)
    if len(path) > DEPTH_MAX:
        raise InvalidInput(f"{name}:{node.start_mark.line + 1}: nested too deeply")
    if len(lines) > VALUES_MAX:
        raise InvalidInput(f"{name}:{node.start_mark.line + 1}: more than {VALUES_MAX} values")
    if isinstance(node, yaml.MappingNode):
        found: dict[str, _Value] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in found:
                raise InvalidInput(f"{name}:{key_node.start_mark.line + 1}: {key} is given twice")
            lines[(*path, key)] = key_node.start_mark.line + 1
            found[key] = _plain(value_node, (*path, key), lines, name)
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*path, i), lines, name) for i, item in enumerate(node.value)]
    value = yaml.SafeLoader("").construct_object(node)
    return value if isinstance(value, bool | int | float | str | None) else str(node.value)


def _check_keys(
    value: _Value, kind: type[msgspec.Struct], path: _Path, lines: dict[_Path, int], name: str
) -> None:
    """Refuse keys that `kind` or its nested settings do not have."""
    if not isinstance(value, dict):
        return
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, inner in value.items():
        if key not in fields:
            known = ", ".join(fields)
            raise _mistake(name, lines, (*path, key), f"unknown setting {key}; use one of {known}")
        nested = fields[key]
        if isinstance(nested, type) and issubclass(nested, msgspec.Struct):
            _check_keys(inner, nested, (*path, key), lines, name)
        elif isinstance(inner, list):
            for item in getattr(nested, "__args__", ()):
                if isinstance(item, type) and issubclass(item, msgspec.Struct):
                    for i, element in enumerate(inner):
                        _check_keys(element, item, (*path, key, i), lines, name)


def _check_values(config: NodeConfig, lines: dict[_Path, int], name: str) -> None:
    names: list[tuple[_Path, str]] = [(("node",), config.node)]
    names += ((("seeds", i, "node"), seed.node) for i, seed in enumerate(config.seeds))
    for path, node in names:
        try:
            check_node_id(node)
        except NodeAgentError as error:
            raise _mistake(name, lines, path, f"{error.what}; {error.next_step}") from error
    cluster, raft = config.cluster, config.raft
    rules: list[tuple[_Path, bool, str]] = [
        (("port",), 0 <= config.port < 65536, "a port must be 0 to 65535"),
        (("http_port",), 0 <= config.http_port < 65536, "a port must be 0 to 65535"),
        *(
            (("seeds", i, "port"), 0 < s.port < 65536, "a port must be 1 to 65535")
            for i, s in enumerate(config.seeds)
        ),
        *(
            (("seeds", i, "weight"), 0 < s.weight < float("inf"), "a weight must be a finite number above 0")
            for i, s in enumerate(config.seeds)
        ),
        (("host",), config.tls or is_loopback(config.host), "without TLS only a loopback address is allowed"),
        (("cluster", "name"), bool(cluster.name), "the cluster needs a name"),
        (("cluster", "replicas"), cluster.replicas >= 1, "at least 1 replica is needed"),
        (("cluster", "slots"), 1 <= cluster.slots <= SLOTS_MAX, f"1 to {SLOTS_MAX} slots are allowed"),
        (("cluster", "shards"), cluster.shards >= 1, "at least 1 shard is needed"),
        (("cluster", "meta_voters"), cluster.meta_voters >= 1, "at least 1 meta voter is needed"),
        (
            ("cluster", "time_partition_interval_ms"),
            cluster.time_partition_interval_ms >= 1,
            "an interval must be at least 1 ms",
        ),
        (
            ("cluster", "hash_mode"),
            cluster.hash_mode in ("murmur3", "legacy"),
            "must be murmur3 or legacy",
        ),
        (("raft", "heartbeat_ms"), raft.heartbeat_ms >= 1, "a heartbeat must be at least 1 ms"),
        (
            ("raft", "election_timeout_ms"),
            raft.election_timeout_ms > 2 * raft.heartbeat_ms,
            "an election timeout must be longer than two heartbeats",
        ),
        (("raft", "commit_news_ms"), raft.commit_news_ms >= 0, "must be zero or more"),
        *(((key,), getattr(config, key) > 0, "must be a positive number") for key in _POSITIVE),
        (
            ("meta_confirm_every_ms",),
            2 * config.meta_confirm_every_ms <= config.meta_staleness_max_ms,
            "must be at most half of meta_staleness_max_ms, so that one late answer makes no read fail",
        ),
    ]
    for path, holds, what in rules:
        if not holds:
            raise _mistake(name, lines, path, f"{'.'.join(map(str, path))}: {what}")


_POSITIVE = (
    "memtable_bytes_max",
    "partition_bytes_max",
    "log_bytes_max",
    "segment_bytes",
    "idle_close_ms",
    "compact_files_min",
    "compact_files_min_in_change",
    "compact_every_ms",
    "compact_deletes_ms",
    "expire_every_ms",
    "staleness_max_ms",
    "meta_staleness_max_ms",
    "meta_confirm_every_ms",
    "session_ttl_ms",
    "snapshot_ttl_ms",
    "worker_timeout_ms",
)


def _steps(path: str) -> _Path:
    return tuple(m["name"] if m["name"] is not None else int(m["index"]) for m in _STEP.finditer(path))


def _mistake(name: str, lines: dict[_Path, int], path: _Path, what: str) -> InvalidInput:
    """An error at the line of `path`, or of the innermost enclosing setting that is in the file."""
    while path and path not in lines:
        path = path[:-1]
    return InvalidInput(f"{name}:{lines.get(path, 1)}: {what}")

"""`node.yaml`: every mistake is reported with its line."""

from pathlib import Path

import pytest

from nodeagent.model.config import NodeConfig
from nodeagent.model.errors import InvalidInput
from nodeagent.runtime.config import DEPTH_MAX, dump_config, load_config, parse_config

GOOD = """\
# a node
node: node1
host: 127.0.0.1
port: 9101
http_port: 9201
seeds:
  - {node: node1, host: 127.0.0.1, port: 9101}
  - node: node2
    host: 127.0.0.1
    port: 9102
cluster:
  name: plant
  replicas: 3
raft:
  heartbeat_ms: 50
  election_timeout_ms: 500
"""


def test_settings_are_read_and_written_back() -> None:
    """Dumped settings parse to the same value."""
    config = parse_config(GOOD, "node.yaml")
    assert isinstance(config, NodeConfig)
    assert (config.seeds[1].port, config.cluster.replicas, config.raft.heartbeat_ms) == (9102, 3, 50)
    assert parse_config(dump_config(config), "x") == config


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("port: 9101\nhttp", "port: many\nhttp", "node.yaml:4: Expected `int`, got `str`"),
        ("http_port: 9201", "http_prt: 9201", "node.yaml:5: unknown setting http_prt"),
        ("    port: 9102", "    prt: 9102", "node.yaml:10: unknown setting prt"),
        ("    port: 9102", "    port: '9102'", "node.yaml:10: Expected `int`, got `str`"),
        ("    port: 9102", "    port: 70000", "node.yaml:10: seeds.1.port: a port must be 1 to 65535"),
        ("    port: 9102", "    port: 9102\n    weight: 0", "node.yaml:11: seeds.1.weight: a weight must be"),
        ("    port: 9102\n", "", "node.yaml:8: Object missing required field `port`"),
        ("  replicas: 3", "  replicas: 0", "node.yaml:13: cluster.replicas: at least 1"),
        ("heartbeat_ms: 50", "heartbeat_ms: 400", "node.yaml:16: raft.election_timeout_ms: "),
        ("  name: plant", "  name: plant\n  name: other", "node.yaml:13: name is given twice"),
        (
            "node: node1\nhost: 127.0.0.1",
            "node: node1\nhost: 0.0.0.0\ntls: false",
            "node.yaml:3: host: without",
        ),
        ("node: node1\nhost", "node: Node 1\nhost", "node.yaml:2: node name 'Node 1' is not allowed"),
        ("  replicas: 3", "  replicas: [3", "node.yaml:1"),
        ("node: node1", "node: {name: node1}", "node.yaml:2: Expected `str`, got `object`"),
    ],
)
def test_mistake_is_named_with_its_line(old: str, new: str, message: str) -> None:
    """`file:line: what`, also for nested and list settings."""
    assert old in GOOD
    with pytest.raises(InvalidInput) as caught:
        parse_config(GOOD.replace(old, new), "node.yaml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("every", "accepted"), [(5_000, True), (5_001, False), (0, False)])
def test_a_node_must_ask_twice_within_the_tolerance(every: int, accepted: bool) -> None:
    """Else a single late answer makes reads of the meta state fail in turn."""
    text = f"{GOOD}meta_staleness_max_ms: 10000\nmeta_confirm_every_ms: {every}\n"
    if accepted:
        assert parse_config(text, "node.yaml").meta_confirm_every_ms == every
        return
    with pytest.raises(InvalidInput, match=r"node\.yaml:18: meta_confirm_every_ms: must be"):
        parse_config(text, "node.yaml")


@pytest.mark.parametrize("text", ["", "- a list", "just words", "a: &x [*x]"])
def test_other_documents_are_refused(text: str) -> None:
    """Everything except a mapping of known settings is refused."""
    with pytest.raises(InvalidInput, match=r"node\.yaml:1"):
        parse_config(text, "node.yaml")


def test_missing_file_is_invalid_input(tmp_path: Path) -> None:
    """The error names the command that creates the file."""
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_config(tmp_path / "node.yaml")


def test_aliases_and_depth_of_node_yaml_are_bounded() -> None:
    """F15: ten lines of aliases expanded to a billion values and took half a minute."""
    layers = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 6))
    with pytest.raises(InvalidInput, match="more than"):
        parse_config(f"a0: &a0 [{', '.join('x' * 10)}]\n{layers}seeds: *a5\n", "node.yaml")
    for text in ("seeds: " + "[" * 5_000, "seeds: &a [*a]", "{" * 5_000):
        with pytest.raises(InvalidInput, match="too deeply"):
            parse_config(text, "node.yaml")
    for depth, why in ((DEPTH_MAX, "unknown setting"), (DEPTH_MAX + 1, "too deeply")):
        with pytest.raises(InvalidInput, match=why):
            parse_config(f"x: {'[' * (depth - 1)}{']' * (depth - 1)}\n", "node.yaml")
    with pytest.raises(InvalidInput, match="larger than"):
        parse_config("# " + "x" * (5 << 20), "node.yaml")

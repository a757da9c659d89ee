"""`playbook validate` and `check` refuse what a run would refuse: enums, ranges and types (E5)."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from iotctl.cli.catalogue import verbs
from iotctl.cli.main import whole_tree
from iotctl.errors import Exit, InputProblem, UsageProblem
from iotctl.playbook.command_line import command_line
from iotctl.spec.playbook_check import load_playbook
from tests.iotctl.fakes import SPEC, FakeCluster, iotctl

VERBS = verbs()
HEAD = "apiVersion: iotctl/v1\nname: x\nvars: {v: {type: string, default: content}}\nsteps:\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


@pytest.mark.parametrize(
    ("uses", "given", "said"),
    [
        ("verify", "depth: deep", "'deep' is not one of manifest, hash, content"),
        ("verify", "master: sparkle", "'sparkle' is not one of local[*]"),
        ("migrate", "rate: fast", "'fast' is not a rate"),
        ("migrate", "concurrency: 0", "0 is not in the range"),
        ("plan.rebalance", "strategy: rows", "'rows' is not one of slots, bytes, write-rate"),
        ("plan.rebalance", "max_moves: 0", "0 is not in the range"),
        ("cluster.add-node", "{nodes: [a], depth: deep}", "'deep' is not one of"),
        ("cluster.add-node", "{nodes: [a], hold_release: forever}", "'forever' is not a duration"),
        ("cluster.wait", "for: green", "'green' is neither healthy nor op=ID"),
        ("wait_for", "for: green", "'green' is neither healthy nor op=ID"),
        ("cluster.events", "{since: long, limit: 0}", "not in the range"),
        ("cert.renew", "within: soon", "'soon' is not a duration"),
        ("cert.issue", "{name: ann, out: d, role: root}", "'root' is not one of admin, reader"),
        ("local.up", "replicas: 10", "10 is not in the range"),
        ("data.query", "{storage_group: g, table: t, read: dirty}", "'dirty' is not one of strong"),
        ("data.query", "{storage_group: g, table: t, from: yesterday}", "'yesterday' is not a time"),
        ("data.query", "{storage_group: g, table: t, where: [a]}", "is not TAG=VALUE"),
        ("data.query", "{storage_group: g, table: t, limit: -1}", "-1 is not in the range"),
        ("data.export", "{storage_group: g, table: t, to: a, format: xls}", "'xls' is not one of arrow"),
        ("data.import", "{file: f, storage_group: g, table: t, on_error: ignore}", "'ignore' is not one of"),
        ("data.import", "{file: f, storage_group: g, table: t, time_zone: Mars}", "'Mars' is not known"),
        ("data.import", "{file: f, storage_group: g, table: t, type: [a=NUMBER]}", "is not COLUMN=TYPE"),
        ("data.schema", "{storage_group: g, table: t, set_ttl: 0s}", "is out of range"),
        ("cluster.restart", "max_unavailable: 0", "0 is not in the range"),
    ],
)
def test_validate_refuses_what_a_run_would_refuse(place: Path, uses: str, given: str, said: str) -> None:
    """The error names the place of the value, before a step runs."""
    (place / "p.yaml").write_text(
        f"{HEAD}  - uses: {uses}\n    with: {given if '{' in given else f'{{{given}}}'}\n"
    )
    for verb in ("validate", "check", "run"):
        done = iotctl(place, "playbook", verb, "p.yaml", cluster=FakeCluster())
        assert done.code == Exit.INPUT and said in done.err and "p.yaml:6:" in done.err, done.err


def test_every_option_with_listed_values_refuses_other_values() -> None:
    """A new option `a|b` cannot miss its check: help, command line and playbooks agree."""
    found = 0
    for verb in (v for v in VERBS.values() if v.words):
        for parameter, metavar in _metavars(verb.words):
            if not re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", metavar):
                continue
            found += 1
            (known,) = [p for p in verb.parameters if p.option == parameter]
            assert known.check is not None
            for allowed in metavar.split("|"):
                known.check(allowed)
            with pytest.raises(ValueError):
                known.check("something-else")
    assert found > 12


def _metavars(words: tuple[str, ...]) -> list[tuple[str, str]]:
    command: Any = typer.main.get_command(whole_tree())
    for word in words:
        command = command.commands[word]
    return [(max(p.opts, key=len), p.metavar or "") for p in command.params if p.param_type_name == "option"]


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_variable_is_checked_before_the_first_step(place: Path, verb: str) -> None:
    """E5: a run drained a node before it failed. Values from --var are known when the run begins."""
    drain = "  - {uses: cluster.drain, with: {node: node1}}\n"
    (place / "p.yaml").write_text(f"{HEAD}{drain}  - uses: verify\n    with: {{depth: '${{v}}'}}\n")
    assert iotctl(place, "playbook", "validate", "p.yaml").code == 0
    cluster, env = FakeCluster(), {"XDG_STATE_HOME": str(place / "state")}
    done = iotctl(place, "playbook", verb, "p.yaml", "--var", "v=deep", cluster=cluster, env=env)
    assert done.code == Exit.INPUT and "steps[1].with.depth: 'deep' is not one of" in done.err
    assert "p.yaml:7:" in done.err and not cluster.drained and not (place / "state").exists()


def test_a_refused_secret_is_not_printed(place: Path) -> None:
    head = HEAD.replace("{type: string, default: content}", "{secret: true, env: V}")
    (place / "p.yaml").write_text(f"{head}  - uses: verify\n    with: {{depth: '${{v}}'}}\n")
    done = iotctl(place, "playbook", "check", "p.yaml", cluster=FakeCluster(), env={"V": "hunter2"})
    assert done.code == Exit.INPUT and "hunter2" not in done.err and "***" in done.err


def test_a_skipped_step_may_have_invalid_values(place: Path) -> None:
    """A step that its condition skips is not refused for an empty value."""
    step = "  - uses: verify\n    when: ${v} != ''\n    with: {depth: '${v}'}\n"
    (place / "p.yaml").write_text(HEAD + step)
    done = iotctl(place, "playbook", "check", "p.yaml", "--var", "v=", cluster=FakeCluster())
    assert done.code == 0, done.err


@pytest.mark.parametrize("number", [-1, 0])
def test_less_than_one_node_at_once_is_refused(place: Path, number: int) -> None:
    """0 does not mean the default."""
    (place / "p.yaml").write_text(f"{HEAD}  - uses: cluster.restart\n    max_unavailable: {number}\n")
    with pytest.raises(InputProblem, match="max_unavailable: must be at least 1") as caught:
        load_playbook(place / "p.yaml", VERBS)
    lines = (place / "p.yaml").read_text().splitlines()
    assert caught.value.where.endswith(f"p.yaml:{len(lines)}:22")


@pytest.mark.parametrize("step", ["with: {nodes: []}", "with: {nodes: '${some}'}"])
def test_an_empty_list_of_nodes_does_not_mean_all(place: Path, step: str) -> None:
    """A command without names works on all nodes; a list that turned out empty does not mean all."""
    head = HEAD.replace("vars: {", "vars: {some: {type: list, default: []}, ")
    (place / "p.yaml").write_text(f"{head}  - {{uses: cluster.stop, {step}}}\n")
    for verb in ("check", "run"):
        done = iotctl(place, "playbook", verb, "p.yaml", cluster=FakeCluster())
        assert done.code in (Exit.INPUT, Exit.USAGE) and "the list is empty" in done.err, (verb, done.err)
    with pytest.raises(UsageProblem, match="the list is empty"):
        command_line(VERBS["cluster.stop"], {"nodes": []})
    with pytest.raises(UsageProblem, match="the list is empty"):
        command_line(VERBS["data.delete"], {"where": ()})
    assert "--tag" not in command_line(VERBS["data.import"], {"file": "a.csv", "tag": []})

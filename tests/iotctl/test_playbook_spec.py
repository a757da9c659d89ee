"""Playbook files: every kind of mistake is reported with its place and a hint, before a step runs."""

from pathlib import Path

import pytest

from iotctl.cli.catalogue import verbs
from iotctl.errors import InputProblem, UsageProblem
from iotctl.spec.expression import BadExpression, condition, holds, references, substitute
from iotctl.spec.playbook import Playbook, values_of
from iotctl.spec.playbook_check import load_playbook
from tests.iotctl.fakes import iotctl

VERBS = verbs()
GOOD = """\
apiVersion: iotctl/v1
name: add a node
vars:
  node: {type: string}
  rate: {type: rate, default: auto}
  token: {secret: true, env: TOKEN}
steps:
  - id: plan
    uses: plan.add-node
    with: {nodes: ["${node}"], rate: "${rate}"}
    register: plan
  - uses: cluster.add-node
    name: Add ${node}
    when: ${plan.summary.slots_moved} > 0
    with:
      nodes: ["${node}"]
      verify: true
    timeout: 2h
  - uses: assert
    with: {that: ["${plan.summary.bytes_copied} < 1000"]}
"""


def load(directory: Path, text: str) -> Playbook:
    path = directory / "p.yaml"
    path.write_text(text)
    return load_playbook(path, VERBS)


def test_a_valid_playbook_is_read(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD)
    assert found.ids == ("plan", "cluster.add-node-1", "assert-1")
    assert found.file.steps[1].arguments == {"nodes": ["${node}"], "verify": True}


@pytest.mark.parametrize(
    ("old", "new", "where", "said"),
    [
        ("iotctl/v1", "iotctl/v2", "1:13", "not known; use iotctl/v1"),
        ("apiVersion: iotctl/v1", "version: 1", "1:1", "version: unknown key"),
        (
            "plan.add-node",
            "plan.add-nod",
            "9:11",
            "unknown verb 'plan.add-nod'; did you mean 'plan.add-n",
        ),
        ("uses: cluster.add-node", "use: cluster.add-node", "12:5", "use: unknown key; did you mean 'uses'"),
        ("verify: true", "verify: yes", "17:15", "put it in quotes"),
        ("verify: true", "verify: 1", "17:15", "true or false is expected"),
        ("verify: true", "verfy: true", "17:7", "has no such argument; did you mean 'verify'"),
        ("verify: true", "port: many", "17:13", "a whole number is expected, not 'many'"),
        ("verify: true", "hold_release: 24 hours", "17:21", "not a duration"),
        ("verify: true", "rate: fast", "17:13", "fast"),
        ("verify: true", "verify: true\n      verify: false", "18:7", "duplicate key (first on line 17)"),
        ('      nodes: ["${node}"]\n', "", "16:7", "with.nodes: cluster.add-node requires it"),
        ("timeout: 2h", "timeout: 2 hours", "18:14", "not a duration"),
        ("timeout: 2h", "on_failure: ignore", "18:17", "unknown 'ignore'; known: stop, continue"),
        ("timeout: 2h", "serial: [0]", "18:14", "neither a number of nodes nor a share"),
        ("timeout: 2h", "serial: [1, 150%]", "18:17", "neither a number of nodes nor a share"),
        ("timeout: 2h", "max_unavailable: 2", "18:22", "restarts nothing"),
        ("timeout: 2h", "register: rate", "18:15", "'rate' is already a variable"),
        ("timeout: 2h", "id: plan", "18:9", "'plan' is also the id of step 1"),
        ("timeout: 2h", "id: ${node}", "18:9", "an id cannot have variables"),
        ("name: Add ${node}", "name: Add ${nod}", "13:11", "${nod} is not defined before this; did you mean"),
        ("name: Add ${node}", "name: Add ${token}", "13:11", "${token} is secret, but name is printed"),
        ("name: Add ${node}", "name: Add ${node", "13:11", "no closing brace"),
        ("name: Add ${node}", "name: Add ${node.id}", "13:11", "a variable has no parts"),
        ("name: Add ${node}", "name: Add ${1x}", "13:11", "is not a name"),
        ("when: ${plan.summary", "when: ${plna.summary", "14:11", "did you mean 'plan'"),
        ("when: ${plan", "when: ${node} == 1 and ${plan", "14:11", "`and` and `or` are not supported"),
        (
            "timeout: 2h",
            "register: added\n  - {uses: verify, when: '${added.state} == done'}",
            "19:26",
            "${added.changed}",
        ),
        ("bytes_copied} < 1000", "bytes_copied} < 1 and 2 > 1", "20:19", "`and` and `or` are not supported"),
        ("register: plan", "register: plan-1", "11:15", "is not a valid name"),
        ("default: auto", "default: 5 parsecs", "5:31", "5 parsecs"),
        ("type: rate", "type: speed", "5:16", "unknown 'speed'"),
        ("env: TOKEN", "default: abc", "6:34", "do not write a secret in a playbook"),
        ("{type: string}", '{default: "${rate}"}', "", ""),
        ("{type: string}", '{default: "${node}"}', "4:19", "variables refer to each other: node -> node"),
        ("{type: string}", '{default: "${gone}"}', "4:19", "${gone} is not defined"),
        (
            "  node: {type: string}",
            "  no: {type: string}",
            "4:3",
            "a name as the key, found bool 'no'",
        ),
        ("  node: {type: string}", "  a-b: {type: string}", "4:3", "letters, digits"),
        ("uses: assert", "uses: exec", "20:12", "has no such argument"),
        ("bytes_copied} < 1000", "bytes_copied} <", "20:19", "is not a condition"),
        ("steps:", "steps: []\nx:", "8:1", "x: unknown key"),
        ('nodes: ["${node}"]\n      v', 'nodes: &n ["${node}"]\n      v', "16:14", "anchors"),
    ],
)
def test_each_mistake_has_its_place_and_hint(
    tmp_path: Path, old: str, new: str, where: str, said: str
) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if not where:  # a change of `GOOD` that is no mistake
        load(tmp_path, text)
        return
    with pytest.raises(InputProblem) as caught:
        load(tmp_path, text)
    first = caught.value
    told = [f"{first.where}: {first.what}", *first.why.split("; " + str(tmp_path))]
    assert any(f":{where}: " in t and said in t for t in told), told
    refused(tmp_path, f"p.yaml:{where}: ", said)


def refused(directory: Path, *said: str) -> None:
    """Every command that reads the file refuses it in the same words; no question is asked, nothing is
    begun."""
    for verb in ("validate", "check", "run"):
        done = iotctl(directory, "playbook", verb, "p.yaml")
        assert done.code == 3 and "Traceback" not in done.err, done.err
        assert all(s in done.err for s in said), done.err


BOMB = "a: &a [x]\n" + "".join(
    f"b{i}: &b{i} [{','.join([f'*b{i - 1}' if i else '*a'] * 9)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("content", "where", "said"),
    [
        (GOOD.replace("    with:\n", "\twith:\n"), "15:1", "indent with spaces"),
        (
            GOOD.replace("verify: true", "port: 22:22"),
            "17:13",
            "reads 22:22 as another number; put it in quotes",
        ),
        (GOOD.replace("verify: true", "port: 010"), "17:13", "reads 010 as another number; put it in quotes"),
        (
            GOOD.replace("{type: string}", "{type: string, type: int}"),
            "4:24",
            "vars.node.type: duplicate key",
        ),
        (GOOD.replace("      nodes:", "      <<: {a: 1}\n      nodes:"), "16:7", "found merge"),
        (GOOD.replace("  node: {type", "  1.5: {type"), "4:3", "found float '1.5'"),
        (GOOD.replace("name: add", "name: !!python/object:os.x add"), "2:7", "are not supported"),
        (GOOD.replace('"${node}"], rate', '"${node}", rate'), "10:46", "not valid YAML"),
        (GOOD.replace("add a node", "add\0a node"), "2:10", "delete it, or write it as an escape"),
        (GOOD + "---\na: 1\n", "21:1", "a second document begins"),
        (GOOD.replace("add a node", "add a n\xf6de").encode("latin-1"), "2:14", "save the file as UTF-8"),
        (GOOD.encode("utf-16"), "1:1", "save the file as UTF-8"),
        ("a: " + "[" * 2000 + "]" * 2000, "1:35", "nested more than 32 levels deep"),
        (BOMB, "1:4", "write the value out where it is used"),
        ("- a\n", "1:1", "expected a mapping, found a list"),
        ("", "1:1", "the file is empty"),
    ],
)
def test_each_kind_of_broken_file(tmp_path: Path, content: str | bytes, where: str, said: str) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "p.yaml").write_bytes(data)
    refused(tmp_path, f"p.yaml:{where}: ", said)


def test_a_missing_file_is_exit_3(tmp_path: Path) -> None:
    refused(tmp_path, "cannot read", f"next: ls -l {tmp_path}")


def test_exec_without_a_condition_is_refused(tmp_path: Path) -> None:
    text = "apiVersion: iotctl/v1\nname: x\nsteps:\n  - uses: exec\n    with: {command: [ls]}\n"
    with pytest.raises(InputProblem, match="creates"):
        load(tmp_path, text)
    assert load(tmp_path, text.replace("[ls]", "[ls], creates: /tmp/x")).ids == ("exec-1",)


def test_variables_that_refer_to_each_other_are_reported_once(tmp_path: Path) -> None:
    text = GOOD.replace("{type: string}", '{default: "${b}"}').replace(
        "  rate:", '  b: {default: "${node}"}\n  rate:'
    )
    with pytest.raises(InputProblem) as caught:
        load(tmp_path, text)
    assert "b -> node -> b" in caught.value.what and not caught.value.why


def test_a_playbook_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputProblem, match="the list is empty"):
        load(tmp_path, GOOD[: GOOD.index("steps:")] + "steps: []\n")


def test_values_come_from_the_command_line_then_the_environment_then_a_file(tmp_path: Path) -> None:
    text = GOOD.replace("{type: string}", '{file: node.txt, env: NODE, default: "x-${rate}"}')
    book = load(tmp_path, text)
    env = {"TOKEN": "s3cret"}
    assert values_of(book, {}, env)[0]["node"] == "x-auto"
    (tmp_path / "node.txt").write_text("from-file\n")
    assert values_of(book, {}, env)[0]["node"] == "from-file"
    assert values_of(book, {}, {**env, "NODE": "from-env"})[0]["node"] == "from-env"
    values, secrets = values_of(book, {"node": "given"}, {**env, "NODE": "from-env"})
    assert values["node"] == "given" and secrets == {"s3cret"}


def test_an_empty_file_of_a_value_is_named_as_empty(tmp_path: Path) -> None:
    book = load(tmp_path, GOOD.replace("{type: string}", "{file: node.txt}"))
    (tmp_path / "node.txt").write_text("")
    with pytest.raises(UsageProblem, match="node.txt cannot be read") as refused:
        values_of(book, {}, {"TOKEN": "s3cret"})
    assert refused.value.why == "the file is empty" and "--var node=" in refused.value.next


@pytest.mark.parametrize(
    ("given", "said"),
    [({}, "node has no value"), ({"nod": "x"}, "no such variable"), ({"node": "x", "rate": "fast"}, "rate")],
)
def test_missing_and_wrong_values_are_refused(tmp_path: Path, given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        values_of(load(tmp_path, GOOD), given, {"TOKEN": "t"})


def test_an_invalid_secret_is_not_printed(tmp_path: Path) -> None:
    book = load(tmp_path, GOOD.replace("{secret: true", "{type: int, secret: true"))
    with pytest.raises(UsageProblem) as caught:
        values_of(book, {"node": "n"}, {"TOKEN": "hunter2"})
    assert "hunter2" not in str(caught.value) + caught.value.why + caught.value.next


VALUES = {("a",): 3, ("b",): "text", ("c", "d", 0): [1, 2], ("e",): False, ("text3",): "3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${a}", 3),
        ("${a}x", "3x"),
        ("${b}/${a}", "text/3"),
        ("$${a}", "${a}"),
        ("${c.d[0]}", [1, 2]),
        ("is ${e}", "is false"),
        (["${a}", {"k": "${b}"}], [3, {"k": "text"}]),
    ],
)
def test_references_are_substituted(text: object, expected: object) -> None:
    assert substitute(text, VALUES.__getitem__) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${a}", True),
        ("not ${a}", False),
        ("${e}", False),
        ("${a} == 3", True),
        ("${a} != 3", False),
        ("not ${a} == 3", False),
        ("${a} >= 3.0", True),
        ("${a} < 3", False),
        ("${b} == text", True),
        ("${b} == 'text'", True),
        ("${e} == false", True),
        ("${text3} == 3", True),
        ("${text3} < 4", True),
        ('${b} != "${b}"', False),
        ("${b} == 'two words'", False),
        ('${b} == "this and that"', False),
        ("'this or that' != ${b}", True),
        ("false", False),
    ],
)
def test_conditions(text: str, expected: bool) -> None:
    assert holds(condition(text), VALUES.__getitem__) is expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${a} == 3 or ${e}", "`and` and `or` are not supported"),
        ("${b} == 'one' and ${b} == 'two'", "`and` and `or` are not supported"),
        ("${b} = 'this and that'", "is not a condition"),
    ],
)
def test_and_between_conditions_is_told_from_and_in_quotes(text: str, said: str) -> None:
    with pytest.raises(BadExpression, match=said):
        condition(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "${a} = 3",
        "${a} && ${e}",
        "!${a}",
        "not(${a})",
        "(${a})",
        "${a} is true",
        "${a} AND ${e}",
        "${a} == 5 == 6",
        "${a} == two words",
        "${e} == False",
        "text",
        "'text'",
        "${a}${e}",
    ],
)
def test_an_incomplete_condition_is_refused(text: str) -> None:
    """Otherwise the condition would count as a text that is not empty, and always hold."""
    with pytest.raises(BadExpression):
        condition(text)


def test_given_values_are_plain_text(tmp_path: Path) -> None:
    """Only defaults refer to other variables; a token may contain `${`."""
    book = load(tmp_path, GOOD)
    values, secrets = values_of(book, {"node": "${node}"}, {"TOKEN": "a${x}'\\"})
    assert values["node"] == "${node}" and secrets == {"a${x}'\\"}


def test_values_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(BadExpression, match="cannot be compared"):
        holds(condition("${b} < 3"), VALUES.__getitem__)
    with pytest.raises(BadExpression, match="no closing"):
        list(references("${a"))

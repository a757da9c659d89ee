"""Runs: steps whose work is done change nothing, killed runs resume, no step takes effect twice, reports
parse."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from iotctl.cli.catalogue import verbs
from iotctl.errors import BusyProblem, InputProblem, Unreachable, UsageProblem
from iotctl.playbook.command_line import command_line
from iotctl.playbook.inspect import Inspector
from iotctl.playbook.journal import RUN_ID, FileJournal, find_run, new_run_id
from iotctl.playbook.model import READS, Entry, Inspection, Journal, Ran, Report, StepResult
from iotctl.playbook.outcome import parts
from iotctl.playbook.report import annotations, junit, summary, undoable_steps
from iotctl.playbook.run import BuiltIn, Runner, RunOptions, Tools
from iotctl.playbook.uses import Use, after_earlier, can_look_again, undo_of
from iotctl.playbook.values import Values
from iotctl.spec.playbook import values_of
from iotctl.spec.playbook_check import load_playbook
from nodeagent.model.operation import Stage
from nodeagent.model.requests import BeginChange, Reply, Request
from nodeagent.model.schema import Column, TableSchema
from tests.iotctl.fakes import SPEC, FakeCluster, Tty, iotctl, make_operation

VERBS = verbs()
TEXT = """\
apiVersion: iotctl/v1
name: two nodes
vars:
  nodes: {type: list, default: [node6, node7]}
  token: {secret: true, env: TOKEN}
steps:
  - id: drain
    uses: cluster.drain
    with: {node: node1}
  - id: add
    name: Add ${nodes}
    uses: cluster.add-node
    with: {nodes: "${nodes}", verify: true}
    serial: [1]
    register: added
  - id: undrain
    uses: cluster.undrain
    with: {node: node1}
    when: ${added.changed}
"""


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@dataclass
class Plant:
    """A fake cluster: it records the effect of every command and shows it to inspections."""

    effects: list[str] = field(default_factory=list)
    drained: bool = False
    nodes: set[str] = field(default_factory=set)
    fails: str = ""
    looks: int = 0
    open: str = ""
    """The id of an open operation that adds both nodes."""

    def command(self, words: Sequence[str], timeout: str = "") -> Ran:
        line = " ".join(words)
        if self.fails and self.fails in line:
            return Ran(4, {"error": {"what": "unreachable", "why": "s3cret refused", "next": "look"}}, "")
        if words[:2] == ["ops", "wait"]:
            self.nodes |= {"node6", "node7"}
            self.open = ""
            return Ran(0, None, "")
        self.effects.append(line)
        if "drain" in words[1]:
            self.drained = words[1] == "drain"
        else:
            self.nodes |= {w for w in words[2:] if w.startswith("node")}
        return Ran(0, {"state": "done"}, "")

    def inspect(self, verb: str, arguments: dict[str, Any]) -> Inspection:
        self.looks += 1
        match verb:
            case "wait_for" | "plan.rebalance" | "approve":
                return Inspection(READS)
            case "cluster.drain":
                done = self.drained
            case "cluster.undrain":
                done = not self.drained
            case "cluster.restart":
                done = False
            case _:
                left = tuple(n for n in arguments["nodes"] if n not in self.nodes)
                if left:
                    return Inspection("would_change", "", left, self.open)
                done = True
        return Inspection("no_change" if done else "would_change", "")


def use(verb: str, arguments: dict[str, Any]) -> Use:
    return Use(VERBS[verb], arguments)


def runner(
    directory: Path,
    plant: Plant,
    journal: Journal,
    text: str = TEXT,
    token: str = "s3cret",
    built_in: Mapping[str, BuiltIn] | None = None,
    limit: Sequence[str] = (),
    passed: list[float] | None = None,
) -> Runner:
    """`passed` gets the seconds of every sleep."""
    slept = [] if passed is None else passed
    path = directory / "p.yaml"
    path.write_text(text)
    book = load_playbook(path, VERBS)
    values, secrets = values_of(book, {}, {"TOKEN": token})
    return Runner(
        book,
        VERBS,
        Values(values, secrets),
        journal,
        Tools(
            command=plant.command,
            inspect=plant.inspect,
            built_in=built_in or {},
            clock=lambda: sum(slept),
            sleep=slept.append,
        ),
        RunOptions(
            by="me",
            again="again",
            program=lambda: ["iotctl", "--cluster", "plant.yaml"],
            limit=limit,
        ),
    )


def states(report: Report) -> list[str]:
    return [s.state for s in report.steps]


def test_a_step_that_succeeded_without_effect_has_failed(tmp_path: Path) -> None:
    """An inspection overrules the command's result; the run stops, and resuming inspects again."""

    class Lazy(Plant):
        def command(self, words: Sequence[str], timeout: str = "") -> Ran:
            return (
                Ran(0, {"state": "done"}, "") if words[1] == "add-node" else super().command(words, timeout)
            )

    plant, journal, passed = Lazy(), FileJournal(tmp_path / "j"), list[float]()
    report = runner(tmp_path, plant, journal, passed=passed).run()
    assert states(report) == ["changed", "failed", "pending"] and report.resume
    failed = report.steps[1]
    assert failed.code == 7 and "is not done" in failed.message and 10 < failed.seconds < 20
    assert failed.next == "iotctl --cluster plant.yaml cluster status"
    assert 10 < sum(passed) < 20, "the effect of the step may show later"
    assert [e.step for e in journal.entries() if e.event == "outcome"] == ["drain"]
    report = runner(tmp_path, Plant(drained=True), journal).run()
    assert states(report) == ["changed"] * 3, "the step ran again and was not treated as done"


def test_the_effect_of_a_step_may_show_later(tmp_path: Path) -> None:
    plant, passed = Plant(), list[float]()
    inspect = plant.inspect

    def late(verb: str, arguments: dict[str, Any]) -> Inspection:
        unseen = verb == "cluster.drain" and plant.drained and sum(passed) < 3
        return Inspection("would_change", "") if unseen else inspect(verb, arguments)

    plant.inspect = late  # type: ignore[method-assign]
    assert (
        states(runner(tmp_path, plant, FileJournal(tmp_path / "j"), passed=passed).run()) == ["changed"] * 3
    )
    assert 3 <= sum(passed) < 4


def test_a_cluster_that_does_not_answer_after_a_step_is_not_a_failure(tmp_path: Path) -> None:
    plant = Plant()
    inspect = plant.inspect

    def dark(verb: str, arguments: dict[str, Any]) -> Inspection:
        if plant.drained:
            raise Unreachable("nobody answers")
        return inspect(verb, arguments)

    plant.inspect = dark  # type: ignore[method-assign]
    text = TEXT[: TEXT.index("  - id: add")]
    assert states(runner(tmp_path, plant, FileJournal(tmp_path / "j"), text).run()) == ["changed"]


@pytest.mark.parametrize(
    ("verb", "arguments", "can"),
    [
        ("cluster.drain", {"node": "node1"}, True),
        ("cluster.restart", {"nodes": ["node1"]}, False),
        ("cluster.stop", {}, True),
        ("cluster.stop", {"older_than": "1d"}, False),
        ("cluster.add-node", {"nodes": ["node6"], "wait": "false"}, False),
        ("cert.renew", {"within": "400d"}, False),
        ("verify", {"repair": True}, False),
    ],
)
def test_a_step_is_inspected_afterwards_only_if_that_can_show_its_effect(
    verb: str, arguments: dict[str, Any], can: bool
) -> None:
    assert can_look_again(use(verb, arguments)) is can


def test_undoing_verbs_exist_and_take_the_same_arguments() -> None:
    """A verb is named by its command's path: renaming a command must not be forgotten here."""
    for verb in VERBS.values():
        traits = verb.traits
        assert {*traits.undone_by, *([traits.undo] if traits.undo else [])} <= VERBS.keys(), verb.name
        assert traits.inspect is None or not traits.looks or verb.reads, verb.name
        if traits.undo:
            nodes = {p.name for p in verb.parameters} & {"node", "nodes"}
            assert nodes and nodes <= {p.name for p in VERBS[traits.undo].parameters}, verb.name
            assert traits.undo in traits.undone_by, verb.name


def test_a_failed_run_lists_the_commands_that_undo_its_steps(tmp_path: Path) -> None:
    """The latest step comes first; only changed steps and the failed step, which may be half done, are listed
    for this cluster."""
    plant = Plant(fails="undrain", nodes={"node6"})
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    assert [(s.id, s.undo) for s in undoable_steps(report)] == [
        ("undrain", "iotctl --cluster plant.yaml cluster drain node1"),
        ("add", "iotctl --cluster plant.yaml cluster remove-node node7"),
        ("drain", "iotctl --cluster plant.yaml cluster undrain node1"),
    ]
    assert "cluster undrain node1`" in summary(report)
    cases = ElementTree.fromstring(junit(report, "p.yaml")).iter("property")
    assert [p.get("value") for p in cases if p.get("name") == "undo"] == [
        s.undo for s in report.steps if s.undo
    ]
    plant.fails = ""
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    assert not report.failed and not undoable_steps(report), "a successful run lists nothing to undo"
    assert report.steps[0].undo, "the record of the run retains the command"


def test_steps_that_the_run_undid_itself_are_not_listed(tmp_path: Path) -> None:
    """After the drill restored its node, the run suggests neither stopping it nor undoing later steps."""
    drain, undrain = "iotctl -c x cluster drain node1", "iotctl -c x cluster undrain node1"
    steps = [
        StepResult("one", "one", "cluster.drain", "changed", undo=undrain, redo=drain),
        StepResult("two", "two", "cluster.undrain", "changed", undo=drain, redo=undrain),
        StepResult("three", "three", "cluster.stop", "changed", undo="iotctl -c x cluster start node2"),
        StepResult("four", "four", "assert", "failed"),
        StepResult("five", "five", "cluster.drain", "changed", undo=undrain, redo=drain),
    ]
    report = Report("p", "r", steps, 4, 1, "again")
    assert [s.id for s in undoable_steps(report)] == ["three"]


def test_a_node_that_replaces_itself_is_not_inspected_afterwards() -> None:
    """An inspection cannot distinguish the new node from the old one."""
    assert not can_look_again(use("cluster.replace-node", {"old": "node4", "new": "node4"}))
    assert can_look_again(use("cluster.replace-node", {"old": "node4", "new": "node6"}))


def test_undoing_a_stop_starts_only_nodes_that_ran() -> None:
    found = Inspection("would_change", "", nodes=("node2",))
    assert undo_of(use("cluster.stop", {}), found) == ("cluster.start", {"nodes": ["node2"]})
    assert undo_of(use("cluster.start", {"nodes": ["node1", "node2"]}), found) == (
        "cluster.stop",
        {"nodes": ["node2"]},
    )
    assert undo_of(use("cluster.remove-node", {"nodes": ["node2"]}), found) is None


def test_every_step_runs_once_in_its_batches(tmp_path: Path) -> None:
    plant = Plant()
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    assert plant.effects == [
        "cluster drain node1",
        "cluster add-node --yes --verify node6",
        "cluster add-node --yes --verify node7",
        "cluster undrain node1",
    ]
    assert states(report) == ["changed"] * 3 and report.changed == 3 and not report.resume
    assert report.steps[1].name == "Add node6,node7"


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    plant = Plant()
    text = TEXT.replace("cluster.drain", "cluster.undrain")
    runner(tmp_path, plant, FileJournal(tmp_path / "j1"), text).run()
    done = list(plant.effects)
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j2"), text).run()
    assert plant.effects == done and report.changed == 0 and states(report) == ["ok", "ok", "skipped"]


def test_a_check_changes_nothing_and_reports_unknown_steps(tmp_path: Path) -> None:
    plant = Plant()
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j")).check()
    assert states(report) == ["would_change", "would_change", "unknown"]
    assert not plant.effects and not (tmp_path / "j").exists()


def test_a_check_considers_what_earlier_steps_undo(tmp_path: Path) -> None:
    """No node is drained now, and none will be after the last step: both steps change something."""
    text = TEXT.replace("    when: ${added.changed}\n", "")
    report = runner(tmp_path, Plant(), FileJournal(tmp_path / "j"), text).check()
    assert states(report) == ["would_change"] * 3
    other = text.replace("undrain\n    with: {node: node1}", "undrain\n    with: {node: node2}")
    report = runner(tmp_path, Plant(), FileJournal(tmp_path / "j"), other).check()
    assert states(report) == ["would_change", "would_change", "no_change"]


def test_a_failed_run_resumes_at_the_failed_step(tmp_path: Path) -> None:
    plant = Plant(fails="add-node")
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    assert states(report) == ["changed", "failed", "pending"] and report.resume == "again"
    assert report.steps[1].code == 4 and "look" in report.steps[1].next
    plant.fails = ""
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    assert states(report) == ["changed"] * 3 and not report.resume
    assert plant.effects.count("cluster drain node1") == 1


def test_a_passed_gate_is_not_checked_again(tmp_path: Path) -> None:
    """A cluster that was healthy before a node was stopped is not healthy while the node is down: a resumed
    run that checked again could not continue."""
    gate = "  - id: gate\n    uses: wait_for\n    with: {for: healthy}\n"
    text = TEXT.replace("steps:\n", "steps:\n" + gate) + gate.replace("gate", "last")
    told = text.replace("uses: wait_for", "register: told\n    uses: wait_for", 1)
    # A gate that registers its result is checked again: a later step may use the result.
    for number, (book, waits) in enumerate([(text, 2), (told, 3)]):
        plant, journal = Plant(fails="add-node"), tmp_path / str(number)
        assert states(runner(tmp_path, plant, FileJournal(journal), book).run())[2] == "failed"
        plant.fails = ""
        assert runner(tmp_path, plant, FileJournal(journal), book).run().failed == 0
        assert sum(e.startswith("cluster wait") for e in plant.effects) == waits


def test_a_step_that_may_fail_does_not_end_the_run(tmp_path: Path) -> None:
    plant = Plant(fails="drain node1")
    text = TEXT.replace(
        "with: {node: node1}\n  - id: add", "with: {node: node1}\n    on_failure: continue\n  - id: add"
    )
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j"), text).run()
    assert states(report)[:2] == ["failed", "changed"] and report.failed == 1


def test_a_failure_that_the_run_continued_after_stays_a_failure(tmp_path: Path) -> None:
    """A drill that could not read while a node was down has failed, even if reads work by now. A run that
    ended stays ended: only a new run repeats the step."""
    gate = "  - {id: serves, uses: wait_for, with: {for: healthy}, on_failure: continue, register: it}\n"
    text = TEXT.replace("steps:\n", "steps:\n" + gate)
    path = tmp_path / "j"
    with pytest.raises(Killed):  # the record ends with the intent of `drain`
        runner(tmp_path, Plant(fails="wait"), Mortal(FileJournal(path), 3, True), text).run()
    report = runner(tmp_path, Plant(), FileJournal(path), text).run()
    assert states(report) == ["failed", "changed", "changed", "changed"]
    assert report.failed == 1 and not report.resume
    assert FileJournal(path).entries()[-1].event == "ended"


def test_a_file_that_a_step_wrote_is_rewritten_before_its_use(tmp_path: Path) -> None:
    """A plan may be on another machine, and a later change may have made it stale."""
    step = "  - {id: plan, uses: plan.rebalance, with: {out: p.json}}\n"
    for more, plans in ((step, 2), (step.replace(", with: {out: p.json}", ""), 1)):
        text, plant = TEXT.replace("steps:\n", "steps:\n" + more), Plant(fails="add-node")
        path = tmp_path / str(plans)
        runner(tmp_path, plant, FileJournal(path), text).run()
        plant.fails = ""
        assert not runner(tmp_path, plant, FileJournal(path), text).run().failed
        assert sum(e.startswith("plan rebalance") for e in plant.effects) == plans


def test_a_changed_approval_is_asked_again(tmp_path: Path) -> None:
    asked = []

    def approve(arguments: dict[str, Any], *rest: object) -> Ran:
        asked.append(arguments["message"])
        return Ran(0, {"changed": False}, "")

    text = TEXT.replace("steps:\n", "steps:\n  - {uses: approve, with: {message: 'move 3 slots?'}}\n")
    plant, path = Plant(fails="add-node"), tmp_path / "j"
    for now in (text, text, text.replace("3 slots", "300 slots")):
        runner(tmp_path, plant, FileJournal(path), now, built_in={"approve": approve}).run()
    assert asked == ["move 3 slots?", "move 300 slots?"]


@pytest.mark.parametrize("scalar", [False, True])
def test_a_run_is_limited_to_some_nodes(tmp_path: Path, scalar: bool) -> None:
    """A step works only on its nodes within the limit. A step that could name nodes and names none works on
    the limit; a step that names only other nodes is skipped; a step without nodes runs."""
    text = TEXT + "  - {id: again, uses: cluster.restart, with: {older_than: 1h}}\n"
    text += "  - {id: gate, uses: wait_for, with: {for: healthy}}\n"
    text += "  - {id: away, uses: cluster.replace-node, with: {old: node6, new: node9}}\n"
    text += "  - {id: end, uses: cluster.destroy, with: {confirm: plant}}\n"
    text = text.replace('"${nodes}", verify', "node6, verify", 1) if scalar else text
    plant = Plant(drained=True)
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j"), text, limit=["node6"]).run()
    assert states(report) == ["skipped", "changed", "skipped", "changed", "ok", "skipped", "skipped"]
    assert [e.split(" --")[0] for e in plant.effects] == [
        "cluster add-node",
        "cluster restart",
        "cluster wait",
    ] and all("node6" in e and "node7" not in e for e in plant.effects[:2])
    for other in (["node7"], []):
        with pytest.raises(InputProblem, match="started for node6"):
            runner(tmp_path, plant, FileJournal(tmp_path / "j"), text, limit=other).run()


@pytest.mark.parametrize(("paused", "waited"), [(False, "op-7"), (True, "")])
def test_a_plan_waits_for_a_change_in_progress(tmp_path: Path, paused: bool, waited: str) -> None:
    """A plan made during the change would be stale. The run does not wait for a change that waits itself."""
    cluster = FakeCluster()
    cluster.operations.append(make_operation("op-7", stage=Stage.COPYING))
    cluster.operations[0].paused = paused

    def none(words: Sequence[str], timeout: str = "") -> Ran:
        return Ran(0, {"steps": []}, "")

    inspect = Inspector(VERBS, lambda: cluster, none, tmp_path, lambda: ())
    assert inspect("plan.show", {"plan": "p"}) == Inspection(READS), (
        "a saved plan is read without the cluster"
    )
    assert inspect("plan.rebalance", {"from_status": "f"}) == Inspection(READS)
    found = inspect("plan.rebalance", {})
    assert (found.state, found.operation) == (READS, waited)
    assert inspect("apply", {"plan": "p"}).operation == waited
    assert inspect("cluster.status", {}) == Inspection(READS)


@dataclass
class Mortal:
    """A journal whose machine dies at one of its writes, before or after it is durable."""

    inner: FileJournal
    at: int
    after: bool
    written: int = 0

    @property
    def run_id(self) -> str:
        return self.inner.run_id

    def append(self, entry: Entry) -> None:
        self.written += 1
        if self.written == self.at and not self.after:
            raise Killed
        self.inner.append(entry)
        if self.written == self.at:
            raise Killed

    def entries(self) -> Sequence[Entry]:
        return self.inner.entries()


def test_a_run_killed_at_any_record_and_resumed_does_nothing_twice(tmp_path: Path) -> None:
    """This includes an empty home: the record is lost, but the cluster's state is not."""
    whole = Plant()
    counting = Mortal(FileJournal(tmp_path / "whole"), 0, False)
    runner(tmp_path, whole, counting).run()
    assert counting.written == 8
    for at in range(1, counting.written + 1):
        for after in (False, True):
            for lost in (False, True):
                # Without its record it is unknown what a run changed, so no result may depend on that.
                text = TEXT.replace("    when: ${added.changed}\n", "") if lost else TEXT
                plant, path = Plant(), tmp_path / f"j-{at}-{after}-{lost}"
                with pytest.raises(Killed):
                    runner(tmp_path, plant, Mortal(FileJournal(path), at, after), text).run()
                if lost:
                    path.unlink(missing_ok=True)
                    if "cluster undrain node1" in plant.effects:
                        continue  # a new run of a playbook that drains would drain again
                report = runner(tmp_path, plant, FileJournal(path), text).run()
                assert sorted(plant.effects) == sorted(whole.effects), (at, after, lost)
                assert not report.failed and not report.resume


def test_nodes_whose_work_is_done_are_left_out(tmp_path: Path) -> None:
    """The run was killed between two batches: adding the first node again would be refused."""
    plant = Plant(nodes={"node6"})
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    assert "cluster add-node --yes --verify node7" in plant.effects and not report.failed
    assert not [e for e in plant.effects if "node6" in e]


def test_a_step_waits_for_an_operation_that_does_its_work(tmp_path: Path) -> None:
    """The iotctl that began it was killed; the agents continue the operation."""
    plant = Plant(open="op-7")
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    assert not report.failed and not [e for e in plant.effects if "add-node" in e]


def test_an_incomplete_last_record_is_cut_and_a_damaged_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    runner(tmp_path, Plant(), FileJournal(path)).run()
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    assert len(FileJournal(path).entries()) == content.count(b"\n") - 1
    path.write_bytes(content[:20] + b"#" + content[21:])
    with pytest.raises(InputProblem) as caught:
        FileJournal(path)
    assert caught.value.where == f"{path}:1:1"


def test_a_step_that_ran_cannot_be_changed(tmp_path: Path) -> None:
    plant = Plant(fails="add-node")
    runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    with pytest.raises(InputProblem, match="drain was run with different arguments"):
        runner(
            tmp_path, plant, FileJournal(tmp_path / "j"), TEXT.replace("{node: node1}", "{node: node2}", 1)
        ).run()


def test_a_step_that_ran_and_has_unknown_arguments_now_is_not_called_changed(tmp_path: Path) -> None:
    """The file and the variables are the same: the plan that the step refers to has no moves now."""

    class Planning(Plant):
        moves: Sequence[Mapping[str, str]] = ({"source": "node1"},)

        def command(self, words: Sequence[str], timeout: str = "") -> Ran:
            done = super().command(words, timeout)
            return Ran(0, {"moves": self.moves}, "") if words[0] == "plan" else done

    plan = "  - {id: plan, uses: plan.rebalance, register: p}\n  - id: drain"
    text = TEXT.replace("  - id: drain", plan).replace("{node: node1}", '{node: "${p.moves[0].source}"}', 1)
    plant = Planning(fails="add-node")
    runner(tmp_path, plant, FileJournal(tmp_path / "j"), text).run()
    plant.moves = ()
    with pytest.raises(InputProblem, match="drain was run before, and its arguments are unknown") as caught:
        runner(tmp_path, plant, FileJournal(tmp_path / "j"), text).run()
    assert "changed" not in caught.value.why and "moves" in caught.value.why


def test_a_run_resumes_with_a_changed_secret(tmp_path: Path) -> None:
    plant = Plant(fails="add-node")
    text = TEXT.replace("{node: node1}", '{node: "${token}"}', 1)
    runner(tmp_path, plant, FileJournal(tmp_path / "j"), text).run()
    plant.fails = ""
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j"), text, token="another").run()
    assert not report.failed and not report.resume
    assert plant.effects.count("cluster drain s3cret") == 1 and "cluster drain another" not in plant.effects


def test_a_failed_step_may_be_corrected(tmp_path: Path) -> None:
    plant = Plant(fails="node7")
    runner(tmp_path, plant, FileJournal(tmp_path / "j")).run()
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j"), TEXT.replace(", node7]", "]")).run()
    assert not report.failed and not report.resume


def test_secrets_are_in_no_record_and_no_report(tmp_path: Path) -> None:
    plant = Plant(fails="add-node")
    text = TEXT.replace("verify: true", 'after: "${token}"')
    report = runner(tmp_path, plant, FileJournal(tmp_path / "j"), text).run()
    assert "***" in report.steps[1].message and "s3cret" not in repr(report)
    assert "s3cret" not in (tmp_path / "j").read_text()


def test_command_lines() -> None:
    verb = VERBS["cluster.add-node"]
    assert command_line(verb, {"nodes": ["a", "b"], "wait": False, "rate": "5MB/s", "verify": False}) == [
        "cluster",
        "add-node",
        "--yes",
        "--rate",
        "5MB/s",
        "--no-wait",
        "a",
        "b",
    ]
    assert command_line(VERBS["verify"], {"slot": [1, 2], "depth": "hash"}) == [
        "verify",
        "--yes",
        "--depth",
        "hash",
        "--slot",
        "1",
        "--slot",
        "2",
    ]
    assert command_line(VERBS["cluster.drain"], {"node": "-x"}) == ["cluster", "drain", "--", "-x"]


@pytest.mark.parametrize(("changed", "state"), [((1, 0), "changed"), ((0, 0), "ok")])
def test_a_step_has_changed_if_any_batch_changed_something(
    tmp_path: Path, changed: tuple[int, int], state: str
) -> None:
    """The result of a step once counted only the changes of its last batch."""
    counts = iter(changed)

    class Counting(Plant):
        def command(self, words: Sequence[str], timeout: str = "") -> Ran:
            super().command(words, timeout)
            return Ran(0, {"changed": next(counts)}, "")

    text = (
        TEXT[: TEXT.index("  - id: undrain")]
        .replace("  - id: drain\n", "")
        .replace("    uses: cluster.drain\n    with: {node: node1}\n", "")
    )
    report = runner(tmp_path, Counting(), FileJournal(tmp_path / "j"), text).run()
    assert states(report) == [state]


@pytest.mark.parametrize(
    ("serial", "sizes"),
    [([1], [1] * 7), ([1, "50%"], [1, 3, 3]), (["100%"], [7]), ([2, 3], [2, 3, 2]), (["1%"], [1] * 7)],
)
def test_batches_have_the_sizes_of_serial(serial: list[Any], sizes: list[int]) -> None:
    assert [len(p) for p in parts(list("abcdefg"), serial)] == sizes


REPORT = Report(
    "a <b> & c",
    "r1",
    [
        StepResult("s1", "one", "cluster.drain", "changed", 1.5, line=7),
        StepResult("s2", "two, with: %", "verify", "failed", 0.5, "bad\x00 byte\n2 lines", "look", 7, 12),
        StepResult("s3", "three", "verify", "pending", line=15),
    ],
    1,
    1,
    "again",
)


def test_junit_can_be_read(tmp_path: Path) -> None:
    suite = ElementTree.fromstring(junit(REPORT, "p.yaml"))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    case = suite.findall("testcase")[1]
    failure = case.find("failure")
    assert failure is not None and "2 lines" in (failure.text or "") and "next: look" in (failure.text or "")
    assert case.get("file") == "p.yaml" and case.get("line") == "12"
    drift = ElementTree.fromstring(junit(REPORT, "p.yaml", fail_on_change=True))[0]
    assert drift.get("failures") == "2"


def test_annotations_are_escaped_and_limited() -> None:
    (line,) = annotations(REPORT, "a,b:c.yaml")
    assert line.startswith("::error file=a%2Cb%3Ac.yaml,line=12,title=two%2C with%3A %25::bad")
    assert "\n" not in line and "%0A2 lines%0Anext: look" in line
    many = Report("p", "r", [REPORT.steps[1]] * 30, 0, 30, "")
    assert len(annotations(many, "f")) == 10 and annotations(many, "f")[-1].endswith("21 more")


def test_the_summary_is_a_table_of_limited_size() -> None:
    text = summary(REPORT)
    assert "| two, with: % | **failed** |" in text and "`again`" in text
    many = Report("p", "r", [REPORT.steps[1]] * 30_000, 0, 1, "")
    assert len(summary(many).encode()) < 1_048_576


# --- the command -----------------------------------------------------------------------------------

SIMPLE = """\
apiVersion: iotctl/v1
name: maintenance
vars:
  node: {type: string}
steps:
  - {id: look, uses: cluster.status, register: status}
  - {uses: assert, with: {that: ["${status.healthy} == true", "${status.quorum}"]}}
  - {id: drain, uses: cluster.drain, with: {node: "${node}"}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    (tmp_path / "p.yaml").write_text(SIMPLE)
    return tmp_path


def test_validate_check_run_and_run_again(place: Path) -> None:
    cluster, env = FakeCluster(), {"XDG_STATE_HOME": str(place / "state")}
    assert iotctl(place, "playbook", "validate", "p.yaml").code == 0
    given = ("p.yaml", "--var", "node=node2")
    found = iotctl(place, "playbook", "check", *given, "-o", "json", cluster=cluster, env=env)
    assert [s["state"] for s in json.loads(found.out)["steps"]] == ["no_change", "no_change", "would_change"]
    assert not cluster.drained and not (place / "state").exists()
    done = iotctl(
        place, "playbook", "run", *given, "--junit", "out/j.xml", "-o", "json", cluster=cluster, env=env
    )
    assert done.code == 0 and cluster.drained == {"node2"}, done.err
    assert json.loads(done.out)["changed"] == 1 and ElementTree.parse(place / "out/j.xml")
    again = iotctl(place, "playbook", "run", *given, "-o", "json", cluster=cluster, env=env)
    assert json.loads(again.out)["changed"] == 0
    assert (
        json.loads(iotctl(place, "playbook", "check", *given, "-o", "json", cluster=cluster, env=env).out)[
            "changed"
        ]
        == 0
    )


def test_a_failed_run_prints_the_command_that_resumes_it(place: Path) -> None:
    cluster, env = FakeCluster(down={"node1", "node2", "node3"}), {"XDG_STATE_HOME": str(place / "state")}
    summary_file = place / "summary.md"
    env |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary_file)}
    words = ("playbook", "run", "p.yaml", "--var", "node=node2")
    failed = iotctl(place, *words, cluster=cluster, env=env)
    assert failed.code == 4 and "::error file=p.yaml,line=6" in failed.err
    assert "failed" in summary_file.read_text()
    (line,) = [x for x in failed.err.splitlines() if x.startswith("next: iotctl playbook run")]
    cluster.down = set()
    resumed = iotctl(place, *line.split()[2:], cluster=cluster, env=env)
    assert resumed.code == 0 and cluster.drained == {"node2"}, resumed.err


def test_an_invalid_playbook_is_annotated_at_its_place(place: Path) -> None:
    (place / "p.yaml").write_text("apiVersion: iotctl/v1\nname: x\nsteps:\n  - {uses: cluster.dran}\n")
    for verb in ("validate", "check", "run"):
        done = iotctl(place, "playbook", verb, "p.yaml", env={"GITHUB_ACTIONS": "true"})
        assert done.code == 3 and "::error file=p.yaml,line=4,col=" in done.err, done.err
    assert "::error" not in iotctl(place, "playbook", "validate", "p.yaml").err
    missing = iotctl(place, "playbook", "validate", "q.yaml", env={"GITHUB_ACTIONS": "true"})
    assert missing.code == 3 and "::error file=q.yaml,line=1,col=1::" in missing.err


@pytest.mark.parametrize(
    ("that", "code"),
    [
        ("${status.healthy}", 0),
        ("not ${status.healthy}", 5),
        ("${status.healthy} == false", 5),
        ("${status.name} == plant", 0),
        ("${status.operations}", 5),
        ("${status.table_version} < 5", 5),
    ],
)
def test_an_assertion_must_hold(place: Path, that: str, code: int) -> None:
    """A single value works too: false fails, whatever its text is."""
    (place / "p.yaml").write_text(SIMPLE.replace('"${status.healthy} == true"', f'"{that}"'))
    env = {"XDG_STATE_HOME": str(place / "state")}
    words = ("playbook", "run", "p.yaml", "--var", "node=node2")
    assert iotctl(place, *words, cluster=FakeCluster(), env=env).code == code


def test_resume_finds_the_last_run_of_this_cluster_only(place: Path) -> None:
    cluster, env = FakeCluster(), {"XDG_STATE_HOME": str(place / "state"), "TOKEN": ""}
    broken = SIMPLE.replace("${status.quorum}", "not ${status.quorum}")
    (place / "p.yaml").write_text(broken)
    words = ("playbook", "run", "p.yaml", "--var", "node=node2")
    assert iotctl(place, *words, cluster=cluster, env=env).code == 5
    (place / "p.yaml").write_text(SIMPLE)
    other = place / "other"
    other.mkdir()
    for name in ("cluster.yaml", "p.yaml"):
        (other / name).write_text((place / name).read_text())
    assert iotctl(other, *words, "--resume", cluster=FakeCluster(), env=env).code == 2
    assert iotctl(place, *words, "--resume", cluster=cluster, env=env).code == 0


def test_the_command_that_resumes_leaves_secrets_out(place: Path) -> None:
    text = SIMPLE.replace("vars:", "vars:\n  token: {secret: true}").replace("${status.quorum}", "1 > 2")
    (place / "p.yaml").write_text(text)
    env = {"XDG_STATE_HOME": str(place / "state")}
    words = ("playbook", "run", "p.yaml", "--var", "node=a b", "--var", "token=s3cret", "--json", "r.json")
    done = iotctl(place, *words, cluster=FakeCluster(), env=env)
    assert done.code == 5 and "s3cret" not in done.out + done.err + (place / "r.json").read_text()
    assert "--var 'node=a b'" in done.err


def test_an_approval_is_given_by_the_name_of_its_step(place: Path) -> None:
    (place / "p.yaml").write_text(SIMPLE + "  - {id: sure, uses: approve, with: {message: Go on}}\n")
    env = {"XDG_STATE_HOME": str(place / "state")}
    words = ("playbook", "run", "p.yaml", "--var", "node=node2")
    refused = iotctl(place, *words, cluster=FakeCluster(), env=env)
    assert refused.code == 5 and "--approve sure" in refused.err
    declined = iotctl(place, *words, cluster=FakeCluster(), env=env, stdin=Tty("n\n"))
    assert "declined" in declined.err and "nothing was changed" not in declined.err  # earlier steps ran
    assert iotctl(place, *words, "--approve", "sure", cluster=FakeCluster(), env=env).code == 0
    unknown = iotctl(place, *words, "--var", "typo=1", cluster=FakeCluster(), env=env)
    assert unknown.code == 2 and "no such variable" in unknown.err


def test_ctrl_c_in_a_step_ends_the_run(place: Path) -> None:
    """The run ends even if the step has `on_failure: continue`; the next step must not begin."""

    class Interrupted(FakeCluster):
        def call_meta(self, request: Request) -> Reply:
            raise KeyboardInterrupt

    text = SIMPLE.replace("with: {node:", "on_failure: continue, with: {node:")
    (place / "p.yaml").write_text(text + "  - {uses: exec, with: {command: [touch, made], creates: made}}\n")
    env = {"XDG_STATE_HOME": str(place / "state")}
    words = ("playbook", "run", "p.yaml", "--var", "node=node2", "--cluster", "cluster.yaml")
    done = iotctl(place, *words, cluster=Interrupted(), env=env)
    assert done.code == 130 and not (place / "made").exists()
    assert "--cluster cluster.yaml playbook run p.yaml" in done.err and "--resume" in done.err


def test_two_processes_cannot_resume_the_same_run(tmp_path: Path) -> None:
    first = FileJournal(tmp_path / "r.jsonl")
    first.append(Entry("begun", 1, playbook="p"))
    with pytest.raises(BusyProblem, match="another process"):
        find_run(tmp_path, "", "p")
    first.close()
    again = find_run(tmp_path, "", "p")
    assert [e.event for e in again.entries()] == ["begun"]
    again.close()
    (tmp_path / "s.jsonl").write_bytes(b"rubbish\n")  # a damaged record of another run does not interfere
    find_run(tmp_path, "", "p").close()
    newer = FileJournal(tmp_path / "t.jsonl")
    newer.append(Entry("begun", 2, playbook="p"))
    newer.append(Entry("ended", 3))
    newer.close()
    with pytest.raises(UsageProblem, match="no unfinished run"):
        find_run(tmp_path, "", "p")


def test_a_schema_is_printed(tmp_path: Path) -> None:
    printed = json.loads(iotctl(tmp_path, "playbook", "schema").out)
    assert printed["properties"]["steps"]["items"]["properties"]["uses"]["enum"]


def test_an_invalid_file_is_exit_3_with_its_place(place: Path) -> None:
    (place / "p.yaml").write_text(SIMPLE.replace("cluster.drain", "cluster.drian"))
    done = iotctl(place, "playbook", "run", "p.yaml", "-o", "json")
    error = json.loads(done.out)["error"]
    assert done.code == 3 and error["where"].endswith("p.yaml:8:23") and "cluster.drain" in error["what"]


def test_a_failed_run_prints_how_to_undo_its_steps(tmp_path: Path) -> None:
    """The commands have the options that name the cluster."""
    (tmp_path / "plant.yaml").write_text(SPEC)
    (tmp_path / "p.yaml").write_text(
        "apiVersion: iotctl/v1\nname: night\nsteps:\n"
        "  - {id: one, uses: cluster.drain, with: {node: node1}}\n"
        "  - {id: two, uses: cluster.drain, with: {node: node9}}\n"
    )
    words = ("--cluster", "plant.yaml", "playbook", "run", "p.yaml", "--json", "r.json")
    spec = tmp_path / "plant.yaml"
    done = iotctl(tmp_path, *words, cluster=FakeCluster(), env={"XDG_STATE_HOME": str(tmp_path / "home")})
    assert done.code != 0
    assert f"to undo one: iotctl --cluster {spec} cluster undrain node1" in done.err
    assert json.loads((tmp_path / "r.json").read_text())["steps"][0]["undo"].endswith("undrain node1")


def test_runs_of_one_second_sort_by_time() -> None:
    """`--resume` continues the last run, also if several began within one second."""
    ids = [new_run_id(1_700_000_000 + ms / 1_000) for ms in range(0, 1_000, 7)]
    assert ids == sorted(ids) and all(RUN_ID.fullmatch(i) for i in ids)
    assert RUN_ID.fullmatch("20260101T000000-abcdef"), "the ids of 0.1.0"


def test_a_check_uses_the_dry_run_of_a_command(tmp_path: Path) -> None:
    """would_change before the run, no_change after it; a second run changes nothing."""
    (tmp_path / "cluster.yaml").write_text(SPEC)
    (tmp_path / "p.yaml").write_text(
        "apiVersion: iotctl/v1\nname: night\nsteps:\n"
        "  - {id: hold, uses: ops.pause, with: {id: op-7}}\n"
        "  - {id: keep, uses: data.schema, with: {storage_group: root.p, table: m, set_ttl: 30d}}\n"
    )
    table = TableSchema("root.p", "m", 1, (Column("v", "DOUBLE", False),))
    cluster = FakeCluster(tables=[table])
    cluster.operations = [make_operation("op-7", BeginChange("add-node", "n", "ann"), stage=Stage.COPYING)]
    env = {"XDG_STATE_HOME": str(tmp_path / "home")}

    def said(*words: str) -> list[str]:
        done = iotctl(tmp_path, "playbook", *words, "-o", "json", cluster=cluster, env=env)
        assert done.code == 0, done.err
        return [s["state"] for s in json.loads(done.out)["steps"]]

    assert said("check", "p.yaml") == ["would_change"] * 2 and not cluster.steered
    assert said("run", "p.yaml") == ["changed"] * 2 and cluster.operations[0].paused
    assert said("check", "p.yaml") == ["no_change"] * 2
    assert said("run", "p.yaml") == ["ok"] * 2 and len(cluster.steered) == 1


def test_a_check_knows_what_an_earlier_step_would_undo(tmp_path: Path) -> None:
    """A value that two steps set is unknown."""
    would, is_done = Inspection("would_change"), Inspection("no_change")
    paused = [use("ops.resume", {"id": "op-7"})]
    assert after_earlier(is_done, use("ops.pause", {"id": "op-7"}), paused).state == "would_change"
    rated = [use("ops.set", {"id": "op-7", "rate": "5MB/s"})]
    assert after_earlier(is_done, use("ops.set", {"id": "op-7", "rate": "auto"}), rated).state == "unknown"
    assert after_earlier(would, use("ops.set", {"id": "op-7", "rate": "auto"}), rated) is would
    perhaps = [paused[0]._replace(is_certain=False)]
    assert after_earlier(is_done, use("ops.pause", {"id": "op-7"}), perhaps).state == "unknown"
    assert after_earlier(is_done, use("ops.pause", {"id": "op-7"}), paused + perhaps).state == "would_change"


def test_a_step_that_might_undo_a_later_one_makes_it_unknown(tmp_path: Path) -> None:
    """Only a run shows what `ops.resume` does; a check does not promise that the operation stays paused."""
    (tmp_path / "cluster.yaml").write_text(SPEC)
    (tmp_path / "p.yaml").write_text(
        "apiVersion: iotctl/v1\nname: night\nsteps:\n"
        "  - {uses: ops.resume, with: {id: op-7}}\n"
        "  - {uses: ops.pause, with: {id: op-7}}\n"
    )
    cluster = FakeCluster()
    cluster.operations = [make_operation("op-7", BeginChange("add-node", "n", "ann"), stage=Stage.COPYING)]
    cluster.operations[0].paused = True
    done = iotctl(tmp_path, "playbook", "check", "p.yaml", "-o", "json", cluster=cluster)
    assert [s["state"] for s in json.loads(done.out)["steps"]] == ["unknown", "unknown"], done.err

"""Reports of a run: JUnit XML, GitHub annotations, a Markdown summary. Pure."""

import re
from xml.etree import ElementTree

from iotctl.errors import InputProblem
from iotctl.playbook.model import CHANGED, FAILED, PENDING, SKIPPED, UNKNOWN, Report, StepResult
from nodeagent.model.text import printable

ANNOTATIONS_MAX = 10
"""GitHub shows at most this many annotations of a kind per step."""

SUMMARY_BYTES_MAX = 1_000_000
"""GitHub drops a larger summary as a whole."""

_PLACE = re.compile(r":(\d+):(\d+)$")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def junit(report: Report, file: str, *, fail_on_change: bool = False) -> str:
    """A suite with one case per step. A change is a property, and with `fail_on_change` a failure."""
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(report.playbook),
        tests=str(len(report.steps)),
        failures=str(sum(_fails(s, fail_on_change) for s in report.steps)),
        errors="0",
        skipped=str(sum(s.state in (SKIPPED, PENDING) for s in report.steps)),
        time=f"{sum(s.seconds for s in report.steps):.3f}",
    )
    for step in report.steps:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_clean(f"{report.playbook}.{step.uses}"),
            name=_clean(step.name),
            file=_clean(file),
            line=str(step.line),
            time=f"{step.seconds:.3f}",
        )
        properties = ElementTree.SubElement(case, "properties")
        ElementTree.SubElement(properties, "property", name="state", value=step.state)
        if step.undo:
            ElementTree.SubElement(properties, "property", name="undo", value=_clean(step.undo))
        if _fails(step, fail_on_change):
            what = step.message if step.state == FAILED else "something changed"
            failure = ElementTree.SubElement(case, "failure", message=_clean(what), type=step.state)
            failure.text = _clean("\n".join([what, *([f"next: {step.next}"] if step.next else [])]))
        elif step.state in (SKIPPED, PENDING):
            ElementTree.SubElement(case, "skipped", message=_clean(step.message or step.state))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def annotations(report: Report, file: str) -> list[str]:
    """`::error` and `::warning` lines at the places of the steps; errors first."""
    lines = []
    for kind, states in (("error", (FAILED,)), ("warning", (UNKNOWN,))):
        there = [s for s in report.steps if s.state in states]
        shown = there if len(there) <= ANNOTATIONS_MAX else there[: ANNOTATIONS_MAX - 1]
        for step in shown:
            text = step.message + (f"\nnext: {step.next}" if step.next else "")
            place = f"file={_property(file)},line={step.line},title={_property(step.name)}"
            lines.append(f"::{kind} {place}::{_data(text)}")
        if len(there) > len(shown):
            lines.append(f"::{kind} file={_property(file)}::{len(there) - len(shown)} more")
    return lines


def annotation_of(error: InputProblem, file: str) -> str:
    """The `::error` line for a playbook that cannot run at all."""
    place = _PLACE.search(error.where)
    line, column = place.groups() if place else ("1", "1")
    text = "\n".join(filter(None, [error.what, error.why, error.next and f"next: {error.next}"]))
    return f"::error file={_property(file)},line={line},col={column}::{_data(text)}"


def summary(report: Report) -> str:
    """Markdown for `$GITHUB_STEP_SUMMARY`."""
    lines = [f"### {_cell(report.playbook)}", "", "| step | state | seconds | |", "|---|---|---|---|"]
    for step in report.steps:
        mark = f"**{step.state}**" if step.state in (FAILED, CHANGED) else step.state
        lines.append(f"| {_cell(step.name)} | {mark} | {step.seconds:.1f} | {_cell(step.message)} |")
    lines += ["", f"changed: {report.changed}, failed: {report.failed}"]
    if report.resume:
        lines += ["", f"continue with `{report.resume}`"]
    lines += [line for s in undoable_steps(report) for line in ("", f"undo {_cell(s.name)} with `{s.undo}`")]
    text = "\n".join(lines) + "\n"
    if len(text.encode()) > SUMMARY_BYTES_MAX:
        text = (
            text.encode()[:SUMMARY_BYTES_MAX].decode(errors="ignore").rpartition("\n")[0] + "\n\ncut here\n"
        )
    return text


def undoable_steps(report: Report) -> list[StepResult]:
    """The steps of a failed run that a command can undo, up to the last failure, in the order to undo them.

    Steps that the run undid itself are left out.
    """
    failed = max((i for i, s in enumerate(report.steps) if s.state == FAILED), default=-1)
    left: list[StepResult] = []
    for step in report.steps[: failed + 1]:
        earlier = next((s for s in left if s.undo == step.redo), None)
        if earlier is not None and step.state == CHANGED:
            left.remove(earlier)
        elif step.undo:
            left.append(step)
    return left[::-1]


def _fails(step: StepResult, fail_on_change: bool) -> bool:
    return step.state == FAILED or (fail_on_change and step.state == CHANGED)


def _clean(text: str) -> str:
    """`text` with `?` for characters that XML 1.0 cannot hold."""
    return _CONTROL.sub("?", text)


def _data(text: str) -> str:
    plain = printable(text, keep="\r\n")
    return plain.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")

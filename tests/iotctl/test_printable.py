"""Control characters in data, names and messages of nodes never reach a terminal (F12)."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest

from iotctl.errors import InputProblem
from iotctl.output.document import to_json, to_json_line, to_yaml
from iotctl.output.failure import Failure, to_lines
from iotctl.output.progress import BarProgress, LineProgress
from iotctl.output.table import Table
from iotctl.output.writer import Output
from iotctl.playbook.model import Report, StepResult
from iotctl.playbook.report import annotation_of, annotations
from nodeagent.model.schema import Column, TableSchema
from nodeagent.model.text import is_printable, printable
from tests.iotctl.fakes import SPEC, FakeCluster, Tty, iotctl

EVIL = "a\x1b[2J\x07\x9b31m\x7f\u202eb\ud800"
HARMLESS = "é 漢 \u00a0 👩\u200d🚀 \\x1b"


def test_control_characters_are_escaped_and_letters_are_not() -> None:
    """This includes U+0080 to U+009F, which terminals take for escape sequences, and text direction marks."""
    assert printable(EVIL) == r"a\x1b[2J\x07\x9b31m\x7f\u202eb\ud800"
    assert printable(HARMLESS) == HARMLESS
    assert printable("a\nb") == r"a\nb" and printable("a\nb", keep="\n") == "a\nb"


def test_every_output_to_a_terminal_is_escaped() -> None:
    """Tables, titles, notes, warnings, details, failures and progress."""
    out, err = io.StringIO(), io.StringIO()
    output = Output(out, err, verbose=True)
    output.emit("x", {}, lambda: [Table((EVIL,), [(EVIL,), ("two\nlines",)], title=EVIL), EVIL])
    for say in (output.note, output.warn, output.detail):
        say(EVIL)
    output.would(EVIL)
    output.fail(Failure(3, EVIL, EVIL, EVIL, EVIL, EVIL, EVIL))
    LineProgress(err).update(EVIL, note=EVIL)
    for shown in (out.getvalue(), err.getvalue()):
        assert is_printable(shown, keep="\n"), shown
    assert r"two\nlines" in out.getvalue(), "a cell is one line"
    assert to_lines(Failure(3, "", "", EVIL, "", "", "")).count("\n") == 1


def test_the_bar_and_the_lines_for_ci_are_escaped() -> None:
    """A library draws the bar, and annotations for CI are written unescaped otherwise."""
    with BarProgress(io.StringIO()) as bar:
        bar.update(EVIL, 1, 2, note=EVIL)
        assert bar._rich is not None
        assert all(is_printable(task.description) for task in bar._rich.tasks)
    step = StepResult("s", EVIL, "cluster.drain", "failed", message=EVIL, next=EVIL)
    (line,) = annotations(Report(EVIL, "1", [step], 0, 1, ""), EVIL)
    assert is_printable(line)
    assert is_printable(annotation_of(InputProblem(EVIL, why=EVIL, next=EVIL), EVIL))


def test_json_stays_json_and_yaml_stays_yaml() -> None:
    """A program reads back the exact value."""
    import yaml

    value = {EVIL.replace("\ud800", ""): HARMLESS}
    for text in (to_json(value), to_json_line(value)):
        assert is_printable(text, keep="\n") and json.loads(text) == value
    assert is_printable(to_yaml(value), keep="\n") and yaml.safe_load(to_yaml(value)) == value


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def test_names_and_values_of_a_hostile_table(place: Path) -> None:
    """`data schema`, `data count` and `data query` in every format; CSV to a file is exact."""
    evil = "t\x1b]0;x\x07\x9b"
    schema = TableSchema("root.\x1b[2J", evil, 1, (Column("v\x1b", "STRING", False),))
    count = {"storage_group": schema.storage_group, "table": evil, "rows": 1}
    cluster = FakeCluster(
        tables=[schema],
        counts=[{**count, "time_min_ms": 1, "time_max_ms": 1}],
        answers=pa.table({"time": [1], "v\x1b": [evil]}),
    )
    query = ("data", "query", "--storage-group", schema.storage_group, "--table", evil)
    for words in (("data", "schema"), ("data", "count"), query):
        for kind in ("table", "json", "yaml"):
            done = iotctl(place, *words, "-o", kind, cluster=cluster)
            assert done.code == 0 and is_printable(done.out + done.err, keep="\n"), (words, kind)
    assert evil in iotctl(place, *query, "-o", "csv", cluster=cluster).out
    terminal = Tty()
    assert iotctl(place, *query, "-o", "csv", cluster=cluster, out=terminal).code == 0
    assert is_printable(terminal.getvalue(), keep="\n") and "x" in terminal.getvalue()


def test_a_question_is_escaped_too(place: Path) -> None:
    schema = TableSchema("root.a", "m", 1, (Column("d", "STRING", True),))
    words = ("data", "delete", "--storage-group", "root.a", "--table", "m", "--where", "d=x\x1b[2J")
    done = iotctl(place, *words, cluster=FakeCluster(tables=[schema]), stdin=Tty("no\n"))
    assert "Type the cluster's name" in done.err and is_printable(done.err, keep="\n")

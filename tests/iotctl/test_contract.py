"""Documents, schemas, global options and exit codes of the command line."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from iotctl.cli import published, tree
from iotctl.cli.catalogue import verbs
from iotctl.cli.main import Terminated
from iotctl.cli.options import global_options_first
from iotctl.errors import Exit
from iotctl.output.failure import EXIT_OF, NEXT_OF
from nodeagent.model import errors
from nodeagent.model.errors import BY_CODE, NodeAgentError
from nodeagent.model.operation import Stage
from nodeagent.model.requests import MetaView
from tests.iotctl.fakes import SPEC, FakeCluster, Tty, iotctl, make_operation

KEYS = {
    "cluster-status": (
        "cluster_id, name, table_version, as_of_ms, quorum, meta, nodes, operations, problems, healthy"
    ),
    "plan": ("kind, table_version, spec_hash, strategy, moves, group_changes, summary, hot_slots, refusals"),
    "operations": "operations",
    "migrate": (
        "operation, units_total, units_done, files, bytes, seconds, retries, verified, released_slots"
    ),
    "verify": "depth, replicas_compared, files, bytes, rows, series, unread, mismatches",
    "data-count": "tables",
}
NESTED = {
    ("cluster-status", "NodeRow"): (
        "id, host, reachable, state, role, slots, groups_led, bytes, rows, lag_ms, disk_free_bytes, "
        "cert_expires_ms"
    ),
    ("cluster-status", "MetaRow"): "leader, term, voters, observers",
    ("cluster-status", "OperationRow"): (
        "id, kind, stage, state, blocked_on, last_error, slots_total, slots_done, bytes_total, bytes_done, "
        "eta_s, started_ms, by, cancellable"
    ),
    ("cluster-status", "Problem"): "severity, code, node, group, message, next",
    ("plan", "SlotMove"): "slot, from, to, bytes",
    ("plan", "Summary"): (
        "slots_moved, lower_bound_slots, bytes_copied, lower_bound_bytes, max_minus_min_before, "
        "max_minus_min_after, before, after, peak_disk, eta_s"
    ),
    ("operations", "StageRow"): ", ".join(("name", "entered_ms", "left_ms", "reports", "evidence")),
    ("verify", "Mismatch"): "node, slot, file, series, time_ms, expected, found, repaired",
    ("data-count", "TableCount"): "storage_group, table, rows, time_min_ms, time_max_ms",
    ("error", "Failure"): "code, kind, outcome, what, why, next, where",
}


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def document(text: str) -> dict[str, Any]:
    """The one document on stdout, checked against the struct its schema is made from."""
    found = json.loads(text)
    assert found["format_version"] == 1
    body = published.BODIES[
        "plan" if found["kind"] in ("add-node", "remove-node", "rebalance", "none") else found["kind"]
    ]
    msgspec.json.decode(text, type=body)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("kind", sorted(published.BODIES))
def test_published_schemas_are_those_of_the_structs(kind: str) -> None:
    """Fails if a struct changed and `python -m iotctl.cli.published` was not run."""
    assert (published.DIRECTORY / f"{kind}.json").read_text() == published.text_of(kind)


def test_every_name_of_a_plan_is_published() -> None:
    assert {"add-node", "remove-node", "replace-node", "rebalance", "spec", "none"} == set(
        published.schema_of("plan")["properties"]["kind"]["enum"]
    )


@pytest.mark.parametrize("kind", sorted(KEYS))
def test_stable_keys_are_published(kind: str) -> None:
    """A rename must not lose a key of the contract."""
    properties = published.schema_of(kind)["properties"]
    assert set(KEYS[kind].split(", ")) <= set(properties)


@pytest.mark.parametrize(("kind", "name"), sorted(NESTED))
def test_stable_keys_of_the_parts_are_published(kind: str, name: str) -> None:
    """A rename must not lose a key of a nested object either."""
    properties = published.schema_of(kind)["$defs"][name]["properties"]
    assert set(NESTED[kind, name].split(", ")) <= set(properties)


@pytest.mark.parametrize(
    "words",
    [
        ("cluster", "status"),
        ("cluster", "nodes"),
        ("cluster", "groups"),
        ("cluster", "ring"),
        ("meta", "status"),
        ("cluster", "slots"),
        ("cluster", "ok-to-stop", "node1"),
        ("plan",),
        ("plan", "add-node", "node6"),
        ("plan", "remove-node", "node3"),
        ("plan", "rebalance"),
        ("plan", "rebalance", "--strategy", "bytes"),
        ("ops", "list"),
        ("ops", "show"),
        ("data", "count"),
        ("data", "schema"),
        ("cluster", "wait", "--for", "healthy"),
    ],
)
def test_every_reading_command_prints_one_document_or_a_table(spec: Path, words: tuple[str, ...]) -> None:
    """With -o json stdout is one valid document, a table is not empty, YAML and jsonl parse; every command
    exits with 0."""
    cluster = FakeCluster(operations=[make_operation("op-9", stage=Stage.COPYING, copied=4)])
    done = iotctl(spec, *words, "-o", "json", cluster=cluster)
    assert done.code == 0, done.err
    document(done.out)
    line = iotctl(spec, *words, "-o", "jsonl", cluster=cluster).out
    assert line.count("\n") == 1 and json.loads(line)
    assert "format_version: 1" in iotctl(spec, *words, "-o", "yaml", cluster=cluster).out
    for form in ("table", "wide"):
        shown = iotctl(spec, *words, "-o", form, cluster=cluster)
        assert shown.code == 0 and shown.out.strip(), shown.err


def test_global_options_stand_before_and_after_the_command(tmp_path: Path) -> None:
    """`iotctl -o json cluster status --cluster F` works in every order."""
    (tmp_path / "other.yaml").write_text(SPEC)
    cluster = FakeCluster()
    words = ("cluster", "ring")
    before = iotctl(tmp_path, "-o", "json", "--cluster", "other.yaml", *words, cluster=cluster)
    after = iotctl(tmp_path, *words, "--cluster=other.yaml", "-ojson", cluster=cluster)
    assert before.code == after.code == 0
    assert before.out == after.out
    assert global_options_first(["data", "write", "--", "-o", "x"]) == ["data", "write", "--", "-o", "x"]


def test_missing_cluster_file_names_the_places(tmp_path: Path) -> None:
    """Exit 3 names every place that was searched."""
    done = iotctl(tmp_path, "cluster", "status", cluster=FakeCluster())
    assert done.code == Exit.INPUT
    for place in ("--cluster", "IOTCTL_CLUSTER", "cluster.yaml", "iotctl-local"):
        assert place in done.err


def test_the_local_fleet_is_used_and_named(tmp_path: Path) -> None:
    """./iotctl-local is the last place; stderr names it, stdout has only the document."""
    (tmp_path / "iotctl-local").mkdir()
    (tmp_path / "iotctl-local" / "cluster.yaml").write_text(SPEC)
    done = iotctl(tmp_path, "cluster", "ring", "-o", "json", cluster=FakeCluster())
    assert done.code == 0
    assert "local fleet in ./iotctl-local" in done.err
    document(done.out)


def test_environment_names_the_cluster(tmp_path: Path) -> None:
    """IOTCTL_CLUSTER may name the file or its directory."""
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "cluster.yaml").write_text(SPEC)
    for place in ("x", "x/cluster.yaml"):
        env = {"IOTCTL_CLUSTER": place}
        assert iotctl(tmp_path, "cluster", "ring", cluster=FakeCluster(), env=env).code == 0


def test_every_node_error_has_an_exit_code() -> None:
    """A new error class needs an exit code."""
    assert set(EXIT_OF) == set(BY_CODE)


@pytest.mark.parametrize(
    ("error", "code", "outcome"),
    [
        (errors.Busy("another change is open", next_step="iotctl ops list"), Exit.BUSY, "not_done"),
        (errors.Refused("no quorum"), Exit.REFUSED, "not_done"),
        (errors.Unavailable("nobody answers"), Exit.UNREACHABLE, "not_done"),
        (errors.OutcomeUnknown("sent, not answered"), Exit.UNKNOWN, "unknown"),
        (errors.Forbidden("wrong cluster"), Exit.UNREACHABLE, "not_done"),
        (errors.SchemaMismatch("no such column"), Exit.INPUT, "not_done"),
        (RuntimeError("a bug"), Exit.BUG, "unknown"),
    ],
)
def test_errors_become_exit_codes_and_documents(
    spec: Path, error: Exception, code: Exit, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The document on stdout and the lines on stderr name the error and the next step."""
    monkeypatch.setattr("tempfile.tempdir", str(spec))  # where the report of a bug is written
    done = iotctl(spec, "ops", "list", "-o", "json", cluster=FakeCluster(error=error))
    assert done.code == code
    failure = document(done.out)["error"]
    assert isinstance(failure, dict)
    assert failure["code"] == code and failure["outcome"] == outcome
    assert failure["what"] in done.err
    if isinstance(error, NodeAgentError):
        assert failure["next"] == (error.next_step or NEXT_OF.get(code, ""))


def test_usage_errors_exit_2_with_a_document(spec: Path) -> None:
    """Unknown words, invalid formats and missing arguments; a similar name is suggested."""
    done = iotctl(spec, "cluster", "statu", "-o", "json")
    assert done.code == Exit.USAGE
    assert "status" in str(document(done.out)["error"])
    for words in (("cluster", "add-node"), ("-o", "xml", "ops", "list"), ("verify", "--depth", "deep")):
        assert iotctl(spec, *words, cluster=FakeCluster()).code == Exit.USAGE
    assert iotctl(spec, "cluster", "wait", "--for", "luck", cluster=FakeCluster()).code == Exit.USAGE
    assert iotctl(spec, "--timeout", "soon", "ops", "list", cluster=FakeCluster()).code == Exit.USAGE


def test_no_arguments_is_help_and_usage(spec: Path) -> None:
    """Bare `iotctl` shows the commands."""
    done = iotctl(spec)
    assert done.code == Exit.USAGE
    assert "cluster" in done.out


def test_a_change_without_a_terminal_is_refused_naming_the_flag(spec: Path) -> None:
    """Exit 5 names --yes and begins nothing; --no-input does the same at a terminal."""
    cluster = FakeCluster()
    for extra, stdin in ((), io.StringIO()), (("--no-input",), Tty("y\n")):
        done = iotctl(spec, "cluster", "remove-node", "node3", *extra, cluster=cluster, stdin=stdin)
        assert done.code == Exit.REFUSED
        assert "--yes" in done.err
    assert not cluster.begun


@pytest.mark.parametrize(("answer", "code"), [("y\n", Exit.DONE), ("n\n", Exit.REFUSED), ("", Exit.REFUSED)])
def test_the_operator_is_asked_to_confirm(spec: Path, answer: str, code: Exit) -> None:
    """Only a yes begins the change."""
    cluster = FakeCluster()
    done = iotctl(spec, "cluster", "remove-node", "node3", cluster=cluster, stdin=Tty(answer))
    assert done.code == code
    assert bool(cluster.begun) == (code is Exit.DONE)


def test_yes_never_replaces_the_cluster_name(spec: Path) -> None:
    """`remove-node --dead` needs --confirm with the right name."""
    words = ("cluster", "remove-node", "node3", "--dead", "--yes")
    done = iotctl(spec, *words, cluster=FakeCluster(down={"node3"}))
    assert done.code == Exit.REFUSED and "--confirm plant" in done.err
    wrong = iotctl(spec, *words, "--confirm", "other", cluster=FakeCluster(down={"node3"}))
    assert wrong.code == Exit.REFUSED and "'other'" in wrong.err
    cluster = FakeCluster(down={"node3"})
    assert iotctl(spec, *words, "--confirm", "plant", cluster=cluster).code == Exit.DONE
    assert [(b.kind, b.node, b.options.dead) for b in cluster.begun] == [("remove-node", "node3", True)]


@pytest.mark.parametrize("down", [set(), {"node3"}])
def test_a_node_that_answers_or_was_heard_recently_is_not_dead(spec: Path, down: set[str]) -> None:
    """The node answers, or an agent heard it recently: --confirm with the right name does not help."""
    cluster = FakeCluster(down=down, silent_ms=900)
    words = ("cluster", "remove-node", "node3", "--dead", "--confirm", "plant")
    done = iotctl(spec, *words, cluster=cluster)
    assert done.code == Exit.REFUSED and "not dead" in done.err and not cluster.begun


def test_dry_run_begins_nothing(spec: Path) -> None:
    """The command only prints the plan."""
    cluster = FakeCluster()
    done = iotctl(spec, "cluster", "remove-node", "node3", "--dry-run", "-o", "json", cluster=cluster)
    assert done.code == 0
    assert document(done.out)["kind"] == "remove-node"
    assert not cluster.begun
    assert (spec / "cluster.yaml").read_text() == SPEC


def test_a_closed_pipe_is_not_an_error(spec: Path) -> None:
    """`iotctl --help | head -1` exits 0 and prints nothing on stderr."""
    command = f"{sys.executable} -m iotctl completion zsh; echo code $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"], capture_output=True, text=True, cwd=Path.cwd(), check=False
    )
    assert done.stderr.strip() == "code 0"


@pytest.mark.parametrize("words", ["iotctl nonsense", "iotctl plan show x.yaml -o json", "iotctl"])
@pytest.mark.parametrize("sink", ["| true", "> /dev/full"])
def test_an_output_that_cannot_be_written_is_not_reported_as_a_bug(
    words: str, sink: str, tmp_path: Path
) -> None:
    """The exit code is the command's own, and stderr has no traceback."""
    command = words.replace("iotctl", f"{sys.executable} -m iotctl", 1)
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        ["bash", "-c", f"({command}; echo code $? >&2) {sink}"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=env,
        check=False,
    )
    assert "Traceback" not in done.stderr and "our bug" not in done.stderr
    assert done.stderr.splitlines()[-1] in ("code 2", "code 3"), done.stderr


def test_a_full_disk_is_one_error_line(spec: Path) -> None:
    """A result that cannot be written is not a success."""
    command = f"{sys.executable} -m iotctl completion zsh > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == Exit.INPUT
    assert done.stderr.splitlines()[0].startswith("error: the output cannot be written: No space left")


def ending(error: BaseException) -> FakeCluster:
    class Ending(FakeCluster):
        def meta(self, strong: bool = False, any_age: bool = False) -> MetaView:
            raise error

    return Ending()


@pytest.mark.parametrize(
    "error,code,what",
    [(KeyboardInterrupt(), 130, "interrupted"), (Terminated(), 143, "terminated")],
)
def test_an_interrupt_names_the_command_that_continues(
    spec: Path, error: BaseException, code: int, what: str
) -> None:
    """With -o json the message is a document: a script that reads JSON always gets one."""
    done = iotctl(spec, "ops", "list", "-o", "json", cluster=ending(error))
    assert done.code == code
    failure = document(done.out)["error"]
    assert (failure["code"], failure["kind"], failure["next"]) == (code, what, "iotctl ops list")
    assert f"error: {what}" in done.err and "continue" in done.err


def test_a_lost_quorum_is_reported_as_the_cause(spec: Path) -> None:
    """Exit 4 names the nodes that are down and how to start them; other failures stay unchanged."""

    class Mute(FakeCluster):
        def count(
            self, storage_group: str | None = None, table: str | None = None
        ) -> list[dict[str, object]]:
            raise errors.Unavailable("no result from 5 nodes within 2.5 s")

    done = iotctl(spec, "data", "count", "-o", "json", cluster=Mute(down={"node1", "node2", "node3"}))
    failure = document(done.out)["error"]
    assert (done.code, failure["code"]) == (Exit.UNREACHABLE, Exit.UNREACHABLE)
    assert failure["what"] == "the meta group has no quorum; nodes down: node1, node2, node3"
    assert failure["why"] == "no result from 5 nodes within 2.5 s"
    assert failure["next"].startswith("iotctl cluster start node1 node2 node3")
    done = iotctl(spec, "data", "count", cluster=Mute())
    assert "error: no result from 5 nodes" in done.err


@pytest.mark.parametrize("words", [("cluster", "status"), ("ops", "list"), ("data", "count")])
def test_csv_is_refused_except_for_queries(spec: Path, words: tuple[str, ...]) -> None:
    """The command is refused before it does anything, instead of printing a table."""
    done = iotctl(spec, *words, "-o", "csv", cluster=FakeCluster())
    assert done.code == Exit.USAGE and "iotctl data query" in done.err and not done.out


@pytest.mark.parametrize(
    "words,meant",
    [(("statsu",), "iotctl cluster status"), (("add-node", "x"), "iotctl cluster add-node")],
)
def test_an_unknown_command_suggests_the_same_name_elsewhere(
    tmp_path: Path, words: tuple[str, ...], meant: str
) -> None:
    done = iotctl(tmp_path, *words)
    assert done.code == Exit.USAGE and meant in done.err.splitlines()[-1]


def test_slots_of_an_unknown_storage_group_are_refused(spec: Path) -> None:
    """Without this check, all slots would be listed, and all empty."""
    done = iotctl(spec, "cluster", "slots", "--storage-group", "root.nope", cluster=FakeCluster())
    assert done.code == Exit.REFUSED and "root.nope" in done.err and not done.out


@pytest.mark.parametrize("master", ["local[nope]", "", "spark://h", "localhost:7077"])
@pytest.mark.parametrize("command", ["verify", "migrate"])
def test_an_invalid_master_is_refused_before_spark_starts(spec: Path, command: str, master: str) -> None:
    cluster = FakeCluster(operations=[make_operation("op-9", stage=Stage.COPYING)])
    done = iotctl(spec, command, "--master", master, cluster=cluster)
    assert done.code == Exit.USAGE and "spark://HOST:PORT" in done.err


def test_help_imports_nothing_heavy() -> None:
    """Slow modules are not imported for help: commands import them inside their functions."""
    code = (
        "import sys\n"
        "from iotctl.cli.main import run\n"
        "run(['--help'])\n"
        "heavy = 'pyspark pyarrow numpy fabric paramiko pandas msgspec yaml rich tabulate asyncio '\n"
        "heavy += 'cryptography pydantic'\n"
        "print([m for m in heavy.split() if m in sys.modules])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_commands_without_rows_do_not_import_arrow(spec: Path) -> None:
    """Importing it takes longer than the rest of such a command, and only plans need numpy. No node answers
    here; `status` works."""
    code = (
        "import sys\n"
        "from iotctl.cli.main import run\n"
        "heavy = ['pyarrow', 'pandas'] + ['numpy'] * ('plan' not in sys.argv)\n"
        "print(run(sys.argv[1:]), [m for m in heavy if m in sys.modules])\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path.cwd()), "IOTCTL_CLUSTER": str(spec)}
    for line in ("cluster status", "ops list", "plan add-node node9", "cluster events"):
        command = [sys.executable, "-c", code, *line.split()]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
        assert done.stdout.splitlines()[-1].endswith(" []"), (line, done.stdout)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(tmp_path: Path, shell: str) -> None:
    """Each shell has a script; another shell is a usage error."""
    assert "_IOTCTL_COMPLETE" in iotctl(tmp_path, "completion", shell).out
    assert iotctl(tmp_path, "completion", "tcsh").code == Exit.USAGE


def test_query_writes_every_format(spec: Path) -> None:
    """Rows as table, CSV, JSON document and JSON lines; only tables show times as RFC 3339."""
    rows = pa.table({"time": pa.array([0, 1500]), "device": ["a", None], "v": [1.5, None]})
    cluster = FakeCluster(answers=rows)
    words = ("data", "query", "--storage-group", "root.plant", "--table", "m")
    assert "1970-01-01T00:00:01.500Z" in iotctl(spec, *words, cluster=cluster).out
    csv = iotctl(spec, *words, "-o", "csv", cluster=cluster).out.splitlines()
    assert csv == ['"time","device","v"', '0,"a",1.5', "1500,,"]
    found = document(iotctl(spec, *words, "-o", "json", cluster=cluster).out)
    assert found["rows"] == [
        {"time": 0, "device": "a", "v": 1.5},
        {"time": 1500, "device": None, "v": None},
    ]
    lines = iotctl(spec, *words, "-o", "jsonl", "--limit", "1", cluster=cluster).out.splitlines()
    assert [json.loads(x) for x in lines] == [{"time": 0, "device": "a", "v": 1.5}]


WORDS = [
    "",
    "cluster",
    "plan",
    "plan --detailed-exitcode",
    "plan nosuch",
    "clster status",
    "ops lst",
    "apply x y",
]


@pytest.mark.parametrize(
    "words", [*WORDS, *(" ".join((*v.words, "--help")) for v in verbs().values() if v.words)]
)
def test_a_command_loaded_alone_behaves_the_same(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer gets only the named command; help, usage errors and suggestions do not change."""
    alone = iotctl(tmp_path, *words.split())
    shown = capsys.readouterr()
    monkeypatch.setattr("iotctl.cli.tree.needed", lambda callback, words: tree.whole(callback))
    assert iotctl(tmp_path, *words.split()) == alone
    assert capsys.readouterr() == shown


INTERRUPTED_EXEC = """
import typer
from iotctl.cli.main import main, run

def interrupted(app):
    return lambda *arguments, **options: exec("import signal; signal.raise_signal(signal.SIGINT)")

typer.main.get_command = interrupted
run(["version"])  # loads what tells of it, and with that runs strings that nothing interrupts
main()
"""


def test_ctrl_c_exits_130_at_any_moment(tmp_path: Path) -> None:
    """This includes an `exec` of a string, because many run while modules load: `python -m` would then die by
    the signal, whatever exit code iotctl returns."""
    (tmp_path / "asked.py").write_text(INTERRUPTED_EXEC)
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "asked", "version"],
        env={**os.environ, "PYTHONPATH": paths},
        # A suite in the background of a script ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == Exit.INTERRUPTED and "interrupted" in done.stderr, done

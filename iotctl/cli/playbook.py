"""`iotctl playbook`: commands in a file, checked before they run; a second run changes nothing."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from iotctl.cli.session import Session, session_of

if TYPE_CHECKING:
    from iotctl.change.lock import HeldLock
    from iotctl.output.table import Table
    from iotctl.playbook.model import Journal, Ran, Report, StepResult
    from iotctl.playbook.run import Runner, Values
    from iotctl.spec.playbook import Playbook, StepEntry

app = typer.Typer(help="Run commands from a YAML file.", no_args_is_help=True)

EXEC_TIMEOUT_S = 600.0

File = Annotated[str, typer.Argument(metavar="FILE", help="The playbook.")]
Var = Annotated[
    list[str] | None, typer.Option("--var", metavar="NAME=VALUE", help="A variable; may be repeated.")
]
Junit = Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")]
Json = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")]


Limit = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NODE", help="Only this node, of steps about nodes; may be repeated."),
]


@app.command()
def validate(ctx: typer.Context, file: File) -> None:
    """Read the file and nothing else: every mistake with line and column."""
    session = session_of(ctx)
    book = _load(session, file)
    body = {"playbook": book.file.name, "steps": list(book.ids), "valid": True}
    session.output.emit("playbook-validate", body, lambda: [f"{file} is valid: {len(book.ids)} steps"])
    session.output.note(f"next: iotctl playbook check {file}")


@app.command()
def check(
    ctx: typer.Context,
    file: File,
    var: Var = None,
    limit: Limit = None,
    junit: Junit = None,
    json: Json = None,
) -> int:
    """Ask the cluster what a run would change; change nothing."""
    from iotctl.playbook.journal import NoJournal

    session = session_of(ctx)
    report = _runner(session, _load(session, file), var, limit, NoJournal(), [], "").check()
    return _reported(session, file, report, junit, json, "playbook-check")


@app.command()
def run(
    ctx: typer.Context,
    file: File,
    run_id: Annotated[str, typer.Argument(metavar="[RUN_ID]", help="With --resume: which run.")] = "",
    var: Var = None,
    limit: Limit = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last unfinished run.")] = False,
    approve: Annotated[
        list[str] | None, typer.Option("--approve", metavar="STEP", help="Answer this approval with yes.")
    ] = None,
    junit: Junit = None,
    json: Json = None,
    fail_on_change: Annotated[
        bool, typer.Option("--fail-on-change", help="In JUnit a change is a failure: finds drift.")
    ] = False,
) -> int:
    """Run it. What is done already is left alone; after a failure `--resume` goes on."""
    from iotctl.errors import UsageProblem
    from iotctl.playbook.journal import FileJournal, RunJournal, find_run, new_run_id
    from iotctl.spec.find import runs_dir

    session = session_of(ctx)
    book = _load(session, file)
    if run_id and not resume:
        raise UsageProblem(f"{run_id}: a run is named with --resume only")
    runs = runs_dir(session.options.cluster, session.env, session.cwd)
    path = runs / f"{new_run_id()}.jsonl"
    if resume:
        _bring(session, runs, run_id, book.file.name)
    journal = find_run(runs, run_id, book.file.name) if resume else FileJournal(path)
    limited = [w for node in limit or () for w in ("--limit", node)]
    words = ["iotctl", *_global_options(session), "playbook", "run", file, *_said(book, var), *limited]
    again = shlex.join([*words, "--resume", journal.run_id])
    session.on_interrupt = lambda: ("the step that was running is looked at again", again)
    with closing(journal), ExitStack() as held:

        def keeper() -> HeldLock | None:
            if session.lock is None:
                held.enter_context(session.locked(f"playbook {book.file.name}, run {journal.run_id}"))
            return session.lock

        if resume:
            keeper()  # before the first look; a new run has it with its first record
        record = RunJournal(journal, book.file.name, keeper)
        report = _runner(session, book, var, limit, record, approve or [], again).run()
        if not record.finish():
            session.output.warn(
                "the cluster has no whole record of this run: only this machine can go on with it"
            )
        if session.lock is not None:
            session.lock.outcome = f"changed {report.changed}, failed {report.failed}"
        # Before the lock is given up: whatever that says, the report of the run is written.
        return _reported(session, file, report, junit, json, "playbook-run", fail_on_change=fail_on_change)


@app.command()
def schema(ctx: typer.Context) -> None:
    """The JSON Schema of playbooks, for editors."""
    import msgspec

    from iotctl.cli.catalogue import verbs
    from iotctl.playbook.schema import schema_of

    session = session_of(ctx)
    session.out.write(msgspec.json.format(msgspec.json.encode(schema_of(verbs())), indent=2).decode() + "\n")


def _bring(session: Session, runs: Path, run_id: str, name: str) -> None:
    """Write what the cluster knows of these runs beside what this machine knows."""
    from iotctl.change.lock import kept
    from iotctl.errors import IotctlError
    from iotctl.playbook.journal import bring
    from nodeagent.model.errors import NodeAgentError

    with suppress(IotctlError, NodeAgentError):  # one that does not answer knows nothing now
        for run in kept(session.cluster)[1]:
            if run.id == run_id or (not run_id and run.name == name):
                whole = [r for r in kept(session.cluster, run.id)[1] if r.id == run.id]
                for one in whole:
                    bring(runs, run.id, one.entries)


def _load(session: Session, file: str) -> Playbook:
    from iotctl.cli.catalogue import verbs
    from iotctl.errors import InputProblem
    from iotctl.playbook.report import annotation_of
    from iotctl.spec.playbook_check import load_playbook

    try:
        return load_playbook(session.cwd / file, verbs())
    except InputProblem as error:
        if _is_annotated(session):
            session.err.write(annotation_of(error, file) + "\n")
        raise


def _runner(
    session: Session,
    book: Playbook,
    var: list[str] | None,
    limit: list[str] | None,
    journal: Journal,
    approved: Sequence[str],
    again: str,
) -> Runner:
    from iotctl.cli.catalogue import verbs
    from iotctl.errors import InputProblem
    from iotctl.lifecycle.machines import chosen
    from iotctl.playbook.inspect import Inspector
    from iotctl.playbook.run import Runner, Values
    from iotctl.spec.cluster import load_cluster
    from iotctl.spec.playbook import values_of
    from iotctl.spec.playbook_check import check_values

    if limit:
        chosen(session.source, limit)
    values = Values(*values_of(book, _given(var), session.env))
    try:
        check_values(book, verbs(), values)
    except InputProblem as error:
        what, why = values.redact(error.what), values.redact(error.why)
        raise InputProblem(what, why=why, where=error.where) from None
    command = _Commands(session, values.redact)
    return Runner(
        book,
        verbs(),
        values,
        command=command,
        inspect=Inspector(
            verbs(),
            lambda: session.cluster,
            command,
            session.cwd,
            listed=lambda: load_cluster(session.source.path).node_names,
        ),
        built_in={
            "assert": _assert,
            "approve": lambda a, v, step, own: _approve(session, a, v, own, approved),
            "exec": lambda a, v, step, own: _exec(session, a, step.timeout),
        },
        journal=journal,
        by=session.operator,
        again=again,
        program=lambda: ["iotctl", *_anywhere(session)],
        limit=limit or (),
        on_step=lambda result, number, total: _tell(session, result, number, total),
    )


def _given(var: list[str] | None) -> dict[str, str]:
    from iotctl.errors import UsageProblem

    found = {}
    for word in var or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageProblem(f"--var {word!r} is not NAME=VALUE")
        found[name] = value
    return found


def _said(book: Playbook, var: list[str] | None) -> list[str]:
    """The `--var` options again, to go on with; a secret's value is printed nowhere."""
    words = []
    for name, value in _given(var).items():
        known = book.file.vars.get(name)
        shown = "…" if known is None or known.secret else value
        words += ["--var", f"{name}={shown}"]
    return words


def _global_options(session: Session) -> list[str]:
    """Which cluster and whose certificate, as they were given."""
    options = session.options
    words = ["--cluster", options.cluster] if options.cluster else []
    return words + (["--identity", options.identity] if options.identity else [])


def _anywhere(session: Session) -> list[str]:
    """The same for whoever reads it in a report, in another directory and environment."""
    from iotctl.errors import IotctlError

    words = []
    with suppress(IotctlError):  # no cluster.yaml: nothing was done to a cluster
        words += ["--cluster", str(session.source.path.resolve())]
    if session.options.identity:
        words += ["--identity", str((session.cwd / session.options.identity).resolve())]
    return words


class _Both(io.StringIO):
    """Keeps what is written, and shows it without secrets."""

    def __init__(self, shown: TextIO | None, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._shown = shown
        self._redact = redact

    def write(self, text: str) -> int:
        if self._shown is not None:
            self._shown.write(self._redact(text))
        return super().write(text)

    def flush(self) -> None:
        if self._shown is not None:
            self._shown.flush()


class _Commands:
    """Runs command lines of ours in this process, with the global options of this run."""

    def __init__(self, session: Session, redact: Callable[[str], str]) -> None:
        self._session = session
        self._redact = redact

    def __call__(self, words: Sequence[str], timeout: str = "") -> Ran:
        import msgspec

        from iotctl.cli.main import Terminated
        from iotctl.cli.main import run as run_command
        from iotctl.errors import Exit
        from iotctl.playbook.model import Ran

        outer = self._session
        front = ["-o", "json", "--no-input", *_global_options(outer)]
        front += ["--timeout", timeout] if timeout else []
        out, err = io.StringIO(), _Both(outer.err if outer.options.verbose else None, self._redact)
        inner = Session(out, err, io.StringIO(), outer.env, outer.cwd, outer.connect, lock=outer.lock)
        code = run_command([*front, *words], inner)
        # The signal was for all of us: nothing more may begin.
        if code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        if code == Exit.TERMINATED:
            raise Terminated
        try:
            document = msgspec.json.decode(out.getvalue()) if out.getvalue() else None
        except msgspec.DecodeError:
            document = out.getvalue()
        return Ran(code, document, err.getvalue())


def _assert(arguments: dict[str, Any], values: Values, step: StepEntry, own: str) -> Ran:
    from iotctl.playbook.model import Ran
    from iotctl.spec.expression import BadExpression, condition, holds

    that = arguments["that"]
    for text in that if isinstance(that, list) else [that]:
        try:
            if holds(condition(str(text)), values):
                continue
            what = arguments.get("message") or f"{text} does not hold"
        except (BadExpression, KeyError) as error:
            what = str(error.args[0])
        return Ran(5, {"error": {"what": what}}, what)
    return Ran(0, None, "")


def _approve(
    session: Session, arguments: dict[str, Any], values: Values, own: str, approved: Sequence[str]
) -> Ran:
    from iotctl.errors import RefusedProblem
    from iotctl.playbook.model import Ran

    message = values.redact(str(arguments["message"]))
    try:
        session.confirm(message, yes=own in approved)
    except RefusedProblem as error:
        return Ran(5, {"error": {"what": error.what, "next": f"repeat with --approve {own}"}}, "")
    return Ran(0, {"changed": False}, "")


def _exec(session: Session, arguments: dict[str, Any], timeout: str) -> Ran:
    from iotctl.playbook.model import Ran
    from iotctl.spec.units import parse_duration_ms

    timeout_s = parse_duration_ms(timeout) / 1000 if timeout else EXEC_TIMEOUT_S

    def argv_of(words: Any) -> list[str]:
        return [str(w) for w in (words if isinstance(words, list) else [words])]

    def execute(words: Any) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                argv_of(words), cwd=session.cwd, env={**session.env}, capture_output=True, timeout=timeout_s
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 127, "", str(error)
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    if arguments.get("unless") and execute(arguments["unless"])[0] == 0:
        return Ran(0, {"changed": False, "code": 0, "out": ""}, "")
    code, out, err = execute(arguments["command"])
    if code:
        tail = "\n".join(err.splitlines()[-40:])
        what = f"{shlex.join(argv_of(arguments['command']))} ended with {code}"
        return Ran(6, {"error": {"what": what, "why": tail}}, err)
    pattern = arguments.get("changed_when")
    changed = bool(re.search(pattern, out)) if pattern else True
    return Ran(0, {"changed": changed, "code": 0, "out": out}, err)


def _tell(session: Session, result: StepResult, number: int, total: int) -> None:
    seconds = f" in {result.seconds:.1f} s" if result.seconds else ""
    detail = f": {result.message}" if result.message else ""
    state = "…" if result.state == "pending" else f"{result.state}{seconds}{detail}"
    session.output.note(f"[{number}/{total}] {result.name}: {state}")


def _is_annotated(session: Session) -> bool:
    return session.env.get("GITHUB_ACTIONS") == "true"


def _reported(
    session: Session,
    file: str,
    report: Report,
    junit: str | None,
    json: str | None,
    kind: str,
    *,
    fail_on_change: bool = False,
) -> int:
    from iotctl.errors import Exit
    from iotctl.output.document import document, to_json
    from iotctl.playbook import report as reports

    if junit:
        _write(session.cwd / junit, reports.junit(report, file, fail_on_change=fail_on_change))
    if json:
        _write(session.cwd / json, to_json(document(kind, report)))
    if _is_annotated(session):
        session.err.write("".join(line + "\n" for line in reports.annotations(report, file)))
    if path := session.env.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as out:
            out.write(reports.summary(report))
    session.output.emit(kind, report, lambda: _tables(report))
    failed = next((s for s in report.steps if s.state == "failed"), None)
    if failed is not None and failed.next:
        session.output.note(f"next for {failed.id}: {failed.next}")
    for step in reports.taken_back(report):
        session.output.note(f"to take {step.id} back: {step.undo}")
    if report.resume:
        session.output.note(f"next: {report.resume}")
    if failed is not None:
        return failed.code or Exit.PARTLY
    return Exit.PARTLY if report.resume else Exit.DONE


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _tables(report: Report) -> list[Table | str]:
    from iotctl.output.table import Table

    rows = [(s.id, s.state, f"{s.seconds:.1f}", s.message or "-") for s in report.steps]
    return [
        Table(("step", "state", "seconds", ""), rows),
        f"changed: {report.changed}, failed: {report.failed}",
    ]

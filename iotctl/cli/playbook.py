"""`iotctl playbook`: check and run commands from a file; a second run changes nothing."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli import runs
from iotctl.cli.inner_commands import InnerCommands, absolute_words, global_words
from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.session import Session, session_of

if TYPE_CHECKING:
    from iotctl.change.lock import HeldLock
    from iotctl.output.table import Table
    from iotctl.playbook.model import Journal, Report, StepResult
    from iotctl.playbook.run import Runner
    from iotctl.spec.playbook import Playbook

app = typer.Typer(help="Run commands from a YAML file.", no_args_is_help=True)
runs.register(app)

File = Annotated[str, typer.Argument(metavar="FILE", help="The playbook.")]


@dataclass(frozen=True)
class Scope:
    """The variables and nodes of a run."""

    var: Annotated[
        list[str] | None,
        typer.Option("--var", metavar="NAME=VALUE", help="Set a variable; repeatable."),
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit", metavar="NODE", help="Run steps that act on nodes for this node only; repeatable."
        ),
    ] = None


@dataclass(frozen=True)
class ReportFiles:
    """Where the report of a run is written, besides the output."""

    junit: Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")] = None
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")] = (
        None
    )


@app.command()
def validate(ctx: typer.Context, file: File) -> None:
    """Check the file without a cluster.

    Print every mistake with its line and column.
    """
    session = session_of(ctx)
    book = _load(session, file)
    body = {"playbook": book.file.name, "steps": list(book.ids), "valid": True}
    session.output.emit("playbook-validate", body, lambda: [f"{file} is valid: {len(book.ids)} steps"])
    session.output.note(f"next: iotctl playbook check {file}")


@app.command()
@with_option_sets
def check(ctx: typer.Context, file: File, *, scope: Scope, files: ReportFiles) -> int:
    """Show what a run would change now; change nothing."""
    from iotctl.playbook.journal import NoJournal

    session = session_of(ctx)
    report = _runner(session, _load(session, file), scope, NoJournal()).check()
    return _reported(session, file, report, files, "playbook-check")


@app.command()
@with_option_sets
def run(
    ctx: typer.Context,
    file: File,
    run_id: Annotated[str, typer.Argument(metavar="[RUN_ID]", help="With --resume: the run to resume.")] = "",
    *,
    scope: Scope,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the last unfinished run.")] = False,
    approve: Annotated[
        list[str] | None,
        typer.Option("--approve", metavar="STEP", help="Approve this step; repeatable."),
    ] = None,
    files: ReportFiles,
    fail_on_change: Annotated[
        bool, typer.Option("--fail-on-change", help="Report a change as a failure in JUnit, to find drift.")
    ] = False,
) -> int:
    """Run the steps that are not done yet.

    A run stops at a failure unless the step has `on_failure: continue`; `--resume` continues a stopped run.
    """
    from iotctl.errors import UsageProblem
    from iotctl.playbook.journal import FileJournal, RunJournal, find_run, new_run_id
    from iotctl.spec.find import runs_dir

    session = session_of(ctx)
    book = _load(session, file)
    if run_id and not resume:
        raise UsageProblem(f"{run_id}: name a run only with --resume")
    directory = runs_dir(session.options.cluster, session.env, session.cwd)
    path = directory / f"{new_run_id()}.jsonl"
    if resume:
        _import_run(session, directory, run_id, book.file.name)
    journal = find_run(directory, run_id, book.file.name) if resume else FileJournal(path)
    again = shlex.join([*_run_words(session, file, book, scope), "--resume", journal.run_id])
    session.on_interrupt = lambda: ("resuming inspects the interrupted step again", again)
    with closing(journal), ExitStack() as held:

        def keeper() -> HeldLock | None:
            if session.lock is None:
                held.enter_context(session.locked(f"playbook {book.file.name}, run {journal.run_id}"))
            return session.lock

        if resume:
            keeper()  # before the first inspection; a new run takes the lock with its first record
        record = RunJournal(journal, book.file.name, keeper)
        report = _runner(session, book, scope, record, approve or [], again).run()
        if not record.finish():
            session.output.warn(_incomplete(record.refusal, is_resumable=bool(report.resume)))
        if session.lock is not None:
            session.lock.outcome = f"changed {report.changed}, failed {report.failed}"
        # Before the lock is released: a failure to release it must not suppress the report.
        return _reported(session, file, report, files, "playbook-run", fail_on_change=fail_on_change)


@app.command()
def schema(ctx: typer.Context) -> None:
    """Print the JSON Schema of playbooks, for editors."""
    import msgspec

    from iotctl.cli.catalogue import verbs
    from iotctl.playbook.schema import schema_of

    session = session_of(ctx)
    session.out.write(msgspec.json.format(msgspec.json.encode(schema_of(verbs())), indent=2).decode() + "\n")


def _incomplete(refusal: str, *, is_resumable: bool) -> str:
    """The warning that the cluster's record of the run is not whole; `refusal`: its answer, "" if none."""
    what = "the cluster has no complete record of this run"
    what += ": only this machine can resume it" if is_resumable else ""
    return f"{what} ({refusal}; see iotctl playbook runs)" if refusal else what


def _import_run(session: Session, runs: Path, run_id: str, name: str) -> None:
    """Fetch the cluster's record of the run, or of all runs of the playbook `name`, to this machine."""
    from iotctl.change.lock import kept
    from iotctl.errors import IotctlError
    from iotctl.playbook.journal import bring
    from nodeagent.model.errors import NodeAgentError

    with suppress(IotctlError, NodeAgentError):  # without an answer, only the local record counts
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
    scope: Scope,
    journal: Journal,
    approved: Sequence[str] = (),
    again: str = "",
) -> Runner:
    from iotctl.cli.built_in import built_in
    from iotctl.cli.catalogue import verbs
    from iotctl.errors import InputProblem
    from iotctl.lifecycle.machines import chosen
    from iotctl.playbook.inspect import Inspector
    from iotctl.playbook.run import Runner, RunOptions, Tools
    from iotctl.playbook.values import Values
    from iotctl.spec.cluster import load_cluster
    from iotctl.spec.playbook import values_of
    from iotctl.spec.playbook_check import check_values

    if scope.limit:
        chosen(session.source, scope.limit)
    values = Values(*values_of(book, _given(scope.var), session.env))
    try:
        check_values(book, verbs(), values)
    except InputProblem as error:
        what, why = values.redact(error.what), values.redact(error.why)
        raise InputProblem(what, why=why, where=error.where) from None
    command = InnerCommands(session, values.redact)
    tools = Tools(
        command=command,
        inspect=Inspector(
            verbs(),
            lambda: session.cluster,
            command,
            session.cwd,
            listed=lambda: load_cluster(session.source.path).node_names,
        ),
        built_in=built_in(session, approved),
        on_step=lambda result, number, total: _note_step(session, result, number, total),
    )
    options = RunOptions(
        by=session.operator,
        again=again,
        program=lambda: ["iotctl", *absolute_words(session)],
        limit=scope.limit or (),
    )
    return Runner(book, verbs(), values, journal, tools, options)


def _given(var: list[str] | None) -> dict[str, str]:
    from iotctl.errors import UsageProblem

    found = {}
    for word in var or ():
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise UsageProblem(f"--var {word!r} is not NAME=VALUE")
        found[name] = value
    return found


def _run_words(session: Session, file: str, book: Playbook, scope: Scope) -> list[str]:
    """The command line of this run, without its secrets."""
    limited = [w for node in scope.limit or () for w in ("--limit", node)]
    words = ["iotctl", *global_words(session), "playbook", "run", file]
    return [*words, *_var_words(book, scope.var), *limited]


def _var_words(book: Playbook, var: list[str] | None) -> list[str]:
    """The `--var` options for the command that resumes; a secret's value is left out."""
    words = []
    for name, value in _given(var).items():
        known = book.file.vars.get(name)
        shown = "…" if known is None or known.secret else value
        words += ["--var", f"{name}={shown}"]
    return words


def _note_step(session: Session, result: StepResult, number: int, total: int) -> None:
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
    files: ReportFiles,
    kind: str,
    *,
    fail_on_change: bool = False,
) -> int:
    from iotctl.errors import Exit
    from iotctl.output.document import document, to_json
    from iotctl.playbook import report as reports

    if files.junit:
        _write(session.cwd / files.junit, reports.junit(report, file, fail_on_change=fail_on_change))
    if files.json:
        _write(session.cwd / files.json, to_json(document(kind, report)))
    if _is_annotated(session):
        session.err.write("".join(line + "\n" for line in reports.annotations(report, file)))
    if path := session.env.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as out:
            out.write(reports.summary(report))
    session.output.emit(kind, report, lambda: _tables(report))
    failed = next((s for s in report.steps if s.state == "failed"), None)
    if failed is not None and failed.next:
        session.output.note(f"next for {failed.id}: {failed.next}")
    for step in reports.undoable_steps(report):
        session.output.note(f"to undo {step.id}: {step.undo}")
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

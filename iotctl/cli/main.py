"""The entry point: global options, exit codes, and the report of a failure."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from typer import TyperException

from iotctl import __version__
from iotctl.cli import tree
from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.options import command_words, format_of, global_options_first, is_csv_refused
from iotctl.cli.session import FORMATS, GlobalOptions, Session, default_session, session_of
from iotctl.errors import Exit, UsageProblem

if TYPE_CHECKING:
    from iotctl.output.failure import Failure


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"iotctl {__version__}")
        raise typer.Exit()


@dataclass(frozen=True)
class GivenOptions:
    """The global options of the command line."""

    cluster: Annotated[
        str | None, typer.Option(help="Cluster file (else IOTCTL_CLUSTER, ./cluster.yaml, ./iotctl-local).")
    ] = None
    identity: Annotated[
        str | None, typer.Option(help="Directory of your certificate (else IOTCTL_IDENTITY).")
    ] = None
    timeout: Annotated[str | None, typer.Option(help="Wait at most this long, such as 30s or 10m.")] = None
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="|".join(FORMATS),
            help="Format of the result; csv only for `data query`.",
        ),
    ] = "table"
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress and hints.")] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show more hints.")] = False
    no_color: Annotated[bool, typer.Option("--no-color", help="Print without colors.")] = False
    no_input: Annotated[bool, typer.Option("--no-input", help="Never ask a question; fail instead.")] = False
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False

    def parsed(self, env: Mapping[str, str]) -> GlobalOptions:
        """Raises `BadParameter` for an unknown format."""
        if self.output not in FORMATS:
            raise typer.BadParameter(
                f"{self.output!r} is not one of {', '.join(FORMATS)}", param_hint="--output"
            )
        timeout_s = None
        if self.timeout is not None:
            from iotctl.spec.units import parse_duration_ms

            timeout_s = parse_duration_ms(self.timeout) / 1000
        return GlobalOptions(
            cluster=self.cluster,
            identity=self.identity,
            timeout_s=timeout_s,
            quiet=self.quiet,
            verbose=self.verbose,
            color=not self.no_color and "NO_COLOR" not in env,
            input=not self.no_input,
            debug=self.debug,
            format=self.output,
        )


@with_option_sets
def global_options(ctx: typer.Context, given: GivenOptions) -> None:
    session = session_of(ctx)
    session.options = given.parsed(session.env)


def whole_tree() -> typer.Typer:
    """Every command."""
    return tree.whole(global_options)


class Terminated(BaseException):
    """SIGTERM arrived; like KeyboardInterrupt, it must not be caught as an error."""


def run(arguments: Sequence[str], session: Session | None = None) -> int:
    """Run one command line and return its exit code. Never raises."""
    session = session or default_session()
    wanted = format_of(arguments)
    if wanted in FORMATS:
        session.options.format = wanted
    if "_IOTCTL_COMPLETE" in session.env:
        # Register the shells; typer itself does so only for --install-completion.
        from typer.completion import completion_init  # type: ignore[attr-defined] # not re-exported

        completion_init()
    if is_csv_refused(arguments):
        return _report(session, UsageProblem("-o csv is for `iotctl data query`", next="-o json"), False)
    try:
        with on_sigterm():
            # The command object is typer's own; its type is private to typer.
            words = command_words(arguments)
            is_whole = "_IOTCTL_COMPLETE" in session.env
            app = whole_tree() if is_whole else tree.needed(global_options, words)
            result = typer.main.get_command(app)(
                global_options_first(arguments), prog_name="iotctl", standalone_mode=False, obj=session
            )
        if result == Exit.INTERRUPTED:  # typer caught KeyboardInterrupt; no command returns this code
            return _interrupted(session, Exit.INTERRUPTED)
        session.out.flush()
        return result if isinstance(result, int) else Exit.DONE
    except (BrokenPipeError, SystemExit):
        # Typer turns a closed pipe into SystemExit; no command raises it.
        _silence(session)
        return Exit.DONE
    except KeyboardInterrupt:
        return _interrupted(session, Exit.INTERRUPTED)
    except Terminated:
        return _interrupted(session, Exit.TERMINATED)
    except Exception as error:  # the only place that turns an error into an exit code
        return _report(session, error, "--debug" in arguments)
    finally:
        with contextlib.suppress(Exception):
            session.close()


def _report(session: Session, error: Exception, debug: bool) -> int:
    if debug and not isinstance(error, TyperException):
        import traceback

        traceback.print_exception(error, file=session.err)
    if isinstance(error, TyperException):
        return _usage(session, error)
    from iotctl.errors import InputProblem
    from iotctl.output.failure import describe

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        error = InputProblem(f"the output cannot be written: {error.strerror}", next="free some disk")
        _silence(session)
    failure = describe(error)
    if failure.kind in ("unavailable", "not_leader"):
        failure = _explained(session, failure)
    if failure.code == Exit.BUG:
        import msgspec

        failure = msgspec.structs.replace(
            failure, why=f"a report was written to {_write_report(error)}", next="repeat with --debug"
        )
    _fail(session, failure)
    return failure.code


def _explained(session: Session, failure: Failure) -> Failure:
    """If a quorum is lost, the failure that says so and names the command that restores it.

    A client only sees that nodes refuse or do not answer; their statuses show why.
    """
    import msgspec

    from iotctl.observe.status import quorum_problem

    try:
        lost = quorum_problem(session.cluster, session.source)
    except Exception:  # report the failure itself
        return failure
    if lost is None:
        return failure
    return msgspec.structs.replace(failure, what=lost.message, why=failure.what, next=lost.next)


def _fail(session: Session, failure: Failure) -> None:
    """Print the failure. A closed or full output is ignored: the exit code reports the failure too."""
    try:
        session.output.fail(failure)
    except OSError:
        _silence(session)


def _usage(session: Session, error: TyperException) -> int:
    """Report what typer rejects in the command line."""
    from iotctl.output.failure import Failure

    if isinstance(error, typer.Abort):
        return _interrupted(session, Exit.INTERRUPTED)
    if type(error).__name__ == "NoArgsIsHelpError":
        with contextlib.suppress(OSError):
            session.out.write(str(error) + "\n")
            session.out.flush()
            return Exit.USAGE
        _silence(session)
        return Exit.USAGE
    message = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "iotctl"
    following = " or ".join(_meant(message)) or f"{path} --help"
    _fail(session, Failure(Exit.USAGE, "usage", "not_done", message, "", following, ""))
    return Exit.USAGE


def _meant(message: str) -> list[str]:
    """Commands elsewhere in the tree whose names resemble the unknown command."""
    word = re.fullmatch(r"No such command '([^']+)'\.", message)
    if word is None:
        return []
    import difflib

    def walk(command: object, path: str) -> Iterator[tuple[str, str]]:
        for name, child in getattr(command, "commands", {}).items():
            yield name, f"{path} {name}"
            yield from walk(child, f"{path} {name}")

    paths = list(walk(typer.main.get_command(whole_tree()), "iotctl"))
    near = difflib.get_close_matches(word[1], {name for name, _ in paths}, 1, 0.7)
    return [path for name, path in paths if name in near]


def _interrupted(session: Session, code: Exit) -> int:
    from iotctl.output.failure import Failure

    what = "interrupted" if code is Exit.INTERRUPTED else "terminated"
    if code is Exit.INTERRUPTED:
        # Under `python -m`, if Ctrl-C interrupts an `exec` of a string (many run while modules load), the
        # interpreter ends by SIGINT whatever our exit code. The next `exec` that completes clears that state.
        exec("")
    why, following = session.on_interrupt()
    with contextlib.suppress(OSError):
        session.err.write("\n")
    _fail(session, Failure(code, what, "unknown", what, why, following, ""))
    return code


def _silence(session: Session) -> None:
    """Redirect stdout to /dev/null, so that the interpreter's last flush does not fail."""
    if session.out is sys.stdout:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _write_report(error: Exception) -> str:
    import tempfile
    import traceback

    handle, path = tempfile.mkstemp(prefix="iotctl-", suffix=".txt")
    with os.fdopen(handle, "w") as file:
        file.write(f"iotctl {__version__}, python {sys.version}\n{' '.join(sys.argv[:3])}\n\n")
        traceback.print_exception(error, file=file)
    return path


@contextlib.contextmanager
def on_sigterm() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that pending writes complete."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, on_signal)
    except ValueError:  # not the main thread: the embedding program owns the signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> None:
    # Garbage collection while modules load takes 5 % of a short command's time.
    gc.set_threshold(50_000)
    sys.exit(run(sys.argv[1:]))

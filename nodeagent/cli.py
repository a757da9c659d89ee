"""`nodeagent`: run a node, make its directory, look at a stopped one. Heavy imports wait for their verb."""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from nodeagent.model.config import Seed
    from nodeagent.runtime.disk import RealDisk

app = typer.Typer(
    help="The storage node of an iotctl cluster.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
log_app = typer.Typer(help="Look at the log of a stopped node.", no_args_is_help=True)
files_app = typer.Typer(help="Look at the files of a stopped node.", no_args_is_help=True)
app.add_typer(log_app, name="log")
app.add_typer(files_app, name="files")

EXIT_USAGE, EXIT_INVALID, EXIT_UNREACHABLE, EXIT_REFUSED, EXIT_DAMAGED = 2, 3, 4, 5, 7
"""As for `iotctl`: usage, input file invalid, system refuses, precondition does not hold, check failed."""

Directory = Annotated[Path, typer.Argument(help="The node's directory (holds node.yaml).")]


@app.command("run")
def run_command(
    directory: Directory,
    test_holds: Annotated[
        str | None, typer.Option(help="Let tests stop operations at points; comma-separated, may be empty.")
    ] = None,
) -> None:
    """Run the node of DIRECTORY until SIGTERM or SIGINT. SIGHUP loads a renewed certificate."""
    from nodeagent.runtime.agent import run
    from nodeagent.storage.pandas_free import forbid_pandas

    forbid_pandas()
    holds = None if test_holds is None else [p for p in test_holds.split(",") if p]
    with _errors():
        sys.exit(run(directory, holds))


@app.command("init")
def init_command(
    directory: Directory,
    node: Annotated[str, typer.Option(help="Name of the node.")],
    port: Annotated[int, typer.Option(help="Port for nodes and clients.")],
    http_port: Annotated[int, typer.Option(help="Port for health and metrics.")],
    seed: Annotated[list[str], typer.Option(help="NODE=HOST:PORT of each first node.")],
    cluster: Annotated[str, typer.Option(help="Name of the cluster.")] = "cluster",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    replicas: Annotated[int, typer.Option(help="Copies of each row.")] = 3,
    join: Annotated[bool, typer.Option(help="Wait to be added to a running cluster.")] = False,
    tls: Annotated[bool, typer.Option(help="Certificates in DIRECTORY/tls.")] = True,
) -> None:
    """Write DIRECTORY/node.yaml. An existing one is kept."""
    from nodeagent.model.config import ClusterSettings, NodeConfig
    from nodeagent.model.errors import Refused
    from nodeagent.runtime.config import dump_config, parse_config
    from nodeagent.runtime.directory import CONFIG_FILE

    with _errors():
        path = directory / CONFIG_FILE
        if path.exists():
            raise Refused(f"{path} is there already", next_step="edit it, or use another directory")
        text = dump_config(
            NodeConfig(
                node=node,
                host=host,
                port=port,
                http_port=http_port,
                seeds=tuple(_seed(given) for given in seed),
                cluster=ClusterSettings(name=cluster, replicas=replicas),
                join=join,
                tls=tls,
            )
        )
        parse_config(text, str(path))
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        typer.echo(f"{path} written; next: nodeagent run {directory}", err=True)


@log_app.command("dump")
def log_dump(
    directory: Directory,
    output: Annotated[str, typer.Option("-o", "--output", help="Only jsonl.")] = "jsonl",
) -> None:
    """One JSON line for each operation, unreadable place and torn tail."""
    from nodeagent.log.check import dump_jsonl

    if output != "jsonl":
        raise typer.BadParameter("only jsonl is known")
    with _offline(directory) as disk:
        for line in dump_jsonl(disk, "log"):
            sys.stdout.write(line.decode() + "\n")


@log_app.command("check")
def log_check(
    directory: Directory,
    output: Annotated[str, typer.Option("-o", "--output", help="text or jsonl.")] = "text",
) -> None:
    """Read the whole log, compare it with node.id and the checkpoints; exit 7 when something is damaged."""
    import msgspec

    from nodeagent.log import Damage
    from nodeagent.log.check import check
    from nodeagent.runtime.config import load_config
    from nodeagent.runtime.directory import CONFIG_FILE, DATA_DIR
    from nodeagent.runtime.disk import RealDisk
    from nodeagent.runtime.offline import mismatches

    with _offline(directory) as disk:
        report = check(disk, "log")
        node = load_config(directory / CONFIG_FILE).node
        faults = mismatches(disk, RealDisk(directory / DATA_DIR), node)
        report.damaged.extend(Damage(0, 0, group, 0, 0, why) for group, why in sorted(faults.items()))
    if output == "jsonl":
        for damage in report.damaged:
            sys.stdout.write(msgspec.json.encode(damage).decode() + "\n")
    else:
        typer.echo(
            f"{report.segments} segments, {report.bytes_total} bytes, {len(report.groups)} groups,"
            f" {report.torn_bytes} torn bytes, {len(report.damaged)} damaged"
        )
        for damage in report.damaged:
            place = f"segment {damage.segment} offset {damage.offset} " if damage.segment else ""
            typer.echo(f"{place}{damage.group}: {damage.message}")
    if not report.is_whole:
        sys.exit(EXIT_DAMAGED)


@files_app.command("check")
def files_check(
    directory: Directory,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit 7 also when there is a file or link that nothing names.")
    ] = False,
) -> None:
    """Read every checkpoint and hash every file; one JSON line each; exit 7 when something is damaged.

    A checkpoint that the log needs and that is missing, older than the log or another node's is damaged too.
    Without node.id, or with that of another node, nothing is checked and the exit code is 7 too.

    Lines with `found` orphan, staged, snapshot, quarantined, temporary, foreign or linked tell of what no
    manifest names. A running node removes it when it is needed no more; what is in quarantine stays.
    """
    import msgspec

    from nodeagent.runtime.config import load_config
    from nodeagent.runtime.directory import CONFIG_FILE, DATA_DIR
    from nodeagent.runtime.disk import RealDisk
    from nodeagent.runtime.offline import check_files, mismatches
    from nodeagent.storage.leftovers import KINDS

    failed = False
    with _offline(directory) as home:
        node = load_config(directory / CONFIG_FILE).node
        data = RealDisk(directory / DATA_DIR)
        for line in check_files(data, node, mismatches(home, data, node)):
            failed = failed or not line["valid"] or (strict and line["found"] in KINDS)
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    if failed:
        sys.exit(EXIT_DAMAGED)


def main() -> None:
    """Entry point of the `nodeagent` script."""
    try:
        code = app(prog_name="nodeagent", standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        if type(error).__name__ == "NoArgsIsHelpError":
            typer.echo(message)
            sys.exit(EXIT_USAGE)
        _fail(message, f"{context.command_path if context else 'nodeagent'} --help", EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _seed(given: str) -> "Seed":
    from nodeagent.model.config import Seed
    from nodeagent.model.errors import InvalidInput

    node, equals, address = given.partition("=")
    host, colon, port = address.rpartition(":")
    if not (equals and colon and host and port.isdigit()):
        raise InvalidInput(f"seed {given!r} is not NODE=HOST:PORT")
    return Seed(node, host, int(port))


@contextmanager
def _offline(directory: Path) -> "Iterator[RealDisk]":
    """The directory of a node that does not run; refused otherwise."""
    from nodeagent.model.errors import NotFound
    from nodeagent.runtime.disk import RealDisk

    with _errors():
        if not (directory / "node.yaml").exists():
            raise NotFound(f"{directory} is no node's directory: node.yaml is missing")
        disk = RealDisk(directory)
        disk.lock()
        try:
            yield disk
        finally:
            disk.unlock()


@contextmanager
def _errors() -> Iterator[None]:
    """Our errors become one line on stderr, the next step in a second one, and an exit code."""
    from nodeagent.model.errors import Damaged, InvalidInput, NodeAgentError

    try:
        yield
    except NodeAgentError as error:
        code = EXIT_REFUSED
        if isinstance(error, InvalidInput):
            code = EXIT_INVALID
        elif isinstance(error, Damaged):
            code = EXIT_DAMAGED
        _fail(error.what, error.next_step, code)
    except OSError as error:
        if error.errno == errno.EIO:
            _fail(str(error), "look at the disk (dmesg)", EXIT_DAMAGED)
        _fail(str(error), "", EXIT_UNREACHABLE)


def _fail(what: str, next_step: str, code: int) -> NoReturn:
    from nodeagent.model.text import printable

    typer.echo(printable(f"error: {what}", keep="\n"), err=True)
    if next_step:
        typer.echo(printable(f"next: {next_step}", keep="\n"), err=True)
    sys.exit(code)

"""`nodeagent`: run a node, create its directory, or inspect it.

Each command imports its own modules, so that no command pays for the imports of another.
"""

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
log_app = typer.Typer(help="Inspect the log of a stopped node.", no_args_is_help=True)
files_app = typer.Typer(help="Inspect the files of a stopped node.", no_args_is_help=True)
image_app = typer.Typer(help="Inspect images of the meta state; the node may run.", no_args_is_help=True)
app.add_typer(log_app, name="log")
app.add_typer(image_app, name="image")
app.add_typer(files_app, name="files")

EXIT_DIFFERS = 1
"""`image diff` found a difference."""

EXIT_USAGE, EXIT_INVALID, EXIT_UNREACHABLE, EXIT_REFUSED, EXIT_DAMAGED = 2, 3, 4, 5, 7
"""As for `iotctl`: usage, invalid input file, unreachable, refused, damaged."""

Directory = Annotated[
    Path, typer.Argument(metavar="DIRECTORY", help="The node's directory (contains node.yaml).")
]


@app.command("run")
def run_command(
    directory: Directory,
    failpoints: Annotated[
        str | None,
        typer.Option(
            "--test-failpoints",
            help="For tests: failpoints at which operations stop; comma-separated, may be empty.",
        ),
    ] = None,
) -> None:
    """Run the node of DIRECTORY until SIGTERM or SIGINT. SIGHUP loads a renewed certificate."""
    from nodeagent.runtime.process import run
    from nodeagent.storage.pandas_free import forbid_pandas

    forbid_pandas()
    points = None if failpoints is None else [p for p in failpoints.split(",") if p]
    with _errors():
        sys.exit(run(directory, points))


# Over the limit of 8 parameters because typer makes each option of a command a parameter.
@app.command("init")
def init_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="The node's directory; created if it is missing.")
    ],
    node: Annotated[str, typer.Option(help="Name of the node.")],
    port: Annotated[int, typer.Option(help="Port for nodes and clients.")],
    http_port: Annotated[int, typer.Option(help="Port for health and metrics.")],
    seed: Annotated[list[str], typer.Option(help="NODE=HOST:PORT of an initial node; repeat for each.")],
    cluster: Annotated[str, typer.Option(help="Name of the cluster.")] = "cluster",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    replicas: Annotated[int, typer.Option(help="Number of copies of each row.")] = 3,
    join: Annotated[
        bool, typer.Option(help="The node waits until an operator adds it to a running cluster.")
    ] = False,
    tls: Annotated[bool, typer.Option(help="Use TLS with the certificates in DIRECTORY/tls.")] = True,
) -> None:
    """Write DIRECTORY/node.yaml. Refuse to overwrite an existing file."""
    from nodeagent.model.config import ClusterSettings, NodeConfig
    from nodeagent.model.errors import Refused
    from nodeagent.runtime.config import dump_config, parse_config
    from nodeagent.runtime.directory import CONFIG_FILE

    with _errors():
        path = directory / CONFIG_FILE
        if path.exists():
            raise Refused(f"{path} already exists", next_step="edit it, or use another directory")
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
    group: Annotated[
        str, typer.Option(help="Print only what concerns this group, such as meta (default: all groups).")
    ] = "",
    entries: Annotated[
        bool, typer.Option("--entries", help="Also print one line for each entry, with its decoded command.")
    ] = False,
    output: Annotated[str, typer.Option("-o", "--output", help="Format; only jsonl.")] = "jsonl",
) -> None:
    """Print one JSON line for each log operation, unreadable place and torn tail."""
    import msgspec

    from nodeagent.log.check import EntryLines, dump

    if output != "jsonl":
        raise typer.BadParameter("use jsonl, the only format")
    lines: EntryLines | None = None
    if entries:
        from nodeagent.runtime.log_entries import entry_lines

        lines = entry_lines
    with _offline(directory) as disk:
        for line in dump(disk, "log", group, lines):
            sys.stdout.write(msgspec.json.encode(line).decode() + "\n")


@log_app.command("check")
def log_check(
    directory: Directory,
    output: Annotated[str, typer.Option("-o", "--output", help="Format: text or jsonl.")] = "text",
) -> None:
    """Read the whole log and compare it with node.id and the checkpoints. Exit with 7 if anything is
    damaged."""
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
        bool,
        typer.Option("--strict", help="Exit with 7 also if there is a file or link that no manifest names."),
    ] = False,
) -> None:
    """Read every checkpoint and hash every file; print one JSON line each. Exit with 7 if anything is
    damaged.

    A checkpoint that the log needs also counts as damaged if it is missing, is older than the log or
    belongs to another node. If node.id is missing or names another node, nothing is checked and the exit code
    is 7.

    A line whose `found` is orphan, staged, snapshot, quarantined, temporary or foreign reports a file that no
    manifest names; linked, a file that a manifest names and that has a second name. Of these files and second
    names, a running node removes those that it made itself, once it no longer needs them, except those in
    quarantine.
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


ImagePath = Annotated[
    Path, typer.Argument(metavar="PATH", help="An image, or a node's directory for its newest image.")
]


@image_app.command("check")
def image_check(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="An image, or a node's directory for all its images.")
    ],
) -> None:
    """Verify and load images; print one JSON line each. Exit with 7 if one is damaged.

    Images of the same state have the same digest on all nodes.
    """
    from nodeagent.runtime.image_files import check, encoded, images_at

    failed = False
    with _errors():
        for image in images_at(path):
            line = check(image)
            failed = failed or not line["valid"]
            sys.stdout.write(encoded(line) + "\n")
    if failed:
        sys.exit(EXIT_DAMAGED)


@image_app.command("dump")
def image_dump(
    path: ImagePath,
    section: Annotated[str, typer.Option(help="Print only this section (default: all sections).")] = "",
) -> None:
    """Print one JSON line for each record and for each place that cannot be read. Exit with 7 if there is
    such a place."""
    from nodeagent.runtime.image_files import SECTIONS, dump, encoded, images_at

    if section and section not in SECTIONS:
        raise typer.BadParameter(f"there is no section {section}; use one of {', '.join(SECTIONS)}")
    failed = False
    with _errors():
        for line in dump(images_at(path)[-1], section):
            failed = failed or not line["valid"]
            sys.stdout.write(encoded(line) + "\n")
    if failed:
        sys.exit(EXIT_DAMAGED)


@image_app.command("diff")
def image_diff(old: ImagePath, new: ImagePath) -> None:
    """Print one JSON line for each record that differs between two images. Exit with 1 if there is one."""
    from nodeagent.runtime.image_files import diff, encoded, images_at

    differs = False
    with _errors():
        for line in diff(images_at(old)[-1], images_at(new)[-1]):
            differs = True
            sys.stdout.write(encoded(line) + "\n")
    if differs:
        sys.exit(EXIT_DIFFERS)


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
    """Lock the directory of a stopped node; refused if the node runs."""
    from nodeagent.model.errors import NotFound
    from nodeagent.runtime.disk import RealDisk

    with _errors():
        if not (directory / "node.yaml").exists():
            raise NotFound(f"{directory} is not a node's directory: node.yaml is missing")
        disk = RealDisk(directory)
        disk.lock()
        try:
            yield disk
        finally:
            disk.unlock()


@contextmanager
def _errors() -> Iterator[None]:
    """Print an error as one line on stderr and its next step as a second line; exit with its code."""
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
            _fail(str(error), "check the disk (dmesg)", EXIT_DAMAGED)
        _fail(str(error), "", EXIT_UNREACHABLE)


def _fail(what: str, next_step: str, code: int) -> NoReturn:
    from nodeagent.model.text import printable

    typer.echo(printable(f"error: {what}", keep="\n"), err=True)
    if next_step:
        typer.echo(printable(f"next: {next_step}", keep="\n"), err=True)
    sys.exit(code)

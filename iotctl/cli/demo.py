"""`iotctl demo`: scale a local fleet under load and verify the result."""

from typing import Annotated

import typer

from iotctl.cli.session import session_of


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    ctx: typer.Context,
    nodes: Annotated[int, typer.Option(min=3, help="Number of nodes at the start.")] = 5,
    replicas: Annotated[int, typer.Option(min=1, help="Number of copies of every row.")] = 3,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the fleet running at the end.")] = False,
    directory: Annotated[
        str | None, typer.Option("--dir", help="Directory of the fleet; default: a temporary one.")
    ] = None,
) -> int:
    """Start a fleet, load data, add and remove nodes under load.

    At the end, the command compares the replicas and counts the rows.
    """
    from iotctl.cli import reports
    from iotctl.demo.run import run_demo
    from iotctl.errors import Exit

    session = session_of(ctx)
    where = session.cwd / directory if directory else None
    with session.progress() as progress:
        report = run_demo(
            nodes=nodes,
            replicas=replicas,
            keep=keep,
            directory=where,
            note=session.output.note,
            on_progress=progress.update,
        )
    session.output.emit("demo", report, lambda: reports.demo_tables(report))
    return Exit.DONE if report.passed else Exit.VERIFICATION

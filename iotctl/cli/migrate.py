"""`iotctl migrate` and `iotctl verify`: the Spark jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from iotctl.cli.options import Depth, DryRun, Master, Rate, Verify, Yes
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import Traits, never, step

MASTER = "local[*]"
WAITS = ("waiting_migrate", "waiting_signoff", "waiting_release")
REMOVAL_TIMEOUT_S = 30.0
"""How long `migrate` waits for the end of a removal once its copies are released."""


def register(app: typer.Typer) -> None:
    app.command("migrate")(migrate)
    app.command("verify")(verify)


@step(Traits(inspect=lambda look, use: look.migrate(use), is_visible=never))
def migrate(
    ctx: typer.Context,
    verify_: Verify = False,
    depth: Depth = None,
    operation: Annotated[
        str | None,
        typer.Option("--op", metavar="ID", help="Which operation; the only open one when left out."),
    ] = None,
    master: Master = MASTER,
    rate: Rate = "auto",
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Pulls at a time.")] = 8,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on after an interruption (it always does).")
    ] = False,
    report: Annotated[
        str | None, typer.Option("--report", metavar="DIR", help="Also write the report here.")
    ] = None,
    dry_run: DryRun = False,
) -> int:
    """Move the data of an open change by Spark: order the pulls, verify, sign off."""
    from iotctl.cli import reports
    from iotctl.errors import Exit, RefusedProblem
    from iotctl.observe.operations import describe_operation, pick
    from iotctl.pipeline.migrate import run
    from iotctl.spec.units import parse_rate

    session = session_of(ctx)
    wanted = pick(session.cluster.meta(strong=True), operation)
    if wanted.ended:
        raise RefusedProblem(
            f"{wanted.id} is over ({wanted.state()}): nothing is left to migrate",
            next="iotctl verify compares all replicas",
        )
    chosen = depth or ("content" if verify_ else None)
    spark, bytes_per_s = master, parse_rate(rate) or None
    if dry_run:
        row = describe_operation(wanted, now_ms=now_ms())
        there = f"{row.slots_done} of {row.slots_total} slots are there"
        compared = [f"compare every copy at depth {chosen}, and sign off"] if chosen else []
        session.output.would(f"pull what is left of {wanted.id} ({wanted.title}): {there}", *compared)
        return Exit.DONE
    with session.progress() as progress:
        done = run(
            session.spec,
            wanted.id,
            depth=chosen,
            master=spark,
            rate=bytes_per_s,
            concurrency=concurrency,
            progress=progress,
        )
    if wanted.kind == "remove-node" and done.state not in WAITS:
        _end_removal(session, wanted.id)
    session.output.emit("migrate", done, lambda: reports.migrate_tables(done))
    reports.save(session, "migrate", done, report)
    if done.verified is not None and done.verified.mismatches:
        return Exit.VERIFICATION
    if done.verified is not None and done.verified.unread:
        return Exit.UNREACHABLE
    if done.failed or done.units_done < done.units_total:
        session.output.note(f"next: iotctl migrate{' --verify' if chosen else ''} --op {done.operation}")
        return Exit.PARTLY
    return Exit.DONE


def _end_removal(session: Session, operation: str) -> None:
    """The last copies are released within moments; then the node leaves `cluster.yaml`, its agent stops."""
    from iotctl.change.execute import finish_removal
    from iotctl.cli.provisioning import provisioning
    from iotctl.errors import Partly
    from iotctl.observe.operations import wait_operation

    try:
        ended = wait_operation(
            session.cluster, operation, on_update=lambda _: None, timeout_s=REMOVAL_TIMEOUT_S
        )
    except Partly as error:
        session.output.note(f"{error.what}; next: {error.next}")
    else:
        with session.progress() as progress, provisioning(session, progress) as provisioner:
            finish_removal(session.cluster, session.source, provisioner, ended, session.output.note)


@step(Traits(inspect=lambda look, use: look.verify(use), is_visible=never))
def verify(
    ctx: typer.Context,
    depth: Depth = None,
    slot: Annotated[list[int] | None, typer.Option(help="Only these slots.")] = None,
    node: Annotated[list[str] | None, typer.Option(help="Only replicas on these nodes.")] = None,
    storage_group: Annotated[list[str] | None, typer.Option(help="Only these storage groups.")] = None,
    master: Master = MASTER,
    repair: Annotated[
        bool, typer.Option("--repair", help="Replace damaged copies by the majority's; they are kept aside.")
    ] = False,
    yes: Yes = False,
    report: Annotated[
        str | None, typer.Option("--report", metavar="DIR", help="Also write the report here.")
    ] = None,
) -> int:
    """Compare all replicas. Exit 7 when something differs, 4 when something could not be read."""
    from iotctl.cli import reports
    from iotctl.errors import Exit
    from iotctl.pipeline.verify import Filters, run

    session = session_of(ctx)
    wanted = depth or "content"
    if repair and wanted == "manifest":
        raise typer.BadParameter(
            "--repair reads the bytes: use --depth hash or content", param_hint="--depth"
        )
    if repair:
        session.confirm("Replace every copy that differs from its group's majority?", yes=yes)
    ranges = tuple((s, s + 1) for s in sorted(set(slot or ())))
    groups = tuple(g.lower() for g in storage_group or ())
    filters = Filters(slots=ranges, nodes=tuple(node or ()), storage_groups=groups)
    with session.progress() as progress:
        found = run(
            session.spec,
            depth=wanted,
            master=master,
            filters=filters,
            progress=progress,
            repair=repair,
        )
    session.output.emit("verify", found, lambda: reports.verify_tables(found))
    reports.save(session, "verify", found, report)
    if found.remaining:
        if not repair:
            session.output.note(
                f"next: iotctl verify --depth {'hash' if wanted == 'hash' else 'content'} --repair"
            )
        return Exit.VERIFICATION
    if found.unread or not found.replicas_compared:
        return Exit.UNREACHABLE
    return Exit.DONE

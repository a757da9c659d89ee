"""`iotctl migrate` and `iotctl verify`: the Spark jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.options import Depth, DryRun, Master, VerifyDepth, Yes, rate_option
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import Traits, never, step

if TYPE_CHECKING:
    from iotctl.errors import Exit
    from iotctl.pipeline.report import MigrateReport
    from iotctl.pipeline.verify import Filters

MASTER = "local[*]"
WAITS = ("waiting_migrate", "waiting_signoff", "waiting_release")
REMOVAL_TIMEOUT_S = 30.0
"""How long `migrate` waits for the end of a removal after the old copies are released."""


Report = Annotated[
    str | None,
    typer.Option("--report", metavar="DIR", help="Also write the report to this directory."),
]


def register(app: typer.Typer) -> None:
    app.command("migrate")(migrate)
    app.command("verify")(verify)


@dataclass(frozen=True)
class JobOptions:
    """How Spark moves the data."""

    master: Master = MASTER
    rate: Annotated[
        str | None,
        rate_option("Cluster-wide copy rate, such as 200MB/s, or auto; default: the operation's rate."),
    ] = None
    concurrency: Annotated[
        int,
        typer.Option(
            min=1,
            max=256,
            help="Send at most this many requests at once; up to 8 cover the slots of a member.",
        ),
    ] = 8


@step(Traits(inspect=lambda look, use: look.migrate(use), is_visible=never))
@with_option_sets
def migrate(
    ctx: typer.Context,
    verify_: Annotated[
        bool, typer.Option("--verify", help="Compare the copies with the old data; sign off if equal.")
    ] = False,
    depth: VerifyDepth = None,
    operation: Annotated[
        str | None,
        typer.Option("--op", metavar="ID", help="Operation id; default: the only open operation."),
    ] = None,
    *,
    job: JobOptions,
    resume: Annotated[bool, typer.Option("--resume", help="No effect: every run resumes.")] = False,
    report: Report = None,
    dry_run: DryRun = False,
) -> int:
    """Use Spark to copy the data of an open change.

    --verify then compares the copies, and signs off if they are equal.
    """
    from iotctl.cli import reports
    from iotctl.errors import Exit, RefusedProblem
    from iotctl.observe.operations import describe_operation, pick
    from iotctl.pipeline.migrate import run
    from iotctl.spec.units import parse_rate

    session = session_of(ctx)
    wanted = pick(session.cluster.meta(strong=True), operation)
    if wanted.ended:
        raise RefusedProblem(
            f"{wanted.id} ended ({wanted.state()}): nothing is left to migrate",
            next="iotctl verify (it compares all replicas)",
        )
    chosen = depth or ("content" if verify_ else None)
    bytes_per_s = None if job.rate is None else parse_rate(job.rate)
    if dry_run:
        row = describe_operation(wanted, now_ms=now_ms())
        there = f"{row.slots_done} of {row.slots_total} slots are copied"
        compared = [f"compare every copy at depth {chosen}, and sign off"] if chosen else []
        session.output.would(f"copy the rest of {wanted.id} ({wanted.title}): {there}", *compared)
        return Exit.DONE
    with session.progress() as progress:
        done = run(
            session.spec,
            wanted.id,
            depth=chosen,
            master=job.master,
            rate=bytes_per_s,
            concurrency=job.concurrency,
            progress=progress,
        )
    if wanted.leaving is not None and done.state not in WAITS:
        _end_removal(session, wanted.id)
    session.output.emit("migrate", done, lambda: reports.migrate_tables(done))
    reports.save(session, "migrate", done, report)
    code = _code(done)
    if code == Exit.PARTLY:
        session.output.note(f"next: iotctl migrate{' --verify' if chosen else ''} --op {done.operation}")
    return code


def _code(done: MigrateReport) -> Exit:
    from iotctl.errors import Exit

    if done.verified is not None and done.verified.mismatches:
        return Exit.VERIFICATION
    if done.verified is not None and done.verified.unread:
        return Exit.UNREACHABLE
    return Exit.PARTLY if done.failed or done.units_done < done.units_total else Exit.DONE


def _end_removal(session: Session, operation: str) -> None:
    """Wait for the end of the removal; then stop the agent and remove the node from `cluster.yaml`."""
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


@dataclass(frozen=True)
class ReplicaFilters:
    """The replicas to compare; all by default."""

    slot: Annotated[list[int] | None, typer.Option(help="Compare only this slot; repeatable.")] = None
    node: Annotated[
        list[str] | None, typer.Option(help="Compare only groups with this node as a member; repeatable.")
    ] = None
    storage_group: Annotated[
        list[str] | None, typer.Option(help="Compare only this storage group; repeatable.")
    ] = None

    def filters(self) -> Filters:
        from iotctl.pipeline.verify import Filters

        ranges = tuple((s, s + 1) for s in sorted(set(self.slot or ())))
        groups = tuple(g.lower() for g in self.storage_group or ())
        return Filters(slots=ranges, nodes=tuple(self.node or ()), storage_groups=groups)


@step(Traits(inspect=lambda look, use: look.verify(use), is_visible=never))
@with_option_sets
def verify(
    ctx: typer.Context,
    depth: Depth = None,
    *,
    only: ReplicaFilters,
    master: Master = MASTER,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Replace damaged copies with the majority's copy; archive the damaged ones."
        ),
    ] = False,
    yes: Yes = False,
    report: Report = None,
) -> int:
    """Compare all replicas. Exit with 7 if replicas differ, with 4 if a replica cannot be read."""
    from iotctl.cli import reports
    from iotctl.errors import Exit
    from iotctl.pipeline.verify import run

    session = session_of(ctx)
    wanted = depth or "content"
    if repair and wanted == "manifest":
        raise typer.BadParameter("--repair needs --depth hash or content", param_hint="--depth")
    if repair:
        session.confirm("replace every copy that differs from its group's majority?", yes=yes)
    with session.progress() as progress:
        found = run(
            session.spec,
            depth=wanted,
            master=master,
            filters=only.filters(),
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

"""`iotctl cert`: certificates of nodes and operators."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from iotctl.cli.hosts import Names
from iotctl.cli.options import DryRun, Duration, Yes, one_of
from iotctl.cli.session import Session, now_ms, session_of
from iotctl.playbook.traits import READS, Traits, step

if TYPE_CHECKING:
    from collections.abc import Callable

    from iotctl.lifecycle.certificates import CertificateRow, Certificates
    from iotctl.output.table import Table

T = TypeVar("T")

app = typer.Typer(help="Manage certificates of nodes and operators.", no_args_is_help=True)


@app.command()
@step(Traits(inspect=lambda look, use: look.would(use)))
def init(ctx: typer.Context, dry_run: DryRun = False) -> None:
    """Create the certificate authority and your certificate.

    Existing ones are retained.
    """
    from iotctl.lifecycle.certificates import AUTHORITY, initialise, lacking
    from iotctl.spec.find import authority_dir, operator_dir

    session = session_of(ctx)
    if dry_run:
        for_all, own = (d(session.source, session.env) for d in (authority_dir, operator_dir))
        missing = _asked(session, lacking)
        return session.output.would(
            *(f"create the {m}'s certificate in {for_all if m == AUTHORITY else own}" for m in missing)
        )
    _shown(session, initialise)
    session.output.note(f"back up the authority's key: {authority_dir(session.source, session.env)}")
    session.output.note("next: iotctl cluster deploy")


@app.command()
@step(READS)
def show(ctx: typer.Context) -> int:
    """List every certificate and its expiry, over SSH.

    This works even if the cluster rejects your certificate.
    """
    from iotctl.lifecycle import certificates

    return _code(_shown(session_of(ctx), certificates.show))


@app.command()
@step(Traits(inspect=lambda look, use: look.renew(use)))
def renew(
    ctx: typer.Context,
    nodes: Names = None,
    within: Annotated[
        str,
        typer.Option(
            "--within",
            metavar="DURATION",
            parser=Duration,
            help="Renew certificates that expire within this time.",
        ),
    ] = "30d",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Renew certificates that have expired or expire soon. Agents need no restart.

    If your own certificate is due, it is renewed too.
    """
    from iotctl.lifecycle import certificates
    from iotctl.lifecycle.machines import Machines
    from iotctl.spec.units import parse_duration_ms

    session = session_of(ctx)
    source = session.source
    within_ms = parse_duration_ms(within)
    if not dry_run:
        session.confirm(f"renew certificates of {source.name} that expire within {within}?", yes=yes)
    lock = nullcontext() if dry_run else session.locked("cert renew")
    with (
        Machines(source, session.env, session.options.timeout_s) as machines,
        session.progress() as progress,
        lock,
    ):
        on_done = partial(progress.update, "machines", total=len(nodes or source.file.nodes))
        found = certificates.renew(
            source,
            nodes or (),
            machines,
            session.env,
            within_ms=within_ms,
            now_ms=now_ms(),
            done=on_done,
            dry_run=dry_run,
        )
    session.output.emit("certificates", found, lambda: [_table(found.certificates)])
    code = _code(found)
    if dry_run:
        session.output.note("next: iotctl cert renew" if found.changed else "no certificate needs renewal")
    else:
        session.output.note("next: iotctl cluster check" if code else "next: iotctl cluster status")
    return code


@app.command()
def issue(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the operator.")],
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Directory for the certificate.")],
    role: Annotated[
        str,
        typer.Option(
            "--role", metavar="admin|reader", parser=one_of("admin", "reader"), help="Role of the operator."
        ),
    ] = "reader",
    dry_run: DryRun = False,
) -> None:
    """Issue a certificate for another operator."""
    from iotctl.lifecycle import certificates

    session = session_of(ctx)
    directory = session.cwd / out
    row = certificates.issue(session.source, name, role, directory, session.env, now_ms(), dry_run=dry_run)
    if dry_run:
        return session.output.would(f"write a certificate for {row.name} ({role}) to {directory}")
    body = {"certificates": [row], "changed": 1}
    session.output.emit("certificates", body, lambda: [_table([row])])
    session.output.note(f"next: iotctl --identity {out} cluster status")


def _shown(session: Session, ask: Callable[..., Certificates]) -> Certificates:
    found = _asked(session, ask)
    session.output.emit("certificates", found, lambda: [_table(found.certificates)])
    return found


def _asked(session: Session, ask: Callable[..., T]) -> T:
    """The result of `ask`, a function of `lifecycle.certificates`, for all machines."""
    from iotctl.lifecycle.machines import Machines

    source = session.source
    with Machines(source, session.env, session.options.timeout_s) as machines, session.progress() as progress:
        on_done = partial(progress.update, "machines", total=len(source.file.nodes))
        return ask(source, machines, session.env, now_ms(), on_done)


def _code(found: Certificates) -> int:
    """4 if a machine did not respond or did not accept its certificate."""
    from iotctl.errors import Exit

    return Exit.UNREACHABLE if any(r.state == "unreachable" for r in found.certificates) else Exit.DONE


def _table(rows: list[CertificateRow]) -> Table:
    from iotctl.humanize import time_text
    from iotctl.output.table import Table

    shown = [
        (r.name, r.role, r.state, time_text(r.expires_ms) if r.expires_ms else "-", r.fingerprint[:16])
        for r in rows
    ]
    return Table(("name", "role", "state", "expires", "fingerprint"), shown)

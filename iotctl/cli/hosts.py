"""`iotctl cluster trust` and `check`: the machines that run the nodes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.options import DryRun, Yes
from iotctl.cli.session import Session, session_of
from iotctl.playbook.traits import READS, Traits, step

if TYPE_CHECKING:
    from iotctl.lifecycle.hosts import EnrolledHost, Enrolment, HostsChecked
    from iotctl.output.table import Table

Names = Annotated[list[str] | None, typer.Argument(metavar="[NODE…]", help="Nodes; default: all.")]


def register(app: typer.Typer) -> None:
    app.command()(trust)
    app.command()(check)


@step(Traits(inspect=lambda look, use: look.trust(use)))
def trust(
    ctx: typer.Context,
    nodes: Names = None,
    replace: Annotated[
        list[str] | None,
        typer.Option("--replace", metavar="NODE", help="Accept the changed key of this node."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Show the SSH host keys and store the keys you accept.

    The file of accepted keys is next to cluster.yaml.
    """
    from iotctl.errors import Exit, Partly, RefusedProblem
    from iotctl.fleet.known_hosts import KnownHosts
    from iotctl.lifecycle import hosts

    session = session_of(ctx)
    source = session.source
    shown = hosts.Enrolment(str(KnownHosts(source.directory).path), [])
    timeout_s = session.options.timeout_s
    stored = False
    for targets in hosts.stages_of(source, nodes or (), session.env):
        with session.progress() as progress:
            on_done = partial(progress.update, "machines", total=len(targets))
            found = hosts.look_at_keys(source, targets, session.env, on_done, timeout_s)
        rows = [row for row, _ in found]
        shown.hosts.extend(rows)
        if dry_run:
            continue
        so_far = "the keys accepted before are stored" if stored else "nothing was changed"
        try:
            hosts.check_unchanged(rows, replace or (), so_far)
            if not _agrees(session, [r for r in rows if r.state in ("new", "changed")], yes):
                raise RefusedProblem(f"declined; {so_far}")
        except RefusedProblem as error:
            if not stored:
                raise
            raise Partly(error.what, why=error.why, next=error.next or "iotctl cluster trust") from None
        hosts.accept(source, found)
        stored |= any(r.state in ("new", "changed") for r in rows)
    session.output.emit("cluster-trust", shown, lambda: _trust_tables(shown))
    if any(h.state == "unreachable" for h in shown.hosts):
        return Exit.UNREACHABLE
    session.output.note(f"next: iotctl cluster {'trust' if dry_run else 'check'}")
    return Exit.DONE


def _agrees(session: Session, new: list[EnrolledHost], yes: bool) -> bool:
    if not new:
        return True
    for row in new:
        session.output.note(f"{row.node}: {row.host} {row.type} {row.fingerprint} ({row.state})")
    these = "this key" if len(new) == 1 else f"these {len(new)} keys"
    return session.agrees(f"trust {these} (compare the fingerprints with the machines' consoles)?", yes=yes)


@step(READS)
def check(ctx: typer.Context, nodes: Names = None) -> int:
    """Check whether every machine can run its node.

    The checks are of clock, disk, ports, Python, limits and names.
    """
    from iotctl.errors import Exit
    from iotctl.lifecycle.hosts import check_hosts

    session = session_of(ctx)
    source = session.source
    with session.progress() as progress:
        on_done = partial(progress.update, "machines", total=len(nodes or source.file.nodes))
        found = check_hosts(source, nodes or (), session.env, on_done, session.options.timeout_s)
    session.output.emit("cluster-check", found, lambda: _check_tables(found))
    if found.unreachable:
        return Exit.UNREACHABLE
    return Exit.REFUSED if found.errors else Exit.DONE


def _trust_tables(e: Enrolment) -> list[Table | str]:
    from iotctl.output.table import Table

    rows = [(h.node, h.host, h.type or "-", h.fingerprint or "-", h.state) for h in e.hosts]
    lines = [f"{h.node}: {h.error}" for h in e.hosts if h.error]
    table = Table(("node", "host", "key", "fingerprint", "state"), rows)
    return [table, *(["\n".join(lines)] if lines else []), f"accepted keys are stored in {e.file}"]


def _check_tables(c: HostsChecked) -> list[Table | str]:
    from iotctl.humanize import bytes_text
    from iotctl.output.table import Table

    rows = []
    for h in c.hosts:
        f = h.facts
        if f is None:
            rows.append((h.node, h.host, "unreachable", *["-"] * 7))
            continue
        rows.append(
            (
                h.node,
                h.host,
                f"{f.system} {f.arch}",
                f.python.partition(" ")[2] or "-",
                str(f.cpus),
                bytes_text(f.memory_bytes),
                bytes_text(f.data_free_bytes),
                "?" if f.clock_ms is None else f"{f.clock_ms:+.0f} ms",
                f.user,
                f.release,
            )
        )
    headers = ("node", "host", "system", "python", "cpus", "memory", "disk free", "clock", "user", "kernel")
    shown: list[Table | str] = [Table(headers, rows, wide=2)]
    if c.findings:
        problems = [(f.severity, f.node, f.message, f.next) for f in c.findings]
        shown.append(Table(("severity", "node", "what", "next"), problems))
    else:
        shown.append(f"found no problem on {len(c.hosts)} machines")
    return shown

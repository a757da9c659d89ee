"""`iotctl cluster finalize-upgrade`: the end of an upgrade."""

from __future__ import annotations

import typer

from iotctl.cli.options import DryRun, Yes
from iotctl.cli.session import now_ms, session_of
from iotctl.playbook.traits import Traits, step


def register(app: typer.Typer) -> None:
    app.command("finalize-upgrade")(finalize_upgrade)


@step(Traits(inspect=lambda look, use: look.would(use), is_whole=True))
def finalize_upgrade(ctx: typer.Context, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Enable the new release's features on all nodes.

    Every node must run the new release.

    This raises the cluster's feature level to the highest level that all nodes support. Until then, every
    node can go back to the previous release; afterwards, none can.
    """
    import msgspec

    from iotctl.change.levels import await_level, behind, feature_level, raise_level
    from iotctl.cli import views
    from iotctl.observe.status import cluster_status

    session = session_of(ctx)
    found = feature_level(cluster_status(session.cluster, session.source, now_ms=now_ms()))
    todo = f"raise the feature level from {found.level} to {found.possible}"
    is_due = found.possible > found.level
    if dry_run:
        if is_due:
            return session.output.would(todo)
        late = behind(session.cluster, found.level)
        waits = [f"wait for {', '.join(late)} to apply feature level {found.level}"] if late else []
        return session.output.would(*waits)
    if is_due:
        question = f"{todo}? No node of {session.source.name} can go back to the previous release afterwards."
        session.confirm(question, yes=yes)
        raise_level(session.cluster, found.possible, session.operator, lock=session.check_lock())
        found = msgspec.structs.replace(found, level=found.possible)
    await_level(session.cluster, found.level)
    session.output.emit("cluster-feature-level", found, lambda: views.level_tables(found))

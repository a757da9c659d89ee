"""`iotctl plan`: show what a change would do, without making it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from iotctl.cli.option_sets import with_option_sets
from iotctl.cli.options import AcceptLayout, Nodes, one_of, rate_option
from iotctl.cli.session import Session, session_of
from iotctl.playbook.traits import READS, Traits, step

if TYPE_CHECKING:
    from iotctl.plan.facts import ClusterFacts
    from iotctl.plan.model import Plan

app = typer.Typer(help="Show what a change would do, without making it.", invoke_without_command=True)

Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Save the plan for `iotctl apply`.")]
FromStatus = Annotated[
    str | None,
    typer.Option(
        "--from-status", metavar="FILE", help="Plan from a saved output of `cluster slots -o json`."
    ),
]
Detailed = Annotated[
    bool, typer.Option("--detailed-exitcode", help="Exit with 8 if the plan changes something.")
]


@dataclass(frozen=True)
class PlanOptions:
    """Where a plan gets its facts, and where it goes."""

    rate: Annotated[
        str,
        rate_option(
            "Copy rate to estimate the time with, such as 200MB/s; auto assumes 32 MiB/s. The rate of the"
            " change itself is an option of `apply`."
        ),
    ] = "auto"
    out: Out = None
    detailed_exitcode: Detailed = False
    from_status: FromStatus = None

    def facts(self, session: Session, *, write_rates: bool = False) -> ClusterFacts:
        """The facts of the live cluster, or of a saved status."""
        from iotctl.observe.facts import plan_facts, saved_facts
        from iotctl.spec.units import parse_rate

        bytes_per_s = parse_rate(self.rate)
        if self.from_status is not None:
            return saved_facts(session.cwd / self.from_status, session.source, rate=bytes_per_s)
        return plan_facts(session.cluster, session.source, rate=bytes_per_s, write_rates=write_rates)[0]

    def show(self, session: Session, plan: Plan) -> int:
        return show_plan(session, plan, out=self.out, detailed=self.detailed_exitcode)


@app.callback()
def plan(ctx: typer.Context) -> int | None:
    """Show what a change would do, without making it. Without a command: `plan spec`."""
    return spec(ctx) if ctx.invoked_subcommand is None else None


@app.command("spec")
@step(Traits(reads=True, looks=True, inspect=lambda look, use: look.plan(use)))
def spec(
    ctx: typer.Context,
    accept_layout: AcceptLayout = False,
    out: Out = None,
    detailed_exitcode: Detailed = False,
) -> int:
    """Plan how to make the cluster match cluster.yaml.

    The plan names the nodes to add, remove and replace.
    """
    from iotctl.change.convergence import spec_plan

    session = session_of(ctx)
    made, _ = spec_plan(session.cluster, session.source, allow_remove=True, accept_layout=accept_layout)
    code = show_plan(session, made, out=out, detailed=detailed_exitcode)
    if made.leaving:
        session.output.note(f"only `iotctl apply --allow-remove` removes {', '.join(made.leaving)}")
    return code


@app.command("add-node")
@step(Traits(reads=True, looks=True, inspect=lambda look, use: look.plan(use)))
@with_option_sets
def add_node(
    ctx: typer.Context,
    names: Nodes,
    after: Annotated[
        str | None, typer.Option(help="Place the new nodes after this node on the ring.")
    ] = None,
    accept_layout: AcceptLayout = False,
    *,
    options: PlanOptions,
) -> int:
    """Plan adding nodes."""
    from iotctl.plan.make import make_add

    session = session_of(ctx)
    facts = options.facts(session)
    made = make_add(facts, names, after, accept_layout=accept_layout)
    return options.show(session, made)


@app.command("remove-node")
@step(Traits(reads=True, looks=True, inspect=lambda look, use: look.plan(use)))
@with_option_sets
def remove_node(
    ctx: typer.Context,
    names: Nodes,
    accept_layout: AcceptLayout = False,
    *,
    options: PlanOptions,
) -> int:
    """Plan removing nodes."""
    from iotctl.plan.make import make_remove

    session = session_of(ctx)
    facts = options.facts(session)
    made = make_remove(facts, names, accept_layout=accept_layout)
    return options.show(session, made)


@app.command("replace-node")
@step(Traits(reads=True, looks=True, inspect=lambda look, use: look.plan(use)))
@with_option_sets
def replace_node(
    ctx: typer.Context,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The node that leaves.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The node that takes its place.")],
    accept_layout: AcceptLayout = False,
    *,
    options: PlanOptions,
) -> int:
    """Plan replacing a node with a new node."""
    from iotctl.plan.make import make_replace

    session = session_of(ctx)
    facts = options.facts(session)
    made = make_replace(facts, old, new, accept_layout=accept_layout)
    return options.show(session, made)


def _strategy(text: str) -> str:
    from iotctl.plan.make import STRATEGIES

    return one_of(*STRATEGIES)(text)


@app.command("rebalance")
@step(Traits(reads=True, looks=True, inspect=lambda look, use: look.plan(use)))
@with_option_sets
def rebalance(
    ctx: typer.Context,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="slots|bytes|write-rate",
            parser=_strategy,
            help="What to balance between the groups.",
        ),
    ] = "slots",
    max_moves: Annotated[
        int | None,
        typer.Option(
            "--max-moves", min=1, metavar="N", help="Move at most N slots, the most effective first."
        ),
    ] = None,
    *,
    options: PlanOptions,
) -> int:
    """Plan to move slots between the existing groups.

    The plan adds and removes no nodes.
    """
    from iotctl.plan.make import make_rebalance

    session = session_of(ctx)
    facts = options.facts(session, write_rates=True)
    plan = make_rebalance(facts, strategy, max_moves)
    return options.show(session, plan)


def _why_empty(plan: Plan) -> str:
    """Why the plan is empty."""
    from nodeagent.partition.loads import EVEN

    if plan.kind != "rebalance":
        return "cluster.yaml and the cluster have the same nodes"
    ratio = plan.summary.max_over_mean_after
    if plan.strategy == "slots":
        return "nothing to move: the slots are even"
    if ratio is None or ratio <= EVEN:
        return f"nothing to move: no group has more than {EVEN} times the mean"
    return (
        f"nothing to move: whole slots allow at best {ratio:.2f} times the mean for the most loaded group;"
        " see the hot slots"
    )


@app.command("show")
@step(READS)
def show(
    ctx: typer.Context, file: Annotated[str, typer.Argument(metavar="PLAN", help="A saved plan.")]
) -> None:
    """Show a saved plan."""
    session = session_of(ctx)
    _emit(session, load_plan(session.cwd / file))


def show_plan(session: Session, plan: Plan, *, out: str | None, detailed: bool) -> int:
    """Print and save the plan; if `detailed`, the exit code says whether it changes something."""
    from iotctl.change.execute import check_plan
    from iotctl.change.lock import plan_digest
    from iotctl.errors import Exit, InputProblem
    from iotctl.plan.apply import to_json, to_yaml

    if not plan.refusals:
        _emit(session, plan)
    check_plan(plan)
    if out is not None:
        path = session.cwd / out
        try:
            path.write_text(to_json(plan) if path.suffix == ".json" else to_yaml(plan))
        except OSError as error:
            raise InputProblem(
                "the plan cannot be saved", why=error.strerror or str(error), where=str(path)
            ) from None
        session.output.note(f"saved with digest {plan_digest(plan)}; next: iotctl apply {out}")
    return Exit.PENDING if detailed and plan.has_changes else Exit.DONE


def load_plan(path: Path) -> Plan:
    """Raises `InputProblem` if the file is not a plan."""
    from iotctl.errors import InputProblem
    from iotctl.plan.apply import from_json, from_yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputProblem(
            "the plan cannot be read", why=getattr(error, "strerror", None) or str(error), where=str(path)
        ) from None
    return from_json(text, str(path)) if path.suffix == ".json" else from_yaml(text, str(path))


def _emit(session: Session, plan: Plan) -> None:
    from iotctl.cli import views

    empty = [] if plan.has_changes else [_why_empty(plan)]
    session.output.emit("plan", plan, lambda: [*empty, *views.plan_tables(plan)])

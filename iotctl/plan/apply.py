"""Loads a saved plan, checks that it is still valid, and turns its steps into changes."""

from collections.abc import Sequence

import msgspec
import yaml

from iotctl.errors import InputProblem, RefusedProblem
from iotctl.plan.model import FORMAT_VERSION, Plan
from iotctl.spec.typed_yaml import load_texts
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.errors import NodeAgentError
from nodeagent.partition.change import Change, ChangeKind, change_between
from nodeagent.partition.ranges import SlotRanges, count, from_slots
from nodeagent.partition.ring import RingNode
from nodeagent.partition.table import PartitionTable

_MAKE = (
    "make a plan, for example with `iotctl plan add-node NODE --out FILE` or `iotctl plan spec --out FILE`"
)


def to_json(plan: Plan) -> str:
    return msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()


def to_yaml(plan: Plan) -> str:
    return yaml.safe_dump(msgspec.to_builtins(plan), sort_keys=False, allow_unicode=True)


def from_json(text: str | bytes, where: str = "") -> Plan:
    """Raises `InputProblem` for anything but a plan of this format."""
    try:
        return _known(msgspec.json.decode(text, type=Plan), where)
    except RecursionError as error:
        raise InputProblem(
            "this is not a plan", why="the file is nested too deeply", next=_MAKE, where=where
        ) from error
    except UNDECODABLE as error:
        raise InputProblem("this is not a plan", why=str(error), next=_MAKE, where=where) from error


def from_yaml(text: str, where: str = "") -> Plan:
    """Raises `InputProblem` for anything but a plan of this format."""
    try:
        plan = msgspec.convert(load_texts(text, where), Plan, strict=False)
    except InputProblem as error:
        raise InputProblem("this is not a plan", why=error.what, next=_MAKE, where=error.where) from error
    except msgspec.ValidationError as error:
        raise InputProblem("this is not a plan", why=str(error), next=_MAKE, where=where) from error
    return _known(plan, where)


def _known(plan: Plan, where: str) -> Plan:
    if plan.format_version != FORMAT_VERSION:
        why = f"format_version is {plan.format_version}; this release reads {FORMAT_VERSION}"
        raise InputProblem("this plan has an unknown format", why=why, next=_MAKE, where=where)
    return plan


def plan_again(plan: Plan) -> str:
    """The command that plans the same change for the present state."""
    named = [n for s in plan.steps for n in (s.replaces, s.node) if n]
    words = ["spec"] if plan.from_spec else [plan.kind, *named]
    return " ".join(["iotctl plan", *words, *plan.options, "--out FILE"])


def check_fresh(plan: Plan, table_version: int, spec_hash: str) -> None:
    """Raises `RefusedProblem` for a plan that was made for another table or another cluster.yaml."""
    if plan.table_version != table_version:
        why = f"it was made for table version {plan.table_version}; the cluster has {table_version}"
        raise RefusedProblem("the plan is stale; nothing was changed", why=why, next=plan_again(plan))
    if plan.spec_hash != spec_hash:
        raise RefusedProblem(
            "the plan is stale; nothing was changed",
            why="cluster.yaml has changed since the plan was made",
            next=plan_again(plan),
        )


def is_carried_out(plan: Plan, table: PartitionTable, changed_at: Sequence[int]) -> bool:
    """Whether `table` is the result of `plan`, reached by the plan's own changes and no others.

    Args:
        changed_at: the table version for which each completed change was made. A version is the index of a
            log entry, so versions are not consecutive.
    """
    since = sorted(v for v in changed_at if v >= plan.table_version)
    final = {m.slot: m.target for m in plan.moves}
    come = {s.node for s in plan.steps if s.kind in ("add", "replace")}
    return (
        bool(plan.steps)
        and len(since) == len(plan.steps)
        and since[0] == plan.table_version
        and all(n in table.ring for n in come.difference(plan.leaving))
        and not any(n in table.ring for n in plan.leaving)
        and all(table.route(slot) == target for slot, target in final.items())
    )


def changes_of(plan: Plan, table: PartitionTable) -> tuple[Change, ...]:
    """The changes that the plan's steps describe, starting from `table`, for which the plan was made.

    Raises:
        RefusedProblem: the plan was refused when it was made, or is stale.
        InputProblem: its moves and steps do not match the table (an edited file).
    """
    if plan.refusals:
        raise RefusedProblem("the plan was refused", why=plan.refusals[0].reason, next=plan.refusals[0].next)
    check_fresh(plan, table.version, plan.spec_hash)
    changes: list[Change] = []
    taken = 0
    try:
        for step in plan.steps:
            current = changes[-1].new if changes else table
            moves = plan.moves[taken : taken + step.slots]
            taken += step.slots
            if len(moves) < step.slots or any(current.route(m.slot) != m.source for m in moves):
                raise InputProblem(
                    f"the moves of step {step.kind} {step.node} do not match the partition table",
                    next=plan_again(plan),
                )
            gains: dict[str, SlotRanges] = {
                target: from_slots(m.slot for m in moves if m.target == target)
                for target in dict.fromkeys(m.target for m in moves)
            }
            if sum(map(count, gains.values())) != step.slots:
                raise InputProblem(f"step {step.kind} {step.node} moves a slot twice", next=plan_again(plan))
            kind = ChangeKind(step.kind)
            ring = current.ring
            if kind is ChangeKind.ADD:
                ring = ring.adding(RingNode(step.node, step.position, step.weight))
            elif kind is ChangeKind.REMOVE:
                ring = ring.removing(step.node)
            elif kind is ChangeKind.REPLACE:
                place = RingNode(step.node, step.position, step.weight)
                ring = ring.removing(step.replaces).adding(place)
            new = current.moved(gains, ring, current.version + 1)
            changes.append(change_between(kind, step.node, current, new, plan.replicas))
    except (NodeAgentError, ValueError) as error:
        raise InputProblem(
            "the plan does not match the partition table", why=str(error), next=plan_again(plan)
        ) from error
    if taken != len(plan.moves):
        raise InputProblem("the plan has moves that belong to no step", next=plan_again(plan))
    return tuple(changes)

"""Saved plans: loaded completely, refused if stale or edited, and executed exactly as shown."""

from itertools import pairwise

import msgspec
import pytest

from iotctl.errors import InputProblem, RefusedProblem
from iotctl.plan.apply import (
    changes_of,
    check_fresh,
    from_json,
    from_yaml,
    is_carried_out,
    to_json,
    to_yaml,
)
from iotctl.plan.make import make_add, make_rebalance, make_remove, make_replace
from iotctl.plan.model import Plan, SlotMove
from nodeagent.partition.change import ChangeKind
from nodeagent.partition.planner import plan_adds

from .cases import facts_of

FACTS = facts_of(6, 120, dict.fromkeys(range(0, 120, 2), 5))
SKEWED = facts_of(7, 122, {0: 5, 7: 5, 14: 5})
PLANS = {
    "add": make_add(FACTS, ["x", "y"]),
    "remove": make_remove(FACTS, ["n2", "n5"]),
    "replace": make_replace(FACTS, "n2", "x"),
    "replace by itself": make_replace(FACTS, "n2", "n2"),
    "rebalance": make_rebalance(facts_of(7, 122)),
    "refused": make_remove(FACTS, ["n9"]),
}


@pytest.mark.parametrize("name", PLANS)
def test_json_and_yaml_round_trip(name: str) -> None:
    """A plan file gives the same plan back."""
    plan = PLANS[name]
    assert from_json(to_json(plan)) == plan
    assert from_yaml(to_yaml(plan)) == plan


def test_names_that_look_like_values_round_trip() -> None:
    """YAML 1.1 takes `1e3` for text, which is written without quotes."""
    names = ["1e3", "12", "0x1f", "null", "no", "2023-01-01"]
    moves = tuple(SlotMove(i, a, b, i) for i, (a, b) in enumerate(pairwise(names)))
    plan = msgspec.structs.replace(PLANS["add"], moves=moves, spec_hash="~")
    assert from_yaml(to_yaml(plan)) == plan


def test_steps_become_the_changes_that_were_planned() -> None:
    """The executed changes are those shown: same tables, members and moves."""
    planned = plan_adds(FACTS.table, [("x", 1.0), ("y", 1.0)], None, 3, FACTS.slot_bytes)
    assert changes_of(PLANS["add"], FACTS.table) == planned
    removed = changes_of(PLANS["remove"], FACTS.table)
    assert [c.node for c in removed] == ["n2", "n5"]
    assert removed[-1].new.ring.names == ("n1", "n3", "n4", "n6")
    (move,) = changes_of(PLANS["rebalance"], facts_of(7, 122).table)
    assert move.kind is ChangeKind.MOVE


@pytest.mark.parametrize("name", ["add", "remove", "replace", "replace by itself", "rebalance"])
def test_an_executed_plan_is_recognised_by_its_table(name: str) -> None:
    """The plan is not executed before its last step, after any further change, or in another cluster."""
    plan, table = PLANS[name], facts_of(7, 122).table if name == "rebalance" else FACTS.table
    assert not is_carried_out(plan, table, [3])
    *before, last = changes_of(plan, table)
    mine = [table.version + 40 * i for i in range(len(plan.steps))]
    assert is_carried_out(plan, last.new.stamped(900), [3, *mine])
    assert not is_carried_out(plan, last.new.stamped(900), mine[:-1])
    assert not any(is_carried_out(plan, c.new.stamped(900), mine[: i + 1]) for i, c in enumerate(before))
    assert not is_carried_out(plan, last.new.stamped(900), [*mine, 800]), "another change followed the plan"
    assert not is_carried_out(plan, last.new.stamped(900), [v + 1 for v in mine]), (
        "another change preceded the plan"
    )
    assert not is_carried_out(plan, facts_of(5, 120).table.stamped(900), mine)


def test_a_plan_without_steps_never_counts_as_executed() -> None:
    assert not is_carried_out(PLANS["refused"], FACTS.table, [])


def test_stale_plan_is_refused() -> None:
    """With another table version or another cluster.yaml the plan is refused, and nothing is executed."""
    check_fresh(PLANS["add"], 7, "h")
    for version, spec_hash in ((8, "h"), (7, "other")):
        with pytest.raises(RefusedProblem, match="stale"):
            check_fresh(PLANS["add"], version, spec_hash)
    with pytest.raises(RefusedProblem, match="stale"):
        changes_of(PLANS["add"], FACTS.table.stamped(8))


@pytest.mark.parametrize(
    ("plan", "command"),
    [
        (make_add(FACTS, ["x", "y"]), "add-node x y"),
        (make_add(FACTS, ["x"], "n3"), "add-node x --after n3"),
        (make_remove(FACTS, ["n2"], accept_layout=True), "remove-node n2 --accept-layout"),
        (make_replace(FACTS, "n2", "x"), "replace-node n2 x"),
        (make_rebalance(SKEWED), "rebalance"),
        (make_rebalance(SKEWED, "bytes", 3), "rebalance --strategy bytes --max-moves 3"),
    ],
)
def test_a_stale_plan_names_the_command_that_made_it(plan: Plan, command: str) -> None:
    """The command has the options that decide what changes, also after the plan was saved."""
    assert plan.has_changes
    with pytest.raises(RefusedProblem) as caught:
        check_fresh(from_yaml(to_yaml(plan)), 8, "h")
    assert caught.value.next == f"iotctl plan {command} --out FILE"


def test_refused_plan_cannot_be_executed() -> None:
    """A saved refusal stays a refusal."""
    with pytest.raises(RefusedProblem):
        changes_of(PLANS["refused"], FACTS.table)


def test_edited_plan_is_an_input_problem() -> None:
    """Moves that do not fit their steps or the table never become a change."""
    plan = PLANS["add"]
    first = plan.moves[0]
    wrong: list[Plan] = [
        msgspec.structs.replace(plan, moves=plan.moves[1:]),
        msgspec.structs.replace(plan, moves=(*plan.moves, first)),
        msgspec.structs.replace(plan, moves=(first, first, *plan.moves[2:])),
        msgspec.structs.replace(
            plan, moves=(msgspec.structs.replace(first, target="nobody"), *plan.moves[1:])
        ),
        msgspec.structs.replace(
            plan, steps=(msgspec.structs.replace(plan.steps[0], kind="melt"), plan.steps[1])
        ),
        msgspec.structs.replace(plan, moves=(msgspec.structs.replace(first, slot=5000), *plan.moves[1:])),
    ]
    for edited in wrong:
        with pytest.raises(InputProblem):
            changes_of(edited, FACTS.table)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1]", '{"kind": 3}', "kind: {", "[a]: b", "a: \0", "a: !!python/object:os.x {}"),
        *("a: 2023-99-99", "a: 0x_", "a: " + 5000 * "9", "a: !!int x", "a: !!bool x", "a: !!timestamp x"),
        *('a: "\\U00110000"', 'a: "\\UFFFFFFFF"'),
    ],
)
def test_a_file_that_is_not_a_plan_is_an_input_problem(text: str) -> None:
    """An invalid file causes an error that names its place, never a traceback."""
    with pytest.raises(InputProblem) as caught:
        from_yaml(text, "plan.yaml")
    assert caught.value.where.partition(":")[0] == "plan.yaml"
    with pytest.raises(InputProblem):
        from_json(text)


def test_another_format_is_refused() -> None:
    """A plan of a later format is not partly read."""
    with pytest.raises(InputProblem, match="format"):
        from_json(to_json(msgspec.structs.replace(PLANS["add"], format_version=2)))


def test_a_plan_nested_deeply_is_an_input_problem() -> None:
    """F15: formerly an internal error, a RecursionError."""
    for read, text in ((from_json, '{"kind": ' + "[" * 200_000), (from_yaml, "kind: " + "[" * 500)):
        with pytest.raises(InputProblem, match="not a plan"):
            read(text)

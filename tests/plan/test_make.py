"""Plans: consistent numbers, refusals that name the reason, and speed."""

import time
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iotctl.plan.apply import changes_of, to_json
from iotctl.plan.facts import ClusterFacts, NodeFacts
from iotctl.plan.make import make_add, make_rebalance, make_remove, make_replace
from iotctl.plan.model import Plan
from iotctl.plan.render import render

from .cases import facts_of


def codes(plan: Plan) -> list[tuple[str, str]]:
    return [(r.code, r.subject) for r in plan.refusals]


def test_five_to_six_moves_the_bound() -> None:
    """10 000 slots, 5 -> 6: 1 666 slots move, the least possible, and over 200 hold data."""
    plan = make_add(facts_of(5), ["n6"])
    s = plan.summary
    assert s.slots_moved == s.lower_bound_slots == len(plan.moves) == 1666
    assert s.nonempty_slots_moved >= 200
    assert s.bytes_copied == s.lower_bound_bytes > 0
    assert (s.max_minus_min_before, s.max_minus_min_after) == (0, 1)
    assert s.gap == 0
    assert {m.target for m in plan.moves} == {"n6"}
    assert sum(n.slots for n in s.after) == 10_000


def test_json_keys() -> None:
    """The published keys are present, including `from` and `to`."""
    plan = msgspec.json.decode(to_json(make_add(facts_of(5), ["n6"], after="n2")))
    assert plan.keys() >= {
        "kind", "table_version", "spec_hash", "strategy", "moves", "group_changes", "summary", "hot_slots",
        "refusals", "format_version",
    }  # fmt: skip
    assert plan["moves"][0].keys() == {"slot", "from", "to", "bytes"}
    assert plan["group_changes"][0].keys() >= {"group", "joins", "leaves", "bytes"}
    assert plan["summary"].keys() >= {
        "slots_moved", "lower_bound_slots", "bytes_copied", "lower_bound_bytes", "max_minus_min_before",
        "max_minus_min_after", "before", "after", "peak_disk", "eta_s",
    }  # fmt: skip
    assert (plan["kind"], plan["table_version"], plan["spec_hash"]) == ("add-node", 7, "h")
    groups = [(g["group"], g["joins"], g["leaves"]) for g in plan["group_changes"]]
    assert groups == [
        ("n1", ["n6"], ["n3"]), ("n2", ["n6"], ["n4"]), ("n6", ["n6", "n3", "n4"], []),
    ]  # fmt: skip


def test_a_small_removal_matches_a_manual_calculation() -> None:
    """4 nodes, one byte per slot, R = 3, remove n4: every byte of the plan is accounted for."""
    plan = make_remove(facts_of(4, 12, dict.fromkeys(range(12), 1), rate_bytes_per_s=2), ["n4"])
    s = plan.summary
    # n4's 3 slots go one each to n1, n2, n3; old D(4) = {4,1,2}: only n3 pulls each of them (3 bytes).
    # D(2) = {2,3,4} -> {2,3,1} and D(3) = {3,4,1} -> {3,1,2}: a joiner pulls 3 bytes each.
    assert s.slots_moved == 3 and s.bytes_copied == 9 == s.lower_bound_bytes and s.eta_s == 5
    catch_up = {g.group: g.bytes for g in plan.group_changes}
    assert catch_up == {"n2": 3, "n3": 3, "n4": 0}
    peaks = {p.node: (p.bytes, p.copied_bytes) for p in s.peak_disk}
    assert peaks == {"n1": (12, 3), "n2": (12, 3), "n3": (12, 3), "n4": (9, 0)}
    assert {n.node: n.bytes for n in s.after} == {"n1": 12, "n2": 12, "n3": 12}


@given(st.integers(3, 7), st.integers(1, 3), st.integers(0, 2**32), st.booleans())
@settings(max_examples=40, deadline=None)
def test_numbers_agree_with_each_other(n: int, k: int, seed: int, add: bool) -> None:
    """Copied bytes = what nodes copy; after = before + copied - dropped; no slot twice; spread <= 1."""
    rng = np.random.default_rng(seed)
    facts = facts_of(n + k, 90, {int(s): int(rng.integers(1, 99)) for s in rng.choice(90, 50, replace=False)})
    names = [f"x{i}" for i in range(k)] if add else [f"n{i + 1}" for i in rng.permutation(n + k)[:k]]
    plan = make_add(facts, names) if add else make_remove(facts, names)
    s = plan.summary
    assert not plan.refusals and [x.node for x in plan.steps] == names
    assert (
        s.bytes_copied == sum(p.copied_bytes for p in s.peak_disk) == sum(x.bytes_copied for x in plan.steps)
    )
    assert s.bytes_copied >= s.lower_bound_bytes
    assert (s.gap is None) == (not s.lower_bound_bytes) and (s.gap or 0) >= 0
    assert {c for x in plan.steps for c in x.copies} == {p.node for p in s.peak_disk if p.copied_bytes}
    assert s.copying_at_once_max == max(len(x.copies) for x in plan.steps)
    assert s.eta_s <= sum(x.eta_s for x in plan.steps) <= s.eta_s + len(plan.steps)
    assert len({m.slot for m in plan.moves}) == len(plan.moves) == s.slots_moved == s.lower_bound_slots
    assert s.max_minus_min_after <= 1
    after = {x.node: x.bytes for x in s.after}
    before = {x.node: x.bytes for x in s.before}
    for p in s.peak_disk:
        assert after.get(p.node, 0) <= p.bytes and before.get(p.node, 0) <= p.bytes
        assert after.get(p.node, 0) <= before.get(p.node, 0) + p.copied_bytes
    assert sum(after.values()) == 3 * sum(facts.slot_bytes.values())


def test_refused_plans_give_the_reason_and_move_nothing() -> None:
    """Each precondition has its own code and subject; a refused plan has no step."""
    facts = facts_of(5)
    plans = {
        ("node_exists", "n1"): make_add(facts, ["n1"]),
        ("unknown_node", "n9"): make_add(facts, ["n6"], after="n9"),
        ("invalid_name", "N 6"): make_add(facts, ["N 6"]),
        ("invalid_weight", "n6"): make_add(replace(facts, weights={"n6": 0.0}), ["n6"]),
        ("named_twice", "n6"): make_add(facts, ["n6", "n6"]),
        ("no_node", ""): make_remove(facts, []),
        ("unknown_node", "n8"): make_remove(facts, ["n8"]),
        ("cluster_too_small", "n3"): make_remove(facts, ["n1", "n2", "n3"]),
    }
    for expected, plan in plans.items():
        assert codes(plan) == [expected]
        assert not (plan.moves or plan.steps or plan.group_changes or plan.summary.bytes_copied)
        assert all(r.reason and r.next for r in plan.refusals)
        (table,) = render(plan)
        assert table.title == "refused"


def test_three_nodes_with_three_replicas_cannot_lose_one() -> None:
    """Only a cluster of more than R nodes can lose one."""
    assert codes(make_remove(facts_of(3), ["n1"])) == [("cluster_too_small", "n1")]


def test_full_disk_is_refused_by_name() -> None:
    """A node with less free disk than it would copy is named."""
    plan = make_add(facts_of(5, nodes={"n6": NodeFacts(disk_free_bytes=10)}), ["n6"])
    assert codes(plan) == [("disk_full", "n6")]
    roomy = make_add(facts_of(5, nodes={"n6": NodeFacts(disk_free_bytes=1 << 40)}), ["n6"])
    assert not roomy.refusals


def test_group_without_quorum_is_refused_by_name() -> None:
    """Two of {n1,n2,n3} down: that group cannot seal, so nothing is planned. One down is acceptable."""
    down = NodeFacts(live=False)
    plan = make_add(facts_of(7, nodes={"n2": down, "n3": down}), ["n8"])
    assert {("no_quorum", "n1"), ("no_quorum", "n2")} <= set(codes(plan))


def test_a_recovered_group_is_judged_by_the_members_it_has() -> None:
    """n2 and n3 were declared lost: n1 and n4 are the only members of their groups, and alive."""
    down = NodeFacts(live=False)
    facts = facts_of(7, nodes={"n2": down, "n3": down})
    assert {("no_quorum", "n1"), ("no_quorum", "n2")} <= set(codes(make_remove(facts, ["n2"])))
    recovered = replace(facts, members={"n1": ("n1",), "n2": ("n4",)})
    assert not make_remove(recovered, ["n2"]).refusals
    assert not make_remove(facts_of(5, nodes={"n2": down}), ["n2"]).refusals
    assert codes(make_add(facts_of(5, nodes={"n6": down}), ["n6"])) == [("unreachable", "n6")]


def test_hot_slots_are_shown_largest_first() -> None:
    """A slot of many times the mean is listed with its group: a slot cannot be split."""
    data = {**dict.fromkeys(range(100), 10), 5: 5000, 9900: 9000}
    hot = make_add(facts_of(5, data=data), ["n6"]).hot_slots
    assert [(h.slot, h.owner) for h in hot] == [(9900, "n5"), (5, "n1")]


def test_a_hot_slot_is_listed_by_its_share_of_the_group() -> None:
    """A slot with more than a fifth of its group's bytes or writes is listed with both shares and advice."""
    data = {**dict.fromkeys(range(0, 2000, 50), 10), 5: 200, 3000: 10, 3001: 10, 3002: 10, 3003: 10, 3004: 10}
    rates = {0: 1.0, 50: 1.5, 2001: 9.0, 4000: 3.0, 4001: 3.0, 4002: 3.0, 4003: 3.0, 4004: 3.0}
    facts = facts_of(5, data=data)
    plan = make_rebalance(replace(facts, write_rates=rates), "bytes")
    shares = {h.slot: (h.owner, h.bytes_share, h.write_share) for h in plan.hot_slots}
    assert shares == {
        5: ("n1", 0.333, 0.0), 2001: ("n2", 0.0, 1.0), 50: ("n1", 0.017, 0.6), 0: ("n1", 0.017, 0.4),
    }  # fmt: skip
    assert all("cannot be split" in h.advice for h in plan.hot_slots)
    assert plan.hot_slots[0].slot in (5, 2001), "slots with the largest share of the cluster come first"
    (table,) = [t for t in render(plan) if t.title.startswith("hot slots")]
    assert "storage groups" in table.title and len(table.rows) == 4


def skewed() -> ClusterFacts:
    """Most bytes are in n1, most writes in n2, and the numbers of slots are as even as possible."""
    rng = np.random.default_rng(8)
    data = {s: int(rng.integers(1, 100)) * (40 if s < 200 else 1) for s in range(1000)}
    rates = {s: float(rng.random()) * (90 if 200 <= s < 400 else 1) for s in range(1000)}
    return replace(facts_of(5, 1000, data), write_rates=rates)


def level(plan: Plan, of: str) -> tuple[float, float]:
    """Maximum over mean, before and after."""
    sides = [[getattr(g, f"{of}_{side}") for g in plan.group_loads] for side in ("before", "after")]
    before, after = (max(s) * len(s) / sum(s) for s in sides)
    return before, after


@pytest.mark.parametrize("strategy,of", [("bytes", "bytes"), ("write-rate", "write_bytes_per_s")])
def test_a_rebalance_balances_the_requested_load(strategy: str, of: str) -> None:
    """Over 1.1 before, at most 1.1 after, moves within 1.3 times the bound; the summary says the same."""
    plan = make_rebalance(skewed(), strategy)
    s = plan.summary
    before, after = level(plan, of)
    assert before > 1.5 and after <= 1.1
    assert (s.max_over_mean_before, s.max_over_mean_after) == pytest.approx((before, after), abs=0.01)
    assert 0 < s.lower_bound_slots <= s.slots_moved <= 1.3 * s.lower_bound_slots
    assert plan.strategy == strategy and not plan.group_changes
    assert [(x.kind, x.node, x.slots) for x in plan.steps] == [("move", "", s.slots_moved)]
    assert s.bytes_copied == s.lower_bound_bytes > 0


def test_the_bound_respects_that_slots_cannot_be_split() -> None:
    """One giant slot stays above 1.1 whatever moves: the bound accounts for it and never exceeds the plan."""
    data = {0: 10_000, **dict.fromkeys(range(1, 20), 10), **dict.fromkeys(range(2000, 2040), 60)}
    s = make_rebalance(facts_of(5, data=data), "bytes").summary
    assert s.max_over_mean_after is not None and s.max_over_mean_after > 1.1
    assert 0 < s.lower_bound_slots <= s.slots_moved
    alone = make_rebalance(facts_of(5, data={0: 10_000}), "bytes").summary
    assert (alone.slots_moved, alone.lower_bound_slots) == (0, 0)


def test_balanced_slots_are_left_alone_by_the_slots_strategy() -> None:
    """The same cluster is balanced by slots."""
    plan = make_rebalance(skewed(), "slots")
    assert not plan.has_changes and plan.summary.max_over_mean_after == 1.0


@pytest.mark.parametrize("strategy", ["slots", "bytes", "write-rate"])
def test_max_moves_takes_the_most_useful_slots(strategy: str) -> None:
    """At most N slots move; each further slot makes the largest group smaller or leaves it unchanged."""
    facts = skewed()
    if strategy == "slots":
        new = facts.table.moved({"n1": ((200, 260),)}, facts.table.ring, 7)
        facts = replace(facts, table=new)
    ratios = []
    for n in (1, 5, 25):
        plan = make_rebalance(facts, strategy, n)
        assert plan.summary.slots_moved == n
        assert plan.summary.max_over_mean_after is not None
        ratios.append(plan.summary.max_over_mean_after)
    assert ratios == sorted(ratios, reverse=True) and ratios[0] > ratios[-1]


def test_a_rebalance_needs_both_groups_alive() -> None:
    """Both the losing and the gaining group must write to their logs."""
    down = NodeFacts(live=False)
    facts = replace(skewed(), nodes={"n4": down, "n5": down})
    assert ("no_quorum", "n4") in codes(make_rebalance(facts, "bytes"))


def test_empty_cluster_is_planned_by_slots() -> None:
    """Without data there is nothing to copy, but the slots still move."""
    plan = make_add(facts_of(5, data={}), ["n6"])
    assert (plan.strategy, plan.summary.slots_moved, plan.summary.bytes_copied) == ("slots", 1666, 0)
    assert not plan.hot_slots


def test_rebalance_of_a_balanced_cluster_is_an_empty_plan() -> None:
    """Applying twice changes nothing."""
    assert not make_rebalance(facts_of(5)).has_changes
    plan = make_rebalance(facts_of(7))
    assert plan.has_changes and plan.summary.max_minus_min_after <= 1 and not plan.group_changes


def test_render_shows_every_node_and_flow() -> None:
    """Tables carry the plan's numbers; moves are summed per pair."""
    plan = make_add(facts_of(5), ["n6", "n7"])
    tables = {t.title: t for t in render(plan)}
    assert all(len(r) == len(t.columns) for t in tables.values() for r in t.rows)
    assert [r[0] for r in tables["nodes"].rows] == ["n1", "n2", "n3", "n4", "n5", "n6", "n7"]
    assert sum(int(r[2] or 0) for r in tables["moves"].rows) == plan.summary.slots_moved
    assert len(tables["steps"].rows) == 2


@pytest.mark.parametrize("verb", ["add", "add ten", "remove"])
def test_a_thousand_nodes_in_two_seconds(verb: str) -> None:
    """1 000 nodes and 100 000 slots, all with data."""
    rng = np.random.default_rng(1)
    sizes = dict(enumerate(rng.integers(1, 1_000_000, 100_000).tolist()))
    facts = facts_of(1000, 100_000, sizes)
    begin = time.process_time()
    if verb == "remove":
        plan = make_remove(facts, ["n17"])
    else:
        plan = make_add(facts, ["x"] if verb == "add" else [f"x{i}" for i in range(10)])
    assert time.process_time() - begin < 2.0
    assert plan.summary.slots_moved == plan.summary.lower_bound_slots > 0


def test_a_node_that_replaces_itself_returns_to_its_place() -> None:
    """The machine has a new disk: no other node changes its place, and all nodes have slots again."""
    facts = facts_of(5, nodes={"n2": NodeFacts(live=False)})
    plan = make_replace(facts, "n2", "n2")
    assert not plan.refusals
    assert [(s.kind, s.node, s.after) for s in plan.steps] == [("remove", "n2", ""), ("add", "n2", "n1")]
    final = changes_of(plan, facts.table)[-1].new
    assert final.ring.names == facts.table.ring.names and max(final.counts().values()) == 2_000
    assert [r.code for r in make_replace(facts_of(3), "n2", "n2").refusals] == ["cluster_too_small"]

"""Slots to groups, the next node to ask, and which sequences are acknowledged through."""

import pickle
import random
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from nodeagent.client.retry import BACKOFF_MAX_S, HOPS_MAX, Backoff, MemberSearch
from nodeagent.client.routes import Routes, in_transition, mask_of
from nodeagent.client.sessions import WINDOW, _Slot
from nodeagent.client.spec import ClusterSpec, Endpoint, Identity
from nodeagent.client.views import Views
from nodeagent.model.errors import Unavailable
from nodeagent.model.operation import Stage
from nodeagent.partition.recovery import TERMS_BEYOND
from tests.client.fake import SETTINGS, FakeCluster


def test_moved_slots_stay_with_their_source_until_it_has_sealed() -> None:
    """The table names the new owner from PLANNED on, but only an unsealed source can answer."""
    fake = FakeCluster()
    before = Routes(fake.views[-1])
    operation = fake.plan({0, 1}, "node1.1", "node2.1")
    planned = Routes(fake.views[-1])
    fake.seal(operation)
    sealed = Routes(fake.views[-1])
    assert [r.group_of(0).group for r in (before, planned, sealed)] == ["node1.1", "node1.1", "node2.1"]
    assert sealed.group_of(2).group == "node1.1"
    assert sealed.version == before.version + 1


def test_the_next_group_of_a_slot_is_the_target_of_an_open_operation() -> None:
    fake = FakeCluster()
    operation = fake.plan({0, 1}, "node1.1", "node2.1")
    fake.seal(operation)
    routes = Routes(fake.views[-1])
    assert [routes.next_group_of(slot) for slot in (0, 1, 2)] == ["node2.1", "node2.1", None]
    fake.open(operation)
    fake.adopt(operation)
    assert Routes(fake.views[-1]).next_group_of(0) is None


@pytest.mark.parametrize("first", [False, True])
def test_a_live_group_comes_before_a_dissolving_group_of_its_owner(first: bool) -> None:
    """A node that left and rejoined owns both groups for a while; only one of them accepts writes."""
    fake = FakeCluster()
    living = fake.groups["node1.1"].record
    gone = msgspec.structs.replace(living, group="node1.0", dissolving=True)
    others = tuple(g.record for g in fake.groups.values() if g.name != "node1.1")
    both = (gone, living) if first else (living, gone)
    routes = Routes(msgspec.structs.replace(fake.views[-1], groups=(*both, *others)))
    assert routes.of_owner("node1") == routes.group_of(0) == living
    assert Routes(msgspec.structs.replace(fake.views[-1], groups=(gone, *others))).of_owner("node1") == gone


def test_slots_are_in_transition_until_their_target_group_serves_them() -> None:
    """This includes slots that a cancelled operation moves back, although their group had opened them."""
    fake = FakeCluster()
    operation = fake.plan({0, 1}, "node1.1", "node2.1")
    assert in_transition(fake.views[-1]) == ((0, 2),)
    fake.seal(operation)
    assert in_transition(fake.views[-1]) == ((0, 2),)
    fake.open(operation)
    view = fake.views[-1]
    assert in_transition(view) == ()
    cancelling = msgspec.structs.replace(view.operations[0], stage=Stage.CANCELLING)
    assert in_transition(msgspec.structs.replace(view, operations=(cancelling,))) == ((0, 2),)
    fake.adopt(operation)
    assert in_transition(fake.views[-1]) == ()


def test_legs_are_a_partition_of_the_requested_slots() -> None:
    """Each wanted slot is in exactly one leg, and no other slot is."""
    routes = Routes(FakeCluster().views[-1])
    legs = routes.legs(mask_of([0, 3, 4, 15], SETTINGS.slots))
    assert [(leg.group.owner, leg.slots) for leg in legs] == [
        ("node1", ((0, 1), (3, 4))),
        ("node2", ((4, 5),)),
        ("node4", ((15, 16),)),
    ]
    assert routes.owns("node1.1", ((0, 4),)) and not routes.owns("node1.1", ((0, 5),))


def test_a_slot_without_owner_is_an_error_not_an_empty_leg() -> None:
    """A cluster that is not formed yet must not look like an empty cluster."""
    fake = FakeCluster()
    del fake.owner[7]
    fake.publish()
    routes = Routes(fake.views[-1])
    with pytest.raises(Unavailable, match="slot 7"):
        routes.legs(np.ones(SETTINGS.slots, np.bool_))


def test_a_member_search_visits_every_member_and_limits_hints() -> None:
    """Two nodes that name each other as leader cannot cause a loop without pauses."""
    search = MemberSearch(("a", "b", "c"), "b")
    seen = [search.target]
    for _ in range(2):
        search.advance()
        seen.append(search.target)
    assert sorted(seen) == ["a", "b", "c"]
    at_once = [search.follow("b" if search.target != "b" else "c") for _ in range(HOPS_MAX + 1)]
    assert at_once == [True] * HOPS_MAX + [False]
    assert not search.follow(None)


def test_backoff_grows_to_its_bound() -> None:
    """Delays never shrink below half of the last bound, and never pass the largest."""
    backoff = Backoff(random.Random(1))
    delays = [backoff.delay_s() for _ in range(12)]
    assert delays[0] < 0.021 and max(delays) <= BACKOFF_MAX_S and delays[-1] >= BACKOFF_MAX_S / 2


def test_acknowledged_through_is_the_highest_sequence_below_which_all_have_ended() -> None:
    """Whatever the order in which writes end, an open write is never reported as acknowledged through."""
    for seed in range(20):
        rng = random.Random(seed)
        slot = _Slot()
        for sequence in range(1, WINDOW):
            slot.next = sequence + 1
            slot.open.add(sequence)
            if rng.random() < 0.6:
                slot.finish(rng.choice(sorted(slot.open)))
            assert slot.acknowledged_through == min(slot.open, default=slot.next) - 1


def test_a_spec_is_picklable_and_hides_its_key() -> None:
    """Spark sends the spec to its tasks, and its text never shows the key."""
    spec = ClusterSpec((Endpoint("", "h", 1), Endpoint("n", "h", 2)), Identity("c", "secret", "a"), 3.0)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert [e.target for e in spec.endpoints] == ["h:1", "n"]
    assert "secret" not in repr(spec)


def test_a_view_of_the_recovered_meta_group_replaces_one_of_the_lost_journal() -> None:
    """The lost journal was longer, and its table versions may be used again. Answers from it do not count."""
    views = Views(SimpleNamespace(learn=lambda *_: None), 1.0, random.Random(1))
    lost = msgspec.structs.replace(FakeCluster().views[-1], applied=200, term=7, table_version=9)
    recovered = msgspec.structs.replace(lost, applied=151, term=7 + TERMS_BEYOND, table_version=8)
    views.adopt(lost)
    views.adopt(msgspec.structs.replace(lost, applied=199, term=8))
    assert views.routes is not None and views.routes.view == lost, "an election loses nothing"
    views.adopt(recovered)
    assert views.routes.view == recovered and views.at_version(9) is None
    views.adopt(msgspec.structs.replace(lost, applied=300))
    assert views.routes.view == recovered

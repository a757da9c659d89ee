"""The role of a node in the meta group."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.meta_role import RoleWatch
from nodeagent.model.entries import Config
from nodeagent.model.ids import Owner
from nodeagent.model.meta_role import NEXT, MetaRole, path


def replica(*, voter: bool = True, leads: bool = False, hears: bool = True, stopped: str = "") -> Any:
    config = Config(("a", "b") if voter else ("b",), () if voter else ("a",))
    raft = SimpleNamespace(
        node="a",
        leader="b" if hears else None,
        term=4,
        hears_leader=lambda: hears,
        log=SimpleNamespace(config=config),
    )
    return SimpleNamespace(raft=raft, leads=leads, stopped=stopped)


BY_ROLE = {
    MetaRole.INIT: None,
    MetaRole.UNKNOWN: replica(hears=False),
    MetaRole.FOLLOWER: replica(),
    MetaRole.OBSERVER: replica(voter=False),
    MetaRole.LEADER: replica(leads=True),
}


@pytest.mark.parametrize("old,new", list(product(MetaRole, MetaRole)))
def test_a_change_of_the_role_consists_of_allowed_transitions(old: MetaRole, new: MetaRole) -> None:
    watch = RoleWatch(effects := EffectQueue(0, 0, Owner("a", "inc")))
    watch.look(BY_ROLE[old])
    effects.notes.clear()
    effects.now = 7
    watch.look(BY_ROLE[new])
    assert watch.role is new
    if old is new:
        assert not effects.notes and watch.since == 0
        return
    assert watch.since == 7
    taken = path(old, new)
    assert taken[-1] is new and len(effects.notes) == len(taken)
    assert all(b in NEXT[a] for a, b in zip((old, *taken), taken, strict=False))


def test_an_observer_votes_before_it_leads() -> None:
    assert path(MetaRole.OBSERVER, MetaRole.LEADER) == (MetaRole.FOLLOWER, MetaRole.LEADER)


def test_a_stopped_replica_has_no_known_role_and_says_why() -> None:
    watch = RoleWatch(EffectQueue(0, 0, Owner("a", "inc")))
    watch.look(replica(stopped="stopped at entry 9"))
    assert watch.role is MetaRole.UNKNOWN and watch.why == "stopped at entry 9"
    watch.look(replica())
    assert watch.why == "b leads in term 4"
    watch.look(replica(hears=False))
    assert watch.why == "no leader is heard in term 4"

"""The cluster's feature level: an entry raises it, it never falls, and only nodes that support it apply
it."""

import pytest

from nodeagent.meta import commands as c
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import EntryFailed, Refused
from nodeagent.model.features import FIRST, Levels
from nodeagent.model.requests import Accepted, ErrorReply, LockReply, NodeRecord, Reply
from nodeagent.partition.ring import initial_ring
from nodeagent.partition.table import initial_table

NEXT = Levels(FIRST, FIRST + 1)


def do(state: MetaState, command: c.Command) -> Reply:
    entry = Entry(1, int(EntryKind.COMMAND), c.encode(command))
    return state.apply(state.applied + 1, [entry])[0][1]


def test_the_level_is_raised_once_and_never_falls() -> None:
    state = MetaState(levels=NEXT)
    assert state.image.level == FIRST
    for level in (FIRST + 1, FIRST + 1, FIRST):
        assert isinstance(do(state, c.RaiseLevel(7, level, "ann")), Accepted)
        assert state.image.level == FIRST + 1
    assert [line for line in state.image.audit if "level" in line[2]] == [(7, "ann", "feature level 2")]
    assert MetaState.decode(state.encode(), NEXT).image.level == FIRST + 1


def test_a_new_cluster_begins_at_the_level_of_its_first_entry() -> None:
    ring = initial_ring(["a"])
    nodes = (NodeRecord("a", "a", 1, 2, "inc-a", 0),)
    settings = ClusterSettings(name="plant", replicas=1, slots=8)
    first = c.Bootstrap(1, "c-1", settings, nodes, initial_table(ring, 8).to_wire(), FIRST + 1)
    state = MetaState(levels=NEXT)
    assert isinstance(do(state, first), Accepted) and state.image.level == FIRST + 1
    with pytest.raises(EntryFailed, match="feature level 2"):
        do(MetaState(levels=Levels(FIRST, FIRST)), first)


def test_a_node_that_does_not_support_the_level_stops_with_the_reason() -> None:
    """The entry is not applied: the state is as before it."""
    state = MetaState()
    with pytest.raises(EntryFailed) as failed:
        do(state, c.RaiseLevel(7, 99, "ann"))
    assert failed.value.why.startswith("the cluster is at feature level 99, but this node supports")
    assert state.image.level == FIRST and not state.image.audit


@pytest.mark.parametrize(
    ("levels", "step"),
    [(Levels(1, 2), "iotctl cluster upgrade"), (Levels(4, 5), "iotctl cluster finalize-upgrade")],
)
def test_a_state_of_another_level_is_refused(levels: Levels, step: str) -> None:
    """The level is too new for an old release, or too old for a release that no longer supports it."""
    state = MetaState(levels=Levels(1, 3))
    do(state, c.RaiseLevel(7, 3, "ann"))
    with pytest.raises(Refused, match=f"feature level 3, but this node supports {levels}") as refused:
        MetaState.decode(state.encode(), levels)
    assert refused.value.next_step.endswith(step)


def test_a_sender_without_the_lock_does_not_raise_the_level() -> None:
    state = MetaState(levels=NEXT)
    lock = do(state, c.TakeLock(5, "ann", "an upgrade", "ann", 30_000))
    assert isinstance(lock, LockReply)
    refused = do(state, c.RaiseLevel(7, FIRST + 1, "bob", lock.lock.serial + 1))
    assert isinstance(refused, ErrorReply) and state.image.level == FIRST
    assert isinstance(do(state, c.RaiseLevel(7, FIRST + 1, "ann", lock.lock.serial)), Accepted)
    assert state.image.level == FIRST + 1

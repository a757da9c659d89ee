"""Persist before send: a message leaves once everything that it promises is durable."""

import random

from nodeagent.host.outbox import Outbox
from nodeagent.model.entries import HardState, LogOp, SetHard
from nodeagent.model.raft_messages import Heartbeat


def op(group: str) -> list[LogOp]:
    return [SetHard(group, HardState(1, "a"))]


def sent(outbox: Outbox) -> list[int]:
    return [r.message.term for _, frame in outbox.take_sends() for r in frame]


def test_a_promise_waits_for_its_batch() -> None:
    outbox = Outbox()
    outbox.persist("g", op("g"))
    outbox.send_after("b", "g", Heartbeat(1, 0))
    outbox.send("b", "g", Heartbeat(2, 0))
    taken = outbox.take_persist()
    assert taken is not None and sent(outbox) == [2]
    outbox.completed(taken[0])
    assert sent(outbox) == [1]


def test_a_promise_of_a_later_turn_waits_for_the_group_s_earlier_batch() -> None:
    outbox = Outbox()
    outbox.persist("g", op("g"))
    first = outbox.take_persist()
    outbox.persist("h", op("h"))
    second = outbox.take_persist()
    assert first is not None and second is not None
    outbox.send_after("b", "g", Heartbeat(1, 0))
    outbox.send_after("b", "h", Heartbeat(2, 0))
    outbox.send_after("b", "idle", Heartbeat(3, 0))
    assert sent(outbox) == [3]
    outbox.completed(first[0])
    assert sent(outbox) == [1]
    outbox.completed(second[0])
    assert sent(outbox) == [2]


def test_calls_that_wait_for_the_disk_run_before_the_messages_leave() -> None:
    outbox = Outbox()
    outbox.persist("g", op("g"), lambda: outbox.send("b", "g", Heartbeat(1, 0)))
    outbox.send_after("b", "g", Heartbeat(2, 0))
    taken = outbox.take_persist()
    assert taken is not None
    outbox.completed(taken[0])
    assert sent(outbox) == [1, 2]


def test_a_removed_replica_sends_nothing_more() -> None:
    outbox = Outbox()
    outbox.persist("g", op("g"))
    outbox.send_after("b", "g", Heartbeat(1, 0))
    taken = outbox.take_persist()
    outbox.forget("g")
    assert taken is not None
    outbox.completed(taken[0])
    assert sent(outbox) == []


def test_in_any_interleaving_no_promise_leaves_early_and_none_is_lost() -> None:
    rng = random.Random(1)
    outbox, needs, durable, batch, out = Outbox(), {}, 0, 0, []
    last = {"g": 0, "h": 0}
    for number in range(1, 2000):
        group = rng.choice(["g", "h"])
        if rng.random() < 0.4:
            outbox.persist(group, op(group))
            last[group] = batch + 1
        outbox.send_after("b", group, Heartbeat(number, 0))
        needs[number] = last[group]
        if rng.random() < 0.5 and (taken := outbox.take_persist()) is not None:
            batch = taken[0]
        if rng.random() < 0.4 and durable < batch:
            durable = rng.randint(durable + 1, batch)
            outbox.completed(durable)
        for term in sent(outbox):
            assert needs[term] <= durable
            out.append(term)
    taken = outbox.take_persist()
    outbox.completed(taken[0] if taken else batch)
    assert sorted(out + sent(outbox)) == sorted(needs)

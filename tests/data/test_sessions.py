"""Sessions against a model that stores every sequence, over slot migration, expiry, restarts and format 1."""

import random

import msgspec
import pytest

from nodeagent.data.sessions import Applied, Exported, Image, Sessions, tables
from nodeagent.model import limits
from nodeagent.model.limits import SESSION_WINDOW

SLOTS = range(6)


class Model:
    """The model: per slot, the known sessions and every applied sequence. `Sessions` must agree with it."""

    def __init__(self) -> None:
        self.own: set[str] = set()
        self.guests: dict[int, set[str]] = {}
        self.seen: dict[tuple[str, int], set[int]] = {}
        self.settled: dict[tuple[str, int], int] = {}

    def knows(self, session: str, slot: int) -> bool:
        return session in self.own or session in self.guests.get(slot, ())

    def take(self, session: str, slot: int, sequence: int, settled: int) -> bool:
        key = (session, slot)
        self.settled[key] = max(self.settled.get(key, 0), settled)
        is_new = sequence > self.settled[key] and sequence not in self.seen.setdefault(key, set())
        self.seen[key].add(sequence)
        return is_new

    def expire(self, gone: set[str]) -> None:
        self.own -= gone
        self.guests = {slot: names - gone for slot, names in self.guests.items()}

    def forget(self, slots: set[int]) -> None:
        self.guests = {slot: names for slot, names in self.guests.items() if slot not in slots}
        self.seen = {key: value for key, value in self.seen.items() if key[1] not in slots}
        self.settled = {key: value for key, value in self.settled.items() if key[1] not in slots}

    def move(self, slots: set[int], target: "Model") -> None:
        target.forget(slots)
        brought = self.own.union(*(self.guests.get(slot, set()) for slot in slots))
        target.guests |= {slot: set(brought) for slot in slots}
        for key in self.seen:
            if key[1] in slots and self.knows(*key):
                target.seen[key] = set(self.seen[key])
                target.settled[key] = self.settled[key]
        self.forget(slots)


@pytest.mark.parametrize("seed", range(40))
def test_sessions_answer_like_a_model_that_stores_everything(seed: int) -> None:
    """Two groups exchange slots while sessions open, write and expire, and the groups restart."""
    rng = random.Random(seed)
    real, model = [Sessions(), Sessions()], [Model(), Model()]
    held = [set(SLOTS), set[int]()]
    names: list[str] = []
    for step in range(400):
        at = rng.randrange(2)
        match rng.randrange(10):
            case 0:
                names.append(f"g{at}:{step}")
                real[at].open(names[-1])
                model[at].own.add(names[-1])
            case 1 if held[at]:
                moved = set(rng.sample(sorted(held[at]), rng.randint(1, len(held[at]))))
                real[1 - at].import_tables([real[at].export(moved)], moved)
                real[at].forget(moved)
                model[at].move(moved, model[1 - at])
                held[at] -= moved
                held[1 - at] |= moved
            case 2 if names and rng.random() < 0.3:
                gone = set(rng.sample(names, 1))
                real[at].expire(gone)
                model[at].expire(gone)
            case 3:
                real[at] = again(real[at])
            case _ if held[at] and names:
                session, slot = rng.choice(names), rng.choice(sorted(held[at]))
                assert real[at].knows(session, slot) == model[at].knows(session, slot)
                if model[at].knows(session, slot):
                    floor = model[at].settled.get((session, slot), 0)
                    sequence = floor + rng.randint(1, 4)
                    settled = rng.choice([floor, sequence - 1])
                    told = real[at].record(session, slot, sequence, settled)
                    assert told == model[at].take(session, slot, sequence, settled)


def again(sessions: Sessions) -> Sessions:
    """The sessions after a restart."""
    image = msgspec.msgpack.decode(msgspec.msgpack.encode(sessions.image()), type=Image)
    return Sessions.restore(image)


def test_the_table_of_sealed_slots_is_equal_on_every_member() -> None:
    """One member packed its sessions often and restarted, the other never. Neither table contains expired
    names, even if such a session returns as a guest of another slot."""
    rng = random.Random(7)
    one, two = Sessions(), Sessions()
    for i in range(20):
        for member in (one, two):
            member.open(f"s{i}")
    for step in range(500):
        session, slot, sequence = f"s{rng.randrange(20)}", rng.choice(SLOTS), rng.randint(1, 30)
        for member in (one, two):
            member.record(session, slot, sequence, max(0, sequence - 5))
        if step % 50 == 0:
            one = again(one)
            one.image()
    back = Sessions()
    back.open("s3")
    back.record("s3", 9, 1, 0)
    one.expire(["s3", "s4"])
    one = again(one)
    two.expire(["s3", "s4"])
    for member in (one, two):
        member.import_tables([back.export([9])], {9})
    wanted = [*SLOTS, 9]
    assert one.export(wanted) == two.export(wanted)
    assert b"s4" not in one.export(wanted)


def test_format_1_is_still_read() -> None:
    """A checkpoint and a table of the first release list guests per session and pack nothing."""
    seen = {3: {"own": Applied(2, {5}), "guest": Applied(7)}, 4: {"own": Applied(1)}}
    image = msgspec.msgpack.decode(
        msgspec.msgpack.encode({"own": {"own"}, "guests": {"guest": {3}, "idle": {3, 4}}, "seen": seen}),
        type=Image,
    )
    old = Sessions.restore(image)
    assert old.knows("guest", 3) and not old.knows("guest", 4) and old.knows("idle", 4)
    assert old.has("own", 3, 5) and not old.has("own", 3, 4) and old.floor("guest", 3) == 7
    table = msgspec.msgpack.encode(Exported(["guest", "own"], seen))
    new = Sessions()
    new.import_tables([table, msgspec.msgpack.encode(Exported(["other"], {}))], {3, 4})
    assert new.has("own", 3, 5) and not new.has("own", 3, 4) and new.has("own", 4, 1)
    assert new.knows("other", 4) and not new.knows("other", 5)


def test_a_table_keeps_the_sequences_above_the_floor_in_a_byte_or_three_each() -> None:
    sessions = Sessions()
    sessions.open("s")
    for sequence in range(10, 10 + SESSION_WINDOW, 2):
        sessions.record("s", 3, sequence, 0)
    assert len(sessions.export([3])) < 3 * SESSION_WINDOW // 2 + 64
    (table,) = tables([sessions.export([3])], {3})
    assert table.sessions == ["s"] and table.slots == ((3, 4),)


def test_the_size_grows_with_the_writes_and_not_with_sessions_times_slots() -> None:
    """4 000 sessions wrote in 100 of 2 500 slots that moved together."""
    source, target = Sessions(), Sessions()
    for i in range(4_000):
        source.open(f"node1.12:{i}.3")
    for slot in range(0, 2_500, 25):
        source.record("node1.12:0.3", slot, 1, 0)
    exported = source.export(range(2_500))
    target.import_tables([exported], set(range(2_500)))
    image = msgspec.msgpack.encode(target.image())
    assert max(len(exported), len(image)) < 4_000 * 24 + 100 * 24
    assert target.knows("node1.12:3999.3", 2_499) and target.has("node1.12:0.3", 25, 1)


def test_a_session_that_wrote_in_every_slot_costs_one_or_two_bytes_there() -> None:
    """300 sessions have a few hundred writes in each of 200 slots: checked for their table and for the
    gaining group's checkpoint."""
    source, target = Sessions(), Sessions()
    for i in range(300):
        source.open(f"node1.12:{i}.3")
        for slot in range(200):
            source.record(f"node1.12:{i}.3", slot, 100 + slot, 99 + slot)
    exported = source.export(range(200))
    target.import_tables([exported], set(range(200)))
    image = msgspec.msgpack.encode(target.image())
    assert max(len(exported), len(image), len(msgspec.msgpack.encode(source.image()))) < 2.5 * 300 * 200


def test_a_group_opens_no_session_past_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new session is accepted once another ends; guests count in the group that opened them."""
    monkeypatch.setattr(limits, "SESSIONS_PER_GROUP_MAX", 2)
    sessions = Sessions()
    assert [sessions.open(name) for name in ("a", "b", "c")] == [True, True, False]
    assert sessions.known() == {"a", "b"}
    sessions.expire(["a"])
    assert sessions.open("c") and sessions.known() == {"b", "c"}

"""No turn of the loop does more than its budget, and nothing is left undone."""

import random

import msgspec

from nodeagent.data import commands
from nodeagent.data.state import encode_checkpoint, initial
from nodeagent.host.host import Host
from nodeagent.host.replica import Saved
from nodeagent.log import GroupLog
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.files import FileMeta
from nodeagent.model.freeing import FREED_MIN
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import HashFiles
from nodeagent.model.limits import (
    APPLY_BYTES_PER_TURN,
    APPLY_ENTRIES_PER_TURN,
    COMPACT_KEYS_PER_LOOK,
    COMPACTIONS_MAX,
)
from tests.host.test_compactor import SCHEMA, Node
from tests.host.test_host import CONFIG

GROUPS = ("a.1", "a.2")


def leading() -> Host:
    """A node alone in its two groups, which it leads."""
    groups = {}
    for group in GROUPS:
        state = initial(group, ((0, 5),))
        saved = Saved(Base(1, 0, Config(("a",))), encode_checkpoint(state.checkpoint()))
        log = GroupLog(saved.base, HardState(1), [])
        groups[group] = (log, msgspec.msgpack.encode(saved))
    host = Host.open(CONFIG, "i", groups, (), random.Random(1), 0, 0)
    for now in range(0, 4_000, 100):
        host.tick(now, now)
        while not host.idle:
            persist = host.take().persist
            if persist is not None:
                host.on_persisted(persist[0], now)
    assert all(host.data[g].leads for g in GROUPS)
    return host


def turns(host: Host, payload: bytes, count: int) -> list[dict[str, int]]:
    """Per turn how many of `count` entries for each group were applied."""
    for group in GROUPS:
        host.data[group].propose([payload] * count)
    persist = host.take().persist
    assert persist is not None
    host.on_persisted(persist[0], 4_000)
    found = []
    while not host.idle:
        before = {g: host.data[g].seen for g in GROUPS}
        effects = host.take()
        assert effects.applied <= APPLY_ENTRIES_PER_TURN
        found.append({g: host.data[g].seen - before[g] for g in GROUPS})
    return found


def test_a_backlog_is_applied_over_several_turns() -> None:
    """In entries; no group waits for the whole backlog of another, and all is applied in the end."""
    host = leading()
    seen = {g: host.data[g].seen for g in GROUPS}
    found = turns(host, commands.encode(commands.Opaque(b"x")), 3 * APPLY_ENTRIES_PER_TURN)
    assert {g: host.data[g].seen - seen[g] for g in GROUPS} == dict.fromkeys(
        GROUPS, 3 * APPLY_ENTRIES_PER_TURN
    )
    assert 6 <= sum(1 for f in found if any(f.values())) <= 8
    assert all(any(f[g] for f in found[:2]) for g in GROUPS), "each has its turn"


def test_entries_that_left_the_log_are_freed_some_at_a_time() -> None:
    host = leading()
    turns(host, commands.encode(commands.Opaque(b"x")), 3 * FREED_MIN)
    replica = host.data[GROUPS[0]]
    replica._purge(replica.raft.commit)
    left = [len(replica._purged)]
    while left[-1]:
        host.tick(host.desk.now, 0)
        left.append(len(replica._purged))
    assert left[0] >= 3 * FREED_MIN and left[0] - left[1] == FREED_MIN
    assert replica.raft.log.first_index > left[0]


def test_large_entries_are_counted_in_bytes() -> None:
    """One that is larger than the budget is applied all the same, alone."""
    payload = commands.encode(commands.Opaque(b"x" * (APPLY_BYTES_PER_TURN // 4)))
    assert max(sum(f.values()) for f in turns(leading(), payload, 8)) <= 4
    payload = commands.encode(commands.Opaque(b"x" * (APPLY_BYTES_PER_TURN + 1)))
    assert max(sum(f.values()) for f in turns(leading(), payload, 3)) == 1


def _file(partition: int, number: int) -> FileMeta:
    name, order = f"00003-{2 + partition:012d}-{number:04d}.tsfile", (2 + partition, number)
    key = PartitionKey("sg", partition, 0)
    return FileMeta(name, 3, key, "t", order, 10, f"{partition:032x}", 1, partition, partition, (1, 1, 1))


def test_a_look_for_what_to_compact_is_bounded_and_comes_to_all() -> None:
    """With more tables and partitions than one look takes, the next go on behind it."""
    count = 3 * COMPACT_KEYS_PER_LOOK
    files = [_file(i, n) for i in range(count) for n in range(1 + (i == count - 1))]
    node = Node(files)
    state = node.replica.state
    asked = [f.partition for job in node.under_way(HashFiles) for f in job.files]  # type: ignore[attr-defined]
    looks = 0
    state.changed = dict.fromkeys((f.partition, "t") for f in files)
    compactor = node.host.compactor
    while not (runs := compactor._choose(node.replica, COMPACTIONS_MAX)):
        before = len(state.changed)
        looks += 1
        assert count - COMPACT_KEYS_PER_LOOK * looks <= before and looks < 4
    assert looks == 2 and [key[0].time_partition for key in runs] == [count - 1]
    assert set(asked) <= {PartitionKey("sg", count - 1, 0)} and SCHEMA.table == "t"


def test_after_a_start_all_is_looked_at_in_turns_that_follow_each_other() -> None:
    """Not one look in each `compact_every_ms`: with a hundred thousand files new ones would wait for long."""
    node = Node([])
    compactor, state = node.host.compactor, node.replica.state
    compactor._look_at = node.host.desk.now
    state.changed = {(PartitionKey("sg", i, 0), "t"): None for i in range(3 * COMPACT_KEYS_PER_LOOK)}
    left = []
    for _ in range(4):
        compactor.keep()
        left.append(len(state.changed) // COMPACT_KEYS_PER_LOOK)
        node.host.desk.now += 1
    assert left == [2, 1, 0, 0]
    state.changed = {(PartitionKey("sg", 0, 0), "t"): None}
    compactor.keep()
    assert len(state.changed) == 1, "a look took all, so the next comes later"


def test_what_is_found_is_merged_at_the_pace_that_was_set() -> None:
    """Else a group with many partitions would merge in every turn, beside those who write."""
    node = Node([_file(0, 0), _file(0, 1)])
    compactor, state = node.host.compactor, node.replica.state
    compactor._look_at = node.host.desk.now
    state.changed = {(PartitionKey("sg", i, 0), "t"): None for i in range(3 * COMPACT_KEYS_PER_LOOK)}
    for _ in range(3):
        compactor._checking.clear()
        compactor.keep()
        node.host.desk.now += 1
    assert len(state.changed) > 2 * COMPACT_KEYS_PER_LOOK

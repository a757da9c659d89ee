"""No turn of the loop exceeds its budget, and all work is done in the end."""

import msgspec

from nodeagent.data import commands
from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.data.state import initial
from nodeagent.host.host import Host
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.files import FileMeta
from nodeagent.model.freeing import FREED_MIN
from nodeagent.model.ids import PartitionKey
from nodeagent.model.limits import (
    APPLY_BYTES_PER_TURN,
    APPLY_ENTRIES_PER_TURN,
    COMPACT_KEYS_MAX,
    COMPACT_KEYS_PER_TURN,
    COMPACTIONS_MAX,
)
from tests.host.opened import opened
from tests.host.test_compactor import Node
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
    host = opened(CONFIG, groups)
    for now in range(0, 4_000, 100):
        host.tick(now, now)
        while not host.idle:
            persist = host.take().persist
            if persist is not None:
                host.on_persisted(persist[0], now)
    assert all(host.replicas.data[g].leads for g in GROUPS)
    return host


def turns(host: Host, payload: bytes, count: int) -> list[dict[str, int]]:
    """How many of `count` entries of each group each turn applied."""
    for group in GROUPS:
        host.replicas.data[group].propose([payload] * count)
    persist = host.take().persist
    assert persist is not None
    host.on_persisted(persist[0], 4_000)
    found = []
    while not host.idle:
        before = {g: host.replicas.data[g].applied_index for g in GROUPS}
        effects = host.take()
        assert effects.applied <= APPLY_ENTRIES_PER_TURN
        found.append({g: host.replicas.data[g].applied_index - before[g] for g in GROUPS})
    return found


def test_a_backlog_is_applied_over_several_turns() -> None:
    """No group waits for the whole backlog of another, and all entries are applied in the end."""
    host = leading()
    seen = {g: host.replicas.data[g].applied_index for g in GROUPS}
    found = turns(host, commands.encode(commands.Opaque(b"x")), 3 * APPLY_ENTRIES_PER_TURN)
    assert {g: host.replicas.data[g].applied_index - seen[g] for g in GROUPS} == dict.fromkeys(
        GROUPS, 3 * APPLY_ENTRIES_PER_TURN
    )
    assert 6 <= sum(1 for f in found if any(f.values())) <= 8
    assert all(any(f[g] for f in found[:2]) for g in GROUPS), "each group has its turn"


def test_entries_that_left_the_log_are_freed_some_at_a_time() -> None:
    host = leading()
    turns(host, commands.encode(commands.Opaque(b"x")), 3 * FREED_MIN)
    replica = host.replicas.data[GROUPS[0]]
    replica.log_start.purge(replica.raft.commit)
    left = [len(replica.log_start._purged)]
    while left[-1]:
        host.tick(host.effects.now, 0)
        left.append(len(replica.log_start._purged))
    assert left[0] >= 3 * FREED_MIN and left[0] - left[1] == FREED_MIN
    assert replica.raft.log.first_index > left[0]


def test_large_entries_are_counted_in_bytes() -> None:
    """An entry that is larger than the budget is applied by itself."""
    payload = commands.encode(commands.Opaque(b"x" * (APPLY_BYTES_PER_TURN // 4)))
    assert max(sum(f.values()) for f in turns(leading(), payload, 8)) <= 4
    payload = commands.encode(commands.Opaque(b"x" * (APPLY_BYTES_PER_TURN + 1)))
    assert max(sum(f.values()) for f in turns(leading(), payload, 3)) == 1


def _file(partition: int, number: int) -> FileMeta:
    name, order = f"00003-{2 + partition:012d}-{number:04d}.tsfile", (2 + partition, number)
    key = PartitionKey("sg", partition, 0)
    return FileMeta(name, 3, key, "t", order, 10, f"{partition:032x}", 1, partition, partition, (1, 1, 1))


def _looking(node: Node, partitions: int, turns: int) -> list[int]:
    """How many of `count` partitions each turn examined. Partitions without files are forgotten, and chosen
    runs are checked at once."""
    compactor, state = node.host.compactor, node.replica.state
    compactor._pass_at = node.host.effects.now
    state.files.changed = {(PartitionKey("sg", i, 0), "t"): None for i in range(partitions)}
    looked = []
    for _ in range(turns):
        before = len(state.files.changed)
        compactor._check._running.clear()
        compactor.keep()
        looked.append(before - len(state.files.changed))
        node.host.effects.now += 1
    return looked


def test_a_compaction_pass_looks_at_some_partitions_per_turn_until_all_are_done() -> None:
    """One turn per `compact_every_ms` would let new files wait too long among a hundred thousand."""
    most = COMPACT_KEYS_PER_TURN
    node = Node([])
    assert _looking(node, 5 * most + 7, 8) == [most] * 5 + [7, 0, 0]
    node.replica.state.files.changed = {(PartitionKey("sg", 0, 0), "t"): None}
    node.host.compactor.keep()
    assert len(node.replica.state.files.changed) == 1, "all were checked, so the next pass comes later"


def test_a_partition_that_must_wait_is_looked_at_once_per_compaction_pass() -> None:
    """Otherwise 100 000 partitions with deletes, or in moving slots, would be looked at repeatedly."""
    count = 3 * COMPACT_KEYS_PER_TURN
    node = Node([])
    asked: list[object] = []

    def waits(replica: object, key: object, moving: object, files_min: int) -> tuple[tuple[()], bool]:
        asked.append(key)
        return (), False

    node.host.compactor._run_of = waits  # type: ignore[method-assign]
    assert _looking(node, count, 6) == [0] * 6 and len(asked) == len(set(asked)) == count


def test_compaction_keeps_the_configured_pace() -> None:
    """Otherwise a group with many partitions would merge in every turn, at the expense of the writers. A pass
    with a single run continues, or files would wait for each other."""
    step = COMPACT_KEYS_PER_TURN
    node = Node([_file(i * step, n) for i in range(40) for n in range(2)])
    looked = _looking(node, 40 * step, 10)
    turns = COMPACT_KEYS_MAX // step
    assert looked == [step - 1] * turns + [0] * (10 - turns)


def test_a_compaction_pass_ends_at_its_maximum_of_runs() -> None:
    node = Node([_file(i, n) for i in range(3 * COMPACTIONS_MAX) for n in range(2)])
    found: list[int] = []
    begin = lambda replica, runs, then: found.append(len(runs))  # noqa: E731
    node.host.compactor._check.begin = begin  # type: ignore[method-assign]
    _looking(node, 3 * COMPACTIONS_MAX, 5)
    assert found == [COMPACTIONS_MAX]

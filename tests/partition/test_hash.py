"""Slot, time partition and shard of a row; vectors from old IoTDB's own code (10 000 slots, one shard)."""

import pytest

from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import InvalidInput
from nodeagent.partition.hash import shard_of, slot_of, time_partition, time_span

BOTH: dict[str, dict[int, int]] = {
    "root.sg1": {
        0: 4393, 1: 8927, 2: 8412, 127: 6386, 128: 8929, 200: 335, 255: 125, 2608: 92, -1: 5187,
    },
    "root.sg2": {0: 2229, 1: 6408, 2: 5545},
    "root.beijing": {0: 4452, 1: 7169, 2: 3292},
    "root.a": {0: 7396, 1: 6147, 2: 3584, 127: 9738, 2608: 8752},
    "root.ln.wf01": {0: 9805, 1: 2700, 2: 5033, 2608: 2320},
    "root.vehicle.d1": {0: 461, 1: 1709, 2: 2136},
}  # fmt: skip
CORRECT: dict[str, dict[int, int]] = {
    "root.a": {128: 3689, 200: 5218, 255: 7022},
    "root.ln.wf01": {128: 1863, 200: 1764},
    "root.vehicle.d1": {128: 1730},
    "root.北京": {0: 968, 1: 1757, 2: 2855, 3: 7675},
}
LEGACY: dict[str, dict[int, int]] = {
    "root.a": {128: 5082, 200: 5464, 255: 8835},
    "root.ln.wf01": {128: 8558, 200: 3376},
    "root.vehicle.d1": {128: 6788},
    "root.北京": dict.fromkeys([0, 1, 2, 127, 128, 255, 2608], 1717),
    "root.电厂.一号": dict.fromkeys([0, 1, 2, 3, 200, 2608], 4623),
}


def flat(*tables: dict[str, dict[int, int]]) -> list[tuple[str, int, int]]:
    return [(sg, p, slot) for t in tables for sg, row in t.items() for p, slot in row.items()]


def settings(mode: str = "murmur3", shards: int = 1) -> ClusterSettings:
    return ClusterSettings(name="c", shards=shards, hash_mode=mode)


@pytest.mark.parametrize(("group", "partition", "slot"), flat(BOTH, CORRECT))
def test_standard_vectors(group: str, partition: int, slot: int) -> None:
    """The default hash is the standard one over all bytes of the key."""
    assert slot_of(group, partition, 0, settings()) == slot


@pytest.mark.parametrize(("group", "partition", "slot"), flat(BOTH, LEGACY))
def test_legacy_vectors(group: str, partition: int, slot: int) -> None:
    """Legacy mode reproduces the character count and the sign-extended tail of the original."""
    assert slot_of(group, partition, 0, settings("legacy")) == slot


def test_one_shard_hashes_without_the_shard_and_more_shards_with_it() -> None:
    """One shard gives exactly the old routing; with 8 shards each has its own slot."""
    assert slot_of("root.sg1", 0, 0, settings(shards=1)) == 4393
    slots = {slot_of("root.sg1", 0, s, settings(shards=8)) for s in range(8)}
    assert len(slots) == 8


def test_slots_are_evenly_used() -> None:
    """20 000 keys are hashed to 100 slots: every slot has nearly the mean of 200."""
    few = ClusterSettings(name="c", slots=100, shards=1)
    used = [0] * 100
    for i in range(200):
        for p in range(100):
            used[slot_of(f"root.sg{i}", p, 0, few)] += 1
    assert min(used) > 130 and max(used) < 280


def test_unknown_mode_is_refused() -> None:
    """An unknown mode never routes a row."""
    with pytest.raises(InvalidInput, match="md5"):
        slot_of("root.a", 0, 0, settings("md5"))


def test_time_partition_floors_and_legacy_truncates() -> None:
    """Only legacy mode puts the week before 1970 into partition 0."""
    assert [time_partition(t, 10) for t in (-11, -10, -1, 0, 9, 10)] == [-2, -1, -1, 0, 0, 1]
    assert [time_partition(t, 10, "legacy") for t in (-11, -10, -1, 0, 9, 10)] == [-1, -1, 0, 0, 0, 1]


@pytest.mark.parametrize("mode", ["murmur3", "legacy"])
def test_time_span_inverts_time_partition(mode: str) -> None:
    """The span of a partition consists of exactly the times that are in the partition."""
    for p in range(-3, 4):
        first, last = time_span(p, 10, mode)
        assert [t for t in range(-60, 60) if time_partition(t, 10, mode) == p] == list(range(first, last + 1))


def test_shard_depends_on_every_tag_and_on_null() -> None:
    """Length prefixes and null marks distinguish devices."""
    many = 1 << 30
    devices = [("ab", "c"), ("a", "bc"), ("", "abc"), (None, "abc"), ("abc",), ("abc", ""), ("", None, "abc")]
    assert len({shard_of(d, many) for d in devices}) == len(devices)


def test_shard_is_stable_when_a_tag_column_is_added() -> None:
    """A device without the new tag keeps its shard (trailing nulls are not hashed)."""
    assert shard_of(("a", "b"), 1 << 30) == shard_of(("a", "b", None, None), 1 << 30)


def test_shard_value_is_pinned() -> None:
    """The shard hash determines where stored rows are: it may never change."""
    assert [shard_of((f"dev{i}", None, "x"), 8) for i in range(8)] == [5, 5, 1, 7, 4, 0, 0, 2]

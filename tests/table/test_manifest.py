"""A manifest lists the files of a group."""

import random
from collections import Counter

import msgspec
import pytest

from nodeagent.model.files import FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.table.manifest import Manifest


def meta(
    name: str, slot: int = 1, order: tuple[int, ...] = (1,), table: str = "t", size: int = 10
) -> FileMeta:
    key = PartitionKey("sg", slot, 0)
    return FileMeta(name, slot, key, table, order, size, "ab" * 16, 5, 0, 9, (3, 1 << 63, (1 << 64) - 1))


def test_sums_and_lookups_follow_add_remove_replace() -> None:
    """Counts, bytes and every lookup are those of the current files, whatever changes came before."""
    rng = random.Random(1)
    manifest, twin = Manifest(), dict[str, FileMeta]()
    for step in range(300):
        if twin and rng.random() < 0.4:
            gone = rng.sample(sorted(twin), k=min(len(twin), 2))
            fresh = [meta(f"r{step}", rng.randrange(3), (step,))] if rng.random() < 0.5 else []
            assert {m.name for m in manifest.replace(gone, fresh)} == set(gone)
            twin = {n: m for n, m in twin.items() if n not in gone} | {m.name: m for m in fresh}
        else:
            one = meta(f"f{step}", rng.randrange(3), (step,), rng.choice("tu"), rng.randrange(100))
            manifest.add([one])
            twin[one.name] = one
        assert manifest.nbytes == sum(m.size for m in twin.values())
        assert manifest.rows == 5 * len(manifest) == 5 * len(twin)
        counts = Counter(m.partition for m in twin.values())
        assert manifest.most_files() == max(counts.values(), default=0)
        for group in {p.storage_group for p in counts}:
            assert list(manifest.positions(group)) == sorted(
                p.position for p in counts if p.storage_group == group
            )
        for slot in range(3):
            assert {m.name for m in manifest.of_slot(slot)} == {n for n, m in twin.items() if m.slot == slot}
    assert manifest.slots() == tuple(sorted({m.slot for m in twin.values()}))


def test_digest_depends_on_name_size_and_hash_but_not_on_order() -> None:
    """Equal files in any order have equal digests; any difference in name, size or hash changes the
    digest."""
    a, b = meta("a"), meta("b", 2)
    base = Manifest([a, b]).digest()
    assert Manifest([b, a]).digest() == base
    for other in (
        [a],
        [a, msgspec.structs.replace(b, name="c")],
        [a, msgspec.structs.replace(b, size=11)],
        [a, msgspec.structs.replace(b, xxh3="cd" * 16)],
    ):
        assert Manifest(other).digest() != base
    assert Manifest([a, b]).digest([2]) == Manifest([b]).digest()


def test_replayed_add_changes_nothing_and_a_clash_is_a_broken_invariant() -> None:
    """A file that is added twice counts once; two different files of one name are a bug."""
    manifest = Manifest([meta("a")])
    manifest.add([meta("a")])
    assert (len(manifest), manifest.nbytes) == (1, 10)
    with pytest.raises(AssertionError):
        manifest.add([meta("a", size=11)])


def test_files_of_a_partition_are_ordered_by_age_and_can_be_exported() -> None:
    """The files of a partition come oldest first; orders of adopted files compare like tuples."""
    manifest = Manifest(
        [meta("c", order=(9,)), meta("b", order=(5, 7)), meta("a", order=(5, 2)), meta("u", table="u")]
    )
    assert [m.name for m in manifest.of_partition(PartitionKey("sg", 1, 0), "t")] == ["a", "b", "c"]
    assert manifest.overlapping(PartitionKey("sg", 1, 0), "t", 10, 20) == ()
    assert Manifest(manifest.export()).digest() == manifest.digest()
    assert manifest.logical([meta("a"), meta("b")]) == (6, 0, (1 << 64) - 2)
    assert manifest.remove_slot(1) and len(manifest) == 0 and manifest.slots() == ()

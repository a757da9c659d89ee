"""Range deletes by partition and table behave like a plain list, at a cost that grows only with changes."""

import random

from nodeagent.data.tombstones import Tombstones
from nodeagent.model.files import Tombstone
from nodeagent.model.ids import PartitionKey

PARTITIONS = [PartitionKey("sg", week, 0) for week in range(3)]


def delete(index: int, partition: PartitionKey, table: str = "t") -> Tombstone:
    return Tombstone((index,), partition, table, (), 0, index)


def test_tombstones_hold_the_same_as_a_list() -> None:
    """Deletes are added, added as older deletes, pruned and dropped at random; their order per table
    stays."""
    for seed in range(30):
        rng = random.Random(seed)
        mine, model = Tombstones(), list[Tombstone]()
        for index in range(60):
            partition, table = rng.choice(PARTITIONS), rng.choice("tu")
            match rng.randrange(6):
                case 0:
                    older = [delete(rng.randrange(60), partition, table) for _ in range(3)]
                    older = list(dict.fromkeys(older))
                    mine.add_older(older)
                    model = [*(t for t in older if t not in model), *model]
                case 1:
                    mine.drop(partition)
                    model = [t for t in model if t.partition != partition]
                case 2:
                    for p in PARTITIONS:
                        mine.touched(p)
                    mine.prune(lambda p, name, ts, i=index: [t for t in ts if t.time_to % 3 != i % 3])  # type: ignore[misc]
                    model = [t for t in model if t.time_to % 3 != index % 3]
                case _:
                    mine.add(delete(100 + index, partition, table))
                    model.append(delete(100 + index, partition, table))
            for p in PARTITIONS:
                for name in "tu":
                    assert list(mine.of(p, name)) == [t for t in model if (t.partition, t.table) == (p, name)]
                assert set(mine.of_partition(p)) == {t for t in model if t.partition == p}
            assert len(mine) == len(model) == len(list(mine))


def test_a_prune_checks_only_changed_deletes() -> None:
    """A close of one partition does not check the deletes of all partitions."""
    deletes = Tombstones(delete(i, p) for i, p in enumerate(PARTITIONS))
    looked: list[PartitionKey] = []

    def keep(partition: PartitionKey, table: str, found: object) -> list[Tombstone]:
        looked.append(partition)
        return list(deletes.of(partition, table))

    deletes.prune(keep)
    assert sorted(looked) == PARTITIONS
    looked.clear()
    deletes.prune(keep)
    assert not looked
    deletes.touched(PARTITIONS[1])
    deletes.prune(keep)
    assert looked == [PARTITIONS[1]]

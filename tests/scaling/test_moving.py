"""How the copies of an operation are divided, compared and adopted."""

from collections.abc import Callable

import msgspec
import pytest

from nodeagent.model.files import FileMeta, PulledSlot, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.operation import CopyRecord, GroupChange, Operation, Options, SlotMove, Stage
from nodeagent.partition.ranges import to_slots
from nodeagent.scaling import moving

OLD, NEW = "a.1", "n.9"
HOLDERS, TAKERS = ("a", "b", "c"), ("n", "a", "b")
P = PartitionKey("root.a", 1, 0)
MOVED = ((0, 10), (20, 100))


def operation(rate: int = 0, stage: Stage = Stage.COPYING) -> Operation:
    move = SlotMove(MOVED, OLD, HOLDERS, NEW, TAKERS)
    change = GroupChange(OLD, "n", "c", HOLDERS, ("a", "b", "n"))
    options = Options(rate_bytes_per_s=rate)
    return Operation("op-9", "add-node", "n", "me", 0, 1, 9, [move], [change], options, stage)


def copied(op: Operation, units: list[moving.Unit], node: str, incarnation: str) -> None:
    op.copies += [CopyRecord(NEW, node, incarnation, u.slots, "", 1, 1) for u in units]


def file(slot: int, order: int, xxh3: str = "aa") -> FileMeta:
    return FileMeta(f"{slot:05d}-{order}", slot, P, "m", (order,), 10, xxh3, 1, 0, 9, (1, 2, 3))


def tombstone(order: int) -> Tombstone:
    return Tombstone((order,), P, "m", (), 0, 5)


PULLED = [
    PulledSlot(2, (file(2, 8), file(2, 3)), (tombstone(5), tombstone(4))),
    PulledSlot(1, (file(1, 6),), ()),
]


def test_units_cover_all_slots_once() -> None:
    cut = moving.units(operation())
    assert [s for u in cut for s in to_slots(u.slots)] == to_slots(MOVED)
    assert {len(to_slots(u.slots)) for u in cut[:-1]} == {moving.UNIT_SLOTS}


def test_a_member_owes_each_unit_until_its_current_incarnation_recorded_it() -> None:
    op = operation()
    cut = moving.units(op)
    copied(op, cut, "n", "earlier")
    copied(op, cut[1:], "n", "i-n")
    assert moving.units_to_copy(op, cut, "n", "i-n") == cut[:1]
    assert (
        moving.units_to_copy(op, cut, "a", "i-a") == cut and moving.units_to_copy(op, cut, "c", "i-c") == []
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda s: msgspec.structs.replace(s, files=s.files[1:]),
        lambda s: msgspec.structs.replace(s, files=(file(2, 8, "ab"), *s.files[1:])),
        lambda s: msgspec.structs.replace(s, tombstones=s.tombstones[1:]),
        lambda s: msgspec.structs.replace(s, tombstones=(tombstone(6), *s.tombstones[1:])),
    ],
    ids=["no file", "other bytes", "no delete", "a later delete"],
)
def test_copies_that_differ_have_other_digests(change: Callable[[PulledSlot], PulledSlot]) -> None:
    """A delete that one copy lacks would bring its rows back where that copy is read."""
    assert moving.digest((PULLED[0],)) != moving.digest((change(PULLED[0]),))


def test_the_digest_does_not_depend_on_the_order_of_the_content() -> None:
    turned = [
        PulledSlot(s.slot, tuple(reversed(s.files)), tuple(reversed(s.tombstones))) for s in reversed(PULLED)
    ]
    assert moving.digest(tuple(PULLED)) == moving.digest(tuple(turned))


def test_adopted_files_are_older_than_the_open_and_keep_their_order() -> None:
    files, tombstones = moving.adoptions(50, PULLED)
    assert [f.meta.order for f in files] == [(50, 6), (50, 3), (50, 8)]
    assert len({f.meta.name for f in files}) == 3 and {t.order for t in tombstones} == {(50, 4), (50, 5)}


def test_the_rate_is_shared_by_the_nodes_that_still_pull() -> None:
    op = operation(rate=900)
    assert moving.rate_share(op, "n") == 900  # a and b hold the slots already
    assert moving.rate_share(operation(), "n") == 0 == moving.rate_share(operation(rate=-1), "n")
    assert (
        moving.rate_share(operation(rate=1, stage=Stage.RECONFIGURING), "a") == 1
    )  # never 0, which is no limit
    assert moving.rate_share(operation(rate=900, stage=Stage.RECONFIGURING), "a") == 450  # n catches up
    wide = operation(rate=900)
    wide.moves = [SlotMove(MOVED, OLD, ("c", "d"), NEW, TAKERS)]
    assert moving.rate_share(wide, "n") == 300
    copied(wide, moving.units(wide), "a", "i-a")
    assert moving.rate_share(wide, "n") == 450


def test_each_new_member_begins_with_another_holder_and_tries_all() -> None:
    move = operation().moves[0]
    assert [moving.sources(move, node, 0)[0] for node in TAKERS] == list(HOLDERS)
    assert [moving.sources(move, "n", n)[0] for n in range(4)] == ["a", "b", "c", "a"]

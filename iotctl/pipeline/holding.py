"""What one node holds of one slot, in a form in which holders can be compared."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nodeagent.model.files import FileMeta, Order, PulledSlot, Tombstone
from nodeagent.model.ids import NodeId, PartitionKey

FileKey = tuple[PartitionKey, str, Order]
"""(partition, table, order): identifies a file on every holder, whatever its name there."""

UnitKey = tuple[PartitionKey, str]


@dataclass(frozen=True, slots=True)
class HeldFile:
    """`order` is the age to compare by (`Scope.order`)."""

    meta: FileMeta
    order: Order

    @property
    def key(self) -> FileKey:
        return self.meta.partition, self.meta.table, self.order


@dataclass(frozen=True, slots=True)
class Holding:
    """One holder's files and deletes of a slot. `trusted` breaks ties: a previous holder has the original."""

    node: NodeId
    group: str
    snapshot: str
    slot: int
    files: tuple[HeldFile, ...]
    tombstones: tuple[Tombstone, ...]
    trusted: bool = False

    @property
    def keys(self) -> frozenset[FileKey]:
        return frozenset(f.key for f in self.files)


@dataclass(frozen=True, slots=True)
class Scope:
    """Which files and deletes of a holder are compared.

    `cut`: only files and deletes of log entries up to that index; later ones may not be on every holder yet.
    `adopted`: only files and deletes adopted from another group, by their age there (an adopted order is the
    index of the `Open` followed by the old order).
    """

    cut: int | None = None
    adopted: bool = False
    storage_groups: tuple[str, ...] = ()
    trusted: bool = False

    def order(self, order: Order) -> Order | None:
        """The order to compare by; None if the file is out of scope."""
        if self.cut is not None and order[0] > self.cut:
            return None
        if self.adopted:
            return order[1:] or None
        return order

    def partition(self, key: PartitionKey) -> bool:
        return not self.storage_groups or key.storage_group in self.storage_groups


def holding_of(node: NodeId, group: str, snapshot: str, pulled: PulledSlot, scope: Scope) -> Holding:
    files = [
        HeldFile(meta, order)
        for meta in pulled.files
        if scope.partition(meta.partition) and (order := scope.order(meta.order)) is not None
    ]
    tombstones = _in_scope(pulled.tombstones, scope)
    files.sort(key=lambda f: f.key)
    return Holding(node, group, snapshot, pulled.slot, tuple(files), tombstones, scope.trusted)


def _in_scope(tombstones: Iterable[Tombstone], scope: Scope) -> tuple[Tombstone, ...]:
    kept = [
        Tombstone(order, t.partition, t.table, t.tags, t.time_from, t.time_to)
        for t in tombstones
        if scope.partition(t.partition) and (order := scope.order(t.order)) is not None
    ]
    return tuple(sorted(kept, key=lambda t: (t.order, t.partition, t.table, repr(t.tags), t.time_from)))


def agree(holdings: Sequence[Holding]) -> bool:
    """Whether all hold files with the same keys. Deletes are not compared: each holder drops, at a time of
    its own, those that mask no rows any more."""
    return len({h.keys for h in holdings}) <= 1

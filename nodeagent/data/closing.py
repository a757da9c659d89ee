"""From memtable to files.

A `CloseFile` entry freezes the rows that precede it; the files are made later, by a worker, from
exactly those rows. Until then the frozen rows are read from memory and their log is pinned, so a
worker that dies or a full disk costs only time: the same units are simply asked for again.

Files enter the manifest partition by partition, and of one partition in the order of the closes: what cannot
be made holds back its own partition and no other. The way out is to *park* the unit: the leader, which saw it
fail again and again, on all members as far as it can tell, logs that the rows are filed as Arrow, which takes
any. Every member then makes that file, also one that has made the TsFile meanwhile (`compaction.job_of`).
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from nodeagent.data.commands import CloseFile
from nodeagent.model.files import CloseSpec, FileMeta, Tombstone, parked_name
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CloseUnit, MemBatch
from nodeagent.model.schema import TableSchema

Tables = dict[str, tuple[MemBatch, ...]]
Deletes = Callable[[PartitionKey, str], Sequence[Tombstone]]


class Part(msgspec.Struct):
    """What a close has of one partition: a unit per table, by table name."""

    first: int | None
    """Number of the first unit in the close: names go on from there. None in what a release that filed whole
    closes has saved: counted again."""

    units: tuple[CloseUnit, ...] = ()
    """None before the rows are back in memory after a restart."""


class Pending(msgspec.Struct):
    """A close with files that are not in the manifest yet."""

    index: int
    command: CloseFile
    parts: dict[PartitionKey, Part]
    """The partitions not filed yet, in the order of the command."""

    schemas: list[TableSchema]
    """In use when the close was applied."""

    gone: set[int] = set()
    """Slots released since: what is made of them is deleted, even if they have come back meanwhile."""

    parked: dict[str, str] = {}
    """TsFiles of it that are not to be made, by name, and why (`commands.Park`)."""

    made: dict[str, FileMeta | None] = {}
    """Files that are durable and not in the manifest, by name; None where no row was left."""

    @property
    def units(self) -> tuple[CloseUnit, ...]:
        return tuple(u for part in self.parts.values() for u in part.units)

    @property
    def first_index(self) -> int:
        """Oldest log index any of its rows came with."""
        return min((u.batches[0].order[0] for u in self.units), default=self.index)

    @property
    def is_frozen(self) -> bool:
        """Whether its rows are in memory, as they are not at once after a restart."""
        return any(part.units for part in self.parts.values())

    def is_made(self, partition: PartitionKey) -> bool:
        return all(u.spec.name in self.made for u in self.parts[partition].units)

    def on_made(self, unit: CloseUnit, file: FileMeta | None) -> None:
        """The unit's file is durable. One that is filed already came twice."""
        if any(u.spec.name == unit.spec.name for u in self._of(unit.spec.partition)):
            assert file is None or (file.name, file.order) == (unit.spec.name, unit.spec.order), (
                file,
                unit.spec,
            )
            self.made[unit.spec.name] = file

    def park(self, name: str, why: str) -> CloseUnit | None:
        """File the unit as Arrow; what is to be made now, None if it is no unit of what is left."""
        unit = next((u for u in self.units if u.spec.name == name), None)
        if unit is None:
            return None
        self.parked[name] = why
        part, parked = self.parts[unit.spec.partition], _as_arrow(unit, why)
        part.units = tuple(parked if u is unit else u for u in part.units)
        return parked

    def file(self, partition: PartitionKey) -> list[FileMeta]:
        """Take the partition out; its new manifest rows."""
        files = (self.made.pop(u.spec.name) for u in self.parts.pop(partition).units)
        return [f for f in files if f is not None]

    def _of(self, partition: PartitionKey) -> tuple[CloseUnit, ...]:
        part = self.parts.get(partition)
        return part.units if part is not None else ()


def plan(
    index: int,
    command: CloseFile,
    frozen: list[tuple[int, PartitionKey, Tables]],
    schemas: dict[tuple[str, str], TableSchema],
    deletes: Deletes,
    firsts: Mapping[PartitionKey, int | None],
    parked: Mapping[str, str],
) -> Pending:
    """Units of one `CloseFile`: what they hold follows from the log up to the entry alone (law 6).

    Deletes after it are left out, since a replica that recovers knows of them already.

    Args:
        deletes: of a partition and table, in the order they came.
        firsts: of a close that was filed in part before a restart, `Part.first` of what is left.
        parked: of one before a restart, as `Pending.parked`.
    """
    parts: dict[PartitionKey, Part] = {}
    count = 0
    for slot, partition, tables in frozen:
        first = firsts.get(partition)
        number = first = count if first is None else first
        units = []
        for number, table in enumerate(sorted(tables), first):
            spec = CloseSpec(
                name=f"{slot:05d}-{index:012d}-{number:04d}.tsfile",
                slot=slot,
                partition=partition,
                order=(index,),
                schema=schemas[partition.storage_group, table],
                compression=command.compression,
                memory_threshold=command.memory_threshold,
                format_version=command.format_version,
                writer=command.writer,
            )
            unit = _unit(spec, tables[table], deletes(partition, table))
            units.append(_as_arrow(unit, parked[spec.name]) if spec.name in parked else unit)
        parts[partition] = Part(first, tuple(units))
        count = number + 1
    used = {(p.storage_group, u.spec.schema.table): u.spec.schema for p in parts for u in parts[p].units}
    return Pending(index, command, parts, [used[key] for key in sorted(used)], parked=dict(parked))


def _as_arrow(unit: CloseUnit, why: str) -> CloseUnit:
    spec = msgspec.structs.replace(unit.spec, name=parked_name(unit.spec.name), parked=why, writer="")
    return msgspec.structs.replace(unit, spec=spec)


def _unit(spec: CloseSpec, batches: tuple[MemBatch, ...], deletes: Sequence[Tombstone]) -> CloseUnit:
    oldest = batches[0].order
    return CloseUnit(spec, batches, tuple(t for t in deletes if oldest < t.order < spec.order))

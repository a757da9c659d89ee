"""From memtable to files.

A `CloseFile` entry freezes the rows that precede it; the files are made later, by a worker, from
exactly those rows. Until then the frozen rows are read from memory and their log is pinned, so a
worker that dies or a full disk costs only time: the same units are simply asked for again.
"""

import msgspec

from nodeagent.data.commands import CloseFile
from nodeagent.model.files import CloseSpec, FileMeta, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CloseUnit, MemBatch
from nodeagent.model.schema import TableSchema

Tables = dict[str, tuple[MemBatch, ...]]


class Pending(msgspec.Struct):
    """A close whose files are not made yet. `units` follows partition, then table name."""

    index: int
    command: CloseFile
    units: list[CloseUnit]
    first_index: int
    """Oldest log index any of its rows came with."""

    schemas: list[TableSchema]
    """In use when the close was applied."""

    gone: set[int] = set()
    """Slots released since: what is made of them is deleted, even if they have come back meanwhile."""

    made: tuple[FileMeta | None, ...] | None = None
    """The files, once durable; they enter the manifest in the order of the closes."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(u.spec.name for u in self.units)


def plan(
    index: int,
    command: CloseFile,
    frozen: list[tuple[int, PartitionKey, Tables]],
    schemas: dict[tuple[str, str], TableSchema],
    tombstones: list[Tombstone],
) -> Pending:
    """Units of one `CloseFile`: what they hold follows from the log up to the entry alone (law 6).

    Deletes after it are left out, since a replica that recovers knows of them already.
    """
    units: list[CloseUnit] = []
    first = index
    for slot, partition, tables in frozen:
        for table in sorted(tables):
            batches = tables[table]
            first = min(first, *(b.order[0] for b in batches))
            oldest = min(b.order for b in batches)
            units.append(
                CloseUnit(
                    spec=CloseSpec(
                        name=f"{slot:05d}-{index:012d}-{len(units):04d}.tsfile",
                        slot=slot,
                        partition=partition,
                        order=(index,),
                        schema=schemas[partition.storage_group, table],
                        compression=command.compression,
                        memory_threshold=command.memory_threshold,
                        format_version=command.format_version,
                    ),
                    batches=batches,
                    tombstones=tuple(
                        t
                        for t in tombstones
                        if t.partition == partition and t.table == table and oldest < t.order < (index,)
                    ),
                )
            )
    used = {(u.spec.schema.storage_group, u.spec.schema.table): u.spec.schema for u in units}
    return Pending(index, command, units, first, [used[key] for key in sorted(used)])


def made_files(pending: Pending) -> list[FileMeta]:
    """The new manifest rows, after comparing them with what was asked for."""
    files = pending.made
    assert files is not None
    assert len(files) == len(pending.units), (len(files), len(pending.units))
    made = []
    for unit, file in zip(pending.units, files, strict=True):
        if file is not None:
            assert file.name == unit.spec.name and file.order == unit.spec.order, (file, unit.spec)
            made.append(file)
    return made

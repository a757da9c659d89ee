"""Turns rows in memory into files.

A `CloseFile` entry freezes the rows that precede it; a worker makes the files later, from exactly those rows.
Until then reads take the frozen rows from memory and the log that holds them is pinned, so a worker that dies
or a full disk costs only time: the same units are requested again.

Files enter the manifest per partition, in the order of the closes: a file that cannot be made holds back its
own partition and no other. To end that, the leader *parks* the unit: after repeated failures on all members,
as far as it knows, it logs a `Park`, which stores the rows as Arrow. Arrow accepts any rows. Every member
then makes the Arrow file, including a member that has already made the TsFile (`compaction.job_of`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from nodeagent.data.commands import CloseFile, Park
from nodeagent.data.compaction import Compactions
from nodeagent.data.files import Files
from nodeagent.data.rows import Rows
from nodeagent.model.files import CloseSpec, FileMeta, Tombstone, parked_name
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.jobs import CloseFiles, CloseUnit, Job, MemBatch
from nodeagent.model.schema import Schemas, TableSchema

Tables = dict[str, tuple[MemBatch, ...]]
Deletes = Callable[[PartitionKey, str], Sequence[Tombstone]]


class Part(msgspec.Struct):
    """The units of a close in one partition: one per table, in order of table name."""

    first: int | None
    """Number of the first unit within the close; file names are numbered from it. None in a checkpoint of a
    release that added all files of a close to the manifest at once: it is then counted from the units."""

    units: tuple[CloseUnit, ...] = ()
    """Empty after a restart until the rows are back in memory."""


class Pending(msgspec.Struct):
    """A close whose files are not all in the manifest yet."""

    index: int
    command: CloseFile
    parts: dict[PartitionKey, Part]
    """The partitions whose files are not in the manifest yet, in the order of the command."""

    schemas: list[TableSchema]
    """In use when the close was applied."""

    released: set[int] = set()
    """Slots released since the close: their files are deleted, even if the slots have come back."""

    parked: dict[str, str] = {}
    """Name of each TsFile of the close that must not be made -> reason (`commands.Park`)."""

    made: dict[str, FileMeta | None] = {}
    """Files that are durable but not in the manifest, by name; None if no row was left for the file."""

    @property
    def units(self) -> tuple[CloseUnit, ...]:
        return tuple(u for part in self.parts.values() for u in part.units)

    @property
    def first_index(self) -> int:
        """Log index of the oldest row in the close."""
        return min((u.batches[0].order[0] for u in self.units), default=self.index)

    @property
    def is_frozen(self) -> bool:
        """Whether its rows are in memory; after a restart they are not until the log is replayed."""
        return any(part.units for part in self.parts.values())

    def is_made(self, partition: PartitionKey) -> bool:
        return all(u.spec.name in self.made for u in self.parts[partition].units)

    def on_made(self, unit: CloseUnit, file: FileMeta | None) -> None:
        """Record that the unit's file is durable; no effect if its partition is filed already."""
        if any(u.spec.name == unit.spec.name for u in self._of(unit.spec.partition)):
            assert file is None or (file.name, file.order) == (unit.spec.name, unit.spec.order), (
                file,
                unit.spec,
            )
            self.made[unit.spec.name] = file

    def park(self, name: str, why: str) -> CloseUnit | None:
        """Replace the unit by one that makes Arrow; return it, None if no such unit is left."""
        unit = next((u for u in self.units if u.spec.name == name), None)
        if unit is None:
            return None
        self.parked[name] = why
        part, parked = self.parts[unit.spec.partition], _as_arrow(unit, why)
        part.units = tuple(parked if u is unit else u for u in part.units)
        return parked

    def file(self, partition: PartitionKey) -> list[FileMeta]:
        """Remove the partition; return its new manifest rows."""
        files = (self.made.pop(u.spec.name) for u in self.parts.pop(partition).units)
        return [f for f in files if f is not None]

    def _of(self, partition: PartitionKey) -> tuple[CloseUnit, ...]:
        part = self.parts.get(partition)
        return part.units if part is not None else ()


def plan(
    index: int,
    command: CloseFile,
    frozen: list[tuple[int, PartitionKey, Tables]],
    schemas: Schemas,
    deletes: Deletes,
    firsts: Mapping[PartitionKey, int | None],
    parked: Mapping[str, str],
) -> Pending:
    """Plan the units of one `CloseFile`: their rows depend only on the log up to the entry (law 6).

    Deletes logged after the entry are left out explicitly: a recovering replica already has them.

    Args:
        deletes: gives the deletes of a partition and table, in log order.
        firsts: `Part.first` of the partitions left, for a close that was partly filed before a restart.
        parked: `Pending.parked` from before a restart.
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


class Closes:
    """The closes of one group whose files are not all in the manifest yet."""

    def __init__(
        self,
        group: GroupId,
        jobs: list[Job],
        schemas: Schemas,
        rows: Rows,
        files: Files,
        compactions: Compactions,
    ) -> None:
        self.pending: list[Pending] = []
        """In log order."""

        self._group = group
        self._jobs = jobs
        self._schemas = schemas
        self._rows = rows
        self._files = files
        self._compactions = compactions

    def close(self, index: int, command: CloseFile) -> None:
        frozen = self._freeze(index, command.partitions)
        if frozen:
            pending = plan(index, command, frozen, self._schemas, self._files.tombstones.of, {}, {})
            self.pending.append(pending)
            self._jobs.append(CloseFiles(self._group, pending.units))

    def close_again(self, index: int) -> None:
        """Repeat a close of the checkpoint whose files were not made: its rows are back in the memtable.

        It uses the schemas saved with the close: another column list would produce other bytes (law 6).
        """
        at = next((i for i, p in enumerate(self.pending) if p.index == index), None)
        if at is None:
            return
        waiting = self.pending.pop(at)
        frozen = self._freeze(index, (sp for sp in waiting.command.partitions if sp[1] in waiting.parts))
        if frozen:
            schemas = {(s.storage_group, s.table): s for s in waiting.schemas}
            firsts = {partition: part.first for partition, part in waiting.parts.items()}
            deletes = self._files.tombstones.of
            pending = plan(index, waiting.command, frozen, schemas, deletes, firsts, waiting.parked)
            pending.released = waiting.released
            self.pending.insert(at, pending)
            self._jobs.append(CloseFiles(self._group, pending.units))
        self._rows.drop_slots(waiting.released)

    def _freeze(
        self, index: int, partitions: Iterable[tuple[int, PartitionKey]]
    ) -> list[tuple[int, PartitionKey, Tables]]:
        """Freeze the rows of these partitions for the close at `index`; skip partitions without rows."""
        frozen = []
        for slot, partition in partitions:
            fresh = self._rows.memtable.freeze(partition, index)
            if fresh:
                frozen.append((slot, partition, {table: tuple(run.batches) for table, run in fresh.items()}))
        return frozen

    def on_closed(self, job: CloseFiles, files: Sequence[FileMeta | None]) -> None:
        """Record that the files of `job` are durable."""
        closes = {p.index: p for p in self.pending}
        for unit, file in zip(job.units, files, strict=True):
            pending = closes.get(unit.spec.order[0])
            if pending is None:
                continue
            if unit.spec.name in pending.parked:
                self._files.unlink([file])  # made while the unit was parked: no manifest names it
            else:
                pending.on_made(unit, file)
        self._file_made()

    def units_to_retry(self, job: CloseFiles) -> tuple[CloseUnit, ...]:
        """Units of a failed job to retry. Not retried: units of slots released since, units parked since, and
        units whose rows have all expired (no other member holds their files any more either)."""
        closes = {p.index: p for p in self.pending}
        wanted = []
        for unit in job.units:
            pending = closes.get(unit.spec.order[0])
            if pending is not None and unit.spec.slot in pending.released:
                pending.on_made(unit, None)
            elif pending is not None and unit.spec.name not in pending.parked:
                if self._has_expired(unit):
                    pending.on_made(unit, None)
                else:
                    wanted.append(unit)
        self._file_made()
        return tuple(wanted)

    def park(self, command: Park) -> bool:
        """Request the unit's Arrow file instead of its TsFile; return whether a pending close has it."""
        pending = next((p for p in self.pending if p.index == command.close), None)
        made = pending.made.pop(command.name, None) if pending is not None else None
        unit = pending.park(command.name, command.why) if pending is not None else None
        if unit is None:
            return False
        self._files.unlink([made])
        self._jobs.append(CloseFiles(self._group, (unit,)))
        return True

    def release(self, slots: set[int]) -> None:
        for pending in self.pending:
            pending.released |= slots

    def holds_back(self, partition: PartitionKey, index: int) -> bool:
        """Whether files of the partition, requested by an entry before `index`, are not filed yet."""
        return any(p.index < index and partition in p.parts for p in self.pending)

    def names(self) -> set[str]:
        """Names of the files that closes have not put into the manifest yet."""
        return {u.spec.name for p in self.pending for u in p.units}

    def _file_made(self) -> None:
        """Move durable files into the manifest, per partition in the order of the closes: dropping the rows
        of a close must never drop rows of an earlier close."""
        behind: set[PartitionKey] = set()
        for pending in self.pending:
            if not pending.is_frozen:
                break  # the replay has not reached this close, nor any later close
            for partition in list(pending.parts):
                if partition not in behind and pending.is_made(partition):
                    self._files.keep(pending.file(partition), pending.released)
                    self._rows.drop_filed(partition, pending.index)
                else:
                    behind.add(partition)
        self.pending = [p for p in self.pending if p.parts]
        self._files.prune()

    def _has_expired(self, unit: CloseUnit) -> bool:
        """Whether the unit's file would be deleted at once: a later cut-off covers all of its rows, and no
        compaction logged before the cut-off takes the file as an input."""
        spec = unit.spec
        table = spec.schema.table
        cuts = [t for t in self._files.tombstones.cuts(spec.partition, table) if spec.order < t.order]
        held = self._rows.memtable.partition(spec.partition) if cuts else None
        if held is None:
            return False
        first = unit.batches[0].order[0]
        last = next((run.time_max for run in held.runs(table) if run.first_index == first), None)
        pin = self._compactions.pinned((spec.partition, table)).get(spec.name)
        return last is not None and any(last <= t.time_to and (pin is None or t.order < (pin,)) for t in cuts)

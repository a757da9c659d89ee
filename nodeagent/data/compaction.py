"""Merges many files of one table and partition into one: what to merge, and when it takes effect.

    leader     `pick_small` and `pick_masked` choose neighbours in age; the host has every running member
               hash these files, so that no intact copy is deleted while a damaged one remains, and proposes
               `Compact`
    apply      every member records a `Compacting`, with the deletes and the schema at that log index
    turn       the files of all earlier entries that may concern it are in the manifest: begin it, or drop
               it if an input is missing
    job        a worker checks the inputs' hashes, merges them and makes the output (law 6)
    end        the output replaces the inputs in the manifest; once a durable checkpoint omits the inputs and
               no read uses them, they are unlinked

Turns are taken per (partition, table), so that a member that cannot read an input delays nothing else. That
member retains the compaction and retries it; until it succeeds, its manifest counts as not materialised. A
`Seal` does not cancel a compaction that was logged before it: the slot is not a source of copies here until
the compaction is complete. A `Release` cancels it.

The output has the order of its newest input. That is correct because the inputs are neighbours: any other
file is older than all of them or newer than all of them. The deletes logged before the entry are applied to
the output (`FileMeta.clean`), so that they can be dropped.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec

from nodeagent.data.commands import Compact, Park
from nodeagent.model.files import CloseSpec, FileMeta, Order, Tombstone, parked_name
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.jobs import CompactFiles, CompactUnit
from nodeagent.model.limits import COMPACT_BYTES_MAX, COMPACT_INPUTS_MAX, COMPACT_ROW_BYTES, EXPIRY_STEPS, KIB
from nodeagent.model.schema import TableSchema
from nodeagent.table.manifest import Manifest

Key = tuple[PartitionKey, str]
"""(partition, table)"""

OUTCOMES_MAX = 16
"""Number of the latest outcomes of one compaction that other members are asked for: a member that has applied
more entries holds the last outcome or one shortly before it."""

SIZE_FLOOR = 4 * KIB
"""Bytes that a smaller file counts for: its own overhead outweighs its rows."""


class Compacting(msgspec.Struct):
    """A logged `Compact` that has not ended, or a `Park` of rows that are already a TsFile here."""

    index: int
    command: Compact | Park
    schema: TableSchema
    tombstones: list[Tombstone]
    """The deletes of the table and partition that precede it in the log."""

    job: CompactFiles | None = None
    """Set when the turn of the compaction comes."""

    released: bool = False
    """The slot was released while the job ran: the output is deleted."""

    @property
    def key(self) -> Key:
        return self.command.partition, self.command.table

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, oldest first."""
        command = self.command
        return (command.name,) if isinstance(command, Park) else tuple(name for name, _ in command.inputs)

    @property
    def output(self) -> str:
        """Name of the output."""
        if isinstance(self.command, Park):
            return parked_name(self.command.name)
        name = f"{self.command.slot:05d}-{self.index:012d}-0000.tsfile"
        return parked_name(name) if self.command.parked else name

    @property
    def parked(self) -> str:
        return self.command.why if isinstance(self.command, Park) else self.command.parked


class Compactions:
    """The logged compactions of one group that have not ended. Until a compaction ends, its inputs are
    pinned: a cut-off that was logged later must apply to its output."""

    def __init__(self) -> None:
        self.active: list[Compacting] = []
        """In log order."""

    def add(self, c: Compacting) -> None:
        self.active.append(c)

    def end(self, *ended: Compacting) -> None:
        """Remove compactions that took effect or cannot take effect."""
        ids = set(map(id, ended))
        self.active = [c for c in self.active if id(c) not in ids]

    def of(self, job: CompactFiles) -> Compacting | None:
        return next((c for c in self.active if c.job == job), None)

    def is_input(self, name: str) -> bool:
        """Whether a compaction that has not ended has the file, which may not exist yet, as an input."""
        return any(name in c.names for c in self.active if not c.released)

    def pinned(self, key: Key) -> dict[str, int]:
        """Inputs of the table and partition: name -> log index of the earliest compaction that takes it."""
        waiting = reversed([c for c in self.active if c.key == key and not c.released])
        return {name: c.index for c in waiting for name in c.names}

    def outputs(self) -> set[str]:
        return {c.output for c in self.active}

    def release(self, slots: set[int]) -> None:
        """Cancel the compactions of these slots; a compaction whose job runs stays until the job ends."""
        for c in self.active:
            c.released = c.released or c.command.slot in slots
        self.active = [c for c in self.active if not c.released or c.job is not None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A file that ended a compaction on members that have applied more entries: the compaction's output, or
    the output of a later compaction that merged it. On those members all `steps` took effect; here the file
    replaces `inputs` (law 6)."""

    spec: CloseSpec
    steps: tuple[Compacting, ...]
    inputs: tuple[FileMeta, ...]


def outcomes_of(c: Compacting, alike: Sequence[Compacting], files: Sequence[FileMeta]) -> list[Outcome]:
    """The outcomes of a compaction whose turn came, the latest first.

    Args:
        alike: the compactions of its table and partition that have not ended and for which everything logged
            before them is in the manifest, in log order; `c` is the first.
        files: of its table and partition, oldest first.
    """
    assert c.job is not None
    makers = {d.output: d for d in alike}
    later, outputs = [c], {c.output}
    for d in alike:
        if not outputs.isdisjoint(d.names):
            later.append(d)
            outputs.add(d.output)
    outcomes = []
    for last in later[: -OUTCOMES_MAX - 1 : -1]:
        steps = [last]
        for step in steps:
            made_before = (makers[name] for name in step.names if name in makers)
            steps += [d for d in made_before if d.index < step.index]  # terminates, whatever is logged
        made = {step.output for step in steps}
        inputs = neighbours(files, {name for step in steps for name in step.names} - made)
        if inputs:
            order = inputs[-1].order
            spec = msgspec.structs.replace(c.job.unit.spec, name=last.output, order=order, parked=last.parked)
            outcomes.append(Outcome(spec, tuple(steps), inputs))
    return outcomes


def neighbours(files: Sequence[FileMeta], names: set[str]) -> tuple[FileMeta, ...]:
    """The files of these names, if all are in `files` and adjacent; else ()."""
    at = [i for i, f in enumerate(files) if f.name in names]
    is_run = bool(at) and at[-1] - at[0] + 1 == len(at) == len(names)
    return tuple(files[at[0] : at[-1] + 1]) if is_run else ()


def find_inputs(manifest: Manifest, c: Compacting) -> tuple[FileMeta, ...]:
    """The inputs of `c`, if all are in the manifest and neighbours in age; else ()."""
    files = manifest.of_partition(*c.key)
    names = list(c.names)
    first = next((i for i, f in enumerate(files) if f.name == names[0]), 0)
    inputs = files[first : first + len(names)]
    return inputs if [f.name for f in inputs] == names else ()


def job_of(
    group: GroupId, c: Compacting, inputs: Sequence[FileMeta], substitutes: Container[str] = ()
) -> CompactFiles:
    """The job of a compaction; its output depends on the log alone. The expected hashes are those of the log,
    not of this manifest, except for `substitutes`, which have the same rows in other bytes."""
    if isinstance(c.command, Park):
        return _parking(group, c.command, inputs[0])
    hashes = dict(c.command.inputs)
    oldest, newest = inputs[0].order, inputs[-1].order
    spec = CloseSpec(
        name=c.output,
        slot=c.command.slot,
        partition=c.command.partition,
        order=newest,
        schema=c.schema,
        compression=c.command.compression,
        memory_threshold=c.command.memory_threshold,
        format_version=c.command.format_version,
        parked=c.command.parked,
        writer="" if c.command.parked else c.command.writer,
    )
    deletes = sorted((t for t in c.tombstones if oldest < t.order), key=lambda t: t.order)
    files = tuple(
        f if f.name in substitutes else msgspec.structs.replace(f, xxh3=hashes[f.name]) for f in inputs
    )
    return CompactFiles(group, CompactUnit(spec, (c.index,), files, tuple(deletes)))


def trial_of(
    group: GroupId, file: FileMeta, schema: TableSchema, tombstones: Sequence[Tombstone]
) -> CompactFiles:
    """A compaction whose output is discarded: it shows whether the parked `file` can become a TsFile now."""
    command = Compact(file.slot, file.partition, file.table, ((file.name, file.xxh3),))
    job = job_of(group, Compacting(0, command, schema, list(tombstones)), (file,))
    return msgspec.structs.replace(job, is_trial=True)


def _parking(group: GroupId, command: Park, file: FileMeta) -> CompactFiles:
    """The job that makes the Arrow file from a TsFile that other members could not make: the same rows, so
    the same bytes."""
    spec = CloseSpec(
        name=parked_name(file.name),
        slot=file.slot,
        partition=file.partition,
        order=file.order,
        schema=command.schema,
        parked=command.why,
    )
    return CompactFiles(group, CompactUnit(spec, file.clean, (file,)))


def expired(
    files: Sequence[FileMeta], cuts: Sequence[Tombstone], pinned: dict[str, int]
) -> tuple[FileMeta, ...]:
    """Files wholly before a cut-off.

    Args:
        pinned: input of a compaction that has not ended -> log index of the earliest such compaction. A
            cut-off logged after that applies to the output instead, on every member, however many entries the
            member has applied.
    """

    def is_expired(file: FileMeta, cut: Tombstone) -> bool:
        waits = file.name in pinned and (pinned[file.name],) < cut.order
        return cut.masks(file) and file.time_max <= cut.time_to and not waits

    return tuple(f for f in files if any(is_expired(f, c) for c in cuts))


# --- what the leader proposes ----------------------------------------------------------------------


def weight_of(file: FileMeta) -> int:
    """Bytes that the file counts for: a worker holds the rows of all inputs, however well they compress."""
    return max(file.size, file.rows * COMPACT_ROW_BYTES)


def pick_small(files: Sequence[FileMeta], files_min: int, full_min: int | None = None) -> Sequence[FileMeta]:
    """Neighbours in age worth merging, from files given oldest first; () if there are none.

    From the newest file backwards, an older file joins while it is no larger than all newer files together.
    So the rows of an older file are rewritten only into a file at least twice as large: the number of
    rewrites of a row grows with the logarithm of the file size, up to `COMPACT_BYTES_MAX`.

    Args:
        files_min: files that a run needs.
        full_min: files that a run needs if one more would pass `COMPACT_BYTES_MAX`, so that it cannot grow;
            by default `files_min`.
    """
    full_min = full_min or files_min
    if len(files) < min(files_min, full_min):  # the usual case
        return ()
    return next(filter(None, (_pick_small(alike, files_min, full_min) for alike in _alike(files))), ())


def _alike(files: Sequence[FileMeta]) -> list[Sequence[FileMeta]]:
    """Runs of neighbours that are all parked or all TsFiles, the newest run first. The two kinds are not
    merged: parked rows would prevent the output from being a TsFile, and it would be Arrow as a whole."""
    alike: list[Sequence[FileMeta]] = [tuple(fs) for _, fs in groupby(files, lambda f: bool(f.parked))]
    return alike[::-1]


def _pick_small(files: Sequence[FileMeta], files_min: int, full_min: int) -> Sequence[FileMeta]:
    for end in range(len(files), min(files_min, full_min) - 1, -1):
        start, total, counted, full = end, 0, 0, False
        while start and end - start < COMPACT_INPUTS_MAX:
            file = files[start - 1]
            weight = weight_of(file)
            size = max(weight, SIZE_FLOOR)
            full = total + weight > COMPACT_BYTES_MAX
            if full or (start < end and size > counted):
                break
            start, total, counted = start - 1, total + weight, counted + size
        if end - start >= (full_min if full else files_min):
            return files[start:end]
    return ()


def deletes_on(files: Sequence[FileMeta], tombstones: Sequence[Tombstone]) -> list[Tombstone]:
    """Range deletes that a rewrite of the files would make superfluous. TTL cut-offs need no rewrite."""
    return [t for t in tombstones if not t.expiry and any(t.masks(f) for f in files)]


def pick_masked(files: Sequence[FileMeta], tombstones: Sequence[Tombstone]) -> Sequence[FileMeta]:
    """The oldest run of neighbours that range deletes mask, from files given oldest first."""
    run: list[FileMeta] = []
    for file in files:
        hit = any(not t.expiry and t.masks(file) for t in tombstones)
        differs = bool(run) and bool(run[-1].parked) != bool(file.parked)
        total = sum(weight_of(f) for f in run)
        full = len(run) == COMPACT_INPUTS_MAX or total + weight_of(file) > COMPACT_BYTES_MAX
        if run and (not hit or full or differs):
            break
        if hit:
            run.append(file)
    return run


def cut_off(ttl_ms: int, passed_ms: int) -> int:
    """The time (ms) before which rows are past the TTL. It moves in steps of `ttl_ms` / `EXPIRY_STEPS`, so
    that few entries are logged for it."""
    step = max(ttl_ms // EXPIRY_STEPS, 1)
    return (passed_ms - ttl_ms) // step * step


def needs_expiry(
    before: int, ages: Sequence[tuple[Order, int, int]], tombstones: Sequence[Tombstone]
) -> bool:
    """Whether rows with a time before `before` (ms) are still visible.

    Args:
        ages: (order, first time, last time) of every file and batch of a table and partition.
        tombstones: of the same table and partition.
    """
    cuts = [t for t in tombstones if t.expiry]
    return any(
        first < before and not any(order < t.order and t.time_to >= min(before - 1, last) for t in cuts)
        for order, first, last in ages
    )

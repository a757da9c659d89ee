"""Many files of one table and partition made into one: what to merge, and when it takes effect.

    leader     `pick` chooses neighbours in age; the host has every member that is up hash them, so that no
               good copy goes while a damaged one is left, and proposes `Compact`
    apply      every member notes it as `Compacting`, with the deletes and the schema of that instant
    its turn   when all that was logged before it is in the manifest: are the inputs there? Else it is over
    job        a worker checks the inputs' hashes, merges them and makes the output (law 6)
    the end    the output takes the inputs' place in the manifest, and when a durable checkpoint says so and
               nobody reads them, the inputs are unlinked

Turns are taken per (partition, table), so that a member that cannot read an input holds up nothing else. It
keeps the compaction, tries again, and until then its manifest counts as not materialised. A `Seal` does not
void what was logged before it: the slot is no source here before the compaction is done. A `Release` does.

The output has the order of its newest input. That is right because the inputs are neighbours: whatever is
older or newer than one of them and not among them is so for all. Deletes logged before the entry are carried
out in it (`FileMeta.clean`), so that they end.
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
"""Of one compaction, that others are asked for. They hold the last one, or one close to it."""

SIZE_FLOOR = 4 * KIB
"""Smaller files count as this large: their own overhead outweighs their rows."""


class Compacting(msgspec.Struct):
    """A `Compact` that is logged and not over; or a `Park` of rows that are a TsFile here already."""

    index: int
    command: Compact | Park
    schema: TableSchema
    tombstones: list[Tombstone]
    """Those of the table and partition logged before it."""

    job: CompactFiles | None = None
    """Since its turn came."""

    gone: bool = False
    """The slot was released while the job ran: what it makes is deleted."""

    @property
    def key(self) -> Key:
        return self.command.partition, self.command.table

    @property
    def names(self) -> tuple[str, ...]:
        """Of its inputs, oldest first."""
        command = self.command
        return (command.name,) if isinstance(command, Park) else tuple(name for name, _ in command.inputs)

    @property
    def output(self) -> str:
        """Name of the file that it makes."""
        if isinstance(self.command, Park):
            return parked_name(self.command.name)
        name = f"{self.command.slot:05d}-{self.index:012d}-0000.tsfile"
        return parked_name(name) if self.command.parked else name

    @property
    def parked(self) -> str:
        return self.command.why if isinstance(self.command, Park) else self.command.parked


class Compactions:
    """Those of one group that are logged and not over. As long as one is, its inputs are pinned: a cut-off
    that was logged later must find its output."""

    def __init__(self) -> None:
        self.under_way: list[Compacting] = []
        """In the order of the log."""

    def add(self, c: Compacting) -> None:
        self.under_way.append(c)

    def end(self, *over: Compacting) -> None:
        """They had their effect, or have none."""
        gone = set(map(id, over))
        self.under_way = [c for c in self.under_way if id(c) not in gone]

    def of(self, job: CompactFiles) -> Compacting | None:
        return next((c for c in self.under_way if c.job == job), None)

    def is_input(self, name: str) -> bool:
        """Whether a compaction that is logged and not over takes the file in, once it is there."""
        return any(name in c.names for c in self.under_way if not c.gone)

    def pinned(self, key: Key) -> dict[str, int]:
        """Inputs of the table and partition, each with the index of the earliest that takes it in."""
        waiting = reversed([c for c in self.under_way if c.key == key and not c.gone])
        return {name: c.index for c in waiting for name in c.names}

    def outputs(self) -> set[str]:
        return {c.output for c in self.under_way}

    def release(self, slots: set[int]) -> None:
        """Those of the slots are over; one whose job runs is kept until that ends."""
        for c in self.under_way:
            c.gone = c.gone or c.command.slot in slots
        self.under_way = [c for c in self.under_way if not c.gone or c.job is not None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a compaction on members that are ahead: its output, or that of a later one which took it
    in. Where such a file is, `steps` had their effect; here it takes the place of `inputs` (law 6)."""

    spec: CloseSpec
    steps: tuple[Compacting, ...]
    inputs: tuple[FileMeta, ...]


def outcomes_of(c: Compacting, alike: Sequence[Compacting], files: Sequence[FileMeta]) -> list[Outcome]:
    """Those of a compaction whose turn came, the furthest first.

    Args:
        alike: those under way in its table and partition for which all is in place that was logged before
            them, in the order of the log; `c` is the first.
        files: of its table and partition, in the order of their age.
    """
    assert c.job is not None
    makers = {d.output: d for d in alike}
    heirs, theirs = [c], {c.output}
    for d in alike:
        if not theirs.isdisjoint(d.names):
            heirs.append(d)
            theirs.add(d.output)
    found = []
    for heir in heirs[: -OUTCOMES_MAX - 1 : -1]:
        steps = [heir]
        for step in steps:
            made_before = (makers[name] for name in step.names if name in makers)
            steps += [d for d in made_before if d.index < step.index]  # so that it ends, whatever is logged
        made = {step.output for step in steps}
        inputs = neighbours(files, {name for step in steps for name in step.names} - made)
        if inputs:
            order = inputs[-1].order
            spec = msgspec.structs.replace(c.job.unit.spec, name=heir.output, order=order, parked=heir.parked)
            found.append(Outcome(spec, tuple(steps), inputs))
    return found


def neighbours(files: Sequence[FileMeta], names: set[str]) -> tuple[FileMeta, ...]:
    """The files called so, if all are there and next to each other; else none."""
    at = [i for i, f in enumerate(files) if f.name in names]
    is_run = bool(at) and at[-1] - at[0] + 1 == len(at) == len(names)
    return tuple(files[at[0] : at[-1] + 1]) if is_run else ()


def find_inputs(manifest: Manifest, c: Compacting) -> tuple[FileMeta, ...]:
    """The files it names, if they are there and neighbours in age; else none."""
    files = manifest.of_partition(*c.key)
    wanted = list(c.names)
    first = next((i for i, f in enumerate(files) if f.name == wanted[0]), 0)
    found = files[first : first + len(wanted)]
    return found if [f.name for f in found] == wanted else ()


def job_of(
    group: GroupId, c: Compacting, inputs: Sequence[FileMeta], substitutes: Container[str] = ()
) -> CompactFiles:
    """What is made follows from the log alone. The hashes are the log's and not those of this manifest,
    but for those of `substitutes`: they have the rows that the log says, in other bytes."""
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
    """To see whether the parked `file` can be a TsFile by now: the work of a compaction, for nothing."""
    command = Compact(file.slot, file.partition, file.table, ((file.name, file.xxh3),))
    job = job_of(group, Compacting(0, command, schema, list(tombstones)), (file,))
    return msgspec.structs.replace(job, is_trial=True)


def _parking(group: GroupId, command: Park, file: FileMeta) -> CompactFiles:
    """The Arrow file that members make which could not make this TsFile: the same rows, so the same bytes."""
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
    """Files wholly behind a cut-off.

    `pinned` are inputs of compactions under way with the index of the earliest: a cut-off logged after that
    must find the output, on every member, however far each of them is.
    """

    def behind(file: FileMeta, cut: Tombstone) -> bool:
        waits = file.name in pinned and (pinned[file.name],) < cut.order
        return cut.masks(file) and file.time_max <= cut.time_to and not waits

    return tuple(f for f in files if any(behind(f, c) for c in cuts))


# --- what the leader proposes ----------------------------------------------------------------------


def weight_of(file: FileMeta) -> int:
    """Bytes the file counts for: a worker holds the rows of all inputs, however small the files made them."""
    return max(file.size, file.rows * COMPACT_ROW_BYTES)


def pick_small(files: Sequence[FileMeta], files_min: int, full_min: int | None = None) -> Sequence[FileMeta]:
    """Neighbours in age worth merging, of files given oldest first; none if there are none.

    From the newest on, an older file joins while it is no larger than all newer ones together. So a row is
    rewritten only into a file at least twice as large: a number of times that grows with the logarithm of
    the size, up to `COMPACT_BYTES_MAX`.

    Args:
        files_min: how many make a run.
        full_min: how many do when one more would pass `COMPACT_BYTES_MAX`: such a run cannot grow.
    """
    full_min = full_min or files_min
    if len(files) < min(files_min, full_min):  # nearly everywhere
        return ()
    return next(filter(None, (_pick_small(alike, files_min, full_min) for alike in _alike(files))), ())


def _alike(files: Sequence[FileMeta]) -> list[Sequence[FileMeta]]:
    """Neighbours that are all parked or all TsFiles, the newest first. They are not merged with each other:
    rows that become no TsFile do not become one with others, and would make these Arrow too."""
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
    """Range deletes that rewriting the files would end. What expires ends by itself."""
    return [t for t in tombstones if not t.expiry and any(t.masks(f) for f in files)]


def pick_masked(files: Sequence[FileMeta], tombstones: Sequence[Tombstone]) -> Sequence[FileMeta]:
    """The oldest neighbours that range deletes mask, of files given oldest first."""
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
    """Rows before this time are past the TTL. It moves in steps, so that few entries say so."""
    step = max(ttl_ms // EXPIRY_STEPS, 1)
    return (passed_ms - ttl_ms) // step * step


def needs_expiry(
    before: int, ages: Sequence[tuple[Order, int, int]], tombstones: Sequence[Tombstone]
) -> bool:
    """Whether rows before `before` would still be read.

    Args:
        ages: (order, first time, last time) of every file and batch of the table and partition.
        tombstones: of the same.
    """
    cuts = [t for t in tombstones if t.expiry]
    return any(
        first < before and not any(order < t.order and t.time_to >= min(before - 1, last) for t in cuts)
        for order, first, last in ages
    )

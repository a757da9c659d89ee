"""One data group's state: a pure function of its log.

`apply` takes committed entries in order and returns what each answers. Slow work (closing, adopting,
deleting files) leaves as jobs; the state changes when their results come back, which is why every
state has two indexes: `applied` and `materialised` (all file-making entries up to it are done).

Invariants:
    a write has an effect only when its slot is open by the log prefix before it;
    no row leaves memory before the file that holds it is durable and in the manifest;
    the log is needed from `base() + 1` on, and from no earlier index.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from nodeagent.data import closing, commands, compaction
from nodeagent.data.commands import Command
from nodeagent.data.compaction import Compacting, Compactions, Key, Outcome
from nodeagent.data.files import Files
from nodeagent.data.handover import Part, Staged
from nodeagent.data.rates import WriteRates
from nodeagent.data.rows import Rows
from nodeagent.data.sessions import Image as SessionsImage
from nodeagent.data.sessions import Sessions
from nodeagent.data.slots import Slots, expand
from nodeagent.data.tombstones import Tombstones
from nodeagent.model import limits
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import EntryFailed
from nodeagent.model.files import FileMeta, Tombstone, logged_at, parked_name
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.jobs import AdoptFiles, CloseFiles, CloseUnit, CompactFiles, Job
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import Accepted, ErrorReply, Reply, SessionOpened, Written
from nodeagent.model.schema import TableSchema

TIME_MIN = -(1 << 63)
INITIAL_INDEX = 1
"""Where the log of a new group begins. The first slots are in no entry, so index 1 stands for them: a
member that joins with nothing can never be served from the log alone, it needs a checkpoint."""


class Checkpoint(msgspec.Struct):
    """The state at `applied`, without the rows that are still in the log."""

    group: GroupId
    applied: int
    slots: Slots
    sessions: SessionsImage
    schemas: list[TableSchema]
    tombstones: list[Tombstone]
    files: list[FileMeta]
    closed_through: list[tuple[PartitionKey, int]]
    refused: list[int]
    """Writes in the kept log that had no effect."""

    pending: list[tuple[int, bytes, list[TableSchema], set[int]]]
    """(index, entry, schemas then in use, slots released since) of closes whose files are not made."""

    adopting: list[tuple[int, bytes, set[int]]]
    """(index, entry, slots released since)"""

    compacting: list[tuple[int, bytes, TableSchema, list[Tombstone]]] = []
    """(index, entry, schema and deletes of that instant)"""

    unfiled: list[tuple[int, PartitionKey, int]] = []
    """What is left of `pending`: (index of the close, partition, number of its first unit). A release that
    filed whole closes has saved none: there all of a pending close is left."""

    parked: list[tuple[int, str, str]] = []
    """(index of a pending close, name of the TsFile that is not to be made, why)"""

    staged: dict[str, dict[GroupId, dict[int, Part]]] = {}
    """As in `handover.Staged`."""

    substitutes: list[str] = []
    """As in `Files.substitutes`."""


@dataclass(slots=True)
class Adopting:
    """An `Adopt` whose files are not in place yet."""

    index: int
    command: commands.Adopt
    gone: set[int] = field(default_factory=set)
    """Slots released since, as in `closing.Pending`."""


class DataState:
    """See the module. `jobs` collects work for the host, which numbers and runs it."""

    def __init__(
        self,
        group: GroupId,
        applied: int = 0,
        slots: Slots | None = None,
        sessions: Sessions | None = None,
        staged: Staged | None = None,
        tombstones: Iterable[Tombstone] = (),
    ) -> None:
        self.group = group
        self.applied = applied
        self.jobs: list[Job] = []
        """Shared by the parts that ask for work: to be emptied, never replaced."""

        self.slots = slots or Slots()
        self.sessions = sessions or Sessions()
        self.staged = staged or Staged()
        self.schemas: dict[tuple[str, str], TableSchema] = {}
        self.tombstones = Tombstones(tombstones)
        self.rows = Rows(self.tombstones)
        self.rows.delivered = applied
        self.compactions = Compactions()
        self.files = Files(group, self.jobs, self.slots, self.rows, self.tombstones, self.compactions)
        self.refused: set[int] = set()
        self.pending: list[closing.Pending] = []
        self.adopting: list[Adopting] = []
        self.rates = WriteRates()
        """Of this process alone: neither in the log nor in a checkpoint."""

        self._news = False

    # --- applying ----------------------------------------------------------------------------------

    def apply(self, first: int, entries: list[Entry], now: int) -> list[tuple[int, Reply]]:
        """Apply committed entries from index `first`; the answers, by index.

        Raises:
            EntryFailed: an entry cannot be applied. The state may not be used or saved any more.
        """
        replies: list[tuple[int, Reply]] = []
        index = first
        try:
            for index, entry in enumerate(entries, first):
                self.rows.delivered = index
                if index <= self.rows.recovered_to:
                    self._recover(index, entry, now)
                    continue
                assert index == self.applied + 1, (self.group, index, self.applied)
                self.applied = index
                if entry.kind == EntryKind.COMMAND:
                    command = commands.decode(entry.data)
                    self._news |= not isinstance(command, commands.WriteRows)
                    replies.append((index, self._apply(index, entry.term, command, now)))
        except MemoryError:
            raise  # it passes
        except Exception as error:  # whatever it is, it comes again with the entry
            raise EntryFailed.of(index, error, replies) from error
        return replies

    def take_news(self) -> bool:
        """Whether anything but rows was applied since the last call."""
        news, self._news = self._news, False
        return news

    def _apply(self, index: int, term: int, command: Command, now: int) -> Reply:
        match command:
            case commands.WriteRows():
                return self._write(index, command, now)
            case commands.Opaque():
                return Accepted(index)
            case commands.OpenSession():
                return self._open_session(index, term)
            case commands.ExpireSessions():
                self.sessions.expire(command.sessions)
            case commands.UseSchema():
                self._use_schema(command.schema)
            case commands.CloseFile():
                self._close(index, command)
            case commands.DeleteRange():
                return self._delete(index, command)
            case commands.Seal():
                self._seal(index, command)
            case commands.Unseal():
                self._unseal(command)
            case commands.OpenSessions():
                self._stage_sessions(command)
            case commands.Open():
                self._open(index, command)
            case commands.Adopt():
                self._adopt(index, command)
            case commands.Release():
                self._release(command)
            case commands.Compact():
                self._compact(index, command)
            case commands.Expire():
                return self._expire(index, command)
            case commands.Park():
                self._park(index, command)
        return Accepted(index)

    def _recover(self, index: int, entry: Entry, now: int) -> None:
        """Give a row that the checkpoint does not hold back to the memtable."""
        if entry.kind != EntryKind.COMMAND or index in self.refused:
            return
        command = commands.decode(entry.data)
        if isinstance(command, commands.WriteRows):
            self.rows.give_back(index, command, now)
        elif isinstance(command, commands.CloseFile | commands.Seal) and any(
            p.index == index for p in self.pending
        ):
            self._refreeze(index)

    # --- rows --------------------------------------------------------------------------------------

    def check_slot(self, slot: int) -> ErrorReply | None:
        """Why a write to `slot` has no effect by the state as it is, if so."""
        if slot in self.slots.open:
            return None
        waiting = self.slots.sealed_by(slot) is not None
        return ErrorReply(
            "moved",
            f"slot {slot} is not open in group {self.group}",
            details={"slot": slot, "wait": waiting},
        )

    def _write(self, index: int, w: commands.WriteRows, now: int) -> Reply:
        refusal = self.check_slot(w.slot) or self._check_session(w.session, w.slot, w.sequence, w.settled)
        if refusal is None:
            schema = self.schemas.get((w.partition.storage_group, w.table))
            if schema is None or schema.version < w.schema_version:
                refusal = ErrorReply("schema_mismatch", f"table {w.table} is not in use at this version")
        if refusal is not None:
            self.refused.add(index)
            return refusal
        if not self.sessions.take(w.session, w.slot, w.sequence, w.settled):
            self.refused.add(index)
            return Written(0, duplicate=True)
        self.rows.add(index, w, now)
        self.rates.add(w.slot, len(w.ipc), now)
        return Written(index)

    def _check_session(self, session: str, slot: int, sequence: int, settled: int) -> ErrorReply | None:
        if not self.sessions.knows(session, slot):
            return ErrorReply("session_expired", f"session {session} is not known to group {self.group}")
        floor = max(self.sessions.floor(session, slot), settled)
        if sequence > floor + limits.SESSION_WINDOW:
            return ErrorReply(
                "overloaded", f"sequence {sequence} is more than {limits.SESSION_WINDOW} past {floor}"
            )
        return None

    def _delete(self, index: int, d: commands.DeleteRange) -> Reply:
        refusal = self.check_slot(d.slot) or self._check_session(d.session, d.slot, d.sequence, d.settled)
        if refusal is not None:
            return refusal
        if not self.sessions.take(d.session, d.slot, d.sequence, d.settled):
            return Written(0, duplicate=True)
        self.files.delete(Tombstone((index,), d.partition, d.table, d.tags, d.time_from, d.time_to))
        return Written(index)

    def _open_session(self, index: int, term: int) -> Reply:
        # The term too: after a recovery (`Raft.force`) indexes that the lost nodes gave out come again.
        session = f"{self.group}:{index}.{term}"
        if not self.sessions.open(session):
            return ErrorReply(
                "overloaded", f"group {self.group} has {limits.SESSIONS_PER_GROUP_MAX} sessions"
            )
        return SessionOpened(session)

    def _use_schema(self, schema: TableSchema) -> None:
        key = (schema.storage_group, schema.table)
        known = self.schemas.get(key)
        if known is None or schema.version > known.version:
            self.schemas[key] = schema

    # --- files -------------------------------------------------------------------------------------

    def _close(
        self,
        index: int,
        command: commands.CloseFile,
        schemas: dict[tuple[str, str], TableSchema] | None = None,
        left: Mapping[PartitionKey, int | None] | None = None,
        parked: Mapping[str, str] | None = None,
    ) -> None:
        """`left` are the partitions not filed yet of a close from before a restart; None for all. `parked` as
        in `Pending`."""
        frozen = []
        for slot, partition in command.partitions:
            if left is not None and partition not in left:
                continue
            fresh = self.rows.memtable.freeze(partition, index)
            tables = {table: tuple(run.batches) for table, run in fresh.items()}
            if tables:
                frozen.append((slot, partition, tables))
        if frozen:
            pending = closing.plan(
                index,
                command,
                frozen,
                schemas or self.schemas,
                self.tombstones.of,
                left or {},
                parked or {},
            )
            self.pending.append(pending)
            self.jobs.append(CloseFiles(self.group, pending.units))

    def _refreeze(self, index: int) -> None:
        """A close of the checkpoint whose files were not made: its rows are back in the memtable.

        It closes with the schemas of its own time: another column list would give other bytes (law 6).
        """
        at = next(i for i, p in enumerate(self.pending) if p.index == index)
        waiting = self.pending.pop(at)
        later = self.pending[at:]
        del self.pending[at:]
        schemas = {(s.storage_group, s.table): s for s in waiting.schemas}
        left = {partition: part.first for partition, part in waiting.parts.items()}
        self._close(index, waiting.command, schemas, left, waiting.parked)
        if len(self.pending) > at:
            self.pending[at].gone = waiting.gone
        self.rows.drop_slots(waiting.gone)
        self.pending += later

    def on_closed(self, job: CloseFiles, files: tuple[FileMeta | None, ...]) -> None:
        """The files `job` asked for are durable."""
        closes = {p.index: p for p in self.pending}
        for unit, file in zip(job.units, files, strict=True):
            pending = closes.get(unit.spec.order[0])
            if pending is None:
                continue
            if unit.spec.name in pending.parked:
                self.files.unlink([file])  # made while it was parked: nobody names it
            else:
                pending.on_made(unit, file)
        self._file_made()

    def _file_made(self) -> None:
        """Per partition in the order of the closes, so that dropping rows up to one never drops those of an
        earlier one."""
        behind: set[PartitionKey] = set()
        for pending in self.pending:
            if not pending.is_frozen:
                break  # the log has not come to it again; nor to what follows it
            for partition in list(pending.parts):
                if partition not in behind and pending.is_made(partition):
                    self._materialise(pending, partition)
                else:
                    behind.add(partition)
        self.pending = [p for p in self.pending if p.parts]
        self.files.prune()
        self._take_turns()

    def _materialise(self, pending: closing.Pending, partition: PartitionKey) -> None:
        self.files.keep(pending.file(partition), pending.gone)
        self.rows.drop_filed(partition, pending.index)

    def _park(self, index: int, command: commands.Park) -> None:
        """Rows that fail to become a TsFile become an Arrow file, also where they are a TsFile already: what
        one member can make and another cannot would differ for ever.

        What a compaction logged before names as an input is parked after it, if it is there then: whether the
        compaction takes it away is known only when its turn has come, at each member's own pace.
        """
        if self.compactions.is_input(command.name):
            self.compactions.under_way.append(Compacting(index, command, command.schema, []))
            return
        merge = next((c for c in self.compactions.under_way if c.index == command.close), None)
        if merge is not None:
            return self._park_merge(merge, command.why)
        pending = next((p for p in self.pending if p.index == command.close), None)
        made = pending.made.pop(command.name, None) if pending is not None else None
        unit = pending.park(command.name, command.why) if pending is not None else None
        if unit is not None:
            self.files.unlink([made])
            self.jobs.append(CloseFiles(self.group, (unit,)))
        elif command.name in self.files.manifest:
            self.compactions.under_way.append(Compacting(index, command, command.schema, []))
            self._take_turns()

    def _park_merge(self, c: Compacting, why: str) -> None:
        """Its output is made as Arrow; what the job of before still makes is deleted (`on_compacted`)."""
        if c.gone or not isinstance(c.command, commands.Compact) or c.command.parked:
            return
        c.command = msgspec.structs.replace(c.command, parked=why)
        if c.job is not None:
            c.job = compaction.job_of(self.group, c, c.job.unit.inputs, self.files.substitutes)
            self.jobs.append(c.job)

    def still_wanted(self, job: CloseFiles) -> tuple[CloseUnit, ...]:
        """Of a job that failed, the units to be tried again: what was released since is done with, and what
        has expired, which no other member holds any more either."""
        closes = {p.index: p for p in self.pending}
        wanted = []
        for unit in job.units:
            pending = closes.get(unit.spec.order[0])
            if pending is not None and unit.spec.slot in pending.gone:
                pending.on_made(unit, None)
            elif pending is not None and unit.spec.name not in pending.parked:
                if self._is_past(unit):
                    pending.on_made(unit, None)
                else:
                    wanted.append(unit)
        self._file_made()
        return tuple(wanted)

    def _is_past(self, unit: CloseUnit) -> bool:
        """Whether the unit's file would go at once: a cut-off logged since hides all of it, and no compaction
        logged before the cut-off names it."""
        spec = unit.spec
        table = spec.schema.table
        cuts = [t for t in self.tombstones.cuts(spec.partition, table) if spec.order < t.order]
        held = self.rows.memtable.partition(spec.partition) if cuts else None
        if held is None:
            return False
        first = unit.batches[0].order[0]
        last = next((run.time_max for run in held.runs(table) if run.first_index == first), None)
        pin = self.compactions.pinned((spec.partition, table)).get(spec.name)
        return last is not None and any(last <= t.time_to and (pin is None or t.order < (pin,)) for t in cuts)

    # --- compaction and expiry (see `data.compaction`) ----------------------------------------------

    def is_settled(self, slot: int) -> bool:
        """Whether the slot is open by the log so far and nothing older is still to be adopted for it."""
        if slot not in self.slots.open:
            return False
        operation = self.slots.arriving_by(slot)
        return operation is None or slot not in self._unadopted(operation)

    def _unadopted(self, operation: str) -> set[int]:
        """Slots of the operation without an `Adopt` in the log so far. (When files are in place is no
        matter of the log.)"""
        adopted = [expand(a.command.slots) for a in self.adopting if a.command.operation == operation]
        return self.slots.arriving[operation].slots.difference(*adopted)

    def _compact(self, index: int, command: commands.Compact) -> None:
        schema = self.schemas.get((command.partition.storage_group, command.table))
        if schema is None or not command.inputs or not self.is_settled(command.slot):
            return
        key = (command.partition, command.table)
        coming = (t for a in self.adopting for t in a.command.tombstones if (t.partition, t.table) == key)
        deletes = dict.fromkeys([*self.tombstones.of(*key), *coming])
        self.compactions.under_way.append(Compacting(index, command, schema, list(deletes)))
        self._take_turns()

    def _take_turns(self) -> None:
        """Start the compactions whose turn has come."""
        taken: set[Key] = set()
        for c in list(self.compactions.under_way):
            if c.gone or c.key in taken:
                continue
            if c.job is None and self._is_next(c):
                inputs = compaction.find_inputs(self.files.manifest, c)
                if not inputs:
                    self.compactions.under_way.remove(c)
                    self.files.settle(c.key)
                    continue
                c.job = compaction.job_of(self.group, c, inputs, self.files.substitutes)
                self.jobs.append(c.job)
            taken.add(c.key)

    def _is_next(self, c: Compacting) -> bool:
        """Whether everything logged before it that may concern its files is in the manifest."""
        if any(p.index < c.index and c.command.partition in p.parts for p in self.pending):
            return False
        return not any(a.index < c.index and c.command.slot in expand(a.command.slots) for a in self.adopting)

    def has_passed(self, name: str) -> bool:
        """Whether the file was in this manifest and left it, or no row was left for it."""
        if not (self.rows.recovered and 0 <= logged_at(name) <= self.applied) or name in self.files.manifest:
            return False
        return name not in self._coming()

    def _coming(self) -> set[str]:
        """Files that closes and compactions are still to make."""
        return {u.spec.name for p in self.pending for u in p.units} | self.compactions.outputs()

    def wants(self, job: CompactFiles) -> bool:
        """Whether a compaction that failed is to be tried again; if not it is over: its slot was released, or
        its inputs have expired, and then no other member holds its output any more either."""
        c = self.compactions.of(job)
        if c is None:
            return False
        if c.gone:
            self.compactions.under_way.remove(c)
            return False
        over = next((o for o in self.outcomes(job) if self._has_expired(o)), None)
        if over is not None:
            self.on_copied(over, None)
        return over is None

    def _has_expired(self, outcome: Outcome) -> bool:
        """Whether no other member holds the outcome any more, nor what a later compaction made of it: that
        one, where it was logged before the cut-off, had its effect."""
        steps = set(map(id, outcome.steps))
        names = {name for c in outcome.steps for name in (*c.names, c.output)}
        later = [
            c.index
            for c in self.compactions.under_way
            if id(c) not in steps and not names.isdisjoint(c.names)
        ]
        pinned = {f.name: min(later) for f in outcome.inputs} if later else {}
        cuts = self.tombstones.cuts(*outcome.steps[0].key)
        return len(compaction.expired(outcome.inputs, cuts, pinned)) == len(outcome.inputs)

    def outcomes(self, job: CompactFiles) -> list[Outcome]:
        """Files of members that are ahead which would end the compaction here, the furthest first."""
        c = self.compactions.of(job)
        if c is None or c.gone:
            return []
        later = self.compactions.under_way[self.compactions.under_way.index(c) :]
        alike = [d for d in later if d.key == c.key and not d.gone and self._is_next(d)]
        return compaction.outcomes_of(c, alike, self.files.manifest.of_partition(*c.key))

    def on_copied(self, outcome: Outcome, made: FileMeta | None) -> None:
        """A member's file that ends several compactions at once is durable, or nothing was left for it."""
        over = set(map(id, outcome.steps))
        self.compactions.under_way = [c for c in self.compactions.under_way if id(c) not in over]
        self._replace(outcome.inputs, [made] if made is not None else [], outcome.steps[0].key)

    def _replace(self, inputs: Iterable[FileMeta], files: list[FileMeta], key: Key) -> None:
        self.files.replace(inputs, files, key)
        self._take_turns()

    def on_compacted(self, job: CompactFiles, made: FileMeta | None) -> None:
        """The file `job` asked for is durable, or nothing was left for it."""
        c = self.compactions.of(job)
        if c is None:
            if made is not None and self._is_parked_by_now(made.name):
                self.files.unlink([made])
            return
        self.compactions.under_way.remove(c)
        files = [made] if made is not None else []
        if c.gone:
            self.files.doomed += files
            self._take_turns()
        else:
            self._replace(job.unit.inputs, files, c.key)

    def _is_parked_by_now(self, name: str) -> bool:
        """Whether this TsFile is named nowhere, because its rows were parked while it was made."""
        instead = parked_name(name)
        coming = (c.job.unit.spec.name for c in self.compactions.under_way if c.job is not None)
        return name not in self.files.manifest and (instead in self.files.manifest or instead in coming)

    def _expire(self, index: int, e: commands.Expire) -> Reply:
        if e.passed and e.before > e.passed:
            return ErrorReply("refused", f"the cut-off {e.before} lies after {e.passed}: in the future")
        if self.check_slot(e.slot) is None:
            self.files.expire(
                Tombstone((index,), e.partition, e.table, (), TIME_MIN, e.before - 1, expiry=True)
            )
        return Accepted(index)

    # --- hand-over ---------------------------------------------------------------------------------

    def _seal(self, index: int, command: commands.Seal) -> None:
        exported = self.sessions.export(expand(command.slots))
        if not self.slots.seal(command.operation, command.slots, index, exported):
            return
        moved = self.slots.sealed[command.operation].slots
        self.sessions.forget(moved)  # the table has them, also for an `Unseal`
        self._close(index, commands.CloseFile(self.rows.of_slots(moved), writer=command.writer))

    def _unseal(self, command: commands.Unseal) -> None:
        sealed = self.slots.sealed.get(command.operation)
        self.staged.drop(command.operation)
        if self.slots.unseal(command.operation) and sealed is not None:
            self.sessions.admit([sealed.sessions], sealed.slots)

    def _stage_sessions(self, command: commands.OpenSessions) -> None:
        if command.operation not in self.slots.ended and command.operation not in self.slots.arriving:
            self.staged.add(command)

    def _open(self, index: int, command: commands.Open) -> None:
        if self.staged.lacking(command.operation, command.results):
            return
        sources = [r.group for r in command.results]
        if not self.slots.open_for(command.operation, command.slots, index, sources):
            return
        opened = self.slots.arriving[command.operation].slots
        self.sessions.admit(self.staged.tables(command.operation, command.results), opened)
        self.staged.drop(command.operation)

    def _adopt(self, index: int, command: commands.Adopt) -> None:
        if command.operation in self.slots.ended or command.operation not in self.slots.arriving:
            return
        if self._unadopted(command.operation).isdisjoint(expand(command.slots)):
            return  # sent again; by now its files may have been compacted
        self.adopting.append(Adopting(index, command))
        self.jobs.append(AdoptFiles(command.operation, self.group, command.files))

    def on_adopted(self, job: AdoptFiles) -> None:
        """The files of an `Adopt` are in place under their new names."""
        at = next((i for i, a in enumerate(self.adopting) if a.command.files == job.files), None)
        if at is None:
            return
        adopted = self.adopting.pop(at)
        command = adopted.command
        self.tombstones.add_older(command.tombstones)
        self.files.keep([a.meta for a in command.files], adopted.gone)
        self.slots.adopted(command.operation, command.slots)
        self._take_turns()

    def _release(self, command: commands.Release) -> None:
        gone = self.slots.release(command.operation)
        if not gone:
            return
        self.sessions.forget(gone)
        self.rows.drop_slots(gone)
        for pending in self.pending:
            pending.gone |= gone
        for adopting in self.adopting:
            adopting.gone |= gone
        self.compactions.release(gone)
        self.files.release(gone)

    # --- indexes and checkpoints -------------------------------------------------------------------

    @property
    def materialised(self) -> int:
        waiting = [p.index for p in self.pending] + [a.index for a in self.adopting]
        waiting += [c.index for c in self.compactions.under_way if not c.gone]
        return min(waiting, default=self.applied + 1) - 1

    def base(self) -> int:
        """The log is needed from the next index on."""
        needed = [p.first_index for p in self.pending] + [a.index for a in self.adopting]
        needed.append(self.rows.memtable.first_index() or self.applied + 1)
        return min(min(needed) - 1, self.applied)

    def sealed_ready(self, operation: str) -> bool:
        """Whether this member applied the seal and made every file of the sealed slots."""
        sealed = self.slots.sealed.get(operation)
        if sealed is None or not self.sealed_whole(operation, sealed.slots):
            return False
        if any(c.command.slot in sealed.slots and not c.gone for c in self.compactions.under_way):
            return False
        return not any(u.spec.slot in sealed.slots for p in self.pending for u in p.units)

    def sealed_whole(self, operation: str, slots: set[int]) -> bool:
        """Whether files and memory together are everything that was written to these sealed slots.

        They are not while files that an earlier operation brought are still to be put in place here.
        """
        sealed = self.slots.sealed.get(operation)
        if sealed is None or sealed.hollow or not self.rows.recovered or not slots <= sealed.slots:
            return False
        if any(not slots.isdisjoint(a.slots) for a in self.slots.arriving.values()):
            return False
        return not any(not slots.isdisjoint(expand(a.command.slots)) for a in self.adopting)

    def is_hollow(self, operation: str) -> bool:
        """Whether the slots sealed by `operation` are known here without their files."""
        sealed = self.slots.sealed.get(operation)
        return sealed is not None and sealed.hollow

    def sources(self, operations: set[str]) -> set[int]:
        """Slots that left with one of `operations` and are kept only as a source of copies."""
        sealed = (self.slots.sealed[op].slots for op in operations if op in self.slots.sealed)
        return set[int]().union(*sealed) - self.slots.open

    def checkpoint(self, without: set[str] | None = None, *, with_files: bool = True) -> Checkpoint:
        """The state to save; for a new member without the files that operations in `without` sealed.

        `with_files=False` leaves the files to the caller that stores it: they are most of it.
        """
        operations = without or set()
        sources = self.sources(operations)
        assert self.rows.recovered, (self.group, self.rows.delivered, self.rows.recovered_to)
        base = self.base()
        self.rows.forget_closed(base)
        self.refused = {i for i in self.refused if i > base}
        if self.files.substitutes:
            coming = self._coming()
            self.files.substitutes = {n for n in self.files.substitutes if n in self.files.manifest or n in coming}
        return Checkpoint(
            group=self.group,
            applied=self.applied,
            slots=self.slots.without_files(operations) if operations else self.slots,
            sessions=self.sessions.image(),
            schemas=list(self.schemas.values()),
            tombstones=list(self.tombstones),
            files=[f for f in self.files.manifest.files() if f.slot not in sources] if with_files else [],
            closed_through=sorted(self.rows.closed_through.items()),
            refused=sorted(self.refused),
            pending=[(p.index, commands.encode(p.command), p.schemas, p.gone) for p in self.pending],
            unfiled=[
                (p.index, partition, part.first)
                for p in self.pending
                for partition, part in p.parts.items()
                if part.first is not None
            ],
            adopting=[(a.index, commands.encode(a.command), a.gone) for a in self.adopting],
            compacting=[
                (c.index, commands.encode(c.command), c.schema, c.tombstones)
                for c in self.compactions.under_way
                if not c.gone and c.command.slot not in sources
            ],
            parked=[(p.index, name, why) for p in self.pending for name, why in p.parked.items()],
            staged=self.staged.parts,
            substitutes=sorted(self.files.substitutes),
        )

    def superseded(self, old: "DataState", left: Iterable[FileMeta] = ()) -> tuple[FileMeta, ...]:
        """Files of the state this one replaced, of its closes that waited for an earlier one, and of those
        that `left` its manifest and are not unlinked yet, that will never be named here.

        None when this state is older: then the log after it makes files of the same names again.
        """
        if self.applied < old.applied:
            return ()
        unnamed = (f for p in old.pending for f in p.made.values() if f is not None)
        return self.never_named((*old.files.manifest.files(), *unnamed, *left))

    def never_named(self, files: Iterable[FileMeta]) -> tuple[FileMeta, ...]:
        """Those that the manifest does not name, nor will by anything that is applied and not over."""
        made_by = {(p.index, partition) for p in self.pending for partition in p.parts}
        made_by |= {(c.index, c.command.partition) for c in self.compactions.under_way}
        coming = {f.meta.name for a in self.adopting for f in a.command.files}
        coming |= self.compactions.outputs()
        return tuple(
            f
            for f in files
            if f.name not in self.files.manifest
            and f.name not in coming
            and (logged_at(f.name), f.partition) not in made_by
        )

    @classmethod
    def restore(cls, saved: Checkpoint, base: int) -> "DataState":
        """State at `saved.applied`; rows come back as the log after `base` is applied again."""
        state = cls(
            saved.group,
            saved.applied,
            saved.slots,
            Sessions.restore(saved.sessions),
            Staged(saved.staged),
            saved.tombstones,
        )
        state.rows.recovered_to, state.rows.delivered = saved.applied, base
        state.rows.closed_through = dict(saved.closed_through)
        state.schemas |= {(s.storage_group, s.table): s for s in saved.schemas}
        state.refused = set(saved.refused)
        state.files.manifest.add(saved.files)
        state.files.changed = dict.fromkeys((f.partition, f.table) for f in saved.files)
        state.files.substitutes = set(saved.substitutes)
        for index, data, schemas, gone in saved.pending:
            command = commands.decode(data)
            assert isinstance(command, commands.CloseFile)
            parts = {p: closing.Part(first) for i, p, first in saved.unfiled if i == index}
            parts = parts or {p: closing.Part(None) for _, p in command.partitions}
            parked = {name: why for i, name, why in saved.parked if i == index}
            state.pending.append(closing.Pending(index, command, parts, schemas, gone, parked))
        for index, data, gone in saved.adopting:
            command = commands.decode(data)
            assert isinstance(command, commands.Adopt)
            state.adopting.append(Adopting(index, command, gone))
            state.jobs.append(AdoptFiles(command.operation, state.group, command.files))
        for index, data, schema, tombstones in saved.compacting:
            command = commands.decode(data)
            assert isinstance(command, commands.Compact | commands.Park)
            state.compactions.under_way.append(Compacting(index, command, schema, tombstones))
        state._take_turns()
        return state


def initial(group: GroupId, slots: Ranges) -> DataState:
    """State of a group that the meta log created owning `slots`, as of `INITIAL_INDEX`."""
    return DataState(group, INITIAL_INDEX, Slots(expand(slots)))


def encode_checkpoint(saved: Checkpoint) -> bytes:
    return msgspec.msgpack.encode(saved)


def decode_checkpoint(payload: bytes) -> Checkpoint:
    return msgspec.msgpack.decode(payload, type=Checkpoint)

"""One data group's state: a pure function of its log.

`apply` takes committed entries in order and returns the reply to each. Slow work (closing, adopting, deleting
files) is emitted as jobs; the state changes when their results come back. That is why a state has two log
indexes: `applied`, and `materialised`, up to which all entries that make files have their files.

Each entry is applied by the part that it concerns. This module does what needs all parts: it passes
entries and results to the parts, computes the two indexes, decides when sealed slots are a source of copies
and which files no manifest will ever name, and makes checkpoints.

Invariants:
    a write takes effect only if its slot is open in the state before it;
    no row leaves memory before the file that holds it is durable and in the manifest;
    the log is needed from `base() + 1` on, and from no earlier index.
"""

from collections.abc import Iterable

from nodeagent.data import commands
from nodeagent.data.adoption import Adoptions
from nodeagent.data.checkpoint import Checkpoint
from nodeagent.data.closing import Closes
from nodeagent.data.commands import Command
from nodeagent.data.compaction import Compactions
from nodeagent.data.files import Files
from nodeagent.data.rows import Rows
from nodeagent.data.sessions import Sessions
from nodeagent.data.slot_migration import SlotMigration, Staged
from nodeagent.data.slots import Slots, expand
from nodeagent.data.tombstones import Tombstones
from nodeagent.data.turns import Turns
from nodeagent.data.writes import Writes
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import EntryFailed
from nodeagent.model.files import FileMeta, Tombstone, logged_at
from nodeagent.model.ids import GroupId
from nodeagent.model.jobs import AdoptFiles, CloseFiles, CloseUnit, Job
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import Accepted, Reply
from nodeagent.model.schema import Schemas

INITIAL_INDEX = 1
"""Log index at which a new group begins. No entry names its first slots, so index 1 stands for them: a member
that joins without data cannot be served from the log alone and needs a checkpoint."""


class DataState:
    """See the module. A part refers only to parts that were made before it, never to the `DataState`."""

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
        """Work for the host, which numbers and runs it. All parts share the list: empty it, never replace
        it."""

        self.slots = slots or Slots()
        self.sessions = sessions or Sessions()
        self.schemas: Schemas = {}
        deletes = Tombstones(tombstones)
        self.rows = Rows(deletes)
        self.rows.delivered = applied
        self.compactions = Compactions()
        self.files = Files(group, self.jobs, self.slots, self.rows, deletes, self.compactions)
        self.writes = Writes(group, self.slots, self.sessions, self.schemas, self.rows, self.files)
        self.closes = Closes(group, self.jobs, self.schemas, self.rows, self.files, self.compactions)
        self.adoptions = Adoptions(group, self.jobs, self.slots, self.files)
        self.turns = Turns(
            group, self.jobs, self.schemas, self.files, self.closes, self.adoptions, self.compactions
        )
        self.slot_migration = SlotMigration(
            self.slots, self.sessions, staged or Staged(), self.rows, self.closes
        )
        self._news = False

    # --- applying ----------------------------------------------------------------------------------

    def apply(self, first: int, entries: list[Entry], now: int) -> list[tuple[int, Reply]]:
        """Apply committed entries from log index `first`; return (log index, reply) of each command.

        Args:
            now: monotonic time (ms) of this node, for ages in memory and rates only.

        Raises:
            EntryFailed: an entry cannot be applied. The state must not be used or saved any more.
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
            raise  # transient: a retry may succeed
        except Exception as error:  # applying is deterministic: the entry would fail at every retry
            raise EntryFailed.of(index, error, replies) from error
        return replies

    def take_changes(self) -> bool:
        """Return whether anything but rows was applied since the last call."""
        news, self._news = self._news, False
        return news

    def _apply(self, index: int, term: int, command: Command, now: int) -> Reply:
        match command:
            case commands.WriteRows():
                return self.writes.write(index, command, now)
            case commands.Opaque():
                return Accepted(index)
            case commands.OpenSession():
                return self.writes.open_session(index, term)
            case commands.ExpireSessions():
                self.sessions.expire(command.sessions)
            case commands.UseSchema():
                self.writes.use_schema(command.schema)
            case commands.CloseFile():
                self.closes.close(index, command)
            case commands.DeleteRange():
                return self.writes.delete(index, command)
            case commands.Seal():
                self.slot_migration.seal(index, command)
            case commands.Unseal():
                self.slot_migration.unseal(command)
            case commands.OpenSessions():
                self.slot_migration.stage(command)
            case commands.Open():
                self.slot_migration.open(index, command)
            case commands.Adopt():
                self.adoptions.adopt(index, command)
            case commands.Release():
                self._release(command.operation)
            case commands.Compact():
                self.turns.compact(index, command)
            case commands.Expire():
                return self.writes.expire(index, command)
            case commands.Park():
                self.turns.park(index, command)
        return Accepted(index)

    def _release(self, operation: str) -> None:
        released = self.slots.release(operation)
        if not released:
            return
        self.sessions.forget(released)
        self.rows.drop_slots(released)
        self.closes.release(released)
        self.adoptions.release(released)
        self.compactions.release(released)
        self.files.release(released)

    def _recover(self, index: int, entry: Entry, now: int) -> None:
        """Replay an entry whose rows the checkpoint does not hold: restore them to the memtable."""
        if entry.kind != EntryKind.COMMAND or index in self.writes.refused:
            return
        command = commands.decode(entry.data)
        if isinstance(command, commands.WriteRows):
            self.rows.replay(index, command, now)
        elif isinstance(command, commands.CloseFile | commands.Seal):
            self.closes.close_again(index)

    # --- results of jobs ---------------------------------------------------------------------------

    def on_closed(self, job: CloseFiles, files: tuple[FileMeta | None, ...]) -> None:
        """Record that the files of `job` are durable."""
        self.closes.on_closed(job, files)
        self.turns.begin_next()

    def units_to_retry(self, job: CloseFiles) -> tuple[CloseUnit, ...]:
        """Units of a failed job to retry."""
        wanted = self.closes.units_to_retry(job)
        self.turns.begin_next()
        return wanted

    def on_adopted(self, job: AdoptFiles) -> None:
        """Record that the files of an `Adopt` are in place under their new names."""
        if self.adoptions.on_adopted(job):
            self.turns.begin_next()

    # --- indexes and checkpoints -------------------------------------------------------------------

    @property
    def materialised(self) -> int:
        """Log index up to which every entry that makes files has its files in the manifest."""
        waiting = [p.index for p in self.closes.pending] + [a.index for a in self.adoptions.waiting]
        waiting += [c.index for c in self.compactions.active if not c.released]
        return min(waiting, default=self.applied + 1) - 1

    def base(self) -> int:
        """Log index up to which the log is not needed any more."""
        needed = [p.first_index for p in self.closes.pending] + [a.index for a in self.adoptions.waiting]
        needed.append(self.rows.memtable.first_index() or self.applied + 1)
        return min(min(needed) - 1, self.applied)

    def is_source_ready(self, operation: str) -> bool:
        """Whether this member applied the operation's seal and made every file of the sealed slots."""
        sealed = self.slots.sealed.get(operation)
        if sealed is None or not self.is_source_whole(operation, sealed.slots):
            return False
        if any(c.command.slot in sealed.slots and not c.released for c in self.compactions.active):
            return False
        return not any(u.spec.slot in sealed.slots for p in self.closes.pending for u in p.units)

    def is_source_whole(self, operation: str, slots: set[int]) -> bool:
        """Whether files and memory together hold everything that was written to these sealed slots.

        False while files that an earlier operation brought are not in place here.
        """
        sealed = self.slots.sealed.get(operation)
        if sealed is None or sealed.metadata_only or not self.rows.recovered or not slots <= sealed.slots:
            return False
        if any(not slots.isdisjoint(a.slots) for a in self.slots.arriving.values()):
            return False
        return not self.adoptions.concern(slots)

    def checkpoint(self, without: set[str] | None = None, *, with_files: bool = True) -> Checkpoint:
        """The state to save.

        Args:
            without: operations whose sealed slots' files are left out, for a checkpoint sent to a new member.
            with_files: False omits the files, which are most of a checkpoint: the caller stores them itself.
        """
        operations = without or set()
        sources = self.slots.sources(operations)
        assert self.rows.recovered, (self.group, self.rows.delivered, self.rows.recovered_to)
        base = self.base()
        self.rows.forget_closed(base)
        self.writes.forget_refused(base)
        if self.files.substitutes:
            coming = self._coming()
            known = self.files.substitutes
            self.files.substitutes = {n for n in known if n in self.files.manifest or n in coming}
        saved = Checkpoint(
            group=self.group,
            applied=self.applied,
            slots=self.slots.without_files(operations) if operations else self.slots,
            sessions=self.sessions.image(),
            schemas=list(self.schemas.values()),
            tombstones=list(self.files.tombstones),
            files=[f for f in self.files.manifest.files() if f.slot not in sources] if with_files else [],
            closed_through=sorted(self.rows.closed_through.items()),
            refused=sorted(self.writes.refused),
            pending=[],
            adopting=[],
            staged=self.slot_migration.staged.parts,
            substitutes=sorted(self.files.substitutes),
        )
        saved.put_closes(self.closes.pending)
        saved.put_adoptions(self.adoptions.waiting)
        saved.put_compactions(c for c in self.compactions.active if c.command.slot not in sources)
        return saved

    def was_removed(self, name: str) -> bool:
        """Whether the file was in this manifest and left it, or no row was left for it."""
        if not (self.rows.recovered and 0 <= logged_at(name) <= self.applied) or name in self.files.manifest:
            return False
        return name not in self._coming()

    def _coming(self) -> set[str]:
        """Names of files that closes and compactions have not put into the manifest yet."""
        return self.closes.names() | self.compactions.outputs()

    def superseded(self, old: "DataState", left: Iterable[FileMeta] = ()) -> tuple[FileMeta, ...]:
        """Files of the replaced state `old` that no manifest of this state will ever name.

        They come from the manifest of `old`, from the files that its pending closes have made, and from
        `left`: files that left its manifest and are not unlinked yet. () if this state is older than `old`:
        then the log after this state makes files of the same names again.
        """
        if self.applied < old.applied:
            return ()
        unnamed = (f for p in old.closes.pending for f in p.made.values() if f is not None)
        return self.never_named((*old.files.manifest.files(), *unnamed, *left))

    def never_named(self, files: Iterable[FileMeta]) -> tuple[FileMeta, ...]:
        """Those of `files` that the manifest neither names nor will name because of an applied entry."""
        made_by = {(p.index, partition) for p in self.closes.pending for partition in p.parts}
        made_by |= {(c.index, c.command.partition) for c in self.compactions.active}
        coming = {f.meta.name for a in self.adoptions.waiting for f in a.command.files}
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
        """The state at `saved.applied`; its rows come back as the log after `base` is replayed."""
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
        state.writes.refused = set(saved.refused)
        state.files.manifest.add(saved.files)
        state.files.changed = dict.fromkeys((f.partition, f.table) for f in saved.files)
        state.files.substitutes = set(saved.substitutes)
        state.closes.pending = saved.closes()
        for adopting in saved.adoptions():
            state.adoptions.wait_for(adopting)
        state.compactions.active = saved.compactions()
        state.turns.begin_next()
        return state


def initial(group: GroupId, slots: Ranges) -> DataState:
    """State at `INITIAL_INDEX` of a group that the meta log created as the owner of `slots`."""
    return DataState(group, INITIAL_INDEX, Slots(expand(slots)))

"""A data group's replica: files, closes, reads from files and memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isqrt

import msgspec

from nodeagent.data import commands
from nodeagent.data.checkpoint import decode_checkpoint, encode_checkpoint
from nodeagent.data.compaction import Key
from nodeagent.data.state import DataState
from nodeagent.host.desk import Desk
from nodeagent.host.failing import CLOSE, FOREIGN, Answers, Failing, Making, parked_trouble, specs_of
from nodeagent.host.freshness import Freshness
from nodeagent.host.outbox import Outbox
from nodeagent.host.replica import Replica
from nodeagent.host.writer import FileWriter
from nodeagent.model import limits
from nodeagent.model.config import NodeConfig
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import Overloaded
from nodeagent.model.files import CloseSpec, FileMeta, tsfile_name
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
from nodeagent.model.jobs import (
    AdoptFiles,
    CheckpointSaved,
    CloseFiles,
    CompactFiles,
    DeleteFiles,
    Failed,
    FileChanges,
    FilesClosed,
    FilesHashed,
    HashFiles,
    Job,
    JobResult,
)
from nodeagent.model.limits import DAMAGED_KEPT_MAX
from nodeagent.model.requests import DamagedFile, Reply
from nodeagent.model.space import Room
from nodeagent.raft.core import Raft

CLOSE_PARTITIONS_MAX = 256
DELTA_FILES_MIN = 64
DELTA_ROOTS = 8
"""A checkpoint is written whole when more files changed since the last whole one than the first, and the
second times the square root of their number: 2 600 of a hundred thousand."""

JOB_RETRY_MS = 1_000

SEALED_CLOSE_MS = 1_000
"""Files of sealed slots are made so long after the seal. Nobody serves from them; made at once, on all
members, they slow down the very moment in which writers wait for the slots to open elsewhere."""

Copied = Callable[[FileMeta | None, Answers], None]
"""Gets the file that came from another member and is in place, None if none came."""

Waiting = tuple[Callable[[], None], Callable[[], None]]
"""What to do when it is durable, and when the replica went before that."""


def _may_adopt(data: bytes) -> bool:
    """Whether a logged command is an `Adopt`, as one that this release does not know may be."""
    try:
        return isinstance(commands.decode(data), commands.Adopt)
    except UNDECODABLE:
        return True


@dataclass(frozen=True, slots=True)
class Helpers:
    """What the data replicas of a node turn to."""

    config: NodeConfig
    new_id: Callable[[], str]
    is_source: Callable[[str, GroupId, NodeId], bool]
    """Whether slots of the group are copied from the node in the operation."""

    copy: Callable[["DataReplica", Sequence[CloseSpec], Copied], None]
    """Brings a file that another member has made."""

    writer: FileWriter


class DataReplica(Replica):
    """Runs the state's jobs one after the other per kind, retrying what fails.

    The leader alone decides when partitions are closed; all members then close the same rows.
    """

    def __init__(
        self,
        group: GroupId,
        raft: Raft,
        desk: Desk,
        outbox: Outbox,
        state: DataState,
        helpers: Helpers,
    ) -> None:
        super().__init__(group, raft, desk, outbox)
        self._writer = helpers.writer
        self._copy = helpers.copy
        self.state = state
        self.config = helpers.config
        self._new_id = helpers.new_id
        self._is_source = helpers.is_source
        self.freshness = Freshness(desk, self.read, lambda: self.seen)
        self._closing = (0, 0)
        """(term, index) of the last `CloseFile` we proposed; no other before it is applied."""

        self._whole = ""
        """The last checkpoint on disk that names all files, as it was then; "" when this life wrote none."""

        self._adopted: set[str] = set()
        self.settled: frozenset[str] = frozenset(state.slots.settled())
        """Operations whose outcome here is in the durable checkpoint: their staged files may go."""

        self._used: dict[str, int] = {}
        """When a session was last seen by this leader."""

        self._unsaved_waits: list[Waiting] = []
        self._saving_waits: list[Waiting] = []
        """Who waits for a checkpoint with the state of now: not begun yet, and begun."""

        self._leaving: dict[str, FileMeta] = {}
        """Out of the manifest and not unlinked yet."""

        self._unnamed: set[str] = set()
        """Those of them that no durable checkpoint names any more."""

        self._in_use: Counter[str] = Counter()
        """Files by name that jobs under way read."""

        self._under_way: Counter[type[Job]] = Counter()
        """The state's jobs by kind."""

        self.failing: dict[str, Failing] = {}
        """What closes and compactions fail to make, by the name of the file."""

        self.helped = ""
        """What could not be made here last and came from another member, until a worker here makes a file."""

        self.broken: dict[str, DamagedFile] = {}
        """Files, by name, that a read or a compaction found damaged here, the last `DAMAGED_KEPT_MAX`."""

        self.damaged: dict[Key, str] = {}
        """Leader: what may not be compacted as a member's copy is damaged."""

        self.compared_at = -(1 << 62)
        """When somebody last compared this replica's files with others."""

    # --- the state's jobs --------------------------------------------------------------------------

    def stop(self, index: int, why: str) -> None:
        super().stop(index, why)
        self._tell_gone()

    def start_jobs(self) -> None:
        jobs = list(self.state.jobs)
        self.state.jobs.clear()
        for job in jobs:
            if isinstance(job, CloseFiles) and all(self._is_sealed(u.spec.slot) for u in job.units):
                self._start_after(SEALED_CLOSE_MS, job)
            else:
                self._start(job)
        self._part_with(self.state.files.doomed)
        self.state.files.doomed = []

    def _is_sealed(self, slot: int) -> bool:
        return self.state.slots.sealed_by(slot) is not None

    def _start_after(self, delay_ms: int, job: Job) -> None:
        state = self.state
        self.desk.later(delay_ms, lambda: self._start(job) if state is self.state else None)

    def _start(self, job: Job) -> None:
        if self.removed:
            return
        state, space = self.state, self.desk.space
        if isinstance(job, DeleteFiles) and self.installing:
            return self._start_after(JOB_RETRY_MS, job)  # the state to come may name them
        if isinstance(job, Making):
            if not self._writer.is_ready:
                return self._start_after(JOB_RETRY_MS, job)
            self._forget_unparked(job)
            if why := self._foreign(specs_of(job)):
                return self._leave_to_others(job, why)
        if isinstance(job, CompactFiles) and sum(f.size for f in job.unit.inputs) > space.spare:
            return self._on_job(job, state, Failed(Overloaded.code, space.why))

        def done(result: JobResult) -> None:
            self._under_way[type(job)] -= 1
            self._on_job(job, state, result)

        self._under_way[type(job)] += 1
        self.job(job, done)

    def _on_job(self, job: Job, state: DataState, result: JobResult) -> None:
        if self._is_over(state):
            return
        if isinstance(result, Failed) and isinstance(job, Making):
            return self._on_not_made(job, result)
        if isinstance(result, Failed):
            self.error = f"{type(job).__name__}: {result.what}"
            self.desk.note("job_failed", group=self.group, job=type(job).__name__, why=result.what)
            return self._start_after(JOB_RETRY_MS, job)
        self.error = ""
        if isinstance(job, Making):
            assert isinstance(result, FilesClosed)
            self._on_made(job, result)
        elif isinstance(job, AdoptFiles):
            self.state.on_adopted(job)
        self.changed()
        self.start_jobs()

    @property
    def at_work(self) -> bool:
        """Whether files are being made, or wait for a worker, and none fails."""
        brings_files = (CloseFiles, CompactFiles, AdoptFiles)
        return any(self._under_way[kind] for kind in brings_files) and not self.failing

    @property
    def closes(self) -> bool:
        """`at_work` on rows in memory."""
        return self._under_way[CloseFiles] > 0 and not self.failing

    def _is_over(self, state: DataState) -> bool:
        """Whether the state that asked is gone; the one that replaced it asks for what it needs."""
        return self.removed or bool(self.stopped) or state is not self.state

    # --- files that are made -----------------------------------------------------------------------

    def _on_made(self, job: Making, result: FilesClosed) -> None:
        self.helped = ""
        if isinstance(job, CompactFiles):
            self.state.turns.on_compacted(job, result.files[0])
        else:
            self.state.on_closed(job, result.files)
        self._forget(job, None)

    def _on_not_made(self, job: Making, result: Failed) -> None:
        """Without space nothing can be made, and all is tried again. Else one unit of a close may be the
        reason: halves are tried until it is alone, so that it keeps no other from its file."""
        self.desk.note("job_failed", group=self.group, job=type(job).__name__, why=result.what)
        if isinstance(job, CompactFiles):
            self._note_damage(result, job.unit.inputs, job)
        if self.desk.space.room is Room.FULL:  # native code says that in its own words
            result = Failed(Overloaded.code, result.what)
        left = self._left_of(job)
        self.changed()
        if isinstance(left, CloseFiles) and len(left.units) > 1 and result.code != Overloaded.code:
            half = len(left.units) // 2
            self._start(CloseFiles(self.group, left.units[:half]))
            self._start(CloseFiles(self.group, left.units[half:]))
        elif left is not None:
            self._put_off(left, result)
        self.start_jobs()

    def _leave_to_others(self, job: Making, why: str) -> None:
        """Each file that only another member can make comes from one; the rest of it is made here."""
        left = self._left_of(job)
        if isinstance(left, CloseFiles):
            own = tuple(u for u in left.units if not self._foreign((u.spec,)))
            if own:
                self._start(CloseFiles(self.group, own))
            for unit in left.units:
                if self._foreign((unit.spec,)):
                    self._put_off(CloseFiles(self.group, (unit,)), Failed(FOREIGN, why))
        elif left is not None:
            self._put_off(left, Failed(FOREIGN, why))

    def _foreign(self, specs: Iterable[CloseSpec]) -> str:
        """Why other members are to make these files, "" if this one is."""
        return self._writer.refusal(s for s in specs if s.name not in self.state.files.substitutes)

    def _left_of(self, job: Making) -> Making | None:
        """What is still to be made of it: nothing that was parked or released meanwhile."""
        left: Making | None = None
        if isinstance(job, CloseFiles):
            units = self.state.still_wanted(job)
            left = CloseFiles(self.group, units) if units else None
        elif self.state.turns.wants(job):
            left = job
        self._forget(job, left)
        return left

    def _forget(self, job: Making, left: Making | None) -> None:
        """What failed of it is over, but for what is left."""
        for name in {s.name for s in specs_of(job)} - {s.name for s in specs_of(left)}:
            self.failing.pop(name, None)

    def _forget_unparked(self, job: Making) -> None:
        """What is made as Arrow from now on fails no longer to be made as a TsFile."""
        for spec in specs_of(job):
            if spec.parked:
                self.failing.pop(tsfile_name(spec.name), None)

    def _put_off(self, job: Making, result: Failed) -> None:
        failing = [self.failing.setdefault(s.name, Failing.of(job, s)) for s in specs_of(job)]
        for f in failing:
            f.count(result)
        state = self.state
        self.desk.later(max(f.delay_ms for f in failing), lambda: self._again(job, state))
        if len(failing) == 1:
            self._maybe_park(failing[0])

    def _maybe_park(self, failing: Failing) -> None:
        """Leader, unless its node is short of space: that may be the reason."""
        if failing.is_foreign and self.state.compactions.is_input(failing.spec.name):
            return  # the compaction, which is logged, takes it as it is: this node's library makes it
        park = failing.parked() if self.leads and not self.desk.space.room else None
        if park is not None:
            self.desk.note("parking", group=self.group, file=park.name, why=park.why)
            self.propose([commands.encode(park)])

    def _again(self, job: Making, state: DataState, *, ask: bool = True) -> None:
        """Try what is left of it; `ask` others first for a file that failed often."""
        if self._is_over(state):
            return
        left = self._left_of(job)
        specs = specs_of(left)
        failing = self.failing.get(specs[0].name) if ask and len(specs) == 1 else None
        if left is not None and failing is not None and failing.wants_copy:
            self._copy(self, self._outcomes(left), partial(self._on_copied, left, state))
        elif left is not None:
            self._start(left)
        self.start_jobs()

    def _outcomes(self, job: Making) -> tuple[CloseSpec, ...]:
        """What of other members would do instead, the furthest first: while this one was down they may have
        merged what they made of it."""
        later = self.state.turns.outcomes(job) if isinstance(job, CompactFiles) else ()
        return tuple(o.spec for o in later) or specs_of(job)

    def _on_copied(self, job: Making, state: DataState, made: FileMeta | None, answers: Answers) -> None:
        if self._is_over(state):
            return None
        failing = self.failing.get(specs_of(job)[0].name)
        is_taken = made is not None and self._take(job, made)
        if made is not None:
            self.drop_unnamed(made)
        if made is None or not is_taken:
            if failing is not None:
                failing.on_absent(answers)
                if failing.wants_substitute(is_input=self.state.compactions.is_input(failing.spec.name)):
                    self._substitute(failing)
            return self._again(job, state, ask=False)
        if failing is not None:
            # A damaged file is in use no more; what fails for another reason will fail the next time too.
            is_expected = failing.is_damaged or failing.is_foreign
            self.helped = "" if is_expected else f"{failing.trouble}; another member's file was taken"
            self.desk.note("copied_instead", group=self.group, file=made.name, why=failing.why)
        return None

    def _substitute(self, failing: Failing) -> None:
        """While this node was down the others have merged it, or all were upgraded before one had made it."""
        self.state.files.substitutes.add(failing.spec.name)
        self.desk.note("substituted", group=self.group, file=failing.spec.name, why=failing.why)

    def _take(self, job: Making, made: FileMeta) -> bool:
        """Whether the copy is what is to be made, or does instead still."""
        later = self.state.turns.outcomes(job) if isinstance(job, CompactFiles) else ()
        outcome = next((o for o in later if o.spec.name == made.name), None)
        if outcome is not None and len(outcome.steps) > 1:
            self.state.turns.on_copied(outcome, made)
            self._forget(job, None)
            self.changed()
            self.start_jobs()
        elif made.name == specs_of(job)[0].name:
            self._on_job(job, self.state, FilesClosed((made,)))
        else:
            return False
        return True

    @property
    def stuck(self) -> dict[str, Failing]:
        """Compactions that fail, by the name of their output."""
        names = (c.job.unit.spec.name for c in self.state.compactions.under_way if c.job is not None)
        return {name: self.failing[name] for name in names if name in self.failing}

    @property
    def is_lost(self) -> bool:
        """Whether something that damage keeps from being made can come from nobody."""
        return any(f.is_lost for f in self.stuck.values())

    @property
    def trouble(self) -> str:
        """What an operator should know, "" if nothing."""
        damaged = self.damaged if self.leads else {}
        found = (
            *(f.trouble for f in self.failing.values() if f.kind is CLOSE and not f.is_awaited),
            *(f.trouble for f in self.stuck.values() if not f.is_awaited),
            *([self.helped] if self.helped else []),
            *damaged.values(),
            *(parked_trouble(f) for f in islice(self.state.files.manifest.parked.values(), 1)),
        )
        return self.error or next(iter(found), "")

    # --- files that go -----------------------------------------------------------------------------

    def _part_with(self, files: list[FileMeta]) -> None:
        """Unlink them once a checkpoint without them is durable and nobody reads them."""
        if not files:
            return
        state, names = self.state, {f.name for f in files}
        self._leaving |= {f.name: f for f in files}

        def saved() -> None:
            if state is self.state:
                self._unnamed |= names
                self._unlink()

        self._unsaved_waits.append((saved, lambda: None))
        self.changed()

    def _unlink(self) -> None:
        if self.installing:
            return  # the state to come may name them; what it does not goes when it is there
        names = [n for n in sorted(self._unnamed) if not self._in_use[n]]
        if names:
            self._unnamed.difference_update(names)
            self._start(DeleteFiles(self.group, tuple(self._leaving.pop(n) for n in names)))

    def drop_unnamed(self, copied: FileMeta) -> None:
        """Unlink a copy that was put in place for what was over by then: its slot was released, say. One that
        is leaving goes when a checkpoint without it is durable; what a stopped state names says nothing."""
        if self._is_over(self.state) or copied.name in self._leaving:
            return
        if self.state.never_named((copied,)):
            self._start(DeleteFiles(self.group, (copied,)))

    @property
    def leaving(self) -> bool:
        """Whether files out of the manifest are still to be unlinked."""
        return bool(self._leaving)

    def check_files(self, names: Iterable[str]) -> None:
        """Hash these files, so that damage is known."""
        files = [f for name in names if (f := self.state.files.manifest.get(name)) is not None]
        if files and not self.removed:
            self.read_files(HashFiles(self.group, tuple(files)), files, lambda _: None)

    def read_files(self, job: Job, files: Iterable[FileMeta], then: Callable[[JobResult], None]) -> None:
        """Run a job that reads these files, none of which is unlinked before it is done."""
        names = [f.name for f in files]
        self._in_use.update(names)

        def done(result: JobResult) -> None:
            self._in_use.subtract(names)
            for name in names:
                if not self._in_use[name]:
                    del self._in_use[name]
            self._unlink()
            if isinstance(result, Failed):
                self._note_damage(result, files)
            elif isinstance(result, FilesHashed):
                self._note_hashes(result, files)
            then(result)

        self.desk.job(job, done)

    # --- damage ------------------------------------------------------------------------------------

    def _note_damage(
        self, result: Failed, files: Iterable[FileMeta], compaction: CompactFiles | None = None
    ) -> None:
        meta = next((f for f in files if f.name == result.file), None)
        if meta is None or not result.found:
            return
        unit = compaction.unit if compaction is not None else None
        output, inputs = (unit.spec.name, tuple(f.name for f in unit.inputs)) if unit else ("", ())
        self._keep_damage(DamagedFile(meta.name, meta.slot, meta.xxh3, result.found, output, inputs))

    def _keep_damage(self, damage: DamagedFile) -> None:
        self.broken.pop(damage.file, None)
        self.broken[damage.file] = damage
        while len(self.broken) > DAMAGED_KEPT_MAX:
            del self.broken[next(iter(self.broken))]

    def _note_hashes(self, hashed: FilesHashed, files: Iterable[FileMeta]) -> None:
        """What was hashed is known: what is whole again is forgotten, what is not is kept, and with it what a
        compaction said of it."""
        metas = {f.name: f for f in files}
        for name, found in hashed.found:
            meta, known = metas.get(name), self.broken.get(name)
            if meta is None:
                continue
            if found == meta.xxh3:
                self.broken.pop(name, None)
            elif known is not None and known.expected == meta.xxh3:
                self._keep_damage(msgspec.structs.replace(known, found=found))
            else:
                self._keep_damage(DamagedFile(name, meta.slot, meta.xxh3, found))

    def damaged_files(self) -> tuple[DamagedFile, ...]:
        """Those that the manifest still names."""
        manifest = self.state.files.manifest
        self.broken = {
            n: d for n, d in self.broken.items() if (m := manifest.get(n)) and m.xxh3 == d.expected
        }
        return tuple(self.broken.values())

    def owed(self, made: FileMeta) -> CompactFiles | None:
        """The compaction under way here that is to make this very file; None if none is."""
        for c in self.state.compactions.under_way:
            spec = c.job.unit.spec if c.job is not None else None
            if spec is not None and (spec.name, spec.slot, spec.partition, spec.order) == (
                made.name,
                made.slot,
                made.partition,
                made.order,
            ):
                return c.job
        return None

    def take_output(self, job: CompactFiles, made: FileMeta) -> None:
        """What a compaction was to make has come from another member."""
        self._on_job(job, self.state, FilesClosed((made,)))

    # --- closing -----------------------------------------------------------------------------------

    def tick(self) -> None:
        super().tick()
        self.state.rows.memtable.to_free.free()

    def maybe_close(self) -> None:
        """Leader: close what is too big, too old, or pins too much log."""
        term, index = self._closing
        if not self.leads or not self.state.rows.slot_of or (term == self.raft.term and self.seen < index):
            return
        partitions = self.state.rows.memtable.partitions()
        open_ = [(p, held) for p, held in partitions.items() if held.open]
        idle_before = self.desk.now - self.config.idle_close_ms
        due = {p for p, h in open_ if h.open_bytes > self.config.partition_bytes_max}
        due |= {p for p, h in open_ if h.last_write_ms < idle_before}
        unfrozen = sum(h.open_bytes for _, h in open_)
        if unfrozen > self.config.memtable_bytes_max or self.log_bytes() > self.config.log_bytes_max:
            due |= {p for p, _ in open_}
        self.close(sorted(due))

    def close(self, partitions: Iterable[PartitionKey], token: int | None = None) -> None:
        pairs = [(self.state.rows.slot_of[p], p) for p in partitions if p in self.state.rows.slot_of]
        chunks = [pairs[i : i + CLOSE_PARTITIONS_MAX] for i in range(0, len(pairs), CLOSE_PARTITIONS_MAX)]
        writer = self._writer.named
        data = [commands.encode(commands.CloseFile(tuple(c), writer=writer)) for c in chunks]
        if not data and token is not None:
            data = [commands.encode(commands.Opaque(b""))]
        if data:
            first = self.propose(data, token)
            if first is not None:
                self._closing = (self.raft.term, first + len(data) - 1)

    # --- sessions ----------------------------------------------------------------------------------

    def used(self, session: str) -> None:
        self._used[session] = self.desk.now

    def expire_sessions(self) -> None:
        """Leader: end sessions nobody used for `session_ttl_ms`, by a log entry."""
        if not self.leads:
            self._used.clear()
            return
        self._used = {s: self._used.get(s, self.desk.now) for s in self.state.sessions.known()}
        before = self.desk.now - self.config.session_ttl_ms
        old = tuple(sorted(s for s, at in self._used.items() if at < before))
        parts = [
            old[i : i + limits.EXPIRED_PER_ENTRY_MAX]
            for i in range(0, len(old), limits.EXPIRED_PER_ENTRY_MAX)
        ]
        if parts:
            self.propose([commands.encode(commands.ExpireSessions(part)) for part in parts])

    # --- repairs -----------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether what its log says is in place, and nothing else takes its place now."""
        is_gone = self.removed or bool(self.stopped)
        return not (is_gone or self.installing or self.rebasing) and self.state.rows.recovered

    def when_saved(self, then: Callable[[], None], gone: Callable[[], None]) -> None:
        """Run `then` once a checkpoint of the state as it is now is durable, `gone` if it is abandoned."""
        self._unsaved_waits.append((then, gone))
        self.changed()
        self.maybe_checkpoint(force=True)

    def abandon(self) -> None:
        super().abandon()
        self._tell_gone()

    def _tell_gone(self) -> None:
        """No checkpoint comes that somebody waits for."""
        waits = [*self._saving_waits, *self._unsaved_waits]
        self._saving_waits, self._unsaved_waits = [], []
        for _, gone in waits:
            gone()

    # --- hooks -------------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        return self.state.rows.delivered

    @property
    def state_index(self) -> int:
        return self.state.rows.recovered_to

    def apply_entries(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        replies = self.state.apply(first, entries, self.desk.now)
        self.pressing |= self.state.take_news()
        self.start_jobs()
        return replies

    def log_needed_after(self) -> int:
        return self.state.base()

    def encode_state(self, peer: NodeId | None) -> bytes:
        if peer is None:
            self._adopted = self.state.slots.settled()
            self._saving_waits += self._unsaved_waits
            self._unsaved_waits = []
        return encode_checkpoint(self.state.checkpoint(self._not_for(peer), with_files=False))

    has_files = True

    def file_changes(self) -> FileChanges:
        """What changed since all files were saved, until that is many times the square root of their number.
        So a checkpoint costs what changed, and all files are written once in many changes.
        """
        manifest = self.state.files.manifest
        if not self._whole or len(manifest.changes) > DELTA_FILES_MIN + DELTA_ROOTS * isqrt(len(manifest)):
            self._whole = ""
            manifest.changes = {}
            return FileChanges("", manifest.unsorted())
        came = tuple(f for f in manifest.changes.values() if f is not None)
        gone = tuple(name for name, f in manifest.changes.items() if f is None)
        return FileChanges(self._whole, came, gone)

    def on_files_saved(self, result: JobResult) -> None:
        """What failed is begun anew with all files."""
        self._whole = result.base if isinstance(result, CheckpointSaved) else ""

    def _on_pulled(self, source: NodeId, snapshot: str, result: JobResult) -> None:
        super()._on_pulled(source, snapshot, result)
        self._unlink()

    def restore(self, payload: bytes, base: int) -> None:
        old, self.state = self.state, DataState.restore(decode_checkpoint(payload), base)
        self._whole = ""
        self.state.writes.rates = old.writes.rates
        superseded = self.state.superseded(old, self._leaving.values())
        self._leaving.clear()
        self._unnamed.clear()
        self.failing.clear()
        self.helped = ""
        if superseded:
            self.state.jobs.append(DeleteFiles(self.group, superseded))
        self._closing = (0, 0)
        self.settled = frozenset(self.state.slots.settled())
        self.start_jobs()

    def new_snapshot_id(self) -> str:
        return self._new_id()

    @property
    def removes_files(self) -> bool:
        return bool(self._saving_waits) or self.settled != self._adopted

    def on_saved(self) -> None:
        self.settled = frozenset(self._adopted)
        waits, self._saving_waits = self._saving_waits, []
        for then, _ in waits:
            then()

    def snapshot_ready(self, peer: NodeId) -> bool:
        """A member that holds the files of sealed slots must not be given a state that lacks them.

        Nor a newcomer a state from before an `Adopt` that is logged: what it adopts is staged at the members
        of its own time alone. A voter is one of them, for it had caught up with all earlier ones when it
        became a voter. Other entries ahead of the state do not matter, and waiting for them could be for
        ever: they may need this very peer to be committed.
        """
        state = self.state
        newcomer = peer not in self.raft.log.config.voters
        if state.adoptions.waiting or (newcomer and self._has_adopt_ahead()):
            return False
        return not self.lacks_files_of(peer)

    def lacks_files_of(self, peer: NodeId) -> bool:
        """Whether slots are sealed here without their files, and `peer` holds those as a source of copies."""
        sealed = self.state.slots.sealed
        return any(s.hollow and self._is_source(op, self.group, peer) for op, s in sealed.items())

    def _has_adopt_ahead(self) -> bool:
        log = self.raft.log
        ahead = log.slice(max(self.seen + 1, log.first_index), log.last_index, 1 << 62)
        return any(e.kind == EntryKind.COMMAND and _may_adopt(e.data) for e in ahead)

    def _not_for(self, peer: NodeId | None) -> set[str]:
        """Operations whose sealed slots `peer` has no use for, as it is no source of them."""
        if peer is None:
            return set()
        return {op for op in self.state.slots.sealed if not self._is_source(op, self.group, peer)}

    def snapshot_files(self, peer: NodeId) -> tuple[FileMeta, ...]:
        without = self.state.slots.sources(self._not_for(peer))
        files = self.state.files.manifest.unsorted()
        return tuple(f for f in files if f.slot not in without) if without else files

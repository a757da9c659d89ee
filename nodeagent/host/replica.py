"""One replica of one Raft group: proposals and reads that wait, Readies dealt out to the outbox.

What the entries mean is the subclass's business.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from nodeagent.host.budget import Budget
from nodeagent.host.desk import Desk
from nodeagent.host.outbox import Outbox
from nodeagent.model import limits
from nodeagent.model.entries import Append, Base, Entry, HardState, LogOp, Rebase, SetHard
from nodeagent.model.errors import EntryFailed, InvalidInput, InvariantBroken, NodeAgentError
from nodeagent.model.files import FileMeta
from nodeagent.model.freeing import ToFree
from nodeagent.model.ids import GroupId, NodeId, Owner
from nodeagent.model.jobs import (
    DropSnapshot,
    DropStaging,
    Failed,
    FileChanges,
    Installed,
    InstallSnapshot,
    Job,
    JobResult,
    MakeSnapshot,
    install_area,
)
from nodeagent.model.jobs import SaveCheckpoint as SaveJob
from nodeagent.model.limits import LOG_KEEP_MS_MAX, SMALL_APPEND_BYTES
from nodeagent.model.raft_messages import AppendRequest, HeartbeatReply, RaftMessage, SnapshotOffer
from nodeagent.model.requests import CheckFiles, ErrorReply, LogPin, Reply
from nodeagent.model.space import Room
from nodeagent.raft.core import Raft
from nodeagent.raft.progress import ProgressState
from nodeagent.raft.ready import Ready
from nodeagent.raft.state import Role

CHECKPOINT_MIN_MS = 500
CHECKPOINT_ROWS_MS = 5_000
"""Between two checkpoints that tell nothing but that rows were applied: those a restart reads from the log in
any case, and every checkpoint costs the writers two syncs of the disk they wait for."""
CHECKPOINT_RETRY_MS = 1_500
CHECKPOINT_BYTES_PER_MS = 2_000
"""On average. A whole checkpoint names every file: written twice a second, a hundred thousand of them would
be 35 MB/s of disk writes in each group."""

FILE_BYTES = 210
"""What a file takes in a checkpoint, about."""

INSTALL_KEEP_MS = 10_000
KEEP_LOG_MS = 1_000
"""Between two looks at what pins the log."""

SNAPSHOT_KEEPS = 8
"""A snapshot under way pins up to so many times the log that is kept for a follower."""


Waiting = tuple[Callable[[], None], Callable[[str], None]]
"""What to do when the read may run, and when it may not."""


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint as it is stored and sent: the log continues at `base`, the state may be newer."""

    base: Base
    state: bytes
    sent: bool = False
    """Made for a peer. The peer's own log after `base` is then not known to be what the state came from."""

    group: GroupId = ""
    owner: Owner = Owner()
    """For one that is sent: the node it is made for."""


@dataclass(frozen=True, slots=True)
class _Offered:
    """A snapshot some peer may be pulling; the log after `base` stays until it is dropped."""

    name: str
    base: int


class Replica:
    """See the module. Subclasses implement the five `_hooks` at the end."""

    def __init__(self, group: GroupId, raft: Raft, desk: Desk, outbox: Outbox) -> None:
        self.group = group
        self.raft = raft
        self.desk = desk
        self.outbox = outbox
        self.error = ""
        self.removed = False
        self.stopped = ""
        """Why no entry is applied any more (`stop`), "" as long as they are."""

        self.led_from = 0
        """Leader: everything earlier leaders logged is applied from this index on."""

        self.led_since = desk.now
        """When this node last became its leader (ms)."""

        self._tokens: dict[int, tuple[int, list[int]]] = {}
        """index -> (term, tokens) of proposals not applied yet"""

        self._reads: dict[int, Waiting] = {}
        self._ripe: list[tuple[int, Waiting]] = []
        """(read index, read) of those that wait for the state to catch up"""

        self._read_number = 0
        self._installing: str | None = None
        """Snapshot being pulled; files and checkpoint on disk are its business until the log begins there."""

        self.founding = False
        """It was just made, and the log does not durably say so: nothing of it is saved or installed, for a
        checkpoint that the log knows nothing of looks like a log that was lost."""

        self.rebasing = False
        """The new state is in place and the log's new beginning not yet durable: nothing is applied."""

        self._snapshots: dict[NodeId, _Offered] = {}
        self._saved_to = 0
        """The newest durable checkpoint needs the log from the next index on; 0 while that is not known."""

        self.number = 0
        """Of the checkpoint that was begun last; they are counted, so that an older one is noticed."""

        self.number_needed = 0
        """Of the one that the log says it needs: the last after which something was removed."""

        self._purge_at = desk.now
        self._purged = ToFree()
        """Entries that left the log."""

        self._headway: dict[NodeId, tuple[int, int]] = {}
        """Leader: how far a follower was that lags, and since when."""

        self._making: set[NodeId] = set()
        self._working = 0
        self._at_rest: Callable[[], None] | None = None
        self._saving = False
        self._save_from = desk.now + CHECKPOINT_MIN_MS
        self.unsaved = 0
        """Entries applied or files made since the last checkpoint."""

        self.pressing = False
        """Whether `unsaved` counts more than rows."""

    # --- jobs --------------------------------------------------------------------------------------

    def job(self, job: Job, then: Callable[[JobResult], None]) -> None:
        """Work on this group's files."""

        def done(result: JobResult) -> None:
            self._working -= 1
            then(result)
            self._maybe_rest()

        self._working += 1
        self.desk.job(job, done)

    def _maybe_rest(self) -> None:
        if not self._working and self._at_rest is not None:
            self._at_rest()

    def first_records(self) -> list[LogOp]:
        """What the log says first of a replica just made."""
        rebase = Rebase(self.group, self.raft.log.base, False)
        hard = self.raft.hard
        return [rebase] if hard == HardState() else [SetHard(self.group, hard), rebase]

    def abandon(self) -> None:
        """The replica goes: whoever waits for it is told."""
        self.removed = True
        self._dismiss(f"the replica of {self.group} was removed")

    def stop(self, index: int, why: str) -> None:
        """The entry at `index` is committed and cannot be applied here: the state ends before it.

        The replica goes on as a follower: it keeps what the leader sends it and votes for others, for that
        promises something of the log alone, which is whole, and members that can apply the entry may need it
        for their majority. It leads nothing, answers nothing, and saves no state: after a restart it comes to
        the same entry, and a release that knows the entry goes on from there.
        """
        self.stopped = f"stopped at entry {index}, which cannot be applied here: {why}"
        self._dismiss(f"the replica of {self.group} is {self.stopped}")
        self.raft.abstain(self.desk.now)
        self.desk.note("group_stopped", group=self.group, entry=index, why=why)

    def _dismiss(self, why: str) -> None:
        self._give_up(list(self._tokens), "outcome_unknown", why)
        for _, failed in (*self._reads.values(), *(w for _, w in self._ripe)):
            failed(why)
        self._reads.clear()
        self._ripe.clear()

    def remove(self, then: Callable[[], None]) -> None:
        """Stop for good; `then` runs when no job of this group is under way."""
        self.removed = True
        if self._working:
            self._at_rest = then
        else:
            then()

    # --- in ----------------------------------------------------------------------------------------

    def step(self, sender: NodeId, message: RaftMessage) -> None:
        if isinstance(message, AppendRequest):
            if self._installing is not None:
                return  # the group must be at rest until its new state is in place
            if self.raft.room >= Room.FULL and sum(len(e.data) for e in message.entries) > SMALL_APPEND_BYTES:
                return  # the leader keeps it, and learns why by the next heartbeat
        if self.stopped and self._keeps_no_more(message):
            return
        self.raft.step(sender, message, self.desk.now)

    def _keeps_no_more(self, message: RaftMessage) -> bool:
        """Whether a stopped replica leaves the message alone: its log is never purged, so it has an end, and
        a state made by another release must not take the place of its own."""
        if isinstance(message, AppendRequest):
            return self.log_bytes() >= limits.STOPPED_LOG_BYTES_MAX
        return isinstance(message, SnapshotOffer)

    @property
    def installing(self) -> bool:
        """Whether a snapshot is being pulled."""
        return self._installing is not None

    def tick(self) -> None:
        self.raft.tick(self.desk.now)
        self._purged.free()

    @property
    def leads(self) -> bool:
        return self.raft.role is Role.LEADER

    def propose(self, commands: list[bytes], token: int | None = None) -> int | None:
        """Propose; the token is answered when the last one is applied. None (and answered) if refused."""
        try:
            check_entries(commands)
            first = self.raft.propose(commands, self.desk.now)
        except NodeAgentError as error:
            if token is not None:
                self.desk.reply(token, as_reply(error))
            elif isinstance(error, InvalidInput):
                self.desk.note("entry_refused", group=self.group, why=error.what)
            return None
        except Exception as error:
            raise InvariantBroken(f"a proposal in {self.group} stopped half way") from error
        if token is not None:
            last = first + len(commands) - 1
            self._tokens.setdefault(last, (self.raft.term, []))[1].append(token)
        return first

    def read(self, then: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Run `then` when this state is at least as new as everything acknowledged before now."""
        if self.stopped:
            failed(f"the replica of {self.group} is {self.stopped}")
            return
        if len(self._reads) + len(self._ripe) >= limits.READS_PENDING_MAX:
            failed("too many reads wait")
            return
        self._read_number += 1
        self._reads[self._read_number] = (then, failed)
        try:
            self.raft.read(self._read_number, self.desk.now)
        except Exception as error:
            raise InvariantBroken(f"a read in {self.group} stopped half way") from error

    # --- out ---------------------------------------------------------------------------------------

    def drain(self, budget: Budget) -> bool:
        """Deal out what Raft has ready, entries to apply while the budget lasts. Whether there was any."""
        worked = False
        raft = self.raft
        while not self.removed and raft.is_ready(to_apply=not budget.is_spent):
            ready = raft.take(budget.entries, budget.nbytes)
            if ready.committed is not None:
                first, entries = ready.committed
                budget.spend(len(entries), raft.log.bytes_between(first - 1, first + len(entries) - 1))
            self._deal(ready)
            worked = True
        return worked

    def _deal(self, ready: Ready) -> None:
        ops: list[LogOp] = []
        if ready.hard is not None:
            ops.append(SetHard(self.group, ready.hard))
        if ready.append is not None:
            ops.append(Append(self.group, *ready.append))
        if ready.append is not None:
            last = (self.raft.log.last_index, self.raft.log.last_term)
            if not self.leads:  # what a leader takes is counted when it takes it
                self.desk.space.spend(self.raft.log.bytes_between(ready.append[0] - 1, last[0]))
            self.outbox.persist(self.group, ops, lambda: self.raft.persisted(*last))
        elif ops:  # it says nothing of entries: those at the end may be written again meanwhile
            self.outbox.persist(self.group, ops)
        for to, message in ready.now:
            if isinstance(message, HeartbeatReply):
                message = msgspec.structs.replace(message, wall=self.desk.wall)
            self.outbox.send(to, self.group, message)
        for to, message in ready.after:
            self.outbox.send_after(to, self.group, message)
        if ready.committed is not None:
            self._apply(*ready.committed)
        for context, index in ready.reads:
            if context in self._reads:  # else told already that the replica stopped
                self._ripe.append((index, self._reads.pop(context)))
        for context in ready.reads_failed:
            if context in self._reads:
                self._reads.pop(context)[1]("no leader confirmed the read")
        self._run_ripe()
        for peer in ready.snapshots:
            self._make_snapshot(peer)
        if ready.offer is not None:
            self._take_offer(*ready.offer)
        if ready.role_changed:
            self._on_role()

    def _run_ripe(self) -> None:
        if self._ripe:
            ripe = [waiting for i, waiting in self._ripe if i <= self.seen]
            self._ripe = [(i, waiting) for i, waiting in self._ripe if i > self.seen]
            for then, _ in ripe:
                then()

    def _apply(self, first: int, entries: list[Entry]) -> None:
        if self.rebasing or self.stopped:
            return  # of the log that goes: what of it counts is handed out again after the new base
        self.unsaved += len(entries)
        try:
            replies = self.apply_entries(first, entries)
        except EntryFailed as error:
            self._answer(first, entries[: error.index - first], error.replies)
            self.stop(error.index, error.why)
        else:
            self._answer(first, entries, replies)

    def _answer(self, first: int, entries: list[Entry], replies: Sequence[tuple[int, Reply]]) -> None:
        """Answer the proposals of these entries, which are applied."""
        if not self._tokens:
            return
        for index, reply in replies:
            waiting = self._tokens.pop(index, None)
            if waiting is None:
                continue
            term, tokens = waiting
            if entries[index - first].term != term:
                reply = ErrorReply("not_leader", "another leader's entry took this place in the log")
            for token in tokens:
                self.desk.reply(token, reply)
        last = first + len(entries) - 1
        if self._tokens and min(self._tokens) <= last:  # overwritten by entries that answer nothing
            self._give_up([i for i in self._tokens if i <= last], "not_leader", "the proposal was dropped")

    def _give_up(self, indexes: list[int], code: str, what: str) -> None:
        for index in indexes:
            for token in self._tokens.pop(index)[1]:
                self.desk.refuse(token, code, what)

    def _on_role(self) -> None:
        if self.leads:
            self.led_from = self.raft.log.last_index
            self.led_since = self.desk.now
        elif self._tokens:
            self._give_up(list(self._tokens), "outcome_unknown", f"leadership of {self.group} was lost")
        self.desk.note(
            "role", group=self.group, role=self.raft.role.value, term=self.raft.term, leader=self.raft.leader
        )
        self.on_role()

    # --- checkpoints and the log's beginning -------------------------------------------------------

    def changed(self) -> None:
        """What a restart must know has changed."""
        self.unsaved += 1
        self.pressing = True

    def maybe_checkpoint(self, *, force: bool = False) -> None:
        """Save the state when it changed; then the log before it may go."""
        if self._saving or self._installing or self.founding:
            return
        if not self.unsaved or self.seen < self.state_index:
            return
        if self.stopped:
            return  # the state may hold part of an entry that the next release applies
        patience_ms = 0 if self.pressing else CHECKPOINT_ROWS_MS - CHECKPOINT_MIN_MS
        if not force and self.desk.now < self._save_from + patience_ms:
            return
        self.number = number = self.number + 1
        base = msgspec.structs.replace(self._base_at(self.log_needed_after()), checkpoint=number)
        saved = Saved(base, self.encode_state(None), group=self.group, owner=self.desk.owner)
        self._saving = True
        self.unsaved, self.pressing = 0, False
        payload, changes = msgspec.msgpack.encode(saved), self.file_changes()
        nbytes = len(payload) + (FILE_BYTES * len(changes.files) if changes is not None else 0)
        self._save_from = self.desk.now + max(CHECKPOINT_MIN_MS, nbytes // CHECKPOINT_BYTES_PER_MS)
        job = SaveJob(self.group, payload, changes)
        self.job(job, lambda r: self._on_saved(saved.base, r))

    def _base_at(self, index: int) -> Base:
        index = max(index, self.raft.log.base.index)
        term = self.raft.log.term(index)
        assert term is not None, (self.group, index)
        return Base(index, term, self.raft.log.config_at(index))

    def _on_saved(self, base: Base, result: JobResult) -> None:
        self.on_files_saved(result)
        if isinstance(result, Failed):
            self._saving = False
            self.changed()
            self._save_from = self.desk.now + CHECKPOINT_RETRY_MS
            self.error = f"checkpoint: {result.what}"
            return
        self.error = ""
        if self.removed:
            return
        removes_files = self.removes_files
        if removes_files:
            self.number_needed = base.checkpoint
        self._saved_to = base.index
        is_said = self._purge(min([base.index, *(index for _, index in self.pins())]))
        if removes_files:
            self._say_number(is_said)
        else:
            self._saving = False
            self.on_saved()

    def _say_number(self, is_said: bool) -> None:
        """What the checkpoint without it allows to remove goes when the log durably says that it needs this
        checkpoint: with an older one the files would be missing, and nobody would notice."""

        def durable() -> None:
            self._working -= 1
            self._saving = False
            if not self.removed:
                self.on_saved()
            self._maybe_rest()

        self._working += 1  # until then no other checkpoint is begun, and none is installed
        ops = [] if is_said else [self._rebase(self.raft.log.base)]
        self.outbox.persist(self.group, ops, durable)

    def _rebase(self, base: Base) -> LogOp:
        return Rebase(self.group, msgspec.structs.replace(base, checkpoint=self.number_needed), True)

    def keep_log(self) -> None:
        """Called now and then: purge what a pin kept that is over, also when nothing is written any more."""
        if self._saved_to <= self.raft.log.base.index or self.desk.now < self._purge_at:
            return
        self._purge_at = self.desk.now + KEEP_LOG_MS
        if not (self.removed or self.installing or self._saving):
            self._purge(min([self._saved_to, *(index for _, index in self.pins())]))

    def pins(self) -> list[tuple[LogPin, int]]:
        """What needs the log after which index; a leader keeps it for followers, bounded in bytes and age."""
        kept = self.log_bytes()
        if kept >= self.desk.space.log_keep * SNAPSHOT_KEEPS:
            return []
        pins = [(LogPin("snapshot", peer), o.base) for peer, o in self._snapshots.items()]
        if self.leads and kept < self.desk.space.log_keep:
            status = self.raft.status()
            followed = {n: p.match for n, p in status.progress.items() if p.match >= status.base}
            pins += [
                (LogPin("follower", n), match) for n, match in followed.items() if self._has_headway(n, match)
            ]
        else:
            self._headway.clear()
        return pins

    def _has_headway(self, peer: NodeId, match: int) -> bool:
        """Whether it got further lately. One that holds all there is needs no log, and is not timed."""
        if match >= self.raft.log.last_index:
            self._headway.pop(peer, None)
            return True
        known, since = self._headway.get(peer, (-1, 0))
        if match != known:
            self._headway[peer] = (match, self.desk.now)
            return True
        return self.desk.now - since < LOG_KEEP_MS_MAX

    @property
    def log_pin(self) -> LogPin | None:
        """Why the log is not shorter; None when a checkpoint is all it waits for."""
        needed = self.log_needed_after()
        pin, index = min(self.pins(), key=lambda pin: pin[1], default=(None, needed))
        if index < needed:
            return pin
        return LogPin("rows") if needed < self.seen else None

    def _purge(self, index: int) -> bool:
        """Whether there was something to purge, which tells the log the number of the checkpoint too."""
        # After a restart the state may be ahead of what Raft knows to be committed again.
        index = min(index, self.raft.commit)
        if index <= self.raft.log.base.index:
            return False
        log = self.raft.log
        purged = log.slice(log.first_index, index, sys.maxsize)
        self.outbox.persist(self.group, [self._rebase(self.raft.compact(index))])
        self._purged.add(purged)
        return True

    def log_bytes(self) -> int:
        log = self.raft.log
        return log.bytes_between(log.base.index, log.last_index)

    # --- snapshots ---------------------------------------------------------------------------------

    def _make_snapshot(self, peer: NodeId) -> None:
        if peer in self._making:
            return
        if self.seen < self.state_index or not self.snapshot_ready(peer):
            self.desk.later(200, lambda: self.raft.snapshot_failed(peer, self.desk.now))
            return
        self._making.add(peer)
        base = self._base_at(self.log_needed_after())
        name = self.new_snapshot_id()
        state = self.encode_state(peer)
        saved = Saved(base, state, sent=True, group=self.group, owner=Owner(peer))
        payload = msgspec.msgpack.encode(saved)
        self._drop_snapshot(peer)
        self._snapshots[peer] = _Offered(name, base.index)
        job = MakeSnapshot(name, self.group, self.snapshot_files(peer), payload, self.has_files)
        self.job(job, lambda r: self._on_snapshot(peer, name, r))

    def _on_snapshot(self, peer: NodeId, name: str, result: JobResult) -> None:
        self._making.discard(peer)
        if isinstance(result, Failed):
            self._snapshots.pop(peer, None)
            self.raft.snapshot_failed(peer, self.desk.now)
            return
        offered = self._snapshots.get(peer)
        if offered is None or offered.name != name:
            # Dropped while it was made: the log it goes with may be purged, so it would never be enough.
            self.desk.remove(DropSnapshot(name))
            self.raft.snapshot_failed(peer, self.desk.now)
            return
        self.raft.offer_snapshot(peer, name)

    def snapshots_expired(self, names: Collection[str]) -> None:
        """These are no longer there: nobody read from them for long. Who still needs one gets another."""
        for peer, offered in list(self._snapshots.items()):
            if offered.name in names:
                del self._snapshots[peer]
                self.raft.snapshot_failed(peer, self.desk.now)

    def drop_taken(self) -> None:
        """Snapshots whose peers have caught up, or left the group, are not needed any more."""
        if self._snapshots and self.leads:
            progress = self.raft.status().progress
            for peer in list(self._snapshots):
                followed = progress.get(peer)
                if followed is None or followed.state is ProgressState.REPLICATE:
                    self._drop_snapshot(peer)

    def _drop_snapshot(self, peer: NodeId) -> None:
        offered = self._snapshots.pop(peer, None)
        if offered is not None:
            self.desk.remove(DropSnapshot(offered.name))

    def _take_offer(self, source: NodeId, offer: SnapshotOffer) -> None:
        if self._installing is not None or offer.base.index < self.raft.log.base.index:
            return
        if self.raft.room:
            return  # it is offered again; its files would fill the disk
        if self._working or self.leads or self.founding:
            return  # it is offered again; what works on the old state's files must be over
        self._installing = offer.snapshot
        self.desk.note("install_begins", group=self.group, source=source, base=offer.base.index)
        job = InstallSnapshot(self.group, source, offer.snapshot)
        self.job(job, lambda r: self._on_pulled(source, offer.snapshot, r))

    def is_installing(self, area: str) -> bool:
        """Whether a snapshot's files are arriving there now."""
        return self._installing is not None and install_area(self._installing) == area

    def _drop_pulled(self, snapshot: str) -> None:
        """Forget what came of it, unless it is being pulled again; a try before that goes on where it was."""
        self.desk.remove(DropStaging(install_area(snapshot)), still=lambda: self._installing != snapshot)

    def _on_pulled(self, source: NodeId, snapshot: str, result: JobResult) -> None:
        """Checkpoint and files are durable: now the log may begin where they end.

        Until that is durable too no append is taken and nothing is applied, so that the log on disk and
        the one in memory agree on what follows the base.
        """
        if not isinstance(result, Installed) or self.removed or self.leads:
            self._installing = None
            self.desk.later(INSTALL_KEEP_MS, lambda: self._drop_pulled(snapshot))
            what = result.what if isinstance(result, Failed) else "no longer needed"
            if isinstance(result, Failed) and result.file:  # who holds it finds out what is wrong with it
                self.desk.call(source, CheckFiles(self.group, (), (result.file,)), lambda _: None)
            self.desk.note("install_failed", group=self.group, why=what)
            return
        saved = msgspec.msgpack.decode(result.payload, type=Saved)
        assert saved.base.index >= self.raft.log.base.index, (self.group, saved.base, self.raft.log.base)
        keep = self.raft.log.term(saved.base.index) == saved.base.term
        self._give_up(list(self._tokens), "outcome_unknown", f"leadership of {self.group} was lost")
        self._saved_to = self.number_needed = 0
        try:
            self.restore(saved.state, saved.base.index)
        except Exception as error:  # the sender's release has what this one does not know
            self._installing = None
            self._drop_pulled(snapshot)
            return self.stop(saved.base.index, f"the state {type(error).__name__}: {error}")
        self.rebasing = True

        def rebased() -> None:
            self._installing = None
            self.rebasing = False
            self._drop_pulled(snapshot)
            self.raft.installed(saved.base, saved.base.index, self.desk.now)

        self.outbox.persist(self.group, [Rebase(self.group, saved.base, keep)], rebased)
        self.desk.note("installed", group=self.group, base=saved.base.index, received=result.bytes_received)
        return None

    # --- hooks -------------------------------------------------------------------------------------

    @property
    def seen(self) -> int:
        """Last entry given to the state."""
        raise NotImplementedError

    @property
    def state_index(self) -> int:
        """Entry up to which the state is complete once it has seen it."""
        raise NotImplementedError

    def apply_entries(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        raise NotImplementedError

    def log_needed_after(self) -> int:
        """The log is needed from the next index on, if this state were saved now."""
        raise NotImplementedError

    def encode_state(self, peer: NodeId | None) -> bytes:
        """For this node's own checkpoint, or for `peer` to install; without files."""
        raise NotImplementedError

    has_files = False
    """Whether a state has files, which are stored beside what `encode_state` gives."""

    def file_changes(self) -> FileChanges | None:
        """The files of the checkpoint that is begun now, or what changed of them."""
        return None

    def on_files_saved(self, result: JobResult) -> None:
        """How the checkpoint begun last ended."""

    def restore(self, payload: bytes, base: int) -> None:
        """Take the state of a checkpoint; entries after `base` will be seen again."""
        raise NotImplementedError

    def new_snapshot_id(self) -> str:
        raise NotImplementedError

    def snapshot_ready(self, peer: NodeId) -> bool:
        return True

    @property
    def removes_files(self) -> bool:
        """Whether files, staged ones too, are to be removed once the checkpoint begun last is durable."""
        return False

    def on_saved(self) -> None:
        """The checkpoint begun last is durable."""

    def snapshot_files(self, peer: NodeId) -> tuple[FileMeta, ...]:
        return ()

    def on_role(self) -> None:
        """Leadership was won or lost."""


def check_entries(commands: list[bytes]) -> None:
    """Raises `InvalidInput` for an entry that no frame could bring to the others."""
    size = max(map(len, commands), default=0)
    if size > limits.ENTRY_BYTES_MAX:
        raise InvalidInput(f"an entry of {size} bytes; the limit is {limits.ENTRY_BYTES_MAX}")


def as_reply(error: NodeAgentError) -> ErrorReply:
    details = {k: v for k, v in error.details.items() if isinstance(v, str | int | bool) or v is None}
    return ErrorReply(error.code, error.what, error.next_step, details)

"""One replica of one Raft group: passes messages to Raft, and its Readies to the parts that act on them.

The state machine defines what the entries mean (`state_machine`).
"""

from collections.abc import Callable

import msgspec

from nodeagent.host.budget import Budget
from nodeagent.host.checkpoints import Checkpoints
from nodeagent.host.group_context import GroupContext
from nodeagent.host.installs import Installs
from nodeagent.host.log_start import LogStart
from nodeagent.host.pending_reads import PendingReads
from nodeagent.host.snapshot_offers import SnapshotOffers
from nodeagent.host.state_machine import StateMachine
from nodeagent.model import limits
from nodeagent.model.entries import Append, Entry, HardState, LogOp, Rebase, SetHard
from nodeagent.model.errors import EntryFailed
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import Job, JobResult
from nodeagent.model.limits import SMALL_APPEND_BYTES
from nodeagent.model.raft_messages import (
    AppendRequest,
    HeartbeatReply,
    RaftMessage,
    RelayedAppend,
    SnapshotOffer,
)
from nodeagent.model.space import Room
from nodeagent.raft.ready import Ready


class Replica:
    """See the module; the parts know the group's context, never the replica.

    Args:
        new_id: draws the name of a snapshot.
    """

    def __init__(self, context: GroupContext, machine: StateMachine, new_id: Callable[[], str]) -> None:
        self.context = context
        self.machine = machine
        self.group = context.group
        self.raft = context.raft
        self.effects = context.effects
        self.outbox = context.outbox
        self.condition = context.condition
        self.proposals = context.proposals
        self.reads = PendingReads(context)
        self.snapshots = SnapshotOffers(context, machine, new_id)
        self.log_start = LogStart(context, machine, self.snapshots)
        self.checkpoints = Checkpoints(context, machine, self.log_start)
        self.installs = Installs(context, machine, self.log_start, self.stop)
        self.led_from = 0
        """Leader: once this index is applied, everything that earlier leaders logged is applied."""

        self.led_since = context.effects.now
        """When this node last became the group's leader (ms)."""

    @property
    def leads(self) -> bool:
        return self.context.leads

    @property
    def applied_index(self) -> int:
        """Last entry given to the state."""
        return self.machine.applied_index

    @property
    def removed(self) -> bool:
        return self.condition.removed

    @property
    def stopped(self) -> str:
        """Why no entry is applied any more, "" as long as entries are applied."""
        return self.condition.stopped

    @property
    def installing(self) -> bool:
        """Whether a snapshot is being pulled."""
        return self.condition.installing is not None

    @property
    def rebasing(self) -> bool:
        """Whether the new state is in place, but the log's new base is not durable yet."""
        return self.condition.rebasing

    # --- beginning and end -------------------------------------------------------------------------

    def first_records(self) -> list[LogOp]:
        """The first records in the log of a new replica."""
        rebase = Rebase(self.group, self.raft.log.base, False)
        hard = self.raft.hard
        return [rebase] if hard == HardState() else [SetHard(self.group, hard), rebase]

    def abandon(self) -> None:
        """The replica is about to be removed: everything that waits for it fails."""
        self.condition.removed = True
        self._fail_waiting(f"the replica of {self.group} was removed")

    def stop(self, index: int, why: str) -> None:
        """The entry at `index` is committed and cannot be applied here: the state ends before it.

        The replica continues as a follower: it stores what the leader sends and votes for others, because
        both promise something about the log alone, which is complete, and members that can apply the entry
        may need this replica for their majority. It does not lead, answers no requests and saves no state:
        after a restart it reaches the same entry, and a release that can apply the entry continues there.
        """
        self.condition.stopped = f"stopped at entry {index}, which cannot be applied here: {why}"
        self._fail_waiting(f"the replica of {self.group} is {self.stopped}")
        self.raft.abstain(self.effects.now)
        self.effects.note("group_stopped", group=self.group, entry=index, why=why)

    def _fail_waiting(self, why: str) -> None:
        self.proposals.refuse_all("outcome_unknown", why)
        self.reads.fail_all(why)

    def remove(self, then: Callable[[], None]) -> None:
        """Stop permanently; `then` runs when no job of this group runs."""
        self.condition.removed = True
        self.context.jobs.when_at_rest(then)

    # --- input -------------------------------------------------------------------------------------

    def step(self, sender: NodeId, message: RaftMessage) -> None:
        if isinstance(message, AppendRequest | RelayedAppend):
            if self.condition.installing is not None:
                return  # the log must not change until the new state is in place
            if self.raft.room >= Room.FULL and sum(len(e.data) for e in message.entries) > SMALL_APPEND_BYTES:
                return  # the leader retries it, and learns the reason from the next heartbeat
        if self.stopped and self._is_ignored_when_stopped(message):
            return
        self.raft.step(sender, message, self.effects.now)

    def _is_ignored_when_stopped(self, message: RaftMessage) -> bool:
        """Whether a stopped replica ignores the message: its log is never purged and must stay bounded, and a
        state made by another release must not replace its own."""
        if isinstance(message, AppendRequest | RelayedAppend):
            return self.context.log_bytes() >= limits.STOPPED_LOG_BYTES_MAX
        return isinstance(message, SnapshotOffer)

    def tick(self) -> None:
        self.raft.tick(self.effects.now)
        self.log_start.free()

    def job(self, job: Job, then: Callable[[JobResult], None]) -> None:
        """Run a job that works on this group's files."""
        self.context.jobs.run(job, then)

    def propose(self, commands: list[bytes], token: int | None = None) -> int | None:
        """As `Proposals.propose`."""
        return self.proposals.propose(commands, token)

    def read(self, then: Callable[[], None], failed: Callable[[str], None]) -> None:
        """As `PendingReads.read`."""
        self.reads.read(then, failed)

    # --- output ------------------------------------------------------------------------------------

    def drain(self, budget: Budget) -> bool:
        """Act on what Raft has ready, and apply entries while the budget lasts.

        Returns:
            Whether there was anything.
        """
        worked = False
        raft = self.raft
        while not self.removed and raft.is_ready(to_apply=not budget.is_spent):
            ready = raft.take(budget.entries, budget.nbytes)
            if ready.committed is not None:
                first, entries = ready.committed
                budget.spend(len(entries), raft.log.bytes_between(first - 1, first + len(entries) - 1))
            self._act_on(ready)
            worked = True
        return worked

    def _act_on(self, ready: Ready) -> None:
        self._persist(ready)
        for to, message in ready.now:
            if isinstance(message, HeartbeatReply):
                message = msgspec.structs.replace(message, wall=self.effects.wall)
            self.outbox.send(to, self.group, message)
        for to, message in ready.after:
            self.outbox.send_after(to, self.group, message)
        if ready.committed is not None:
            self._apply(*ready.committed)
        for number, index in ready.reads:
            self.reads.confirm(number, index)
        for number in ready.reads_failed:
            self.reads.fail(number)
        self.reads.run(self.applied_index)
        for peer in ready.snapshots:
            self.snapshots.make(peer)
        if ready.offer is not None:
            self.installs.take(*ready.offer)
        if ready.role_changed:
            self._on_role()

    def _persist(self, ready: Ready) -> None:
        ops: list[LogOp] = []
        if ready.hard is not None:
            ops.append(SetHard(self.group, ready.hard))
        if ready.append is not None:
            ops.append(Append(self.group, *ready.append))
            last = (self.raft.log.last_index, self.raft.log.last_term)
            if not self.leads:  # a leader counts its entries when it takes them
                self.effects.space.spend(self.raft.log.bytes_between(ready.append[0] - 1, last[0]))
            self.outbox.persist(self.group, ops, lambda: self.raft.persisted(*last))
        elif ops:  # without entries nothing is acknowledged as durable: the last entries may be replaced
            self.outbox.persist(self.group, ops)

    def _apply(self, first: int, entries: list[Entry]) -> None:
        if self.rebasing or self.stopped:
            return  # entries of the replaced log: Raft hands out those after the new base once more
        unsaved = self.context.unsaved
        unsaved.changes += len(entries)
        try:
            replies = self.machine.apply_entries(first, entries)
        except EntryFailed as error:
            self.proposals.answer(first, entries[: error.index - first], error.replies)
            self.stop(error.index, error.why)
        else:
            unsaved.pressing |= self.machine.take_news()
            self.proposals.answer(first, entries, replies)

    def _on_role(self) -> None:
        if self.leads:
            self.led_from = self.raft.log.last_index
            self.led_since = self.effects.now
        else:
            self.proposals.refuse_all("outcome_unknown", f"leadership of {self.group} was lost")
        self.effects.note(
            "role", group=self.group, role=self.raft.role.value, term=self.raft.term, leader=self.raft.leader
        )
        self.machine.on_role()

"""`Raft`: one replica of one group. It dispatches messages and ticks, and hands out Readies."""

from collections.abc import Callable

from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import APPLY_BYTES_PER_TURN, APPLY_ENTRIES_PER_TURN
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    ReadReply,
    ReadRequest,
    RelayedAppend,
    RelayReport,
    SnapshotOffer,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from nodeagent.raft.follower import answer_stale, join, on_append, on_heartbeat, on_offer
from nodeagent.raft.log import RaftLog
from nodeagent.raft.ready import Ready, take_committed, take_writes
from nodeagent.raft.roles import Roles
from nodeagent.raft.state import RaftStatus, Role

_FROM_LEADER = (AppendRequest, Heartbeat, SnapshotOffer)


class Raft(Roles):
    """One replica. `now` is in milliseconds and never decreases; `random` returns values in [0, 1).

    Args:
        hard: the last durable hard state.
        applied: entries up to this index are not handed out again. It may be beyond the end of the log, if
            the state of a snapshot is newer than its base.
    """

    __slots__ = ("_reported",)

    def __init__(
        self,
        node: NodeId,
        log: RaftLog,
        hard: HardState,
        settings: RaftSettings,
        random: Callable[[], float],
        now: int,
        applied: int,
    ) -> None:
        super().__init__(node, log, hard, settings, random, now, applied)
        self._reported: tuple[Role, int, NodeId | None] = (self.role, self.term, self.leader)

    # Messages

    def step(self, sender: NodeId, message: RaftMessage, now: int) -> None:
        """Handle one message of an authenticated peer. Duplicates, delays and reordering are harmless."""
        self._stir(now)
        if message.term != self.term and not self._meet_other_term(sender, message):
            return
        lead = self._lead
        if isinstance(message, _FROM_LEADER):
            self._on_leader_message(sender, message)
        elif isinstance(message, AppendReply):
            if lead is not None:
                lead.on_append_reply(sender, message)
                self._maybe_retire(lead)
            elif self._relay is not None:
                self._relay.on_reply(sender, message)
        elif isinstance(message, HeartbeatReply):
            if lead is not None:
                lead.on_heartbeat_reply(sender, message)
        elif isinstance(message, RelayedAppend):
            self._on_relayed(sender, message)
        elif isinstance(message, RelayReport):
            if lead is not None:
                lead.peers.relayed(message.matches, message.config_index)
        elif isinstance(message, VoteRequest):
            self._on_vote_request(sender, message)
        elif isinstance(message, VoteReply):
            self._on_vote_reply(sender, message)
        elif isinstance(message, TimeoutNow):
            if sender == self.leader and lead is None and self.may_campaign():
                self._campaign(pre=False, transfer=True)
        elif isinstance(message, ReadRequest):
            if lead is not None:
                lead.read((sender, message.read))
            else:
                self.now.append((sender, ReadReply(self.term, message.read, 0, False)))
        else:
            self._on_read_reply(message)

    def _meet_other_term(self, sender: NodeId, message: RaftMessage) -> bool:
        """Handle a message whose term is not ours. Returns whether the message must still be handled."""
        if message.term < self.term:
            answer_stale(self, sender, message)
            return False
        if isinstance(message, VoteRequest):
            if self.hears_leader() and not message.transfer:
                return False  # a removed or cut-off member must not disturb (thesis 4.2.3)
            if message.pre:
                return True
        elif isinstance(message, VoteReply) and message.pre and message.granted:
            return True  # carries the term we asked about
        self._become_follower(message.term, sender if isinstance(message, _FROM_LEADER) else None)
        return True

    def _on_leader_message(self, sender: NodeId, message: AppendRequest | Heartbeat | SnapshotOffer) -> None:
        assert self._lead is None, f"{sender} and {self.node} both lead term {self.term}"
        assert self.leader in (None, sender), f"{sender} and {self.leader} both lead term {self.term}"
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, sender)
        elif self.leader is None:
            self._follow(sender)
        self._heard_leader()
        self.addition = message.addition
        if not self.log.config.voters:
            join(self, message)
        if isinstance(message, AppendRequest):
            on_append(self, sender, message)
        elif isinstance(message, Heartbeat):
            on_heartbeat(self, sender, message)
            self._relay_heartbeat(sender)
        else:
            on_offer(self, sender, message)

    def _on_read_reply(self, reply: ReadReply) -> None:
        contexts = self._forwarded.answered(reply.read)
        if reply.ok:
            self.reads_done.extend((context, reply.index) for context in contexts)
        else:
            self.reads_failed.extend(contexts)

    # Time

    def deadline(self) -> int:
        """Time of the next `tick` that has something to do."""
        if self._lead is not None:
            return self._lead.deadline
        reads = self._forwarded.deadline
        return self._election_at if reads is None else min(self._election_at, reads)

    def tick(self, now: int) -> None:
        """Advance the clock; may be called at any rate."""
        self.clock = now
        if now < self.deadline():
            return
        self.stirred = True
        if self._lead is not None:
            if not self._lead.tick():
                self._become_follower(self.term, None)
            return
        self.reads_failed.extend(self._forwarded.expired(now))
        if now >= self._election_at:
            if self.may_campaign():
                self._campaign(pre=True)
            else:
                self._draw_timeout()

    # Requests

    def propose(self, commands: list[bytes], now: int) -> int:
        """Append commands; returns the index of the first.

        Whether they are committed at this index is known only when they are handed out.

        Raises:
            NotLeader: this replica does not lead, is transferring leadership, or is leaving the group.
            Overloaded: too many uncommitted bytes.
        """
        return self._leading(now).propose(commands)

    def change(self, config: Config, now: int) -> int:
        """Append a config, which takes effect at once; returns its index.

        A learner that is promoted should be `caught_up`, otherwise the group may not commit until it is.

        Raises:
            NotLeader, Refused (`can_change` is false, or not a single step).
        """
        return self._leading(now).change(config)

    def can_change(self) -> bool:
        """Whether we lead, have committed an entry of our term and the last config, and are not transferring
        leadership."""
        return self._lead is not None and self._lead.can_change()

    def lost_acknowledged(self) -> list[NodeId]:
        """Followers that no longer hold entries they acknowledged to this leader."""
        return self._lead.peers.lost_acknowledged() if self._lead is not None else []

    def caught_up(self, peer: NodeId) -> bool:
        """Whether this node leads, and `peer` is this node or holds every entry that is committed now."""
        return self._lead is not None and (peer == self.node or self._lead.peers.caught_up(peer))

    def voters_low_on_space(self) -> list[NodeId]:
        """Leader: other voters that reported no room for rows."""
        return self._lead.peers.voters_low_on_space() if self._lead is not None else []

    def has_room(self, peer: NodeId) -> bool:
        """Leader: whether `peer` reported room for rows; False if it has not reported yet."""
        return self._lead is not None and self._lead.peers.has_room(peer)

    def transfer(self, target: NodeId, now: int) -> None:
        """Transfer leadership to `target`; aborted after an election timeout. Refuses proposals until then.

        Raises:
            NotLeader, Refused.
        """
        self._leading(now).transfer(target)

    def read(self, context: int, now: int) -> None:
        """Request a read index; `context` is returned in `Ready.reads` or `Ready.reads_failed`."""
        self._stir(now)
        if self._lead is not None:
            self._lead.read((self.node, context))
        elif self.leader is None or not self._forwarded.add(context):
            self.reads_failed.append(context)

    # Completions

    def persisted(self, last_index: int, last_term: int) -> None:
        """Note that all Readies up to the one whose `append` ended at these values are durable."""
        self.stirred = True
        if self.durability.completed(last_index, last_term) and self._lead is not None:
            self._lead.maybe_commit()
            self._maybe_retire(self._lead)

    def offer_snapshot(self, peer: NodeId, snapshot: str) -> None:
        """Answer `Ready.snapshots`: offer `snapshot`, whose state is not older than `log.base`.

        Ignored when the peer no longer needs one.
        """
        self.stirred = True
        if self._lead is not None:
            self._lead.offers.offer(peer, snapshot)

    def snapshot_failed(self, peer: NodeId, now: int) -> None:
        """Answer `Ready.snapshots` with a failure, or report that the offered snapshot was removed. The peer
        is tried again after the next heartbeat."""
        self._stir(now)
        if self._lead is not None:
            self._lead.offers.failed(peer)

    def installed(self, base: Base, applied: int, now: int) -> None:
        """Note that the state up to `applied` (at least `base.index`) is in place and `Rebase(base)` durable.

        `Rebase.keep_suffix` must be `log.term(base.index) == base.term`. The caller drops a snapshot whose
        base is no longer beyond `commit`. If its state is older than ours, the caller may keep ours and pass
        our own `applied`. If the state moves back, entries are handed out again.
        A base that is not beyond the log's base is ignored.
        """
        self._stir(now)
        self.offer = None
        if base.index > self.log.base.index:
            if not self.log.reset(base):
                self.durability.truncated(base.index + 1)
                self.unwritten = None
            elif self.unwritten is not None:
                self.unwritten = max(self.unwritten, base.index + 1)
                if self.unwritten > self.log.last_index:
                    self.unwritten = None
            self.durability.installed(base.index)
            self.commit = max(self.commit, base.index)
            self.handed_out = max(applied, base.index)
        if self._lead is None and self.leader is not None:
            self.accept(self.leader, self.commit, 0, self.addition)

    # Results

    @property
    def has_ready(self) -> bool:
        return self.is_ready(to_apply=True)

    def is_ready(self, *, to_apply: bool) -> bool:
        """Whether there is anything to take; entries to apply count when `to_apply`."""
        if not self.stirred:
            return False
        ready = self.has_results(to_apply=to_apply)
        if to_apply:
            self.stirred = ready
        return ready

    def has_results(self, *, to_apply: bool) -> bool:
        """The answer of `is_ready`, computed from every field instead of `stirred`."""
        lead = self._lead
        handed_out = self.handed_out
        return bool(
            self.now
            or self.after
            or self.unwritten is not None
            or self.hard_changed
            or (lead is not None and lead.dirty)
            or (self._relay is not None and self._relay.dirty)
            or (to_apply and self.commit > handed_out and self.durability.index > handed_out)
            or self.reads_done
            or self.reads_failed
            or self.snapshots
            or self.offer is not None
            or self._forwarded.waiting
            or self._reported != (self.role, self.term, self.leader)
        )

    def take(self, entries_max: int = APPLY_ENTRIES_PER_TURN, bytes_max: int = APPLY_BYTES_PER_TURN) -> Ready:
        """Everything since the last call; the caller owns it.

        Args:
            entries_max, bytes_max: limits on the entries to apply; if both are above 0, at least one entry is
                handed out.
        """
        if self._lead is not None:
            if self._lead.dirty:
                self._lead.flush()
        elif self._forwarded.waiting and self.leader is not None:
            number = self._forwarded.send(self.clock + self.settings.election_timeout_ms)
            self.now.append((self.leader, ReadRequest(self.term, number)))
        if self._relay is not None and self._relay.dirty:
            self._relay.flush()
        ready = Ready(
            now=self.now,
            after=self.after,
            reads=self.reads_done,
            reads_failed=self.reads_failed,
            snapshots=self.snapshots,
            offer=self.offer,
        )
        self.now, self.after, self.reads_done = [], [], []
        self.reads_failed, self.snapshots, self.offer = [], [], None
        take_writes(self, ready)
        if entries_max > 0 and bytes_max > 0:
            take_committed(self, ready, entries_max, bytes_max)
        reported = (self.role, self.term, self.leader)
        ready.role_changed = reported != self._reported
        self._reported = reported
        return ready

    def status(self) -> RaftStatus:
        return RaftStatus(
            node=self.node,
            term=self.term,
            role=self.role,
            leader=self.leader,
            commit=self.commit,
            base=self.log.base.index,
            last=self.log.last_index,
            durable=self.durability.index,
            config=self.log.config,
            config_index=self.log.config_index,
            progress={} if self._lead is None else self._lead.peers.statuses(),
        )

"""`Raft`: one replica of one group. It dispatches messages and ticks, and hands out Readies.

        follower ──timeout──▶ pre_candidate ──quorum would──▶ candidate ──quorum did──▶ leader
           ▲                        │                             │                       │
           └──────── higher term, a leader, a lost vote, no quorum, removed ──────────────┘

Only what `may_campaign` leaves `follower`, and `TimeoutNow` skips the pre-vote.
"""

from collections.abc import Callable

from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.errors import NotLeader, Refused
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
    SnapshotOffer,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from nodeagent.raft.candidate import Ballot, answer_pre_vote, answer_vote
from nodeagent.raft.follower import on_append, on_heartbeat, on_offer
from nodeagent.raft.leader import Leader
from nodeagent.raft.log import RaftLog
from nodeagent.raft.quorum import Verdict
from nodeagent.raft.reads import ForwardedReads
from nodeagent.raft.state import RaftStatus, Ready, Role, State

_FROM_LEADER = (AppendRequest, Heartbeat, SnapshotOffer)
_READ_NUMBERS = 1 << 52


class Raft(State):
    """One replica. `now` is in milliseconds and never decreases; `random` returns values in [0, 1).

    Args:
        hard: the last durable hard state.
        applied: entries up to this index are not handed out again. It may be beyond the end of the log, if
            the state of a snapshot is newer than its base.
    """

    __slots__ = (
        "_ballot",
        "_contact_at",
        "_election_at",
        "_election_ms",
        "_forwarded",
        "_handed_out",
        "_lead",
        "_random",
        "_refused_shorter",
        "_reported",
        "passive",
        "stirred",
    )

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
        super().__init__(node, log, hard, settings, now)
        self.passive = False
        """The replica votes and follows, but never campaigns."""

        self._refused_shorter = False
        """A candidate's log was shorter than this replica's, and no leader has been heard since."""

        self.stirred = True
        """An event happened since `take` last had nothing to return; while False, there is nothing to take.
        A node has hundreds of groups and few are busy in a turn: for the others only this is checked."""

        self._random = random
        self._handed_out = max(applied, log.base.index)
        self._lead: Leader | None = None
        self._ballot: Ballot | None = None
        self._forwarded = ForwardedReads(int(random() * _READ_NUMBERS))
        self._contact_at: int | None = None
        """When the leader of this term was last heard."""

        self._reported: tuple[Role, int, NodeId | None] = (self.role, self.term, self.leader)
        self._draw_timeout()
        if log.config.voters == (node,):
            self._election_at = now  # there is no other voter to wait for

    def _stir(self, now: int) -> None:
        """Note that an event happens, after which there may be something to take."""
        self.clock = now
        self.stirred = True

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
        elif isinstance(message, HeartbeatReply):
            if lead is not None:
                lead.on_heartbeat_reply(sender, message)
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
            self._answer_stale(sender, message)
            return False
        if isinstance(message, VoteRequest):
            if self._hears_leader() and not message.transfer:
                return False  # a removed or cut-off member must not disturb (thesis 4.2.3)
            if message.pre:
                return True
        elif isinstance(message, VoteReply) and message.pre and message.granted:
            return True  # carries the term we asked about
        self._become_follower(message.term, sender if isinstance(message, _FROM_LEADER) else None)
        return True

    def _answer_stale(self, sender: NodeId, message: RaftMessage) -> None:
        """Reply with our term to a sender with an older term; an old reply gets no reply.

        Without this, a node that was partitioned off and has a higher term could never rejoin its group.
        """
        if isinstance(message, AppendRequest):
            self.after.append((sender, AppendReply(self.term, False, message.prev_index)))
        elif isinstance(message, Heartbeat | SnapshotOffer):
            self.after.append((sender, HeartbeatReply(self.term)))
        elif isinstance(message, VoteRequest):
            self.after.append((sender, VoteReply(self.term, False, message.pre)))
        elif isinstance(message, ReadRequest):
            self.after.append((sender, ReadReply(self.term, message.read, 0, False)))

    def _hears_leader(self) -> bool:
        if self._lead is not None:
            return True
        contact = self._contact_at
        return (
            self.leader is not None
            and contact is not None
            and self.clock - contact < self.settings.election_timeout_ms
        )

    def _on_leader_message(self, sender: NodeId, message: AppendRequest | Heartbeat | SnapshotOffer) -> None:
        assert self._lead is None, f"{sender} and {self.node} both lead term {self.term}"
        assert self.leader in (None, sender), f"{sender} and {self.leader} both lead term {self.term}"
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, sender)
        elif self.leader is None:
            self._follow(sender)
        self._contact_at = self.clock
        self._refused_shorter = False
        self._election_at = self.clock + self._election_ms
        self.addition = message.addition
        if not self.log.config.voters:
            self._join(message)
        if isinstance(message, AppendRequest):
            on_append(self, sender, message)
        elif isinstance(message, Heartbeat):
            on_heartbeat(self, sender, message)
        else:
            on_offer(self, sender, message)

    def _join(self, message: AppendRequest | Heartbeat | SnapshotOffer) -> None:
        """Handle the first message of a leader to an empty replica. The node may have been a member before
        and have lost its disk: until its log reaches the leader's current commit index, it votes as if it
        held every committed entry. The group does not need its vote before: it is a learner until then."""
        index = message.base.index if isinstance(message, SnapshotOffer) else message.commit
        held = max(self.held, (message.term, index))
        if held != self.held:
            self.held = held
            self.hard_changed = True

    def _on_vote_request(self, candidate: NodeId, request: VoteRequest) -> None:
        is_shorter = (request.last_term, request.last_index) < (self.log.last_term, self.log.last_index)
        if is_shorter and not self._hears_leader():
            self._refused_shorter = True
        if request.pre:
            answer_pre_vote(self, candidate, request)
        elif answer_vote(self, candidate, request):
            if (
                self.role is not Role.FOLLOWER
            ):  # a pre-candidate would compete with its own choice
                self._become_follower(self.term, None)
            self._election_at = self.clock + self._election_ms

    def _on_vote_reply(self, voter: NodeId, reply: VoteReply) -> None:
        ballot = self._ballot
        if ballot is None or ballot.pre != reply.pre:
            return
        asked = self.term + 1 if ballot.pre else self.term
        if reply.granted and reply.term != asked:
            return
        ballot.record(voter, reply.granted)
        self._count(ballot)

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

    def _draw_timeout(self) -> None:
        """Draw a new random election timeout in [t, 2t), starting now."""
        timeout = self.settings.election_timeout_ms
        self._election_ms = timeout + int(self._random() * timeout)
        self._election_at = self.clock + self._election_ms

    def hurry(self, now: int) -> None:
        """Campaign at the next tick if there is no leader: for a new group, which need not wait for a
        timeout."""
        self.clock = now
        if self.leader is None and self._ballot is None:
            self._election_at = now

    # Roles

    def abstain(self, now: int) -> None:
        """Never lead again, because committed entries cannot be applied here. A leader steps down; the
        replica continues as a follower."""
        self._stir(now)
        self.passive = True
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, None)

    def may_campaign(self) -> bool:
        """Whether this replica may campaign: if it is a voter, or if its removal as a voter is not known to
        be committed. It may hold the longest log, and then no other replica can win (thesis 4.2.2).

        A learner may campaign if its log is longer than that of a candidate that needs its vote: the
        candidate already counts it as a voter, and the leader that sent it the longer log may have lost it.
        """
        log = self.log
        if self.passive:
            return False
        if self.node in log.config.voters or (self._refused_shorter and self.node in log.config.learners):
            return True
        return log.config_index > self.commit and self.node in log.config_at(self.commit).voters

    def _campaign(self, *, pre: bool, transfer: bool = False) -> None:
        self._follow(None)
        self.role = Role.PRE_CANDIDATE if pre else Role.CANDIDATE
        if not pre:
            self.term += 1
            self.vote = self.node
            self.hard_changed = True
        self._draw_timeout()
        ballot = self._ballot = Ballot(self.node, pre)
        request = VoteRequest(
            self.term + 1 if pre else self.term, self.log.last_index, self.log.last_term, pre, transfer
        )
        # A pre-vote promises nothing. A vote does: our own must be durable before other voters add theirs.
        out = self.now if pre else self.after
        out.extend((voter, request) for voter in sorted(self.log.config.voters) if voter != self.node)
        self._count(ballot)

    def _count(self, ballot: Ballot) -> None:
        verdict = ballot.verdict(self.log.config.voters)
        if verdict is Verdict.LOST:
            self._become_follower(self.term, None)
        elif verdict is Verdict.WON and ballot.pre:
            self._campaign(pre=False)
        elif verdict is Verdict.WON:
            self._become_leader(alone=len(ballot.votes) == 1)

    def _become_leader(self, *, alone: bool) -> None:
        self._ballot = None
        self.role = Role.LEADER
        self._follow(self.node)
        self._lead = Leader(self, alone=alone)

    def _become_follower(self, term: int, leader: NodeId | None) -> None:
        if term > self.term:
            self.term = term
            self.vote = ""
            self.hard_changed = True
        self._ballot = None
        lead, self._lead = self._lead, None
        if lead is not None:
            lead.step_down()
        if self.role is not Role.FOLLOWER:
            self.role = Role.FOLLOWER
            self._draw_timeout()
        self._follow(leader)

    def _follow(self, leader: NodeId | None) -> None:
        """Note the current leader; fail the reads that were sent to a former leader."""
        if leader != self.leader:
            self.leader = leader
            self._contact_at = None
            self.reads_failed.extend(self._forwarded.drain())

    def _maybe_retire(self, lead: Leader) -> None:
        """If the config without this node is committed: send it to the others, then step down (thesis
        4.2.2)."""
        if lead.retired:
            lead.flush()
            self._become_follower(self.term, None)

    # Requests

    def _leading(self, now: int) -> Leader:
        self._stir(now)
        if self._lead is not None:
            return self._lead
        if self.leader is None:
            raise NotLeader(f"{self.node} does not lead and knows no leader", next_step="retry shortly")
        raise NotLeader(f"{self.node} does not lead", next_step=f"ask {self.leader}", leader=self.leader)

    def propose(self, commands: list[bytes], now: int) -> int:
        """Append commands; returns the index of the first.

        Whether they are committed at this index is known only when they are handed out.

        Raises:
            NotLeader: not the leader, or it is transferring leadership, or it is leaving the group.
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

    def force(self, config: Config, term: int, now: int) -> None:
        """Lead without votes, with `config`'s voters as members: for a majority that is permanently lost.

        Entries that only the lost members held are lost, even committed entries; entries beyond this log's
        commit index become committed, even if their proposer was refused. Two surviving logs never hold
        different entries at one (index, term), and no surviving member loses an entry that it knows to be
        committed, provided that
            - no node ever hears the members outside `config` again (their incarnations are retired);
            - of the surviving members, this one has the last entry by (term, index);
            - `term` is above every term that any member can have reached, lost members included.
        The term and the config are in the same Ready, and no message leaves before they are durable. After a
        crash before that point nothing has changed: repeat the call. After it, the last config of the log
        shows that the call took effect. Followers accept the term and the log by the ordinary rules.

        Args:
            config: voters, this node among them; no learners.

        Raises:
            Refused: this node leads or hears a leader, so no recovery is needed; or its log does not have it
                as a voter.
        """
        self._stir(now)
        if self._hears_leader():
            raise Refused(f"{self.node} hears {self.leader} lead", next_step="nothing is lost")
        if self.node not in config.voters or self.node not in self.log.config.voters:
            raise Refused(f"{self.node} is no voter of this group", next_step="choose a voter that lives")
        self._become_follower(max(term, self.term + 1), None)
        self.vote = self.node
        self.hard_changed = True
        self._become_leader(alone=True)
        assert self._lead is not None
        self._lead.impose(config)

    def can_change(self) -> bool:
        """Whether we lead, have committed an entry of our term and the last config, and are not transferring
        leadership."""
        return self._lead is not None and self._lead.can_change()

    def forgetful(self) -> list[NodeId]:
        """Followers that no longer hold entries they acknowledged to this leader."""
        return self._lead.forgetful() if self._lead is not None else []

    def caught_up(self, peer: NodeId) -> bool:
        """Whether we lead, and `peer` is this node or holds every entry that is committed now."""
        return self._lead is not None and (peer == self.node or self._lead.caught_up(peer))

    def short_of_room(self) -> list[NodeId]:
        """Leader: other voters that reported no room for rows."""
        return self._lead.short_of_room() if self._lead is not None else []

    def has_room(self, peer: NodeId) -> bool:
        """Leader: whether `peer` reported room for rows; False if it has not reported yet."""
        return self._lead is not None and self._lead.has_room(peer)

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
            self._lead.offer_snapshot(peer, snapshot)

    def snapshot_failed(self, peer: NodeId, now: int) -> None:
        """Answer `Ready.snapshots` with a failure, or report that the offered snapshot was removed. The peer
        is tried again after the next heartbeat."""
        self._stir(now)
        if self._lead is not None:
            self._lead.snapshot_failed(peer)

    def installed(self, base: Base, applied: int, now: int) -> None:
        """Note that the state up to `applied` (at least `base.index`) is in place and `Rebase(base)` durable.

        `Rebase.keep_suffix` must be `log.term(base.index) == base.term`. The caller drops a snapshot whose
        base is no longer beyond `commit`. If its state is older than ours, the caller may keep ours and pass
        our own `applied`. If the state goes back, entries are handed out once more.
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
            self._handed_out = max(applied, base.index)
        if self._lead is None and self.leader is not None:
            self.accept(self.leader, self.commit, 0)

    def compact(self, index: int) -> Base:
        """Purge the entries up to `index`, which must be applied; returns the new base."""
        assert index <= min(self._handed_out, self.commit), (index, self._handed_out, self.commit)
        if index <= self.log.base.index:
            return self.log.base
        return self.log.rebase(index)

    def memory(self) -> HardState:
        """The hard state that a removed member must retain when it drops the log. It may become a member
        again, and a voter that forgot an acknowledged entry could elect a leader without it."""
        log = self.log
        return HardState(self.term, self.vote, max(self.held, (log.last_term, log.last_index)))

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
        handed_out = self._handed_out
        return bool(
            self.now
            or self.after
            or self.unwritten is not None
            or self.hard_changed
            or (lead is not None and lead.dirty)
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
        self._take_writes(ready)
        if entries_max > 0 and bytes_max > 0:
            self._take_committed(ready, entries_max, bytes_max)
        reported = (self.role, self.term, self.leader)
        ready.role_changed = reported != self._reported
        self._reported = reported
        return ready

    def _take_writes(self, ready: Ready) -> None:
        if self.hard_changed:
            ready.hard = self.hard
            self.hard_changed = False
        first = self.unwritten
        if first is not None:
            log = self.log
            last = log.last_index
            ready.append = (first, log.slice(first, last, log.bytes_between(first - 1, last)))
            self.durability.started(last, log.last_term)
            self.unwritten = None

    def _take_committed(self, ready: Ready, entries_max: int, bytes_max: int) -> None:
        last = min(self.commit, self.durability.index, self._handed_out + entries_max)
        if last > self._handed_out:
            entries = self.log.slice(self._handed_out + 1, last, bytes_max)
            ready.committed = (self._handed_out + 1, entries)
            self._handed_out += len(entries)

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
            progress={} if self._lead is None else self._lead.statuses(),
        )

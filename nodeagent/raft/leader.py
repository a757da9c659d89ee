"""The leader: replicates, commits, confirms reads, checks its quorum, transfers leadership (thesis 3.5-6.4).

Appends are built when the Ready is taken, one per peer, from all that was proposed until then. If a group has
many learners, they get entries once these are committed, together with the commit index: each commit then
costs one append per learner, and nothing else does work for all of them (`Peers.paced`). Followers send them
these appends if they can (`relay`).
"""

from collections.abc import Iterable

from nodeagent.model.entries import Config, Entry, EntryKind
from nodeagent.model.errors import NotLeader, Overloaded, Refused
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import (
    UNCOMMITTED_BYTES_MAX,
)
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    HeartbeatReply,
    ReadReply,
    TimeoutNow,
)
from nodeagent.raft.appends import Appends
from nodeagent.raft.log import ENTRY_OVERHEAD_BYTES
from nodeagent.raft.membership import check_step, encode_config
from nodeagent.raft.offers import Offers
from nodeagent.raft.outbox import Outbox
from nodeagent.raft.peers import Peers
from nodeagent.raft.progress import Progress, ProgressState
from nodeagent.raft.quorum import majority_value
from nodeagent.raft.reads import LeaderReads, Origin, fail_reads
from nodeagent.raft.state import State

_COMMAND = int(EntryKind.COMMAND)
_PROBE = ProgressState.PROBE
_REPLICATE = ProgressState.REPLICATE
_SNAPSHOT = ProgressState.SNAPSHOT


class Leader:
    """A leader during one term."""

    __slots__ = (
        "_appends",
        "_outbox",
        "_transfer",
        "dirty",
        "heartbeat_at",
        "news_at",
        "offers",
        "peers",
        "quorum_at",
        "reads",
        "retired",
        "state",
        "term_start",
        "touched",
    )

    def __init__(self, state: State, *, alone: bool) -> None:
        self.state = state
        self.reads = LeaderReads()
        self._transfer: tuple[NodeId, int] | None = None
        """Target of a leadership transfer, and when the transfer is aborted."""

        self.retired = False
        """The config without this node is committed: step down."""

        self.dirty = True
        """`flush` has something to do."""

        self.news_at: int | None = None
        """When to send followers a commit index that no append has carried."""

        self.heartbeat_at = state.clock + state.settings.heartbeat_ms
        self.quorum_at = state.clock + state.settings.election_timeout_ms
        self.peers = Peers(state)
        self._appends = Appends(state, self.reads)
        self.touched: dict[NodeId, None] = dict.fromkeys(self.peers.names)
        """Peers to which `flush` may have an append to send."""

        self.term_start = state.log.last_index + 1
        """Index of the entry with which this leader starts its term (thesis 6.4)."""

        self._outbox = Outbox(state, self.reads, self.term_start if alone else None)
        self.offers = Offers(state, self.peers, self._outbox)
        state.append(self.term_start, [Entry(state.term, int(EntryKind.NOOP), b"")], commands_only=True)

    # Proposals

    def propose(self, commands: list[bytes]) -> int:
        state = self.state
        log = state.log
        if self._transfer is not None:
            target = self._transfer[0]
            what = f"{state.node} is transferring leadership to {target}"
            raise NotLeader(what, next_step=f"ask {target}", leader=target)
        if state.node not in log.config.voters:
            raise NotLeader(f"{state.node} is leaving the group", next_step="retry with the next leader")
        uncommitted = log.bytes_between(state.commit, log.last_index)
        size = sum(map(len, commands)) + ENTRY_OVERHEAD_BYTES * len(commands)
        if uncommitted and uncommitted + size > UNCOMMITTED_BYTES_MAX:
            raise Overloaded(f"{uncommitted} bytes are waiting for a quorum", next_step="retry later")
        return self.append(commands)

    def append(self, commands: list[bytes]) -> int:
        """Append commands without checking them; returns the index of the first."""
        state = self.state
        first = state.log.last_index + 1
        if commands:
            state.append(first, [Entry(state.term, _COMMAND, c) for c in commands], commands_only=True)
            self._touch(self.peers.direct)
        return first

    def can_change(self) -> bool:
        """Whether a config may be proposed now.

        An entry of this term must be committed first, otherwise single steps of two leaders can have
        disjoint majorities (Ongaro 2015, thesis 4.1 as corrected); and the last config must be committed.
        """
        commit = self.state.commit
        return commit >= self.term_start and commit >= self.state.log.config_index and self._transfer is None

    def change(self, config: Config) -> int:
        state = self.state
        if not self.can_change():
            raise Refused(
                "the last change, the term's first entry or a leadership transfer is not completed",
                next_step="retry shortly",
            )
        check_step(state.log.config, config)
        return self.append_config(config)

    def append_config(self, config: Config) -> int:
        """Append a config without checking it (`Raft.force`); it takes effect at once. Returns its index."""
        state = self.state
        index = state.log.last_index + 1
        state.append(index, [Entry(state.term, int(EntryKind.CONFIG), encode_config(config))])
        self.peers.update(index)
        self._touch(self.peers.names)
        return index

    # Answers

    def on_append_reply(self, peer: NodeId, reply: AppendReply) -> None:
        progress = self.peers.progress.get(peer)
        if progress is None or reply.addition != progress.addition:
            return
        progress.active = True
        state = self.state
        log = state.log
        if reply.read > progress.read_round:
            self._on_read_round(progress, reply.read)
        if not reply.accepted:
            if progress.rejected(
                reply.match, log.last_not_after(reply.hint_index, reply.hint_term), state.clock
            ):
                self._touch([peer])
            return
        assert reply.match <= log.last_index, (peer, reply.match, log.last_index)
        moved = progress.accepted(reply.match, state.clock)
        if progress.state is not _REPLICATE:
            self._reconnect(peer, progress, reply.match)
        if moved:
            if progress.match > state.commit:
                self.maybe_commit()
            self._maybe_transfer(peer)
        if progress.next <= self._end(progress):
            self._touch([peer])
        if not progress.is_paced and state.commit > progress.commit_sent:
            self._owe_news()

    def _touch(self, peers: Iterable[NodeId]) -> None:
        self.touched |= dict.fromkeys(peers)
        self.dirty = True

    def _end(self, progress: Progress) -> int:
        """The last entry that the peer may have now."""
        return self.state.commit if progress.is_paced else self.state.log.last_index

    def _reconnect(self, peer: NodeId, progress: Progress, match: int) -> None:
        """After an accepted append, end a probe, or a wait for a snapshot whose state has arrived."""
        if progress.state is _PROBE:
            if match == progress.match:
                progress.become_replicate(self.state.clock)
        elif progress.match >= self.state.log.base.index:
            progress.become_replicate(self.state.clock)
        elif progress.offer is not None and progress.match >= progress.offer.base.index:
            progress.become_probe(progress.match + 1)
            self._touch([peer])

    def on_heartbeat_reply(self, peer: NodeId, reply: HeartbeatReply) -> None:
        """Note that the follower is alive; a heartbeat reply says nothing about its entries."""
        progress = self.peers.progress.get(peer)
        if progress is None:
            return
        progress.active = True
        if progress.room != reply.room:
            progress.room = reply.room
            self._touch([peer])
        if reply.read > progress.read_round:
            self._on_read_round(progress, reply.read)
        self._maybe_transfer(peer)  # retried: the first `TimeoutNow` may be lost
        state = self.state
        waited = state.clock - progress.moved_at >= state.settings.heartbeat_ms
        if waited and progress.state is _PROBE and progress.paused:
            progress.paused = False
            self._touch([peer])
        elif waited and progress.state is _REPLICATE and progress.match < self._end(progress):
            # All appends in flight may be lost: probe with an empty append.
            progress.nudge = True
            self._touch([peer])

    # Commit

    def maybe_commit(self) -> None:
        """Advance the commit index to the highest index a quorum holds, if its entry is of this term.

        Entries of older terms are committed only by a later entry of this term (thesis 3.6.2, figure 3.7).
        The leader's own log counts only as far as it is durable.
        """
        state = self.state
        node = state.node
        progress = self.peers.progress
        voters = state.log.config.voters
        held = [state.durability.index if v == node else progress[v].match for v in voters]
        index = majority_value(held)
        if index <= state.commit or index < self.term_start:
            return
        assert state.log.term(index) == state.term, (index, state.term)
        state.commit_to(index)
        self._touch(self.peers.unrelayed)
        self._owe_news()
        if self.reads.waiting:
            self.dirty = True  # reads may start after the first commit of the term
        if node not in voters and state.log.config_index <= index:
            self.retired = True
            self.news_at = state.clock  # the last message of this leader

    def _owe_news(self) -> None:
        """Schedule a heartbeat with the new commit index, in case no append carries it soon.

        Without the delay, heartbeats for commits were half of all messages at fifty writes a second.
        """
        wait = self.state.settings.commit_news_ms
        if wait == 0:
            self.dirty = True
        elif self.news_at is None:
            self.news_at = self.state.clock + wait

    # Sending

    def flush(self) -> None:
        """Build the messages: at most one append to each peer, and a heartbeat to each direct peer if a read
        round begins, or if `news_at` has come and no append carries the new commit index."""
        state = self.state
        beat = False
        due = self.news_at is not None and state.clock >= self.news_at
        tell = due or state.settings.commit_news_ms == 0
        owed = False
        if self.reads.waiting and state.commit >= self.term_start:
            self.reads.open_round(state.commit)
            beat = True
        self.dirty = False
        touched, self.touched = self.touched, {}
        appended = {p for p in touched if p in self.peers.progress and self._maybe_append(p)}
        self._appends.clear()
        for peer in self.peers.direct:
            progress = self.peers.progress[peer]
            known = min(progress.match, state.commit)
            if beat or (tell and known > progress.commit_sent and peer not in appended):
                self._outbox.beat(peer, progress)
            owed = owed or known > progress.commit_sent
        if not owed:
            self.news_at = None
        if beat:
            self._answer_reads()

    def _maybe_append(self, peer: NodeId) -> bool:
        """Send an append if one is due; returns whether it was sent."""
        progress = self.peers.progress[peer]
        if progress.state is _SNAPSHOT or progress.paused or progress.is_relayed:
            return False
        last = self._end(progress)
        carries = self._appends.may_carry(progress, last)
        if progress.state is _REPLICATE and not carries and not progress.nudge:
            return False
        append = self._appends.make(progress, last if carries else progress.next - 1)
        if append is None:
            self.offers.request(peer, progress)
            return False
        self._send_append(peer, progress, append)
        if progress.state is _REPLICATE and self._appends.may_carry(progress, last):
            self._touch([peer])
        return True

    def _send_append(self, peer: NodeId, progress: Progress, append: AppendRequest) -> None:
        state = self.state
        prev, entries = append.prev_index, append.entries
        end = prev + len(entries)
        self._outbox.send(peer, append)
        if entries or progress.state is _PROBE:
            progress.sent(end, state.log.bytes_between(prev, end), state.clock)
        else:
            progress.moved_at = state.clock
        progress.nudge = False
        progress.commit_sent = max(progress.commit_sent, min(state.commit, end))

    # Reads

    def read(self, origin: Origin) -> None:
        if self.reads.add(origin):
            self.dirty = True
        else:
            fail_reads(self.state, [origin])

    def _on_read_round(self, progress: Progress, read: int) -> None:
        progress.read_round = read
        if self.reads.is_open:
            self._answer_reads()

    def _answer_reads(self) -> None:
        state = self.state
        newest = self.reads.round
        progress = self.peers.progress
        rounds = [newest if v == state.node else progress[v].read_round for v in state.log.config.voters]
        for (node, number), index in self.reads.confirmed(majority_value(rounds)):
            if node == state.node:
                state.reads_done.append((number, index))
            else:
                state.now.append((node, ReadReply(state.term, number, index, True)))

    # Time

    @property
    def deadline(self) -> int:
        soonest = self.heartbeat_at if self.heartbeat_at < self.quorum_at else self.quorum_at
        if self.news_at is not None and self.news_at < soonest:
            soonest = self.news_at
        return soonest if self._transfer is None else min(soonest, self._transfer[1])

    def tick(self) -> bool:
        """Returns False if no quorum answered within an election timeout: step down (thesis 6.2)."""
        now = self.state.clock
        if self._transfer is not None and now >= self._transfer[1]:
            self._transfer = None
        if now >= self.quorum_at:
            self.quorum_at = now + self.state.settings.election_timeout_ms
            if not self.peers.has_quorum():
                return False
            self.offers.repeat()
        if self.news_at is not None and now >= self.news_at:
            self.dirty = True
        if now >= self.heartbeat_at:
            self.heartbeat_at = now + self.state.settings.heartbeat_ms
            for peer in self.peers.next_to_beat():
                self._outbox.beat(peer, self.peers.progress[peer])
        return True

    # Leadership transfer and the end of the term

    def transfer(self, target: NodeId) -> None:
        state = self.state
        if self._transfer is not None:
            what = f"leadership is already being transferred to {self._transfer[0]}"
            raise Refused(what, next_step="wait until that transfer ends")
        if target == state.node or target not in state.log.config.voters:
            what = f"{target} leads already or is not a voter of the group"
            raise Refused(what, next_step="choose another voter")
        self._transfer = (target, state.clock + state.settings.election_timeout_ms)
        self._maybe_transfer(target)

    def _maybe_transfer(self, peer: NodeId) -> None:
        """Let the target of a transfer campaign once it holds the leader's whole log (thesis 3.10)."""
        is_target = self._transfer is not None and self._transfer[0] == peer
        if is_target and self.peers.progress[peer].match == self.state.log.last_index:
            self._outbox.send(peer, TimeoutNow(self.state.term))

    def step_down(self) -> None:
        """Fail the unanswered reads."""
        fail_reads(self.state, self.reads.drain())

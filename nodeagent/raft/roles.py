"""Roles of one replica: it follows, campaigns, leads and steps down (thesis 3.4, 4.2, 9.6).

        follower ──timeout──▶ pre_candidate ──quorum would──▶ candidate ──quorum did──▶ leader
           ▲                        │                             │                       │
           └──────── higher term, a leader, a lost vote, no quorum, removed ──────────────┘

A replica campaigns only if it `may_campaign`. `TimeoutNow` skips the pre-vote; `force` skips the election.
"""

from collections.abc import Callable, Sequence

from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Config, HardState
from nodeagent.model.errors import NotLeader, Refused
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import RelayedAppend, VoteReply, VoteRequest
from nodeagent.raft.candidate import Ballot, answer_pre_vote, answer_vote
from nodeagent.raft.follower import on_append
from nodeagent.raft.leader import Leader
from nodeagent.raft.log import RaftLog
from nodeagent.raft.quorum import Verdict
from nodeagent.raft.reads import ForwardedReads
from nodeagent.raft.relay import Relay, share_of
from nodeagent.raft.state import Role, State

_READ_NUMBERS = 1 << 52


class Roles(State):
    """The state of one replica and the changes of its role. The arguments are those of `Raft`."""

    __slots__ = (
        "_ballot",
        "_contact_at",
        "_election_at",
        "_election_ms",
        "_forwarded",
        "_lead",
        "_random",
        "_refused_shorter",
        "_relay",
        "passive",
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
        super().__init__(node, log, hard, settings, now, applied)
        self.passive = False
        """The replica votes and follows, but never campaigns."""

        self._refused_shorter = False
        """A candidate's log was shorter than this replica's, and no leader has been heard since."""

        self._random = random
        self._lead: Leader | None = None
        self._ballot: Ballot | None = None
        self._relay: Relay | None = None
        self._forwarded = ForwardedReads(int(random() * _READ_NUMBERS))
        self._contact_at: int | None = None
        """When the leader of this term was last heard."""

        self._draw_timeout()
        if log.config.voters == (node,):
            self._election_at = now  # there is no other voter to wait for

    # The leader and its timeout

    def hears_leader(self) -> bool:
        """Whether this replica leads, or heard a leader within an election timeout."""
        if self._lead is not None:
            return True
        contact = self._contact_at
        return (
            self.leader is not None
            and contact is not None
            and self.clock - contact < self.settings.election_timeout_ms
        )

    def _heard_leader(self) -> None:
        """Note that the leader of this term sent a message now."""
        self._contact_at = self.clock
        self._refused_shorter = False
        self._election_at = self.clock + self._election_ms

    def _draw_timeout(self) -> None:
        """Draw a new random election timeout in [t, 2t), starting now."""
        timeout = self.settings.election_timeout_ms
        self._election_ms = timeout + int(self._random() * timeout)
        self._election_at = self.clock + self._election_ms

    def campaign_soon(self, now: int) -> None:
        """Campaign at the next tick if there is no leader: for a new group, which need not wait for a
        timeout."""
        self.clock = now
        if self.leader is None and self._ballot is None:
            self._election_at = now

    # Elections

    def _on_vote_request(self, candidate: NodeId, request: VoteRequest) -> None:
        is_shorter = (request.last_term, request.last_index) < (self.log.last_term, self.log.last_index)
        if is_shorter and not self.hears_leader():
            self._refused_shorter = True
        if request.pre:
            answer_pre_vote(self, candidate, request)
        elif answer_vote(self, candidate, request):
            if self.role is not Role.FOLLOWER:  # a pre-candidate would compete with its own choice
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

    def may_campaign(self) -> bool:
        """Whether this replica may campaign: if it is a voter, or if its removal as a voter is not known to
        be committed. Such a replica may hold the longest log, and then no other replica can win (thesis
        4.2.2).

        A learner may campaign if its log is longer than that of a candidate that needs its vote: the
        candidate already counts the learner as a voter, and the leader that sent the longer log may no longer
        hold that log.
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

    # Changes of role

    def abstain(self, now: int) -> None:
        """Never campaign again, because committed entries cannot be applied here; only `force` can still make
        this replica lead. A leader steps down; the replica continues as a follower."""
        self._stir(now)
        self.passive = True
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, None)

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
            self._relay = None
            self.leader = leader
            self._contact_at = None
            self.reads_failed.extend(self._forwarded.drain())

    def _maybe_retire(self, lead: Leader) -> None:
        """Once the config without this node is committed, send the commit index and step down (thesis
        4.2.2)."""
        if lead.retired:
            lead.flush()
            self._become_follower(self.term, None)

    # Relays

    def _relay_heartbeat(self, leader: NodeId) -> None:
        """Relay to this replica's share of the learners, if it has any."""
        relay, config = self._relay, self.log.config
        if relay is None or relay.term != self.term or relay.config is not config:
            share = share_of(self.node, leader, config) if self.relays else []
            self._relay = relay = Relay(self, leader, share) if share else None
        if relay is not None:
            relay.beat()

    def _on_relayed(self, relay: NodeId, message: RelayedAppend) -> None:
        """A voter, and a replica that does not know the group's config, only listen to the leader itself."""
        voters = self.log.config.voters
        if not voters or self.node in voters or self._lead is not None:
            return
        assert self.leader in (None, message.leader), f"{message.leader} and {self.leader} lead {self.term}"
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, message.leader)
        elif self.leader is None:
            self._follow(message.leader)
        self._heard_leader()
        on_append(self, relay, message)

    # Leadership

    def _leading(self, now: int) -> Leader:
        """This replica as the leader. Raises `NotLeader`."""
        self._stir(now)
        if self._lead is not None:
            return self._lead
        if self.leader is None:
            raise NotLeader(f"{self.node} does not lead and knows no leader", next_step="retry shortly")
        raise NotLeader(f"{self.node} does not lead", next_step=f"ask {self.leader}", leader=self.leader)

    def force(
        self, config: Config, term: int, now: int, commands: Sequence[bytes] = (), *, observer: bool = False
    ) -> int:
        """Lead without votes, with `config`'s voters as members: for a majority that is permanently lost.

        Entries that only the lost members held are lost, even committed entries; entries beyond this log's
        commit index become committed, even if their proposer was refused. Two surviving logs never hold
        different entries at one (index, term), and no surviving member loses an entry that it knows to be
        committed, provided that
            - no node ever hears the members outside `config` again (their incarnations are retired);
            - of the surviving members, this one has the last entry by (term, index);
            - `term` is above every term that any member can have reached, lost members included.
        The term and the config are in the same Ready, and no message leaves before they are durable. After a
        crash before that point nothing has changed: repeat the call. After a later crash, the last config of
        the log shows that the call took effect. Followers accept the term and the log by the ordinary rules.

        Args:
            config: voters, this node among them; learners follow as usual.
            commands: entries before the config, however many bytes are uncommitted: a log that has the config
                has them.
            observer: this node may be a learner in its own log. Its log still holds every entry that a
                surviving member knows to be committed, if it has the last entry of all surviving members.

        Returns:
            The index of the first command.

        Raises:
            Refused: this node leads or hears a leader, so no recovery is needed; or it is not a voter in
                `config` or in its own log.
        """
        self._stir(now)
        if self.hears_leader():
            what = f"{self.node} hears leader {self.leader}"
            raise Refused(what, next_step="use the group as it is: it needs no recovery")
        allowed = self.log.config.members if observer else self.log.config.voters
        if self.node not in config.voters or self.node not in allowed:
            raise Refused(f"{self.node} is not a voter of this group", next_step="choose a surviving voter")
        self._become_follower(max(term, self.term + 1), None)
        self.vote = self.node
        self.hard_changed = True
        self._become_leader(alone=True)
        assert self._lead is not None
        first = self._lead.append(list(commands))
        self._lead.append_config(config)
        return first

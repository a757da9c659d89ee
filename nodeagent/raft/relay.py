"""A follower that sends committed entries to learners, so that the leader need not send to all of them.

If a group has many learners (`Peers.paced`), each voter except the leader relays to its share of them, which
follows from the config and the leader alone. Committed entries are the same whoever sends them. A relay only
serves learners that are *in step*: they answer, and lack no more than one append. It reports these to the
leader, which sends to all others itself: to learners that are behind, need a snapshot or have a full disk,
and to those whose relay is down or behind. So a relay needs no agreement, no retries and no flow control.

ZooKeeper's observers can follow followers for the same reason (ZOOKEEPER-3140).
"""

from nodeagent.model import limits
from nodeagent.model.entries import Config
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import APPEND_BYTES_MAX, APPEND_ENTRIES_MAX
from nodeagent.model.raft_messages import AppendReply, RelayedAppend, RelayReport
from nodeagent.raft.state import State
from nodeagent.raft.turns import Turns


def share_of(node: NodeId, leader: NodeId, config: Config) -> list[NodeId]:
    """The learners to which `node` relays under this leader."""
    if len(config.learners) <= limits.DIRECT_LEARNERS_MAX:
        return []
    relays = sorted(v for v in config.voters if v != leader)
    return sorted(config.learners)[relays.index(node) :: len(relays)] if node in relays else []


class _Step:
    """A learner in step: what it holds, what was sent to it (at least that), and when it last answered."""

    __slots__ = ("answered_at", "held", "sent")

    def __init__(self, held: int) -> None:
        self.held = self.sent = held
        self.answered_at = 0


class Relay:
    """The relay of a follower, for one term and one config. It only sends when the leader has sent something,
    so it ends when the follower no longer hears the leader."""

    __slots__ = (
        "_beaten_at",
        "_config_index",
        "_due",
        "_kept_up",
        "_leader",
        "_relayed_to",
        "_share",
        "_state",
        "_steps",
        "_turns",
        "config",
        "term",
    )

    def __init__(self, state: State, leader: NodeId, share: list[NodeId]) -> None:
        self._state = state
        self._leader = leader
        self._share = frozenset(share)
        self.term = state.term
        self.config = state.log.config
        self._config_index = state.log.config_index
        """Appends carry it and replies echo it: a reply to an append of an earlier config does not count,
        because the learner may have been removed and added since."""

        self._steps: dict[NodeId, _Step] = {}
        """The learners in step."""

        self._due: dict[NodeId, None] = dict.fromkeys(share)
        """Learners that get an append with the next flush, with or without entries."""

        self._relayed_to = state.commit
        """The commit index at the last flush."""

        self._turns = Turns(state.settings)
        self._turns.names = share
        self._beaten_at = state.clock
        self._kept_up: dict[NodeId, int] = {}
        """Learners that answered since the last report, and what they hold."""

    @property
    def dirty(self) -> bool:
        """Whether `flush` has something to do."""
        return bool(self._due) or self._state.commit > self._relayed_to

    def beat(self) -> None:
        """The leader sent a heartbeat: report the learners that answered, and ask those whose turn it is.

        The leader also sends heartbeats for reads and for commits; then this does nothing.
        """
        state = self._state
        settings = state.settings
        elapsed = state.clock - self._beaten_at
        if elapsed < settings.heartbeat_ms // 2:
            return
        self._beaten_at = state.clock
        kept_up, self._kept_up = self._kept_up, {}
        if kept_up and elapsed < settings.election_timeout_ms:  # else the process was asleep: old answers
            state.now.append((self._leader, RelayReport(self.term, self._config_index, kept_up)))
        for peer in self._turns.next(elapsed):
            step = self._steps.get(peer)
            if step is not None and state.clock - step.answered_at > settings.election_timeout_ms // 2:
                del self._steps[peer]
            self._due[peer] = None

    def on_reply(self, peer: NodeId, reply: AppendReply) -> None:
        state = self._state
        if peer not in self._share or reply.addition != self._config_index:
            return
        if not reply.accepted:
            self._steps.pop(peer, None)
            self._kept_up.pop(peer, None)
            return
        # The learner may know a later commit index, from the leader.
        held = min(reply.match, state.commit)
        step = self._steps.get(peer)
        if step is None:
            step = self._steps[peer] = _Step(held)
            if held < state.commit:
                self._due[peer] = None
        step.held = max(step.held, held)
        step.sent = max(step.sent, step.held)  # it may have got entries from the leader
        step.answered_at = state.clock
        self._kept_up[peer] = step.held

    def flush(self) -> None:
        """Build the messages: one append to each learner in step if entries were committed, and to each
        learner that is due. An empty one finds out whether a learner that is not in step is so now."""
        state = self._state
        commit = state.commit
        due, self._due = self._due, {}
        if commit > self._relayed_to:
            due = dict.fromkeys(self._steps) | due
            self._relayed_to = commit
        made: dict[int, RelayedAppend] = {}
        for peer in due:
            step = self._steps.get(peer)
            if step is not None and self._is_behind(step):
                step = None
                del self._steps[peer]
            after = commit if step is None else step.sent
            append = made.get(after)
            if append is None:
                append = made[after] = self._append(after)
            if step is not None:
                step.sent = commit
            state.now.append((peer, append))

    def _is_behind(self, step: _Step) -> bool:
        """Whether more is unacknowledged than fits one append, or may be purged."""
        log, commit = self._state.log, self._state.commit
        return (
            step.held < log.base.index
            or commit - step.held > APPEND_ENTRIES_MAX
            or log.bytes_between(step.held, commit) > APPEND_BYTES_MAX
        )

    def _append(self, after: int) -> RelayedAppend:
        """The committed entries after this index."""
        state = self._state
        log, commit = state.log, state.commit
        entries = log.slice(after + 1, commit, APPEND_BYTES_MAX) if commit > after else []
        term = log.term(after)
        assert term is not None, (after, log.base.index)
        return RelayedAppend(state.term, self._leader, after, term, commit, entries, self._config_index)

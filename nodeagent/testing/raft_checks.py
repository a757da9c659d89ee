"""Checks of S1 to S7, S12 and S16 of `docs/internals/invariants.md`, after every turn of a machine's loop.

A turn is checked before its effects are sent, and only what it changed is checked.
"""

from bisect import bisect_left
from typing import Any

from nodeagent.host.effect_queue import Effects
from nodeagent.host.replica import Replica
from nodeagent.model import limits
from nodeagent.model.entries import Config, Entry, EntryKind
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.raft_messages import AppendReply, RaftMessage, VoteReply, VoteRequest
from nodeagent.raft.log import RaftLog
from nodeagent.testing.machine import Machine
from nodeagent.testing.sim import Sim

UNKNOWN = -1
"""Term of an entry that was committed before the checks saw it."""


class RaftSafety:
    """The Raft invariants, as a check for `Sim.checks`."""

    def __init__(self, sim: Sim[Any], *, by_scaling: bool = False) -> None:
        """
        Args:
            by_scaling: members change by the rules of `scaling.membership`: the leader stays a member, and a
                new voter has everything committed.
        """
        self._sim = sim
        self._by_scaling = by_scaling
        self._leaders: dict[tuple[GroupId, int], NodeId] = {}
        self._led: set[GroupId] = set()
        self._applied: dict[tuple[GroupId, int], Entry] = {}
        """By group and index."""

        self._durable: dict[tuple[NodeId, int, GroupId], tuple[int, int, int]] = {}
        """By (node, life, group): last index and term that its Raft considers durable, and the log's base."""

        self._checked: dict[tuple[NodeId, int], dict[GroupId, int]] = {}
        """By (node, life) and group: index up to which entries were compared."""

        self._marks: dict[NodeId, tuple[int, dict[GroupId, Any]]] = {}
        """By node: its life and, by group, `_mark` at the last check. Most turns change one group."""

        self.committed: dict[GroupId, list[int]] = {}
        """By group: the term of each committed entry; item 0 is for the empty log."""

        self._committed_in: dict[GroupId, list[int]] = {}
        """By group: the term in which each entry was committed; never decreases."""

        self._votes: dict[tuple[str, GroupId, int], NodeId] = {}
        self._promised: dict[tuple[str, GroupId], int] = {}
        """By incarnation and group: the highest term in which it voted, or acknowledged entries."""

        self._acknowledged: dict[tuple[NodeId, GroupId], tuple[int, int]] = {}
        """By node and group: the last term in which it acknowledged entries, and up to which index."""

        self._configs: dict[tuple[GroupId, int], int] = {}
        """By group and term: index of its leader's newest config."""

        self._digests: dict[tuple[GroupId, int], int] = {}
        self._forced: set[GroupId] = set()
        """Groups whose recovery an operator forced, so that more than one member changed at once."""

        self._outside: set[tuple[NodeId, GroupId]] = set()
        """Replicas that a forced recovery excluded; their logs no longer count."""

    def fork(self, sim: Sim[Any]) -> "RaftSafety":
        """An independent copy for the nodes of `sim`, without `_led`, which only the scaling checks use."""
        made = RaftSafety(sim, by_scaling=self._by_scaling)
        made._leaders, made._applied = dict(self._leaders), dict(self._applied)
        made._durable = dict(self._durable)
        made._checked = {node: dict(checked) for node, checked in self._checked.items()}
        made.committed = {group: list(terms) for group, terms in self.committed.items()}
        made._committed_in = {group: list(terms) for group, terms in self._committed_in.items()}
        made._votes, made._configs = dict(self._votes), dict(self._configs)
        made._promised, made._acknowledged = dict(self._promised), dict(self._acknowledged)
        made._digests, made._forced = dict(self._digests), set(self._forced)
        made._outside = set(self._outside)
        return made

    def seen(self) -> list[Any]:
        """Its whole state, for worlds in which no disk loses data."""
        by_key = (
            self._leaders,
            self._applied,
            self.committed,
            self._committed_in,
            self._votes,
            self._promised,
        )
        checked = {node: sorted(groups.items()) for node, groups in self._checked.items()}
        return [
            *(sorted(found.items()) for found in (*by_key, self._configs, self._digests, checked)),
            sorted(self._forced),
            sorted(self._outside),
        ]

    def config_of(self, group: GroupId) -> Config:
        """Config of a leader that knows all committed entries; an empty one if no living leader does."""
        known = len(self.committed.get(group, ())) - 1
        found = (r for n in self._sim.nodes.values() if n.alive and (r := n.replica(group)) and r.leads)
        return next((r.raft.log.config for r in found if r.raft.commit >= known), Config())

    def was_led(self, group: GroupId) -> bool:
        return group in self._led

    def __call__(self, node: Machine, effects: Effects) -> None:
        checked = self._checked.setdefault((node.node, node.life), {})
        marks = self._marks_of(node)
        for peer, messages in effects.sends:
            for routed in messages:
                self._promise(node, peer, routed.group, routed.message)
        for replica in node.replicas():
            mark = _mark(replica)
            if marks.get(replica.group) == mark or (node.node, replica.group) in self._outside:
                continue
            marks[replica.group] = mark
            self._is_durable(node, replica)
            self._is_config_held(node, replica)
            promised = self._promised.get((node.incarnation, replica.group), 0)
            assert replica.raft.term >= promised or node.lossy, (
                f"S5: {node.node} is in term {replica.raft.term} of {replica.group}, it promised {promised}"
            )
            if replica.leads:
                self._leads(node, replica)
            if replica.raft.commit >= len(self.committed.get(replica.group, ())):
                self._commits(node, replica)
            if replica.applied_index > checked.get(replica.group, 0):
                self._same_entries(node, replica, checked)

    def _marks_of(self, node: Machine) -> dict[GroupId, Any]:
        """Marks of the node's current life; those of earlier lives are dropped."""
        life, marks = self._marks.get(node.node, (-1, {}))
        if life != node.life:
            self._marks[node.node] = node.life, (marks := {})
        return marks

    # --- what is durable ---------------------------------------------------------------------------

    def _is_durable(self, node: Machine, replica: Replica) -> None:
        log, index = replica.raft.log, replica.raft.durability.index
        key = (node.node, node.life, replica.group)
        assert index <= log.last_index, (
            f"S7: {node.node} considers {replica.group}/{index} durable, beyond the end of its log"
        )
        term = log.term(index)
        if term is None or index <= log.base.index:
            self._durable.pop(key, None)
            return
        last = (index, term, log.base.index)
        if self._durable.get(key) != last:
            self._durable[key] = last
            first = log.term(log.first_index)
            assert first is None or log.base.term <= first <= log.last_term, (
                f"S2: in {replica.group} of {node.node} {log.base} is followed by terms {first} "
                f"to {log.last_term}"
            )
            held = node.durable.holds(replica.group, index, term)
            assert held, (
                f"S7: {node.node} considers {replica.group}/{index} durable, but it is not on its disk"
            )

    def _is_config_held(self, node: Machine, replica: Replica) -> None:
        """The active config is the base's, or an entry of the log."""
        log = replica.raft.log
        index = log.config_index
        if index != log.base.index:
            held = index <= log.last_index and log.slice(index, index, 0)[0].kind == EntryKind.CONFIG
            assert held, f"S12: {node.node} uses the config {replica.group}/{index}, which is not in its log"

    # --- what is sent ------------------------------------------------------------------------------

    def _promise(self, node: Machine, peer: NodeId, group: GroupId, message: RaftMessage) -> None:
        match message:
            case AppendReply(accepted=True, term=term, match=index):
                self._note_term(node, group, term)
                self._acknowledged[node.node, group] = max(
                    (term, index), self._acknowledged.get((node.node, group), (0, 0))
                )
                replica = node.replica(group)
                if replica is not None and replica.raft.term == term:
                    known = replica.raft.log.term(index)
                    held = known is None or node.durable.holds(group, index, known)
                    assert held, f"S7: {node.node} acknowledges {group}/{index}, which is not durable"
            case VoteReply(granted=True, pre=False, term=term):
                self._vote(node, group, term, peer)
            case VoteRequest(pre=False, term=term):
                self._vote(node, group, term, node.node)
            case _:
                pass

    def _note_term(self, node: Machine, group: GroupId, term: int) -> None:
        key = (node.incarnation, group)
        if term > self._promised.get(key, 0):
            self._promised[key] = term
            self._marks_of(node).pop(group, None)

    def _vote(self, node: Machine, group: GroupId, term: int, candidate: NodeId) -> None:
        """Check a vote that leaves the node. A vote that a power cut loses before it is sent was never
        given."""
        key = (node.incarnation, group, term)
        self._note_term(node, group, term)
        first = self._votes.setdefault(key, candidate)
        assert first == candidate, f"S5: {node.node} voted for {first} and {candidate} in {key}"
        hard = node.durable.hard(group)
        kept = hard.term > term or (hard.term == term and hard.vote == candidate)
        assert kept, f"S7: {node.node} votes for {candidate} in {key}, but its disk has {hard}"

    # --- who leads, and what is committed ----------------------------------------------------------

    def _leads(self, node: Machine, replica: Replica) -> None:
        key = (replica.group, replica.raft.term)
        first = self._leaders.get(key)
        if first is None:
            self._leaders[key] = node.node
            self._led.add(key[0])
            self._holds_all(node, replica)
        else:
            assert first == node.node, f"S1: {first} and {node.node} lead {key}"
        log = replica.raft.log
        before = self._configs.get(key, 0)
        if log.config_index > before:
            self._configs[key] = log.config_index
            if log.term(log.config_index) == replica.raft.term:
                open_yet = before > replica.raft.commit
                assert not open_yet, (
                    f"S12: {node.node} changes {replica.group} before its config {before} is committed"
                )
                self._one_step(node, replica)

    def _holds_all(self, node: Machine, replica: Replica) -> None:
        """A new leader has all entries committed in earlier terms. Leaders of later terms may exist
        already."""
        log = replica.raft.log
        terms = self.committed.get(replica.group, [])
        count = bisect_left(self._committed_in.get(replica.group, []), replica.raft.term)
        assert log.last_index >= count - 1, (
            f"S3: {node.node} leads {replica.group}, its log ends at {log.last_index}, committed: {count - 1}"
        )
        for index in range(log.first_index, count):
            same = log.term(index) == terms[index] or terms[index] == UNKNOWN
            assert same, f"S3: {node.node} leads {replica.group} without {index} of term {terms[index]}"

    def _one_step(self, node: Machine, replica: Replica) -> None:
        """The newest config is one step from the previous one, and an entry of the term was committed
        first."""
        raft = replica.raft
        index, base = raft.log.config_index, raft.log.base.index
        if index - 1 < base or replica.group in self._forced:
            return
        before = raft.log.config_at(index - 1)
        changed = set(before.voters) ^ set(raft.log.config.voters)
        assert len(changed) <= 1, f"S12: {node.node} {replica.group}/{index}: {before} to {raft.log.config}"
        term = raft.log.term(raft.commit)
        assert term == raft.term, f"S12: {node.node} changes {replica.group} before it committed in its term"
        if self._by_scaling:
            config = raft.log.config
            assert node.node in config.members, f"S12: {node.node} leads {replica.group} and leaves it"
            lead = raft._lead
            assert lead is not None
            for voter in set(config.voters) - set(before.voters):
                was_paced = len(before.learners) > limits.DIRECT_LEARNERS_MAX
                needed = lead.peers.commits[-2] if was_paced else raft.commit
                progress = lead.peers.progress[voter]
                held = max(progress.match, progress.relayed_match)
                assert held >= needed, f"S12: {voter} votes in {replica.group} before it caught up"
                self._has(voter, replica, needed)

    def _has(self, voter: NodeId, replica: Replica, index: int) -> None:
        """The disk of a new voter has what its leader believes that it has."""
        raft, node = replica.raft, self._sim.nodes[voter]
        term = raft.log.term(index)
        has = term is None or node.durable.holds(replica.group, index, term)
        if not has and node.lossy:  # it lost what it acknowledged: the leader cannot know this
            has = self._has_acknowledged(voter, replica.group, raft.term, index)
        assert has, f"S12: {voter} votes in {replica.group} and does not have {index} on its disk"

    def _commits(self, node: Machine, replica: Replica) -> None:
        """A node is the first to commit these entries: the last of them must be durable on a quorum."""
        raft, group = replica.raft, replica.group
        log = raft.log
        terms = self.committed.setdefault(group, [0])
        committed_in = self._committed_in.setdefault(group, [0])
        committed_in.extend([raft.term] * (raft.commit + 1 - len(terms)))
        for index in range(len(terms), raft.commit + 1):
            term = log.term(index)
            terms.append(UNKNOWN if term is None else term)
        index, term = raft.commit, terms[raft.commit]
        if term == UNKNOWN or index == log.base.index:
            return
        nodes = self._sim.nodes
        held = {n for n in nodes if nodes[n].durable.holds(group, index, term)}
        # Nodes that lost it after they acknowledged it: the leader cannot know this.
        held |= {n for n in nodes if nodes[n].lossy and self._has_acknowledged(n, group, raft.term, index)}
        configs = [log.config]
        if index < log.config_index:  # a config appended in the same turn came later
            configs.append(log.config_at(max(log.config_index - 1, log.base.index)))
        assert any(len(held.intersection(c.voters)) >= c.quorum for c in configs), (
            f"S6: {node.node} considers {group}/{index} of term {term} committed; of {log.config.voters} "
            f"only {sorted(held)} have it"
        )

    def _has_acknowledged(self, node: NodeId, group: GroupId, term: int, index: int) -> bool:
        last_term, last = self._acknowledged.get((node, group), (0, 0))
        return last_term == term and last >= index

    # --- what is applied ---------------------------------------------------------------------------

    def _same_entries(self, node: Machine, replica: Replica, checked: dict[GroupId, int]) -> None:
        if replica.rebasing:
            return  # the state is already the snapshot's, the log still the old one
        group, log = replica.group, replica.raft.log
        last = min(replica.applied_index, log.last_index)
        first = max(checked.get(group, 0) + 1, log.first_index)
        checked[group] = max(last, checked.get(group, 0))
        if first <= last:
            term = log.term(last)
            held = term is None or node.durable.holds(group, last, term)
            assert held, f"S7: {node.node} applied {group}/{last} before its own disk has it"
            for index, entry in enumerate(log.slice(first, last, 1 << 60), first):
                known = self._applied.setdefault((group, index), entry)
                same = known is entry or (known.term == entry.term and known.data == entry.data)
                assert same, f"S4: {node.node} applied {entry} at {group}/{index}, other nodes {known}"
        digest = getattr(getattr(replica, "state", None), "digest", None)
        if digest is not None:
            known_digest = self._digests.setdefault((group, replica.applied_index), digest)
            assert known_digest == digest, (
                f"S16: {node.node} has a different state at {group}/{replica.applied_index}"
            )

    def forget(self, group: GroupId, log: RaftLog, lost: list[NodeId]) -> dict[int, Entry]:
        """Continue the group with `log` and without the nodes `lost`; returns the applied entries not in
        `log`."""
        self._marks.clear()
        self._outside.update((node, group) for node in lost)
        self._forced.add(group)
        applied = {index: e for (name, index), e in self._applied.items() if name == group}
        gone = {i: e for i, e in applied.items() if i > log.base.index and log.term(i) != e.term}
        for index in gone:
            del self._applied[group, index]
        terms = self.committed.get(group, [])
        held = (i for i in range(log.first_index, len(terms)) if log.term(i) not in (terms[i], UNKNOWN))
        kept = next(held, len(terms))
        del terms[kept:], self._committed_in.get(group, [])[kept:]
        return gone


def _mark(replica: Replica) -> tuple[object, ...]:
    """Everything of a replica that the checks depend on and that only its node changes."""
    raft = replica.raft
    log, durable = raft.log, raft.durability.index
    return (
        replica,
        raft.term,
        raft.role,
        raft.commit,
        durable,
        log.term(durable),
        log.last_index,
        log.last_term,
        log.base,
        log.config_index,
        replica.applied_index,
        replica.rebasing,
    )

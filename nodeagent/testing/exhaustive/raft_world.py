"""One group of the real `raft`, with disks that complete writes by events and a network without any order.

A message may arrive at any later time, in any order, or never. A disk completes its writes in order. The
world handles a Ready as a host does, but without jobs: a snapshot is only its base, installed by a single
write.

An election is one event up to the vote requests: just enough members receive the pre-vote request, and answer
at once. The election timeouts of all nodes have passed by then, because safety must not depend on them.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

from nodeagent.log import GroupLog
from nodeagent.model.entries import Base, Config, Rebase
from nodeagent.model.errors import NodeAgentError, NotLeader, Refused
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import (
    VoteReply,
    VoteRequest,
)
from nodeagent.model.space import Room
from nodeagent.raft import Raft
from nodeagent.raft.membership import check_step
from nodeagent.raft.state import Role
from nodeagent.testing.exhaustive.raft_group import (
    RaftBounds,
    RaftGroupState,
    counts_of,
    decode_message,
)
from nodeagent.testing.exhaustive.raft_member import GROUP, SETTINGS, DiskWrite, Member

LAPSES = 5
"""Election timeouts without a reply after which a leader must have stepped down."""

SETTLE_MAX = 5_000
"""Number of writes and deliveries within which connected nodes must have nothing left to send."""


class RaftWorld(RaftGroupState):
    """A state of the group. An event is a verb, the node that it happens to, and more nodes or a number."""

    # --- what may happen ---------------------------------------------------------------------------

    def events(self) -> list[str]:
        left = self.left
        events: list[str] = []
        for at, (to, sender, _) in enumerate(self.net):
            if not self._is_twin(to) and (at == 0 or self.net[at] != self.net[at - 1]):
                events.append(f"deliver {at} {sender} {to}")
                if left.repeats:
                    events.append(f"repeat {at} {sender} {to}")
        for node, member in self.nodes.items():
            if self._is_twin(node):
                continue
            raft = member.raft
            voters = raft.log.config.voters
            if member.writes:
                events.append(f"write {node}")
            may_campaign = raft.may_campaign() and (left.lapses or not member.leads) and not member.offer
            if left.campaigns and may_campaign:
                others = [v for v in voters if v != node]
                events += [
                    " ".join(("campaign", node, *asked))
                    for asked in combinations(others, raft.log.config.quorum - (node in voters))
                    if not any(self._is_twin(a, node, *asked[:i]) for i, a in enumerate(asked))
                ]
            if left.crashes:
                events.append(f"crash {node}")
            if member.offer is not None and not member.rebasing:
                events.append(f"install {node}")
            may_purge = left.purges and member.offer is None  # as in `Replica`: one or the other
            if may_purge and min(member.applied_index, raft.commit) > raft.log.base.index:
                events.append(f"purge {node}")
            if left.reads and member.read_from is None and raft.leader is not None:
                events.append(f"read {node}")
            if member.leads:
                events += self._led(node, raft)
        return events

    def _led(self, node: NodeId, raft: Raft) -> list[str]:
        left, events = self.left, []
        if left.commands:
            events.append(f"command {node}")
        if left.beats:
            events.append(f"beat {node}")
        if left.transfers:
            events += [f"transfer {node} {v}" for v in raft.log.config.voters if v != node]
        if left.changes and raft.can_change():
            events += [
                f"change {node} {at}" for at, c in enumerate(left.configs) if _is_step(raft.log.config, c)
            ]
        return events

    # --- what happens ------------------------------------------------------------------------------

    def after(self, event: str) -> "RaftWorld":
        world = RaftWorld.__new__(RaftWorld)
        world.nodes, world.net, world.left, world.fresh = dict(self.nodes), self.net, self.left, self.fresh
        world.safety = self.safety.fork(world)  # type: ignore[arg-type]
        word, *words = event.split()
        getattr(world, f"_{word}")(*words)
        return world

    def _deliver(self, at: str, *_: str) -> None:
        to, sender, message = self.net[int(at)]
        self.net = (*self.net[: int(at)], *self.net[int(at) + 1 :])
        self._arrive(to, sender, decode_message(message))

    def _repeat(self, at: str, *_: str) -> None:
        self._spend("repeats")
        to, sender, message = self.net[int(at)]
        self._arrive(to, sender, decode_message(message))

    def _write(self, node: NodeId) -> None:
        member = self._touch(node)
        self._turn(member, self._written(member))

    def _campaign(self, node: NodeId, *asked: NodeId) -> None:
        self._spend("campaigns")
        for name in self.nodes:  # their election timeouts pass
            waited = self.nodes[name] = self.nodes[name].copy()
            waited.raft.clock += 2 * SETTINGS.election_timeout_ms
        member = self._touch(node)
        if member.leads:
            self._spend("lapses")
        for _ in range(LAPSES):  # without replies; its messages are lost
            if not member.leads:
                break
            member.raft.tick(member.raft.clock + SETTINGS.election_timeout_ms)
            member.raft.take()
        assert not member.leads, f"L1: {node} still leads without replies"
        member.raft.tick(max(member.raft.clock, member.raft.deadline()))
        ready = member.raft.take()
        request = next((m for _, m in ready.now if isinstance(m, VoteRequest)), None)
        for peer in asked:
            if request is None:  # it is the only voter
                break
            other = self.nodes[peer]
            other.raft.step(node, request, other.raft.clock)
            for _, reply in other.raft.take().after:
                if isinstance(reply, VoteReply) and member.raft.role is Role.PRE_CANDIDATE:
                    member.raft.step(peer, reply, member.raft.clock)
        self._turn(member)

    def _command(self, node: NodeId) -> None:
        member = self._touch(node)
        with suppress(NotLeader):  # it is leaving, or transferring its leadership
            member.raft.propose([f"{node} {member.raft.log.last_index}".encode()], member.raft.clock)
        self._spend("commands")
        self._turn(member)

    def _change(self, node: NodeId, at: str) -> None:
        self._spend("changes")
        member = self._touch(node)
        member.raft.change(self.left.configs[int(at)], member.raft.clock)
        self._turn(member)

    def _transfer(self, node: NodeId, target: NodeId) -> None:
        self._spend("transfers")
        member = self._touch(node)
        with suppress(NodeAgentError):
            member.raft.transfer(target, member.raft.clock)
        self._turn(member)

    def _beat(self, node: NodeId) -> None:
        self._spend("beats")
        member = self._touch(node)
        member.raft.tick(member.raft.clock + SETTINGS.heartbeat_ms)
        self._turn(member)

    def _read(self, node: NodeId) -> None:
        self._spend("reads")
        member = self._touch(node)
        member.read_from = len(self.safety.committed.get(GROUP, (0,))) - 1
        member.raft.read(1, member.raft.clock)
        self._turn(member)

    def _crash(self, node: NodeId) -> None:
        self._spend("crashes")
        self._touch(node).crash()

    def _purge(self, node: NodeId) -> None:
        self._spend("purges")
        member = self._touch(node)
        base = member.raft.compact(min(member.applied_index, member.raft.commit))
        member.writes.append(DiskWrite([Rebase(GROUP, base, True)]))
        self._turn(member)

    def _install(self, node: NodeId) -> None:
        """Install a snapshot as `Installs._install` does."""
        member = self._touch(node)
        assert member.offer is not None
        if member.leads:
            member.offer = None
            return
        base = member.offer[1].base
        keep = member.raft.log.term(base.index) == base.term
        member.rebasing = True
        member.writes.append(DiskWrite([Rebase(GROUP, base, keep)], base=base))
        self._turn(member)

    # --- events of scripts -------------------------------------------------------------------------

    def begun(self, script: str) -> "RaftWorld":
        """The state after the events of a script, which do not count against the bounds.

        Args:
            script: events separated by "; ". In addition to those of `events` (`command a`, `purge a`):
                - `elect a b c`: a wins an election with the votes of b and c
                - `settle a b`: all messages between these nodes arrive, and all writes complete
                - `hear a b`: all messages from b to a arrive
                - `lose`, `lose a`: all messages in transit are lost, or those from and to a
                - `fill a`: the disk of a has no space for entries; `empty a`: it has space again
                - `drop 3`: message number 3 is lost
                - `forget a`: a is no longer a member and drops its log
                - `wipe a`: the same, and a returns on a new disk
        """
        world, left = self, self.left
        events = list(filter(None, script.split("; ")))
        for number, event in enumerate(events, 1):
            world.left = plenty(left)
            try:
                world = world.after(event)
            except AssertionError as error:
                raise AssertionError(f"{error}\nafter: {'; '.join(events[:number])}") from error
        world.left = left
        return world

    def _elect(self, node: NodeId, *voters: NodeId) -> None:
        """Let the node win an election with the votes of `voters`."""
        quorum = self.nodes[node].raft.log.config.quorum
        in_transit, self.net = self.net, ()
        term = self.nodes[node].raft.term
        while not self.nodes[node].leads or self.nodes[node].raft.term == term:
            if not self._next([node, *voters]):  # a first attempt may fail and only raise its term
                self._campaign(node, *voters[: quorum - 1])
        self.net = tuple(sorted([*in_transit, *self.net]))

    def _settle(self, *among: NodeId) -> None:
        """Deliver all messages between these nodes and complete all their writes."""
        for _ in range(SETTLE_MAX):
            if not self._next(among):
                return
        raise AssertionError(f"L1: {among} do not stop exchanging messages")

    def _next(self, among: Sequence[NodeId]) -> bool:
        """Complete a write of these nodes or deliver a message between them; returns False if there is
        none."""
        for node in among:
            if self.nodes[node].writes:
                self._write(node)
                return True
        for at, (to, sender, _) in enumerate(self.net):
            if to in among and sender in among:
                self._deliver(str(at))
                return True
        return False

    def _hear(self, node: NodeId, sender: NodeId) -> None:
        """Deliver all messages from `sender` to `node`."""
        for at in reversed([i for i, (to, by, _) in enumerate(self.net) if (to, by) == (node, sender)]):
            self._deliver(str(at))

    def _fill(self, node: NodeId) -> None:
        """Let the node's disk have no space for entries."""
        self._touch(node).raft.room = Room.FULL

    def _empty(self, node: NodeId) -> None:
        """Let the node's disk have space again."""
        self._touch(node).raft.room = Room.ENOUGH

    def _forget(self, node: NodeId) -> None:
        """Forget the group as `host.lifecycle` does, and create an empty replica at once. Messages stay in
        transit."""
        member = self._touch(node)
        member.disk = GroupLog(Base(0, 0, Config()), member.raft.memory(), [])
        member.crash()

    def _wipe(self, node: NodeId) -> None:
        """Replace the node with a new incarnation: messages to and from the old one are lost."""
        member = self._touch(node)
        clock = member.raft.clock
        self.nodes[node] = Member(node, Config(), member.life + 1)
        self.nodes[node].raft.clock = clock
        self._lose(node)


def plenty(bounds: RaftBounds) -> RaftBounds:
    """The same bounds with practically unlimited counts."""
    counts: dict[str, Any] = dict.fromkeys(counts_of(bounds), 1 << 20)
    return replace(bounds, **counts)


def _is_step(old: Config, new: Config) -> bool:
    try:
        check_step(old, new)
    except Refused:
        return False
    return True

"""The state of a `RaftWorld`: its nodes, the messages in transit, and how a node handles a Ready."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from nodeagent.host.effect_queue import Effects
from nodeagent.model.entries import Append, Config, EntryKind, LogOp, SetHard
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import (
    AppendRequest,
    RaftMessage,
    Routed,
)
from nodeagent.raft import decode_config
from nodeagent.testing.durable import follow
from nodeagent.testing.exhaustive.fork import digest
from nodeagent.testing.exhaustive.raft_member import GROUP, DiskWrite, Member
from nodeagent.testing.raft_checks import RaftSafety

decode_message = msgspec.msgpack.Decoder(RaftMessage).decode

_encode = msgspec.msgpack.Encoder().encode


Sent = tuple[NodeId, NodeId, bytes]
"""(to, from, message)"""


@dataclass(frozen=True, slots=True)
class RaftBounds:
    """How much may happen."""

    campaigns: int = 0
    lapses: int = 0
    """Campaigns of a node that was leader until then: it first steps down for lack of replies."""

    commands: int = 0
    changes: int = 0
    crashes: int = 0
    beats: int = 0
    purges: int = 0
    reads: int = 0
    transfers: int = 0
    repeats: int = 0
    """Messages that are delivered and stay in transit."""

    prompt: bool = False
    """Whether disks complete writes at once."""

    configs: tuple[Config, ...] = ()
    """Configs that the group may change to."""

    alike: tuple[NodeId, ...] = ()
    """Nodes that differ only in their names until the first event that involves them."""


def counts_of(bounds: RaftBounds) -> dict[str, int]:
    """How often each event may still happen."""
    counts = {f.name: getattr(bounds, f.name) for f in fields(bounds)}
    return {name: count for name, count in counts.items() if type(count) is int}


class RaftGroupState:
    """The nodes of a Raft group, and the messages in transit."""

    def __init__(self, config: Config, bounds: RaftBounds, others: Sequence[NodeId] = ()) -> None:
        self.nodes = {
            n: Member(n, config if n not in others else Config()) for n in (*config.members, *others)
        }
        assert len(config.voters) > 1, "a world needs at least two voters"
        self.net: tuple[Sent, ...] = ()
        self.left = bounds
        self.fresh = frozenset(bounds.alike)
        self.safety = RaftSafety(self)  # type: ignore[arg-type]

    def _is_twin(self, node: NodeId, *touched: NodeId) -> bool:
        """Whether the node is untouched and so is one with a smaller name, which stands for both."""
        fresh = self.fresh.difference(touched)
        return node in fresh and node != min(fresh)

    def strangers(self) -> list[NodeId]:
        """Nodes that know the group and that no config in any log names."""
        named: set[NodeId] = set()
        for member in self.nodes.values():
            log, disk = member.raft.log, member.disk
            entries = (*log.slice(log.first_index, log.last_index, 1 << 60), *disk.entries)
            configs = [decode_config(e.data) for e in entries if e.kind == EntryKind.CONFIG]
            named.update(*(c.members for c in (log.base.config, disk.base.config, *configs)))
        return [n for n, m in self.nodes.items() if m.raft.term and n not in named]

    def outsiders(self) -> list[NodeId]:
        """Nodes that know the group and that neither the last committed config nor a later one names."""
        rafts = [m.raft for m in self.nodes.values()]
        newest = max(rafts, key=lambda raft: raft.commit)
        commit, named = newest.commit, set(newest.log.config_at(newest.commit).members)
        for log in (raft.log for raft in rafts):
            first = max(commit + 1, log.first_index)
            later = log.slice(first, log.last_index, 1 << 60) if first <= log.last_index else []
            named.update(*(decode_config(e.data).members for e in later if e.kind == EntryKind.CONFIG))
        return [n for n, m in self.nodes.items() if m.raft.term and n not in named]

    def _touch(self, node: NodeId) -> Member:
        """A copy of the node that may be changed."""
        self.fresh -= {node}
        member = self.nodes[node] = self.nodes[node].copy()
        return member

    def _spend(self, what: str) -> None:
        left: dict[str, Any] = {what: getattr(self.left, what) - 1}
        self.left = replace(self.left, **left)

    def _arrive(self, to: NodeId, sender: NodeId, message: RaftMessage) -> None:
        member = self._touch(to)
        if isinstance(message, AppendRequest) and member.offer is not None:
            return  # as `Replica.step`
        member.raft.step(sender, message, member.raft.clock)
        self._turn(member)

    def _written(self, member: Member) -> list[tuple[NodeId, RaftMessage]]:
        write = member.writes.pop(0)
        follow({GROUP: member.disk}, write.ops)
        if write.last is not None:
            member.raft.persisted(*write.last)
        if write.base is not None:
            member.offer, member.rebasing, member.applied_index = None, False, write.base.index
            member.raft.installed(write.base, write.base.index, member.raft.clock)
        return write.sends

    def _drop(self, at: str) -> None:
        """Lose one message."""
        self.net = (*self.net[: int(at)], *self.net[int(at) + 1 :])

    def _lose(self, *of: NodeId) -> None:
        """Lose all messages in transit, or only those from and to these nodes."""
        self.net = tuple(s for s in self.net if of and s[0] not in of and s[1] not in of)

    def _turn(self, member: Member, sends: list[tuple[NodeId, RaftMessage]] | None = None) -> None:
        sends = list(sends or ())
        while True:
            while member.raft.is_ready(to_apply=True):
                self._deal(member, sends)
            if not (self.left.prompt and member.writes):
                break
            sends += self._written(member)
        effects = Effects(None, [(to, [Routed(GROUP, m)]) for to, m in sends], [], [], [], [])
        self.safety(member, effects)  # type: ignore[arg-type]
        net = [*self.net, *((to, member.node, _encode(m)) for to, m in sends)]
        self.net = tuple(sorted([sent for sent in net if not self._is_spent(sent)]))

    def _is_spent(self, sent: Sent) -> bool:
        """Whether the message is of an earlier term than its receiver's and never changes anything: a term on
        disk never decreases. Each such message would double the number of states."""
        to, sender, encoded = sent
        member = self.nodes[to]
        message = decode_message(encoded)
        if message.term >= min(member.raft.term, member.disk.hard.term):
            return False
        trial = member.copy()
        trial.raft.step(sender, message, trial.raft.clock)
        return not trial.raft.has_ready and trial.name == member.name

    def _deal(self, member: Member, sends: list[tuple[NodeId, RaftMessage]]) -> None:
        """Handle a Ready as `Replica._act_on` does."""
        raft = member.raft
        ready = raft.take()
        ops: list[LogOp] = []
        if ready.hard is not None:
            ops.append(SetHard(GROUP, ready.hard))
        if ready.append is not None:
            ops.append(Append(GROUP, *ready.append))
            member.writes.append(DiskWrite(ops, (raft.log.last_index, raft.log.last_term)))
        elif ops:
            member.writes.append(DiskWrite(ops))
        sends += ready.now
        (member.writes[-1].sends if member.writes else sends).extend(ready.after)
        if ready.committed is not None and not member.rebasing:
            first, entries = ready.committed
            assert first == member.applied_index + 1, (
                f"S4: {member.node} applies {first} after {member.applied_index}"
            )
            member.applied_index += len(entries)
        for _, index in ready.reads:
            least = member.read_from
            assert least is None or index >= least, f"S6: {member.node} reads at {index}, committed {least}"
            member.read_from = None
        if ready.reads_failed:
            member.read_from = None
        for peer in ready.snapshots:
            raft.offer_snapshot(peer, "state")
        if ready.offer is not None and member.offer is None and not member.leads:
            member.offer = ready.offer

    def rest(self) -> None:
        """Accept any state: all messages may be lost."""

    def name(self) -> bytes:
        left = self.left
        beats = left.beats and (left.campaigns or left.lapses)
        assert not beats, (
            "beats exclude campaigns and lapses: digests do not contain when a leader checks its quorum"
        )
        nodes = b"".join([self.nodes[n].name for n in sorted(self.nodes)])
        rest = [self.net, list(counts_of(self.left).values()), sorted(self.fresh), self.safety.seen()]
        return digest([nodes, rest], 0, ())

"""Raft nodes in memory, with disks that lose what was not synced and links that lose, repeat and reorder
messages.

Every Ready goes through `Node.collect`, so these invariants (docs/internals/invariants.md) are checked after
every event:

 S1 one leader per term              S2 log matching, by (index, term) and predecessor
 S3 a leader holds what is committed S4 one entry per index is ever applied, in order
 S5 one vote per node and term       S7 no promise is sent before it is on disk
 S6 a read index covers everything that was committed when the read was requested
"""

import random
from collections import deque
from dataclasses import dataclass, field

from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Base, Config, Entry, EntryKind, HardState
from nodeagent.model.raft_messages import (
    AppendReply,
    RaftMessage,
    RelayReport,
    VoteReply,
    VoteRequest,
)
from nodeagent.raft import Raft, RaftLog, Ready, Role

SETTINGS = RaftSettings(heartbeat_ms=10, election_timeout_ms=100, commit_news_ms=0)


def commands(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


@dataclass
class Disk:
    """What survives a crash."""

    base: Base
    entries: list[Entry] = field(default_factory=list)
    hard: HardState = field(default_factory=HardState)
    applied: int = 0
    """Of the checkpoint."""

    def write(self, ready: Ready) -> None:
        if ready.hard is not None:
            self.hard = ready.hard
        if ready.append is not None:
            first, entries = ready.append
            assert 0 <= first - self.base.index - 1 <= len(self.entries), "a gap in the log"
            del self.entries[first - self.base.index - 1 :]
            self.entries.extend(entries)

    def rebase(self, base: Base, keep_suffix: bool) -> None:
        gone = base.index - self.base.index
        self.entries = self.entries[gone:] if keep_suffix else []
        self.base = base


class History:
    """Everything that was observed in the cluster since its beginning."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.entries: dict[tuple[int, int], tuple[int | None, bytes]] = {}
        self.committed: dict[int, Entry] = {}
        self.votes: dict[tuple[str, int], str] = {}


class Node:
    def __init__(self, cluster: "Cluster", name: str, disk: Disk) -> None:
        self.cluster = cluster
        self.name = name
        self.disk = disk
        self.raft: Raft
        self.start()

    def start(self) -> None:
        log = RaftLog(self.disk.base, list(self.disk.entries))
        draw = self.cluster.random.random
        self.raft = Raft(
            self.name, log, self.disk.hard, self.cluster.settings, draw, self.cluster.clock, self.disk.applied
        )
        self.raft.relays = self.cluster.relays
        self.pending: deque[Ready] = deque()
        self.applied = max(self.disk.applied, self.disk.base.index)
        self.read_floors: dict[int, int] = {}
        self.answered: list[tuple[int, int]] = []
        self.reads_failed: list[int] = []
        self.asked: list[str] = []
        self.offers: list[tuple[str, str]] = []

    def collect(self) -> None:
        """Take what is ready; messages and entries that must be durable first stay pending until `sync`."""
        while self.raft.has_ready:
            ready = self.raft.take()
            self.check(ready)
            self.cluster.send(self.name, ready.now)
            self.pending.append(ready)
            self.apply(ready)
            self.answered.extend(ready.reads)
            self.reads_failed.extend(ready.reads_failed)
            self.asked.extend(ready.snapshots)
            if ready.offer is not None:
                self.offers.append((ready.offer[0], ready.offer[1].snapshot))
                self.cluster.bases[ready.offer[1].snapshot] = ready.offer[1].base
        assert not self.raft.has_results(to_apply=True), "`stirred` missed an event"

    def sync(self, count: int | None = None) -> None:
        """Make the oldest Readies durable, all or `count` of them."""
        for _ in range(len(self.pending) if count is None else min(count, len(self.pending))):
            ready = self.pending.popleft()
            self.disk.write(ready)
            self.check_promises(ready.after)
            self.cluster.send(self.name, ready.after)
            if ready.append is not None:
                first, entries = ready.append
                self.raft.persisted(first + len(entries) - 1, entries[-1].term)

    def work(self) -> None:
        """Run until no more output follows without new input."""
        self.collect()
        while self.pending:
            self.sync()
            self.collect()

    def apply(self, ready: Ready) -> None:
        if ready.committed is None:
            return
        first, entries = ready.committed
        assert first == self.applied + 1, (first, self.applied)
        for index, entry in enumerate(entries, first):
            known = self.cluster.history.committed.setdefault(index, entry)
            assert known == entry, f"S4: {self.name} applies {entry} at {index}, not {known}"
        self.applied += len(entries)

    def check(self, ready: Ready) -> None:
        history = self.cluster.history
        raft = self.raft
        if raft.role is Role.LEADER:
            leader = history.leaders.setdefault(raft.term, self.name)
            assert leader == self.name, f"S1: {leader} and {self.name} lead term {raft.term}"
            if ready.role_changed:
                for index in range(raft.log.first_index, max(history.committed, default=0) + 1):
                    entry = history.committed[index]
                    assert raft.log.term(index) == entry.term, f"S3: {self.name} lacks {index}"
        if ready.append is not None:
            first, entries = ready.append
            before = raft.log.term(first - 1)
            for index, entry in enumerate(entries, first):
                said = history.entries.setdefault((index, entry.term), (before, entry.data))
                assert said == (before, entry.data), f"S2: two entries at {index} of term {entry.term}"
                before = entry.term
        for _, message in ready.now:
            if isinstance(message, RelayReport):
                self.check_report(message)
        for context, index in ready.reads:
            floor = self.read_floors.pop(context)
            assert index >= floor, f"S6: stale read at {index}, {floor} was committed"

    def check_report(self, report: RelayReport) -> None:
        for learner, match in report.matches.items():
            disk = self.cluster.nodes[learner].disk
            assert match <= disk.base.index + len(disk.entries), f"{learner} does not hold {match}"

    def check_promises(self, messages: list[tuple[str, RaftMessage]]) -> None:
        last = self.disk.base.index + len(self.disk.entries)
        for to, message in messages:
            if isinstance(message, AppendReply) and message.accepted:
                assert message.match <= last, f"S7: {self.name} promises {message.match}, has {last}"
            granted = isinstance(message, VoteReply) and message.granted and not message.pre
            asks = isinstance(message, VoteRequest) and not message.pre
            if granted or asks:
                vote = to if granted else self.name
                assert self.disk.hard.term >= message.term, "S7: a vote before its term is durable"
                given = self.cluster.history.votes.setdefault((self.name, message.term), vote)
                assert given == vote, f"S5: {self.name} votes for {given} and {vote} in {message.term}"


class Cluster:
    """Nodes `a`, `b`, ... and the links between them. `wire` holds the messages that are not delivered
    yet."""

    def __init__(
        self,
        voters: str,
        learners: str = "",
        spare: str = "",
        seed: int = 0,
        settings: RaftSettings = SETTINGS,
        relays: bool = False,
    ) -> None:
        self.relays = relays
        self.random = random.Random(seed)
        self.settings = settings
        self.clock = 0
        self.wire: list[tuple[str, str, RaftMessage]] = []
        self.cut: set[tuple[str, str]] = set()
        self.down: set[str] = set()
        self.history = History()
        self.bases: dict[str, Base] = {}
        self.images: dict[str, int] = {}
        self.contexts = 0
        first = Base(0, 0, Config(tuple(voters), tuple(learners)))
        empty = Base(0, 0, Config())
        self.nodes = {n: Node(self, n, Disk(first)) for n in voters + learners}
        self.nodes |= {n: Node(self, n, Disk(empty)) for n in spare}

    def __getitem__(self, name: str) -> Raft:
        return self.nodes[name].raft

    # Links

    def send(self, sender: str, messages: list[tuple[str, RaftMessage]]) -> None:
        self.wire.extend((sender, to, m) for to, m in messages if (sender, to) not in self.cut)

    def isolate(self, *names: str) -> None:
        """Cut every link between these nodes and the others, in both directions."""
        for one in names:
            for other in set(self.nodes) - set(names):
                self.cut |= {(one, other), (other, one)}
        self.wire = [w for w in self.wire if (w[0], w[1]) not in self.cut]

    def heal(self) -> None:
        self.cut.clear()

    def deliver(self, position: int = 0) -> None:
        sender, to, message = self.wire.pop(position)
        if to in self.nodes and to not in self.down:
            self[to].step(sender, message, self.clock)

    def settle(self, rounds: int = 1000) -> None:
        """Deliver in order until no message is left."""
        for _ in range(rounds):
            for name, node in self.nodes.items():
                if name not in self.down:
                    node.work()
                    self.serve(node)
            if not self.wire:
                return
            for _ in range(len(self.wire)):
                self.deliver()
        raise AssertionError("the cluster does not settle")

    # Time

    def tick(self, milliseconds: int) -> None:
        """Let time pass for all nodes in small steps, and deliver everything."""
        for _ in range(max(1, milliseconds // 5)):
            self.clock += 5
            for name, node in self.nodes.items():
                if name not in self.down:
                    node.raft.tick(self.clock)
            self.settle()

    def elect(self, name: str) -> None:
        """Let only `name` reach its election timeout."""
        self.clock = max(self.clock + 200, self[name].deadline())
        self[name].tick(self.clock)
        self.settle()
        assert self[name].role is Role.LEADER, self[name].status()

    def leader(self) -> str | None:
        """The running leader with the highest term."""
        leads = [n for n in self.nodes if self[n].role is Role.LEADER and n not in self.down]
        return max(leads, key=lambda n: self[n].term, default=None)

    # Crashes

    def crash(self, name: str) -> None:
        self.down.add(name)
        self.wire = [w for w in self.wire if w[1] != name]

    def restart(self, name: str) -> None:
        self.down.discard(name)
        self.nodes[name].start()

    # Reads and snapshots

    def read(self, name: str) -> int:
        self.contexts += 1
        self.nodes[name].read_floors[self.contexts] = max(self.history.committed, default=0)
        self[name].read(self.contexts, self.clock)
        return self.contexts

    def compact(self, name: str, index: int) -> None:
        node = self.nodes[name]
        node.work()
        node.disk.applied = node.applied
        node.disk.rebase(node.raft.compact(index), keep_suffix=True)

    def serve(self, node: Node) -> None:
        """Make and install the snapshots that were requested and offered."""
        for peer in node.asked:
            snapshot = f"{node.name}{len(self.images)}"
            self.images[snapshot] = node.applied
            node.raft.offer_snapshot(peer, snapshot)
        for _, snapshot in node.offers:
            base, applied = self.bases[snapshot], self.images[snapshot]
            if base.index <= node.raft.commit:
                continue
            applied = max(applied, node.applied)  # a state that is newer than the snapshot's stays
            node.sync()
            node.disk.rebase(base, keep_suffix=node.raft.log.term(base.index) == base.term)
            node.disk.applied = node.applied = applied
            node.raft.installed(base, applied, self.clock)
        node.asked, node.offers = [], []

    def applied_commands(self, name: str) -> list[str]:
        """The commands that `name` has applied."""
        committed = self.history.committed
        entries = [committed[i] for i in range(1, self.nodes[name].applied + 1)]
        return [e.data.decode() for e in entries if e.kind == EntryKind.COMMAND]

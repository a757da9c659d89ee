"""Text scenarios: a command, `----`, and every message and state change that follows from it.

`REWRITE=1 pytest tests/raft/test_scenarios.py` writes the actual output; review the diff.

Commands (nodes are single letters, times in milliseconds):
    cluster abc [learners=d] [spare=e]   a new cluster without a leader
    timeout a                            a's next deadline passes, for a only
    quiet 100                            time passes for all, all is delivered; messages are not shown
    settle                               deliver in order and sync disks until nothing changes
    work a [nosync]                      a hands out its Readies; with nosync nothing becomes durable
    deliver a b | drop a b               deliver or drop all messages from a to b
    propose a x y · read a · transfer a b · compact a 4 · change a voters=ab learners=c
    isolate a · deafen a · heal · crash a · restart a     (a deaf node is heard but hears no other node)
    status                               one line per node
"""

import os
from itertools import takewhile
from pathlib import Path

import pytest

from nodeagent.model.entries import Config
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    ReadReply,
    ReadRequest,
    SnapshotOffer,
    VoteReply,
    VoteRequest,
)

from .network import Cluster

FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def describe(m: RaftMessage) -> str:
    """Describe one message in a few words; index/term pairs are written `index/term`."""
    read = f" read={m.read}" if isinstance(m, AppendRequest | Heartbeat | HeartbeatReply) and m.read else ""
    name = type(m).__name__
    match m:
        case AppendRequest():
            terms = " ".join(f"{m.prev_index + 1 + i}/{e.term}" for i, e in enumerate(m.entries))
            return f"{name} t{m.term} after {m.prev_index}/{m.prev_term} commit={m.commit} [{terms}]{read}"
        case AppendReply(accepted=True):
            return f"{name} t{m.term} holds {m.match}"
        case AppendReply():
            return f"{name} t{m.term} refuses {m.match}, try {m.hint_index}/{m.hint_term}"
        case Heartbeat():
            return f"{name} t{m.term} commit={m.commit}{read}"
        case VoteRequest():
            flags = " pre" * m.pre + " transfer" * m.transfer
            return f"{name} t{m.term} log={m.last_index}/{m.last_term}{flags}"
        case VoteReply():
            return f"{name} t{m.term} {'yes' if m.granted else 'no'}{' pre' * m.pre}"
        case SnapshotOffer():
            return f"{name} t{m.term} {m.snapshot} base={m.base.index}/{m.base.term}"
        case ReadRequest():
            return f"{name} t{m.term}"
        case ReadReply():
            return f"{name} t{m.term} {f'index {m.index}' if m.ok else 'failed'}"
        case _:
            return f"{name} t{m.term}{read}"


class Player:
    """Runs the commands of one file."""

    def __init__(self) -> None:
        self.cluster = Cluster("a")
        self.trace: list[str] = []
        self.last: dict[str, str] = {}

    def run(self, line: str) -> str:
        verb, *words = line.split()
        plain = [w for w in words if "=" not in w]
        named = dict(w.split("=", 1) for w in words if "=" in w)
        self.trace = []
        try:
            getattr(self, f"on_{verb}")(*plain, **named)
        except NodeAgentError as error:
            self.trace.append(f"{type(error).__name__}: {error.what}")
        if verb != "cluster":
            self.note_changes()
        return "\n".join(self.trace) or "ok"

    def note_changes(self) -> None:
        for name in self.cluster.nodes:
            now = self.line(name)
            if now != self.last.get(name):
                self.trace.append(f"  {now}")
            self.last[name] = now

    def line(self, name: str) -> str:
        s = self.cluster[name].status()
        members = "".join(s.config.voters) + (f"+{''.join(s.config.learners)}" if s.config.learners else "")
        peers = " ".join(f"{p}:{v.match}:{v.state}" for p, v in s.progress.items())
        down = " (down)" if name in self.cluster.down else ""
        return (
            f"{name} t{s.term} {s.role} of {s.leader or '-'} commit={s.commit} log={s.base}..{s.last} "
            f"durable={s.durable} members={members} {peers}"
        ).rstrip() + down

    def step(self, position: int) -> None:
        sender, to, message = self.cluster.wire[position]
        self.trace.append(f"{sender}->{to} {describe(message)}")
        self.cluster.deliver(position)

    def on_cluster(self, voters: str, learners: str = "", spare: str = "") -> None:
        self.cluster = Cluster(voters, learners, spare)
        self.last = {name: self.line(name) for name in self.cluster.nodes}

    def on_timeout(self, name: str) -> None:
        raft = self.cluster[name]
        self.cluster.clock = max(self.cluster.clock, raft.deadline())
        raft.tick(self.cluster.clock)

    def on_quiet(self, milliseconds: str) -> None:
        self.cluster.tick(int(milliseconds))
        self.note_reads()

    def on_work(self, name: str, sync: str = "") -> None:
        node = self.cluster.nodes[name]
        if sync == "nosync":
            node.collect()
        else:
            node.work()
            self.cluster.serve(node)
        self.note_reads()

    def on_settle(self) -> None:
        for _ in range(100):
            for name in self.cluster.nodes:
                if name not in self.cluster.down:
                    self.on_work(name)
            if not self.cluster.wire:
                return
            for _ in range(len(self.cluster.wire)):
                self.step(0)
        raise AssertionError("the cluster does not settle")

    def note_reads(self) -> None:
        for name, node in self.cluster.nodes.items():
            self.trace.extend(f"{name} reads at {index}" for _, index in node.answered)
            self.trace.extend(f"{name} read failed" for _ in node.reads_failed)
            node.answered, node.reads_failed = [], []

    def on_deliver(self, sender: str, to: str) -> None:
        for _ in range(sum(w[:2] == (sender, to) for w in self.cluster.wire)):
            self.step(next(i for i, w in enumerate(self.cluster.wire) if w[:2] == (sender, to)))

    def on_drop(self, sender: str, to: str) -> None:
        lost = [w for w in self.cluster.wire if w[:2] == (sender, to)]
        self.trace.extend(f"lost: {describe(w[2])}" for w in lost)
        self.cluster.wire = [w for w in self.cluster.wire if w[:2] != (sender, to)]

    def on_propose(self, name: str, *names: str) -> None:
        self.cluster[name].propose([n.encode() for n in names], self.cluster.clock)

    def on_read(self, name: str) -> None:
        self.cluster.read(name)

    def on_transfer(self, name: str, target: str) -> None:
        self.cluster[name].transfer(target, self.cluster.clock)

    def on_compact(self, name: str, index: str) -> None:
        self.cluster.compact(name, int(index))

    def on_change(self, name: str, voters: str, learners: str = "") -> None:
        self.cluster[name].change(Config(tuple(voters), tuple(learners)), self.cluster.clock)

    def on_isolate(self, name: str) -> None:
        self.cluster.isolate(name)

    def on_deafen(self, name: str) -> None:
        self.cluster.cut |= {(other, name) for other in self.cluster.nodes if other != name}

    def on_heal(self) -> None:
        self.cluster.heal()

    def on_crash(self, name: str) -> None:
        self.cluster.crash(name)

    def on_restart(self, name: str) -> None:
        self.cluster.restart(name)

    def on_status(self) -> None:
        self.trace.extend(f"  {self.line(name)}" for name in self.cluster.nodes)
        self.last = {name: self.line(name) for name in self.cluster.nodes}


def play(text: str) -> str:
    """Return the same file with the traces of this run."""
    player = Player()
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = list(takewhile(lambda line: line != "----", block.splitlines()))
        command = next(line for line in lines if not line.startswith("#"))
        blocks.append("\n".join([*lines, "----", player.run(command)]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_scenario_has_the_recorded_trace(path: Path) -> None:
    """The trace in the file is exactly what happens."""
    text = path.read_text(encoding="utf-8")
    played = play(text)
    if os.environ.get("REWRITE"):
        path.write_text(played, encoding="utf-8")
    else:
        assert played == text

"""One node is under test; the test itself plays its peers."""

from typing import TypeVar

from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Base, Config, Entry, EntryKind, HardState
from nodeagent.model.raft_messages import AppendReply, RaftMessage, VoteReply
from nodeagent.raft import Raft, RaftLog, Ready, Role

from .network import SETTINGS

Kind = TypeVar("Kind", bound=RaftMessage)


def entries(*terms: int) -> list[Entry]:
    return [Entry(term, int(EntryKind.COMMAND), b"%d" % at) for at, term in enumerate(terms, 1)]


def replica(
    *terms: int,
    voters: str = "abc",
    learners: str = "",
    node: str = "a",
    term: int = 0,
    vote: str = "",
    held: tuple[int, int] = (0, 0),
    settings: RaftSettings = SETTINGS,
) -> Raft:
    """A restarted follower whose log contains entries of `terms`; its timeouts are exactly 100 ms."""
    log = RaftLog(Base(0, 0, Config(tuple(voters), tuple(learners))), entries(*terms))
    hard = HardState(max(term, *terms, 0), vote, held)
    return Raft(node, log, hard, settings, lambda: 0.0, 0, 0)


def flush(raft: Raft, durable: bool = True) -> Ready:
    """Take one Ready; with `durable`, its entries are durable at once."""
    ready = raft.take()
    if durable and ready.append is not None:
        first, batch = ready.append
        raft.persisted(first + len(batch) - 1, batch[-1].term)
    return ready


def leader(
    *terms: int,
    voters: str = "abc",
    learners: str = "",
    durable: bool = True,
    settings: RaftSettings = SETTINGS,
) -> Raft:
    """`a` was just elected by all voters; its no-op is the newest entry."""
    raft = replica(*terms, voters=voters, learners=learners, settings=settings)
    raft.tick(100)
    for pre in (True, False):
        for voter in voters[1:]:
            raft.step(voter, VoteReply(raft.term + pre, True, pre), 100)
    assert raft.role is Role.LEADER
    flush(raft, durable)
    return raft


def leader_of(learners: str) -> Raft:
    """`a` leads b, c and the learners, which all hold its no-op."""
    raft = leader(learners=learners)
    for peers in ("bc", learners):
        hold(raft, peers, 1)
        flush(raft)
    return raft


def hold(raft: Raft, peers: str, match: int, read: int = 0) -> None:
    """`peers` answer that they hold everything up to `match`."""
    for peer in peers:
        raft.step(peer, AppendReply(raft.term, True, match, read=read), raft.clock)


def sent(ready: Ready, kind: type[Kind], to: str | None = None) -> list[Kind]:
    """The messages of one kind in a Ready."""
    return [m for peer, m in ready.now + ready.after if isinstance(m, kind) and to in (None, peer)]

"""What one replica promises, saves, sends and accepts, and when, turn by turn."""

import random
from collections.abc import Sequence

import msgspec
import pytest

from nodeagent.host.checkpoints import CHECKPOINT_MIN_MS
from nodeagent.host.effect_queue import Effects
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Append, Base, Config, Entry, EntryKind, HardState, Rebase, SetHard
from nodeagent.model.ids import NodeId, Owner
from nodeagent.model.jobs import (
    CheckpointSaved,
    Done,
    Installed,
    InstallSnapshot,
    MakeSnapshot,
    SaveCheckpoint,
)
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    ReadReply,
    ReadRequest,
    Routed,
    SnapshotOffer,
    VoteReply,
    VoteRequest,
)
from nodeagent.model.requests import ErrorReply, Written
from nodeagent.testing.groups import Count, Groups, Tally

GROUP = "g"
THREE = Config(("a", "b", "c"))
SNAPSHOT = "5" * 32
PATIENCE_MS = 10 * RaftSettings().election_timeout_ms


def command(number: int, term: int = 1) -> Entry:
    return Entry(term, EntryKind.COMMAND, msgspec.msgpack.encode(Count("w", number, f"m{number}")))


def state_at(applied: int) -> bytes:
    return msgspec.msgpack.encode(Tally(applied, 7, {"w": applied}))


def member(config: Config, entries: Sequence[Entry] = (), term: int = 1, applied: int = 0) -> Groups:
    """Node a after a start: its log begins after the applied entries, and holds `entries`."""
    groups = Groups(Owner("a", "i", 1), random.Random(1), 0, RaftSettings())
    base = Base(applied, min(applied, 1), config, checkpoint=1)
    saved = Saved(base, state_at(applied) if applied else msgspec.msgpack.encode(Tally()), group=GROUP)
    groups.reopen(GROUP, GroupLog(base, HardState(term), list(entries)), msgspec.msgpack.encode(saved))
    assert not groups.damaged
    return groups


def hear(groups: Groups, sender: NodeId, *messages: RaftMessage, now: int = 10) -> None:
    groups.on_raft(sender, [Routed(GROUP, m) for m in messages], now)


def settle(groups: Groups, now: int) -> Effects:
    """Run turns until nothing is left to do, each durable at once. Returns their effects."""
    done = groups.take()
    while not groups.idle or done.persist is not None:
        if done.persist is not None:
            groups.on_persisted(done.persist[0], now)
        more = groups.take()
        done.persist = more.persist
        for name in ("sends", "replies", "jobs", "calls", "notes"):
            getattr(done, name).extend(getattr(more, name))
    return done


def sent(effects: Effects) -> list[RaftMessage]:
    return [routed.message for _, messages in effects.sends for routed in messages]


def lead(groups: Groups, voters: Sequence[NodeId] = ()) -> int:
    """Node a is elected by `voters`. Returns its term."""
    replica = groups.data[GROUP]
    groups.tick(PATIENCE_MS, 0)
    for pre in (True, False):
        settle(groups, PATIENCE_MS)
        for voter in voters:
            hear(groups, voter, VoteReply(replica.raft.term + pre, True, pre), now=PATIENCE_MS)
    assert replica.leads
    return replica.raft.term


def test_a_vote_is_sent_once_it_is_durable() -> None:
    """Otherwise a restarted node votes for another node in the same term, which then has two leaders."""
    groups = member(THREE)
    hear(groups, "b", VoteRequest(5, 0, 0, False))
    effects = groups.take()
    assert effects.persist is not None and not effects.sends
    assert effects.persist[1] == [SetHard(GROUP, HardState(5, "b"))]
    groups.on_persisted(effects.persist[0], 20)
    assert sent(groups.take()) == [VoteReply(5, True, False)]


def test_a_read_runs_once_everything_committed_before_it_is_applied() -> None:
    groups = member(THREE, [command(1), command(2), command(3)])
    hear(groups, "b", Heartbeat(1, 1))
    settle(groups, 10)
    replica = groups.data[GROUP]
    seen: list[int] = []
    replica.read(lambda: seen.append(replica.state.numbers["w"]), lambda why: pytest.fail(why))
    (asked,) = sent(settle(groups, 10))
    assert isinstance(asked, ReadRequest)
    hear(groups, "b", ReadReply(1, asked.read, 3, True))
    for commit in (1, 2):
        hear(groups, "b", Heartbeat(1, commit))
        settle(groups, 10)
        assert not seen and replica.applied_index == commit
    hear(groups, "b", Heartbeat(1, 3))
    settle(groups, 10)
    assert seen == [3]


def begin_install(groups: Groups, base: Base, term: int) -> int:
    """Node b offers a state up to `base`. Returns the number of the job that pulls it."""
    hear(groups, "b", SnapshotOffer(term, base, SNAPSHOT))
    ((number, job),) = settle(groups, 10).jobs
    assert job == InstallSnapshot(GROUP, "b", SNAPSHOT)
    return number


def pulled(base: Base) -> Installed:
    return Installed(msgspec.msgpack.encode(Saved(base, state_at(base.index), sent=True, group=GROUP)), 1)


@pytest.mark.parametrize("term,keeps", [(1, True), (2, False)])
def test_entries_after_an_installed_state_stay_if_they_continue_it(term: int, keeps: bool) -> None:
    """After another leader's entry they are void, on the disk as well as in memory."""
    groups = member(THREE, [command(n) for n in range(1, 6)])
    base = Base(3, term, THREE)
    number = begin_install(groups, base, 2)
    groups.on_job(number, pulled(base), 20)
    effects = groups.take()
    assert effects.persist is not None and effects.persist[1] == [Rebase(GROUP, base, keeps)]
    groups.on_persisted(effects.persist[0], 30)
    log = groups.data[GROUP].raft.log
    assert (log.base, log.last_index) == (base, 5 if keeps else 3)


def test_no_entry_is_taken_or_acknowledged_while_a_state_is_installed() -> None:
    """It would be written after the old log, which is dropped once the new state is in place."""
    groups = member(THREE, [command(1)])
    base = Base(3, 2, THREE)
    number = begin_install(groups, base, 2)
    append = AppendRequest(2, 1, 1, 0, [command(2, 2)])
    hear(groups, "b", append)
    effects = groups.take()
    assert effects.persist is None and not effects.sends
    groups.on_job(number, pulled(base), 20)
    effects = groups.take()
    hear(groups, "b", append, now=20)
    late = groups.take()
    assert late.persist is None and not late.sends, "nor before the log durably begins there"
    assert effects.persist is not None
    groups.on_persisted(effects.persist[0], 30)
    hear(groups, "b", AppendRequest(2, 3, 2, 3, [command(4, 2)]), now=30)
    effects = groups.take()
    assert effects.persist is not None and effects.persist[1] == [Append(GROUP, 4, [command(4, 2)])]
    groups.on_persisted(effects.persist[0], 40)
    assert AppendReply(2, True, 4) in sent(groups.take())


def test_the_log_is_purged_once_the_checkpoint_that_replaces_it_is_durable() -> None:
    """After a power cut before that, the previous checkpoint continues from the log."""
    groups = member(THREE, [command(1), command(2)])
    hear(groups, "b", Heartbeat(1, 2))
    settle(groups, 10)
    groups.tick(CHECKPOINT_MIN_MS, 0)
    effects = groups.take()
    ((number, job),) = effects.jobs
    assert isinstance(job, SaveCheckpoint) and effects.persist is None
    groups.on_job(number, CheckpointSaved(""), 1_000)
    effects = groups.take()
    assert effects.persist is not None
    assert effects.persist[1] == [Rebase(GROUP, Base(2, 1, THREE, checkpoint=1), True)]


def far_behind() -> tuple[Groups, int, int, MakeSnapshot]:
    """Node a leads, and its log lacks entries that node c needs. Returns the groups of a, the term, and the
    job that makes a state for c, with its number."""
    groups = member(THREE, applied=5)
    replica = groups.data[GROUP]
    term = lead(groups, ["b"])
    settle(groups, PATIENCE_MS)
    replica.propose([command(7).data])
    settle(groups, PATIENCE_MS)
    hear(groups, "b", AppendReply(term, True, 5), AppendReply(term, True, 7), now=PATIENCE_MS)
    settle(groups, PATIENCE_MS)
    assert replica.applied_index == 7 and replica.raft.log.base.index == 5
    hear(groups, "c", HeartbeatReply(term), AppendReply(term, False, 5, 2, 1), now=PATIENCE_MS)
    ((number, job),) = settle(groups, PATIENCE_MS).jobs
    assert isinstance(job, MakeSnapshot)
    return groups, term, number, job


def test_a_sent_state_says_where_the_log_continues_from_it() -> None:
    """The peer then gets the entries after the base: none that the state holds may be applied twice."""
    groups, term, number, job = far_behind()
    saved = msgspec.msgpack.decode(job.payload, type=Saved)
    assert msgspec.msgpack.decode(saved.state, type=Tally) == groups.data[GROUP].state
    assert saved.base == Base(7, term, THREE)
    groups.on_job(number, Done(), PATIENCE_MS)
    (offer,) = sent(groups.take())
    assert isinstance(offer, SnapshotOffer) and saved.base.index >= offer.base.index


def test_a_peer_that_still_needs_an_expired_snapshot_gets_another() -> None:
    groups, term, number, job = far_behind()
    groups.on_job(number, Done(), PATIENCE_MS)
    settle(groups, PATIENCE_MS)
    groups.on_snapshots_expired([job.snapshot], PATIENCE_MS)
    later = PATIENCE_MS + RaftSettings().heartbeat_ms
    hear(groups, "c", HeartbeatReply(term), now=later)
    (another,) = [made for _, made in settle(groups, later).jobs if isinstance(made, MakeSnapshot)]
    assert another.snapshot != job.snapshot


def test_no_state_is_installed_on_a_leader() -> None:
    """Its files and checkpoint would replace those that it serves. An offer may wait in the turn in
    which the replica wins."""
    groups = member(Config(("a",)), [command(1)])
    hear(groups, "b", SnapshotOffer(5, Base(9, 5, THREE), SNAPSHOT))
    groups.tick(PATIENCE_MS, 0)
    effects = settle(groups, PATIENCE_MS)
    assert groups.data[GROUP].leads and not effects.jobs


def test_a_proposal_whose_place_another_leader_took_is_answered() -> None:
    """This holds even if no request waits for the new entries, and the replica leads again in that turn."""
    groups = member(Config(("a",)))
    replica = groups.data[GROUP]
    term = lead(groups)
    settle(groups, PATIENCE_MS)
    assert [replica.propose([command(n).data], token) for n, token in ((1, 71), (2, 72))] == [2, 3]
    noop = Entry(term + 1, EntryKind.NOOP, b"")
    hear(groups, "b", AppendRequest(term + 1, 1, term, 1, [noop] * 2), now=PATIENCE_MS)
    groups.tick(3 * PATIENCE_MS, 0)
    effects = settle(groups, 3 * PATIENCE_MS)
    assert replica.leads and replica.applied_index == 4
    assert [token for token, _ in effects.replies] == [71, 72]
    assert all(isinstance(r, ErrorReply) and r.code == "not_leader" for _, r in effects.replies)
    replica.propose([command(3).data], 73)
    assert settle(groups, 3 * PATIENCE_MS).replies == [(73, Written(5))]

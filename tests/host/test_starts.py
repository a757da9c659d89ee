"""Older copies of a node's directory: how peers recognise them, and how such a node reacts."""

import msgspec
import pytest

from nodeagent.host.handlers.changes import LISTENED_TIMEOUTS, SILENT_TIMEOUTS, Changes
from nodeagent.host.host import QUIET_MS
from nodeagent.host.saved import Saved
from nodeagent.host.starts import Start, Starts
from nodeagent.log import GroupLog
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Base, HardState
from nodeagent.model.ids import META
from nodeagent.model.jobs import CheckpointSaved, SaveCheckpoint
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.raft_messages import AppendReply, Routed, VoteReply, VoteRequest
from nodeagent.model.requests import ErrorReply, GetMeta, GroupRecord, NodeRecord
from nodeagent.raft.progress import LOST_AFTER_MS, Progress
from tests.host.opened import opened
from tests.host.test_host import CONFIG, ME, MEMBERS, checkpoint, found, settled_host


def test_a_lower_start_or_one_with_another_history_is_an_older_copy() -> None:
    """This holds even if the copy was started so often that its number is higher.

    A later start, the same start again, and a node of the first release, which counts no starts, are
    accepted.
    """
    starts = Starts({"i": Start("b", 3, "x")})
    known = not starts.meet("i", "b", 3, ("v", "w", "x")) and starts.is_saved
    assert known
    assert not starts.meet("i", "b", 0, ()) and not starts.meet("other", "b", 1, ("y",))
    for number, nonces in ((2, "vw"), (3, "vwo"), (4, "vwop"), (5, "vwopq")):
        assert "start 3" in starts.meet("i", "b", number, tuple(nonces)) and "i" in starts.older
    assert not starts.meet("i", "b", 4, tuple("vwxz")) and not starts.older, "the right directory is back"
    assert starts.newest["i"] == Start("b", 4, "z") and not starts.is_saved
    assert not starts.meet("i", "b", 9, tuple("mn")), "its nonces do not reach back to the known start"


def test_an_older_copy_that_sends_a_hello_does_not_fence_the_directory_in_use() -> None:
    """A backup started in a drill, in the same network: the copy is refused, before and after the running
    node speaks again. A node that lacks what it acknowledged is refused in the same start, however."""
    starts = Starts({"i": Start("b", 3, "x")})
    for _ in range(2):
        assert starts.meet("i", "b", 2, ("v", "w"))
        assert not starts.meet("i", "b", 3, ("v", "w", "x")) and not starts.older
    starts.older["i"] = "it lacks entries"
    assert starts.meet("i", "b", 2, ("v", "w"))
    assert starts.meet("i", "b", 3, ("v", "w", "x")) == "it lacks entries"


def test_a_node_of_an_older_copy_is_not_heard() -> None:
    """It is not heard until its directory is replaced; other nodes are not affected."""
    nodes = {n: NodeRecord(n, n, 1, 2, f"inc-{n}", 0) for n in "abc"}
    saved = MetaState(Image(cluster_id="c", applied=5, nodes=nodes))
    host = settled_host({})
    assert host.cluster.meta_replica is not None
    host.cluster.meta_replica._machine.state = saved
    assert host.membership_status("b", "inc-b", 1) is MembershipStatus.MEMBER
    host.peers.starts.older["inc-b"] = "why"
    assert (
        host.membership_status("b", "inc-b", 1) is MembershipStatus.OLDER
        and host.membership_status("c", "inc-c", 1) is MembershipStatus.MEMBER
    )


def test_a_node_that_learns_it_is_an_older_copy_stops_and_says_so() -> None:
    """All groups are damaged, with the reason. Every open request is answered, and no message is sent any
    more."""
    member = GroupRecord("a.1", "a", MEMBERS.voters, MEMBERS.voters, ((0, 5),))
    host = settled_host({"a.1": (found(1), checkpoint())}, member)
    host.take()
    host.on_request(7, GetMeta(strong=True), 10, 10)
    host.on_older_copy("a runs on an older copy", 11)
    host.tick(60_000, 60_000)
    effects = host.take()
    assert [t for t, _ in effects.replies] == [7] and not effects.sends and not effects.jobs
    assert set(host.replicas.damaged) == {META, "a.1"} and host.status.state() == "damaged"
    host.on_raft("b", [Routed(g, VoteRequest(9, 99, 9, False, False)) for g in (META, "a.1")], 60_001)
    assert not host.take().sends
    host.on_request(8, GetMeta(), 60_002, 0)
    ((_, reply),) = host.take().replies
    assert isinstance(reply, ErrorReply) and reply.code == "unavailable" and "older copy" in reply.what


def test_a_group_under_creation_does_not_run_on_an_older_copy() -> None:
    """Its first checkpoint is in progress when the node learns this: the group may have existed before."""
    member = GroupRecord("a.1", "a", MEMBERS.voters, MEMBERS.voters, ((0, 5),))
    host = settled_host({}, member)
    (number,) = (n for n, job in host.take().jobs if isinstance(job, SaveCheckpoint))
    host.on_older_copy("a runs on an older copy", 1)
    host.on_job(number, CheckpointSaved(""), 2)
    host.tick(60_000, 60_000)
    effects = host.take()
    assert not host.replicas.data and effects.persist is None and not effects.sends


@pytest.mark.parametrize("start,waits", [(1, False), (2, True)])
def test_no_vote_is_given_before_the_peers_had_time_to_object(start: int, waits: bool) -> None:
    """A node cannot have forgotten anything at its first start."""
    log = {"a.1": (found(1), checkpoint())}
    host = opened(CONFIG, log, start=start)
    vote = Routed("a.1", VoteRequest(2, 9, 1, False, False))

    def granted(now: int) -> bool:
        host.on_raft("b", [vote], now)
        effects = host.take()
        if effects.persist is not None:
            host.on_persisted(effects.persist[0], now)
        sends = [*effects.sends, *host.take().sends]
        sent = [r.message for _, messages in sends for r in messages]
        return any(isinstance(m, VoteReply) and m.granted for m in sent)

    assert granted(1) is not waits
    assert granted(QUIET_MS)


def test_a_follower_that_lacks_what_it_acknowledged_is_named() -> None:
    """The follower refuses the entries for a long time and accepts none. A single late refusal, or a refusal
    before an acceptance, is a delayed message."""
    progress = Progress(11, now=0)
    assert progress.accepted(20, 1_000)
    assert not progress.rejected(20, 5, 50_000) and not progress.forgot
    assert not progress.accepted(20, 50_001)
    assert not progress.rejected(20, 5, 90_000) and not progress.forgot
    assert not progress.accepted(15, 90_001), "an old acceptance clears nothing"
    assert not progress.rejected(20, 5, 90_000 + LOST_AFTER_MS - 1) and not progress.forgot
    assert not progress.rejected(20, 5, 90_000 + LOST_AFTER_MS) and progress.forgot


def test_a_leader_fences_a_follower_that_lost_acknowledged_entries() -> None:
    """The follower's incarnation is fenced in all groups, and the reason names the group."""
    nodes = {n: NodeRecord(n, n, 1, 2, f"inc-{n}", 0) for n in "abc"}
    image = Image(cluster_id="c", applied=5, nodes=nodes)
    state = MetaState(image).encode()
    payload = msgspec.msgpack.encode(Saved(Base(5, 1, MEMBERS), state, group=META, owner=ME))
    log = GroupLog(Base(5, 1, MEMBERS), HardState(1), [])
    host = opened(CONFIG, {META: (log, payload)})
    assert host.cluster.meta_replica is not None
    raft = host.cluster.meta_replica.raft
    now = 10_000
    host.tick(now, 0)
    for pre in (True, False):
        effects = host.take()
        if effects.persist is not None:
            host.on_persisted(effects.persist[0], now)
            host.take()
        term = raft.term + 1 if pre else raft.term
        host.on_raft("b", [Routed(META, VoteReply(term, True, pre))], now)
    effects = host.take()
    assert host.cluster.meta_replica is not None and host.cluster.meta_replica.leads
    last = raft.log.last_index
    host.on_raft("b", [Routed(META, AppendReply(raft.term, True, last))], now)
    late = now + LOST_AFTER_MS + 1
    host.on_raft("b", [Routed(META, AppendReply(raft.term, False, last, 5, 1))], now + 1)
    host.on_raft("c", [Routed(META, AppendReply(raft.term, True, last))], late)
    host.on_raft("b", [Routed(META, AppendReply(raft.term, False, last, 5, 1))], late)
    host.tick(late + 1, 0)
    older = host.peers.starts.older
    assert set(older) == {"inc-b"} and "meta there lacks entries" in older["inc-b"]


def test_a_leader_that_was_just_elected_declares_nobody_dead() -> None:
    """Followers do not hear one another: a node that it never heard may be alive."""
    host = settled_host({})
    assert host.cluster.meta_replica is not None
    changes = Changes(host.context, host.cluster, host.peers)
    timeout_ms = CONFIG.raft.election_timeout_ms
    host.effects.now = now = 100 * timeout_ms
    host.cluster.meta_replica.led_since = now - LISTENED_TIMEOUTS * timeout_ms + 1
    refusal = changes.check_silent("b")
    assert refusal is not None and "b is not known to be dead" in refusal.what
    host.cluster.meta_replica.led_since -= 1
    assert changes.check_silent("b") is None
    host.peers.heard["b"] = now - SILENT_TIMEOUTS * timeout_ms + 1
    refusal = changes.check_silent("b")
    assert refusal is not None and "b is not dead" in refusal.what

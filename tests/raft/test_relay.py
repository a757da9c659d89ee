"""Followers that send committed entries to learners, and the leader that need not (`raft.relay`)."""

from collections.abc import Iterator

import pytest

from nodeagent.model.entries import Base, Config, Entry, EntryKind
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    RelayedAppend,
    RelayReport,
)
from nodeagent.raft import Raft, Role
from nodeagent.raft.membership import encode_config

from .network import SETTINGS, Cluster
from .single import entries, flush, hold, leader_of, replica, sent

Messages = list[tuple[str, RaftMessage]]

LEARNERS = "defghijk"
OF_B = "dfhj"
"""The share of b, if a leads a, b and c."""


@pytest.fixture(autouse=True)
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The learners are too many to be direct."""
    monkeypatch.setattr("nodeagent.model.limits.DIRECT_LEARNERS_MAX", len(LEARNERS) - 1)


@pytest.fixture
def relay() -> Raft:
    """b follows a, and holds two entries; its share of the learners has not answered yet."""
    raft = replica(1, 1, node="b", term=1, learners=LEARNERS)
    raft.relays = True
    raft.step("a", AppendRequest(1, 2, 1, 1, []), 10)
    raft.step("a", Heartbeat(1, 1), 10)
    return raft


@pytest.fixture
def led() -> Raft:
    return leader_of(LEARNERS)


def answer(raft: Raft, peers: str, match: int, addition: int = 0) -> None:
    for peer in peers:
        raft.step(peer, AppendReply(raft.term, True, match, addition=addition), raft.clock)


def beat(raft: Raft, commit: int) -> list[RelayReport]:
    """A heartbeat of a, one heartbeat interval later; returns what b reports."""
    raft.step("a", Heartbeat(raft.term, commit), raft.clock + SETTINGS.heartbeat_ms)
    return sent(flush(raft), RelayReport, "a")


# The relay


def test_each_voter_relays_to_its_share(relay: Raft) -> None:
    assert {to for to, m in flush(relay).now if isinstance(m, RelayedAppend)} == set(OF_B)


def test_nothing_is_relayed_before_the_cluster_allows_it() -> None:
    """Learners of an earlier release do not know the message."""
    raft = replica(1, node="b", term=1, learners=LEARNERS)
    raft.step("a", Heartbeat(1, 1), 10)
    assert not sent(flush(raft), RelayedAppend)


def test_few_learners_get_no_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.model.limits.DIRECT_LEARNERS_MAX", len(LEARNERS))
    raft = replica(1, node="b", term=1, learners=LEARNERS)
    raft.relays = True
    raft.step("a", Heartbeat(1, 1), 10)
    assert not sent(flush(raft), RelayedAppend)


def test_a_learner_relays_nothing() -> None:
    raft = replica(1, node="d", term=1, learners=LEARNERS)
    raft.relays = True
    raft.step("a", Heartbeat(1, 1), 10)
    assert not sent(flush(raft), RelayedAppend)


def test_only_committed_entries_are_relayed(relay: Raft) -> None:
    """The second entry may still be replaced by another leader's."""
    assert not any(m.entries for m in sent(flush(relay), RelayedAppend))
    answer(relay, OF_B, 1)
    assert not sent(flush(relay), RelayedAppend)
    beat(relay, 1)
    relay.step("a", Heartbeat(1, 2), relay.clock)
    appends = sent(flush(relay), RelayedAppend)
    assert len(appends) == len(OF_B)
    assert {(m.leader, m.commit, m.prev_index, len(m.entries)) for m in appends} == {("a", 2, 1, 1)}


def test_learners_that_answer_are_reported_and_others_are_not(relay: Raft) -> None:
    flush(relay)
    answer(relay, "df", 1)
    (report,) = beat(relay, 1)
    assert report.matches == {"d": 1, "f": 1}
    assert not beat(relay, 1), "nothing was answered since"


def test_a_learner_that_refuses_is_neither_reported_nor_sent_entries(relay: Raft) -> None:
    """It is behind, needs a snapshot or has a full disk: only the leader can find out which."""
    flush(relay)
    answer(relay, OF_B, 1)
    relay.step("a", Heartbeat(1, 2), 11)
    flush(relay)  # d does not get the entry
    relay.step("d", AppendReply(1, False, 2, 1, 1), 11)
    answer(relay, "f", 2)
    (report,) = beat(relay, 2)
    assert report.matches == {"f": 2, "h": 1, "j": 1}
    relay.step("a", AppendRequest(1, 2, 1, 3, entries(1)), relay.clock)
    assert "d" not in {to for to, m in flush(relay).now if isinstance(m, RelayedAppend) and m.entries}
    probes: list[RelayedAppend] = []
    for _ in range(10):
        relay.step("a", Heartbeat(1, 3), relay.clock + SETTINGS.heartbeat_ms)
        probes += sent(flush(relay), RelayedAppend, "d")
    assert len(probes) == 5 and not any(m.entries for m in probes)
    answer(relay, "d", 3)  # to one of them
    assert beat(relay, 3)[0].matches == {"d": 3}


def test_a_learner_that_does_not_answer_gets_no_entries(relay: Raft) -> None:
    """Otherwise they pile up for a node that is down."""
    flush(relay)
    answer(relay, OF_B, 1)
    for _ in range(SETTINGS.election_timeout_ms // SETTINGS.heartbeat_ms):
        beat(relay, 1)
    relay.step("a", Heartbeat(1, 2), relay.clock)
    assert not any(m.entries for m in sent(flush(relay), RelayedAppend))


def test_a_learner_with_more_than_one_append_to_go_is_left_to_the_leader(
    relay: Raft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeagent.raft.relay.APPEND_ENTRIES_MAX", 2)
    flush(relay)
    answer(relay, "df", 1)
    relay.step("a", AppendRequest(1, 2, 1, 2, entries(1, 1, 1, 1)[2:]), relay.clock)
    answer(relay, "f", 2)
    flush(relay)
    relay.step("a", Heartbeat(1, 4), relay.clock)
    ready = flush(relay)
    assert not sent(ready, RelayedAppend, "d")[0].entries
    (append,) = sent(ready, RelayedAppend, "f")
    assert (append.prev_index, len(append.entries)) == (2, 2)


def test_after_a_snapshot_the_relay_continues_after_it(relay: Raft) -> None:
    """The relay does not have the entries before it; the learner got them from the leader."""
    flush(relay)
    answer(relay, "df", 1)
    relay.installed(Base(5, 1, relay.log.config), 5, relay.clock)
    answer(relay, "d", 5)
    appends = {to: m for to, m in flush(relay).now if isinstance(m, RelayedAppend)}
    assert {peer: (m.prev_index, m.entries) for peer, m in appends.items()} == {"d": (5, []), "f": (5, [])}
    answer(relay, "d", 5)
    assert beat(relay, 5)[0].matches["d"] == 5


def test_purging_the_log_changes_nothing(relay: Raft) -> None:
    flush(relay)
    relay.step("a", Heartbeat(1, 2), 11)
    flush(relay)
    answer(relay, OF_B, 2)
    before = relay._relay
    relay.compact(1)
    assert beat(relay, 2)[0].matches.keys() == set(OF_B)
    assert relay._relay is before


def test_answers_from_before_a_sleep_are_not_reported(relay: Raft) -> None:
    """The learner may be dead since."""
    flush(relay)
    answer(relay, OF_B, 1)
    relay.step("a", Heartbeat(1, 1), relay.clock + SETTINGS.election_timeout_ms)
    assert not sent(flush(relay), RelayReport)


def test_a_reported_match_is_not_beyond_what_the_relay_knows(relay: Raft) -> None:
    """The learner may have got more from the leader; the relay's next append must begin within its log."""
    flush(relay)
    answer(relay, "d", 7)
    assert beat(relay, 1)[0].matches == {"d": 1}
    relay.step("a", Heartbeat(1, 2), relay.clock)
    assert sent(flush(relay), RelayedAppend, "d")[-1].prev_index == 1


def test_an_entry_is_reported_once_the_learner_acknowledged_it(relay: Raft) -> None:
    """It was sent before, but the answer is one to an earlier append."""
    flush(relay)
    answer(relay, "d", 1)
    beat(relay, 1)
    relay.step("a", Heartbeat(1, 2), relay.clock)
    assert sent(flush(relay), RelayedAppend, "d")[0].entries
    answer(relay, "d", 1)
    assert beat(relay, 2)[0].matches == {"d": 1}
    answer(relay, "d", 2)
    assert beat(relay, 2)[0].matches == {"d": 2}


def test_heartbeats_for_reads_and_commits_cause_none_to_learners(relay: Raft) -> None:
    flush(relay)
    answer(relay, OF_B, 1)
    beat(relay, 1)
    count = 0
    for read in range(1, 20):
        relay.step("a", Heartbeat(1, 1, read), relay.clock)
        count += len(sent(flush(relay), RelayedAppend))
    assert count == 0


def test_answers_to_appends_of_an_earlier_config_do_not_count(relay: Raft) -> None:
    """The learner may have been removed and added in between, on another disk."""
    flush(relay)
    config = Config(tuple("abc"), tuple(LEARNERS + "l"))
    entry = Entry(1, int(EntryKind.CONFIG), encode_config(config))
    relay.step("a", AppendRequest(1, 2, 1, 1, [entry]), relay.clock)
    relay.step("a", Heartbeat(1, 1), relay.clock)
    assert {m.addition for m in sent(flush(relay), RelayedAppend)} == {3}
    answer(relay, "f", 1)
    assert not beat(relay, 1)
    answer(relay, "f", 1, addition=3)
    assert beat(relay, 1)


# The learner


def test_a_learner_takes_entries_from_a_relay() -> None:
    raft = replica(1, node="d", term=1, learners=LEARNERS)
    raft.step("b", RelayedAppend(1, "a", 1, 1, 2, entries(1, 1)[1:], 5), 10)
    assert (raft.leader, raft.hears_leader(), raft.commit) == ("a", True, 2)
    ready = flush(raft)
    assert ready.after == [("b", AppendReply(1, True, 2, addition=5))], "once it is durable"


def test_answers_to_leader_and_relay_are_not_mixed_up() -> None:
    """Each of them counts only answers with its own number of the membership."""
    raft = replica(1, node="d", term=1, learners=LEARNERS)
    raft.step("a", AppendRequest(1, 1, 1, 1, [], 0, 3), 10)
    raft.step("b", RelayedAppend(1, "a", 1, 1, 1, [], 5), 10)
    raft.step("a", AppendRequest(1, 1, 1, 1, [], 0, 3), 10)
    assert {(to, m.addition) for to, m in flush(raft).after if isinstance(m, AppendReply)} == {
        ("a", 3),
        ("b", 5),
    }


@pytest.mark.parametrize("node", ["c", "z"])
def test_a_voter_and_an_empty_replica_listen_only_to_the_leader(node: str) -> None:
    """A relay must not keep a voter from campaigning, and an empty replica must note the leader's commit
    index (`follower.join`)."""
    raft = replica(1, node="c", learners=LEARNERS) if node == "c" else replica(node="z", voters="")
    raft.step("b", RelayedAppend(raft.term, "a", 0, 0, 1, entries(1), 0), 10)
    ready = flush(raft)
    assert raft.leader is None and not ready.after and raft.commit == 0


def test_a_relay_of_an_older_term_is_told_the_term() -> None:
    raft = replica(1, node="d", term=4, learners=LEARNERS)
    raft.step("b", RelayedAppend(3, "a", 1, 1, 1, [], 0), 10)
    assert [(to, m.term) for to, m in flush(raft).after] == [("b", 4)]


# The leader


def test_the_leader_sends_nothing_to_reported_learners(led: Raft) -> None:
    led.step("b", RelayReport(1, 0, dict.fromkeys(OF_B, 1)), led.clock)
    led.propose([b"x"], led.clock)
    flush(led)
    hold(led, "b", 2)
    assert {to for to, _ in flush(led).now} & set(LEARNERS) == set(LEARNERS) - set(OF_B)
    beats: set[str] = set()
    for _ in range(4):
        led.tick(led.deadline())
        led.step("b", RelayReport(1, 0, dict.fromkeys(OF_B, 2)), led.clock)
        beats |= {to for to, m in flush(led).now if isinstance(m, Heartbeat)}
    assert beats == {"b", "c"} | set(LEARNERS) - set(OF_B)


def test_the_leader_takes_over_learners_that_are_no_longer_reported(led: Raft) -> None:
    led.step("b", RelayReport(1, 0, dict.fromkeys(OF_B, 1)), led.clock)
    led.propose([b"x"], led.clock)
    flush(led)
    hold(led, "b", 2)
    flush(led)
    beats: set[str] = set()
    until = led.clock + SETTINGS.election_timeout_ms
    while led.clock < until:
        led.tick(led.deadline())
        beats |= {to for to, m in flush(led).now if isinstance(m, Heartbeat)}
        for peer in "bc":
            led.step(peer, HeartbeatReply(1), led.clock)
    assert set(OF_B) <= beats
    assert not sent(flush(led), AppendRequest, "d"), "it has not answered yet"
    led.step("d", HeartbeatReply(1), led.clock)
    (append,) = sent(flush(led), AppendRequest, "d")
    assert (append.prev_index, len(append.entries)) == (1, 1)


def test_a_report_of_a_config_before_the_learner_was_added_does_not_count(led: Raft) -> None:
    led.change(Config(tuple("abc"), tuple(LEARNERS + "l")), led.clock)
    led.step("b", RelayReport(1, 0, {"l": 2, "d": 1}), led.clock)
    assert led._lead is not None
    progress = led._lead.peers.progress
    assert progress["d"].is_relayed and not progress["l"].is_relayed


def test_a_reported_match_does_not_count_for_a_commit(led: Raft) -> None:
    """Only what a voter acknowledged to this leader counts."""
    led.propose([b"x"], led.clock)
    flush(led)
    hold(led, "b", 2)
    flush(led)
    led.step("b", RelayReport(1, 0, {"d": 2}), led.clock)
    led.change(Config(tuple("abcd"), tuple(LEARNERS[1:])), led.clock)
    assert led._lead is not None
    progress = led._lead.peers.progress["d"]
    assert progress.match == 1 and not progress.is_relayed
    (append,) = sent(flush(led), AppendRequest, "d")
    assert append.prev_index == 2


def test_a_relayed_learner_is_caught_up(led: Raft) -> None:
    """Otherwise no observer could be promoted in a large cluster."""
    for _ in range(3):
        led.propose([b"x"], led.clock)
        flush(led)
        hold(led, "bc", led.log.last_index)
        led.tick(led.deadline())
        flush(led)
    assert not led.caught_up("d")
    led.step("b", RelayReport(1, 0, {"d": led.commit}), led.clock)
    assert led.caught_up("d")
    assert led.status().progress["d"].match == led.commit


# Together


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """a leads; b and c relay to the learners."""
    cluster = Cluster("abc", learners=LEARNERS, relays=True)
    cluster.elect("a")
    cluster.tick(3 * SETTINGS.heartbeat_ms)
    yield cluster
    for name in set(cluster.nodes) - cluster.down:
        assert cluster.nodes[name].applied == cluster["a"].log.last_index, name


def from_leader(cluster: Cluster, leader: str = "a") -> set[str]:
    """The nodes to which the leader sends something within three heartbeats, with an entry."""
    found: set[str] = set()
    send = cluster.send

    def watch(sender: str, messages: Messages) -> None:
        found.update(to for to, _ in messages if sender == leader)
        send(sender, messages)

    cluster.send = watch  # type: ignore[method-assign]
    cluster[leader].propose([b"x"], cluster.clock)
    cluster.tick(3 * SETTINGS.heartbeat_ms)
    cluster.send = send  # type: ignore[method-assign]
    return found


def test_the_leader_sends_to_voters_only(cluster: Cluster) -> None:
    """Its work per entry does not grow with the number of learners."""
    assert from_leader(cluster) == {"b", "c"}


def test_learners_of_a_relay_that_is_down_get_entries_from_the_leader(cluster: Cluster) -> None:
    cluster.crash("b")
    cluster["a"].propose([b"x"], cluster.clock)
    cluster.tick(SETTINGS.election_timeout_ms)
    assert {cluster.nodes[n].applied for n in OF_B} == {cluster["a"].log.last_index}
    assert from_leader(cluster) == {"b", "c", *OF_B}
    cluster.restart("b")
    cluster.tick(SETTINGS.election_timeout_ms)
    assert from_leader(cluster) == {"b", "c"}


@pytest.mark.parametrize("stuck", ["appends", "disk"])
def test_a_voter_that_stands_still_does_not_keep_learners_from_the_leader(
    cluster: Cluster, stuck: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers heartbeats and hears from its learners, which would be content with what it knows."""
    relay, send = cluster.nodes["b"], cluster.send

    def without_appends(sender: str, messages: Messages) -> None:
        send(sender, [(to, m) for to, m in messages if to != "b" or not isinstance(m, AppendRequest)])

    if stuck == "disk":
        monkeypatch.setattr(relay, "work", relay.collect)
    else:
        monkeypatch.setattr(cluster, "send", without_appends)
    for _ in range(4 * SETTINGS.election_timeout_ms // SETTINGS.heartbeat_ms):
        cluster["a"].propose([b"x"], cluster.clock)
        cluster.tick(SETTINGS.heartbeat_ms)
    lag = {n: cluster["a"].commit - cluster.nodes[n].applied for n in LEARNERS}
    assert max(lag.values()) <= 1, lag
    monkeypatch.undo()
    cluster.settle()
    cluster.tick(2 * SETTINGS.election_timeout_ms)


def test_changes_of_the_config_do_not_delay_the_takeover(cluster: Cluster) -> None:
    """A new round of heartbeats does not begin with each of them."""
    cluster.crash("b")
    for n in range(2 * SETTINGS.election_timeout_ms // SETTINGS.heartbeat_ms):
        learners = LEARNERS if n % 2 else LEARNERS + "z"
        cluster["a"].change(Config(tuple("abc"), tuple(learners)), cluster.clock)
        cluster.tick(SETTINGS.heartbeat_ms)
    lag = {n: cluster["a"].commit - cluster.nodes[n].applied for n in LEARNERS}
    assert max(lag.values()) <= 2, lag
    cluster.restart("b")
    cluster.tick(2 * SETTINGS.election_timeout_ms)


def test_a_learner_whose_entries_are_purged_gets_a_snapshot_from_the_leader(cluster: Cluster) -> None:
    cluster.crash("d")
    for n in range(5):
        cluster["a"].propose([b"%d" % n], cluster.clock)
        cluster.tick(SETTINGS.heartbeat_ms)
    for name in "abc":
        cluster.compact(name, cluster.nodes[name].applied)
    cluster.restart("d")
    cluster.tick(3 * SETTINGS.election_timeout_ms)
    assert cluster["d"].log.base.index > 0
    assert from_leader(cluster) == {"b", "c"}, "its relay sends it entries again"


def test_a_new_leader_has_other_relays(cluster: Cluster) -> None:
    cluster["a"].transfer("b", cluster.clock)
    cluster.tick(SETTINGS.election_timeout_ms)
    assert cluster["b"].role is Role.LEADER
    assert from_leader(cluster, "b") == {"a", "c"}

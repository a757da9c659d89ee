"""What a host does with what it finds on its disk and with requests no honest peer sends."""

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nodeagent.data import commands as data
from nodeagent.data.state import encode_checkpoint, initial
from nodeagent.host.admission import check_status
from nodeagent.host.handlers import evidence_at
from nodeagent.host.host import DRIVE_MS, Host
from nodeagent.host.operations import Operations
from nodeagent.host.replica import INSTALL_KEEP_MS, Saved
from nodeagent.log import Damage, GroupLog
from nodeagent.meta import commands as meta
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Base, Config, Entry, EntryKind, HardState
from nodeagent.model.files import ScanSpec
from nodeagent.model.ids import META
from nodeagent.model.jobs import Done, DropStaging, RemoveGroup, SaveCheckpoint, install_area
from nodeagent.model.requests import (
    Accepted,
    CheckStatus,
    ErrorReply,
    GetMeta,
    NodeRecord,
    OpenSource,
    ScanRows,
    SetHolds,
)
from nodeagent.model.schema import Column, TableSchema
from nodeagent.raft import RaftLog
from nodeagent.testing.sim import configs

CONFIG = configs(["a", "b", "c"], ClusterSettings("t", slots=10), 3)[0]
MEMBERS = Config(("a", "b", "c"))


def found(term: int) -> GroupLog:
    """A group's log at its beginning; term 0 and no members: the log knows nothing of it."""
    return GroupLog(Base(1, 0, MEMBERS) if term else Base(0, 0, Config()), HardState(term), [])


def checkpoint() -> bytes:
    state = initial("a.1", ((0, 5),))
    return msgspec.msgpack.encode(Saved(Base(1, 0, MEMBERS), encode_checkpoint(state.checkpoint())))


def open_host(term: int, *damaged: Damage, saved: bool = True) -> Host:
    groups = {"a.1": (found(term), checkpoint() if saved else None)}
    return Host.open(CONFIG, "i", groups, damaged, random.Random(1), 0, 0)


def test_damage_of_an_unknown_group_stops_every_group() -> None:
    """It may have been any group's promise, so none votes or acknowledges."""
    host = open_host(1, Damage(1, 0, "", 0, 0, "unreadable"))
    assert not host.data and set(host.damaged) == {META, "a.1"}


def test_news_of_a_commit_waits_in_data_groups_only() -> None:
    """Every node acts on what the meta group says: there 30 ms a record would make each change slower."""
    host = Host.open(CONFIG, "i", {}, (), random.Random(1), 0, 0)
    empty = RaftLog(Base(0, 0, Config()), [])
    waits = {g: host._raft(g, empty, HardState(), 0).settings.commit_news_ms for g in (META, "a.1")}
    assert waits == {META: 0, "a.1": CONFIG.raft.commit_news_ms} and waits["a.1"] > 0


def test_a_group_the_log_forgot_is_removed_and_never_run() -> None:
    """The process ended between the two halves of a removal: vote and entries are gone."""
    host = open_host(0)
    assert not host.data
    assert [j for _, j in host.take().jobs] == [RemoveGroup("a.1")]
    assert set(open_host(1).data) == {"a.1"}


def test_a_group_without_a_checkpoint_was_never_made_or_is_damaged() -> None:
    """Only a log tells the two apart: it comes after the first checkpoint."""
    unmade = open_host(0, saved=False)
    assert not unmade.damaged and [j for _, j in unmade.take().jobs] == [RemoveGroup("a.1")]
    assert set(open_host(1, saved=False).damaged) == {"a.1"}


def test_a_checkpoint_before_a_leader_is_heard_purges_nothing() -> None:
    """After a restart the state is ahead of what Raft knows to be committed; the log must wait for it."""
    opaque = Entry(1, EntryKind.COMMAND, data.encode(data.Opaque(b"x")))
    state = initial("a.1", ((0, 5),))
    state.apply(2, [opaque] * 3, 0)
    payload = msgspec.msgpack.encode(Saved(Base(1, 0, MEMBERS), encode_checkpoint(state.checkpoint())))
    log = GroupLog(Base(1, 0, MEMBERS), HardState(1), [opaque] * 3)
    host = Host.open(CONFIG, "i", {"a.1": (log, payload)}, (), random.Random(1), 0, 0)
    replica = host.data["a.1"]
    replica.changed()
    host.tick(1_000, 0)
    saves = [n for n, j in host.take().jobs if isinstance(j, SaveCheckpoint)]
    assert saves
    host.on_job(saves[0], Done(), 1_100)
    assert replica.state.applied == 4
    assert replica.raft.log.base.index == replica.raft.commit == 1


def test_a_snapshot_half_fetched_by_an_earlier_life_goes_unless_it_is_fetched_again() -> None:
    """Its leader may offer it once more, so it has some time. What an operation staged is not its affair."""
    groups = {"a.1": (found(1), checkpoint())}
    areas = (install_area("s1"), install_area("s2"), "op-3")
    host = Host.open(CONFIG, "i", groups, (), random.Random(1), 0, 0, areas)
    host.tick(INSTALL_KEEP_MS - 1, 0)
    assert not [j for _, j in host.take().jobs if isinstance(j, DropStaging)]
    host.data["a.1"]._installing = "s2"
    host.tick(INSTALL_KEEP_MS + 1, 0)
    assert [j for _, j in host.take().jobs if isinstance(j, DropStaging)] == [DropStaging(install_area("s1"))]


@pytest.mark.parametrize(
    "command,good",
    [
        (meta.encode(meta.MetaReady(1, "op-1")), True),
        (b"\xc1garbage", False),
        (meta.encode(meta.PutSchema(1, TableSchema("g", "t", 1, ()))), False),
        (meta.encode(meta.SteerOperation(1, "op-1", "dead", "", node="a")), False),
    ],
)
def test_only_evidence_is_forwarded_into_the_meta_log(command: bytes, good: bool) -> None:
    assert (evidence_at(9, command) is not None) is good


def test_what_is_reported_gets_the_time_of_the_leader() -> None:
    """The clock of who reports may be hours off: a hold that began by it would end too early or too late."""
    at = evidence_at(9, meta.encode(meta.AdoptedBy(1, "op-1", "a.1", 5)))
    assert at == meta.encode(meta.AdoptedBy(9, "op-1", "a.1", 5))


@pytest.mark.parametrize("slots", [((0, 1 << 60),), ((5, 3),), ((-1, 2),), ((0, 11),)])
def test_slots_that_do_not_exist_are_refused_before_they_are_expanded(
    slots: tuple[tuple[int, int], ...],
) -> None:
    host = open_host(1)
    spec = ScanSpec(TableSchema("g", "t", 1, ()))
    for request in (ScanRows("a.1", "g", spec, slots=slots), OpenSource("op-1", "a.1", slots)):
        host.on_request(7, request, 0, 0)
        (token, reply) = host.take().replies[0]
        assert token == 7 and isinstance(reply, ErrorReply) and reply.code == "invalid_input"


def test_a_node_that_reads_of_its_own_retirement_serves_nobody() -> None:
    """What others send it still arrives, so it may learn this before any of them refuses it."""
    host = open_host(1)
    host.meta.image.retired.append("i")
    host.on_request(7, GetMeta(), 0, 0)
    (_, reply) = host.take().replies[0]
    assert isinstance(reply, ErrorReply) and reply.code == "unavailable" and "retired" in reply.what
    host.meta.image.retired.remove("i")  # the removal was cancelled
    assert not host.outcast


COLUMNS = (Column("d", "STRING", True), Column("v", "DOUBLE", False))


@pytest.mark.parametrize(
    "spec",
    [
        ScanSpec(TableSchema("g", "t", 1, COLUMNS), tags=(("v", "3"),)),
        ScanSpec(TableSchema("g", "t", 1, COLUMNS), tags=(("x", "3"),)),
        ScanSpec(TableSchema("g", "t", 1, COLUMNS), fields=("x",)),
        ScanSpec(TableSchema("g", "t", 1, (Column("v", "STRING", True),)), tags=(("v", "3"),)),
    ],
)
def test_a_scan_for_what_the_table_does_not_have_costs_no_file(spec: ScanSpec) -> None:
    """The TsFile package raises on such names, and its process is replaced after every error."""
    host = open_host(1)
    host.meta.schemas["g", "t"] = TableSchema("g", "t", 1, COLUMNS)
    host.take()
    host.on_request(7, ScanRows("a.1", "g", spec, "weak"), 0, 0)
    did = host.take()
    (token, reply) = did.replies[0]
    assert token == 7 and isinstance(reply, ErrorReply) and reply.code == "invalid_input" and not did.jobs


@pytest.mark.parametrize("incarnation,member,known", [("i-a", True, False), ("other", False, True)])
def test_a_seed_that_was_late_is_known_by_its_incarnation(
    incarnation: str, member: bool, known: bool
) -> None:
    """The others may form the cluster while it restarts: it belongs to it all the same."""
    state = MetaState()
    state.image.cluster_id = "id"
    state.image.nodes["a"] = NodeRecord("a", "a", 1, 2, "i-a", 0)
    asked = CheckStatus("a", incarnation, "a", 1, 2, CONFIG.cluster, CONFIG.seeds, False)
    answer = check_status(CONFIG, "i-b", state, True, asked)
    assert (answer.member, answer.known) == (member, known)


def test_seeds_that_disagree_on_weights_form_no_cluster() -> None:
    """The first leader's list would decide alone."""
    heavier = (msgspec.structs.replace(CONFIG.seeds[0], weight=2.0), *CONFIG.seeds[1:])
    asked = CheckStatus("b", "i", "b", 1, 2, CONFIG.cluster, heavier, False)
    assert check_status(CONFIG, "i-a", MetaState(), True, asked).conflicts == ("seeds",)


def test_the_next_step_of_a_change_follows_the_entry_it_waits_for() -> None:
    """Slots stand closed between the steps: the host goes on when the entry is applied, not at a tick."""
    replica: Any = SimpleNamespace(group="a.1", raft=SimpleNamespace(term=2), seen=4, propose=lambda batch: 5)
    host: Any = SimpleNamespace(data={"a.1": replica})
    operations = Operations(host)
    operations._propose(replica, [b"seal", b"open"])
    assert not operations.is_due()
    replica.seen = 6
    assert operations.is_due() and not operations.is_due()


def test_the_host_drives_between_two_ticks_when_a_step_is_due() -> None:
    host = open_host(1)
    host.take()  # the first tick
    driven: list[int] = []
    due = [True]
    operations: Any = host.operations
    operations.drive = lambda: driven.append(1)
    operations.is_due = lambda: bool(due) and due.pop()
    host.take()
    assert driven == [1] and host.desk.now < DRIVE_MS
    host.take()
    assert driven == [1]


@pytest.mark.parametrize("may_hold", [False, True])
def test_hold_points_are_refused_by_an_agent_not_started_for_tests(may_hold: bool) -> None:
    host = open_host(1)
    host.operations.may_hold = may_hold
    host.handlers.on_request(1, SetHolds(("after:OPEN",)))
    _, reply = host.take().replies[0]
    assert isinstance(reply, Accepted if may_hold else ErrorReply)
    assert host.operations.holds == (frozenset({"after:OPEN"}) if may_hold else frozenset())
    host.handlers.on_request(2, SetHolds(("after:LUNCH",)))
    _, unknown = host.take().replies[0]
    assert isinstance(unknown, ErrorReply)


def test_a_node_that_left_is_named_as_a_peer_no_longer() -> None:
    """Metrics go by this: an alert on its silence would never end."""
    host = open_host(1)
    host.heard = {"b": 0, "gone": 0}
    assert set(host.node_status(5, 0).heard_ms) == {"b", "gone"}, "who is a member is not known yet"
    host.meta.image.nodes = {n: NodeRecord(n, "h", 1, 1, "i", 0) for n in ("a", "b")}
    assert host.node_status(5, 0).heard_ms == {"b": 5}

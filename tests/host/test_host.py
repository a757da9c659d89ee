"""How a host treats the contents of its disk, and requests that no correct peer sends."""

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nodeagent.data import commands as data
from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.data.compaction import cut_off
from nodeagent.data.state import initial
from nodeagent.host.admission import check_status
from nodeagent.host.bootstrap import AGAIN_MS, Bootstrap
from nodeagent.host.effect_queue import EffectQueue, To
from nodeagent.host.found import lost_meta
from nodeagent.host.group_steps import GroupSteps
from nodeagent.host.handlers.leading import report_at
from nodeagent.host.handlers.probes import Probes
from nodeagent.host.host import DRIVE_MS, Host
from nodeagent.host.installs import INSTALL_KEEP_MS
from nodeagent.host.reports import REFUSED_AGAIN_MS, REPORT_AGAIN_MS
from nodeagent.host.saved import Saved
from nodeagent.host.session_parts import SEAL_WAIT_MS
from nodeagent.log import Damage, GroupLog
from nodeagent.meta import commands as meta
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Base, Config, Entry, EntryKind, Forget, HardState, Rebase, SetHard
from nodeagent.model.errors import EntryFailed, InvariantBroken
from nodeagent.model.files import FileMeta, ScanSpec
from nodeagent.model.ids import META, Owner, PartitionKey
from nodeagent.model.jobs import (
    CheckpointSaved,
    Done,
    DropStaging,
    Failed,
    FilesHashed,
    HashFiles,
    Installed,
    InstallSnapshot,
    Job,
    RemoveGroup,
    SaveCheckpoint,
    install_area,
)
from nodeagent.model.limits import ENTRY_BYTES_MAX
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.operation import Operation, Options, Stage
from nodeagent.model.raft_messages import AppendRequest, Heartbeat, Routed, SnapshotOffer
from nodeagent.model.requests import (
    Accepted,
    CheckFiles,
    CheckStatus,
    ControlOperation,
    DeleteRows,
    ErrorReply,
    ExportFiles,
    Forward,
    GetAudit,
    GetManifest,
    GetMeta,
    GetOperation,
    GetRuns,
    GetSealedSessions,
    GetWriteRates,
    GroupRecord,
    ListPartitions,
    LockReply,
    NodeRecord,
    OpenSession,
    OpenSource,
    PartitionsListed,
    Propose,
    Reply,
    Request,
    RowsScanned,
    ScanRows,
    SealedSessions,
    SessionOpened,
    SetFailpoints,
    TakeLock,
    Write,
    Written,
)
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.hash import slot_of
from nodeagent.raft import RaftLog
from nodeagent.raft.core import Raft
from nodeagent.raft.state import Role
from nodeagent.scaling import membership
from nodeagent.testing.node import configs
from nodeagent.wire.codec import encode_raft
from tests.host.opened import opened

CONFIG = configs(["a", "b", "c"], ClusterSettings("t", slots=10), 3)[0]
MEMBERS = Config(("a", "b", "c"))
ME = Owner("a", "i", 1)


def found(term: int) -> GroupLog:
    """A group's log at its beginning; with term 0 and no members the log has no record of the group."""
    return GroupLog(Base(1, 0, MEMBERS) if term else Base(0, 0, Config()), HardState(term), [])


def checkpoint() -> bytes:
    state = initial("a.1", ((0, 5),))
    return msgspec.msgpack.encode(Saved(Base(1, 0, MEMBERS), encode_checkpoint(state.checkpoint())))


def open_host(term: int, *damaged: Damage, saved: bool = True) -> Host:
    groups = {"a.1": (found(term), checkpoint() if saved else None)}
    return opened(CONFIG, groups, damaged)


def test_damage_of_an_unknown_group_stops_every_group() -> None:
    """The lost record may be a promise of any group, so no group votes or acknowledges."""
    host = open_host(1, Damage(1, 0, "", 0, 0, "unreadable"))
    assert not host.replicas.data and set(host.replicas.damaged) == {META, "a.1"}


def test_news_of_a_commit_waits_in_data_groups_only() -> None:
    """Every node acts on the meta state: 30 ms per record there would make each change slower."""
    host = opened(CONFIG, {})
    empty = RaftLog(Base(0, 0, Config()), [])
    waits = {g: host.builder.raft(g, empty, HardState(), 0).settings.commit_news_ms for g in (META, "a.1")}
    assert waits == {META: 0, "a.1": CONFIG.raft.commit_news_ms} and waits["a.1"] > 0


def settled_host(
    groups: dict[str, Any],
    *records: GroupRecord,
    holding: Sequence[str] = (),
    left: dict[str, HardState] | None = None,
    logged: Sequence[Entry] = (),
) -> Host:
    """Node a with a meta checkpoint that holds `records`, the meta log after it, and the other `groups`."""
    image = Image(cluster_id="c", applied=5, groups={r.group: r for r in records})
    saved = Saved(Base(5, 1, MEMBERS), MetaState(image).encode(), group=META, owner=ME)
    meta_log = GroupLog(Base(5, 1, MEMBERS), HardState(1), list(logged))
    both = {META: (meta_log, msgspec.msgpack.encode(saved)), **groups}
    return opened(CONFIG, both, start=3, holding=holding, left=left or {})


def jobs_of(host: Host) -> list[Job]:
    return [job for _, job in host.take().jobs]


def used() -> bytes:
    """A checkpoint of a group that was written to."""
    state = initial("a.1", ((0, 5),))
    state.apply(2, [Entry(1, EntryKind.COMMAND, data.encode(data.Opaque(b"x")))], 0)
    saved = Saved(Base(2, 1, MEMBERS), encode_checkpoint(state.checkpoint()), group="a.1", owner=ME)
    return msgspec.msgpack.encode(saved)


@pytest.mark.parametrize("members,stays", [(("b", "c", "d"), False), (("a", "b", "c"), True)])
def test_a_replica_that_joined_for_a_cancelled_operation_is_removed(members: Any, stays: bool) -> None:
    """It stays if the node has become a member in the meantime."""
    record = GroupRecord("a.1", "b", MEMBERS.voters, MEMBERS.voters, ((0, 5),))
    host = settled_host({"a.1": (found(1), checkpoint())}, record)
    assert "a.1" in host.replicas.data
    host.cluster.meta.image.groups["a.1"] = msgspec.structs.replace(record, members=members)
    host.lifecycle._joined = {"a.1": "op-9"}
    host.lifecycle.sync()
    assert ("a.1" in host.replicas.data) == stays


@pytest.mark.parametrize("payload,holding", [(used(), ()), (None, ("a.1",)), (checkpoint(), ("a.1",))])
def test_data_without_a_record_in_the_log_is_kept_and_damaged(payload: bytes | None, holding: Any) -> None:
    """While the meta state says that the node is a member, or says nothing, the replica does not run, is not
    recreated from its first members, and keeps its files."""
    groups = {"a.1": (found(0), payload)}
    member = GroupRecord("a.1", "a", MEMBERS.voters, MEMBERS.voters, ((0, 5),))
    alone = opened(CONFIG, groups, holding=holding)
    for host in (alone, settled_host(groups, member, holding=holding)):
        assert "the log has no record of" in host.replicas.damaged["a.1"] and not host.replicas.data
        host.tick(10_000, 0)
        assert not jobs_of(host)


@pytest.mark.parametrize("payload", [used(), checkpoint(), None])
def test_data_without_a_record_in_the_log_is_removed_if_the_meta_state_says_so(payload: bytes | None) -> None:
    """The process ended in the middle of a removal that a committed entry began."""
    members = ("b", "c", "d")
    gone = GroupRecord("a.1", "a", members, MEMBERS.voters, ((0, 5),))
    for records in ([gone], []):
        host = settled_host({"a.1": (found(0), payload)}, *records, holding=("a.1",))
        assert jobs_of(host) == [RemoveGroup("a.1")] and not host.replicas.damaged and not host.replicas.data
    assert set(open_host(1).replicas.data) == {"a.1"}


def test_no_group_is_removed_after_a_start_before_the_meta_state_is_as_new_as_its_log() -> None:
    """The checkpoint may be older than the group, which a later entry created, so no file is removed."""
    noop = Entry(1, EntryKind.NOOP, b"")
    host = settled_host({"a.1": (found(1), checkpoint())}, logged=[noop] * 2)
    for commit in (5, 6):
        host.on_raft("b", [Routed(META, Heartbeat(1, commit))], 10)
        assert host.take().persist is None
        assert set(host.replicas.data) == {"a.1"} and host.cluster.meta.applied == commit
    host.on_raft("b", [Routed(META, Heartbeat(1, 7))], 10)
    persist = host.take().persist
    assert persist is not None and persist[1] == [Forget("a.1")], "the group is gone"


def test_a_group_whose_creation_was_interrupted_is_created_again() -> None:
    """Its directory holds the first checkpoint or none, no file, and nothing was promised."""
    member = GroupRecord("a.1", "a", MEMBERS.voters, MEMBERS.voters, ((0, 5),))
    for payload in (checkpoint(), None):
        host = settled_host({"a.1": (found(0), payload)}, member)
        (job,) = jobs_of(host)
        assert isinstance(job, SaveCheckpoint) and job.group == "a.1" and not host.replicas.damaged


def test_a_log_without_its_checkpoint_is_damage() -> None:
    """A data group's checkpoint is written before its first log record, the meta group's before its log is
    purged."""
    assert "is missing" in open_host(1, saved=False).replicas.damaged["a.1"]
    joining = GroupLog(Base(0, 0, Config()), HardState(1), [])
    host = opened(CONFIG, {"a.1": (joining, None)})
    assert "is missing" in host.replicas.damaged["a.1"], "it recorded a term before it got a state"
    meta_log = GroupLog(Base(5, 1, MEMBERS), HardState(1), [])
    host = opened(CONFIG, {META: (meta_log, None)})
    assert "is missing" in host.replicas.damaged[META] and host.cluster.meta_replica is None
    whole = GroupLog(Base(0, 0, MEMBERS), HardState(1), [])
    assert not opened(CONFIG, {META: (whole, None)}).replicas.damaged


@pytest.mark.parametrize(
    "owner,base,group,why",
    [
        (Owner("b", "j", 1), 2, "a.1", "is that of b j"),
        (Owner("a", "other", 1), 2, "a.1", "is that of a other"),
        (Owner("a", "i", 4), 2, "a.1", "was written in start 4"),
        (Owner("a", "i", 1), 1, "a.1", "is an older one: it ends at entry 1, the log begins after 2"),
        (Owner("a", "i", 1), 2, "b.1", "is that of group b.1"),
    ],
)
def test_a_checkpoint_of_another_node_time_or_group_is_damage(
    owner: Owner, base: int, group: str, why: str
) -> None:
    """It is noticed before the group continues from it, and the disk is unchanged after the start."""
    state = initial("a.1", ((0, 5),))
    log = GroupLog(Base(2, 1, MEMBERS), HardState(1), [])
    fitting = Saved(Base(2, 1, MEMBERS), encode_checkpoint(state.checkpoint()), group="a.1", owner=ME)
    foreign = msgspec.structs.replace(fitting, base=Base(base, 1, MEMBERS), group=group, owner=owner)
    member = GroupRecord("a.1", "a", MEMBERS.voters, MEMBERS.voters, ((0, 5),))
    assert "a.1" in settled_host({"a.1": (log, msgspec.msgpack.encode(fitting))}, member).replicas.data
    host = settled_host({"a.1": (log, msgspec.msgpack.encode(foreign))}, member)
    assert why in host.replicas.damaged["a.1"] and not host.replicas.data and not jobs_of(host)


@pytest.mark.parametrize(
    "owner,group,state,why",
    [
        (Owner("b", "j", 1), META, None, "data/groups/meta/checkpoint is that of b j, this is a i"),
        (Owner("a", "j", 1), META, None, "data/groups/meta/checkpoint is that of a j, this is a i"),
        (ME, "a.1", None, "data/groups/meta/checkpoint is that of group a.1"),
        (ME, META, msgspec.msgpack.encode({"applied": "x"}), "of meta was written by a release"),
        (ME, META, b"\xc1", "of meta was written by a release"),
    ],
)
def test_a_meta_checkpoint_of_another_node_cluster_or_release_is_damage(
    owner: Owner, group: str, state: bytes | None, why: str
) -> None:
    """The node's groups are not known: it creates, removes, requests and leads nothing."""
    image = Image(cluster_id="other", applied=5, groups={})
    saved = Saved(Base(5, 1, MEMBERS), state or MetaState(image).encode(), group=group, owner=owner)
    groups = {
        META: (GroupLog(Base(5, 1, MEMBERS), HardState(1), []), msgspec.msgpack.encode(saved)),
        "a.1": (found(1), checkpoint()),
        "b.1": (found(0), None),
    }
    host = opened(CONFIG, groups, start=3)
    assert (
        why in host.replicas.damaged[META]
        and host.cluster.meta_replica is None
        and host.status.state() == "damaged"
    )
    assert host.replicas.data["a.1"].raft.passive
    host.tick(60_000, 0)
    effects = host.take()
    assert not effects.jobs and not effects.calls


def test_a_meta_group_without_a_record_in_the_log_is_damage_if_there_is_data() -> None:
    """Every node follows it before it joins any other group, so its log was lost: the node does not
    rejoin."""
    blank = {"a.1": (found(0), checkpoint())}
    for groups in ({"a.1": (found(1), checkpoint())}, {"a.1": (found(0), used())}):
        assert "has no record of the meta group" in lost_meta(groups, ())
        assert not lost_meta(groups | {META: (found(1), None)}, ())
        assert lost_meta(groups | {META: (found(0), None)}, ()), "its directory alone is no log"
    assert lost_meta(blank, ["a.1"]) and not lost_meta(blank, ()) and not lost_meta({}, ())
    host = opened(CONFIG, {META: (found(0), checkpoint())})
    assert (
        "has no record of the meta group" in host.replicas.damaged[META] and host.status.state() == "damaged"
    )
    host.tick(10_000, 0)
    assert not host.take().calls, "it asks no node for admission"


def test_a_node_without_its_meta_state_leads_nothing_and_sends_clients_elsewhere() -> None:
    """It votes and follows in its data groups, but does not know their slots."""
    groups = {"a.1": (found(1), checkpoint())}
    host = opened(CONFIG, groups, [Damage(0, 0, META, 0, 0, "bad")])
    host.tick(60_000, 0)
    host.take()
    assert host.replicas.data["a.1"].raft.role is Role.FOLLOWER
    requests: list[Request] = [GetMeta(), ListPartitions("a.1", slots=((0, 5),)), OpenSession("a.1")]
    for token, request in enumerate(requests):
        host.on_request(token, request, 60_000, 0)
        ((_, reply),) = host.take().replies
        assert isinstance(reply, ErrorReply) and reply.code == "unavailable" and "bad" in reply.what


def test_nothing_is_saved_or_installed_before_the_log_knows_of_a_replica() -> None:
    """After a power cut, a checkpoint without a log would look as if the log were lost."""
    member = GroupRecord("a.1", "a", MEMBERS.voters, MEMBERS.voters, ((0, 5),))
    host = settled_host({}, member)
    effects = host.take()
    host.on_job(effects.jobs[0][0], Done(), 1)
    replica = host.replicas.data["a.1"]
    replica.context.unsaved.add()
    persist = host.take().persist
    assert persist is not None
    host.tick(20_000, 0)
    offer = Routed("a.1", SnapshotOffer(9, Base(9, 1, MEMBERS), "5" * 32))
    host.on_raft("b", [offer], 20_000)
    assert not jobs_of(host)
    host.on_persisted(persist[0], 20_001)
    host.on_raft("b", [offer], 20_002)
    assert any(isinstance(job, InstallSnapshot) for job in jobs_of(host))


def test_nothing_is_saved_before_the_log_knows_of_a_replica_and_then_it_is() -> None:
    member = GroupRecord("a.1", "a", MEMBERS.voters, MEMBERS.voters, ((0, 5),))
    host = settled_host({}, member)
    host.on_job(host.take().jobs[0][0], Done(), 1)
    host.replicas.data["a.1"].context.unsaved.add()
    persist = host.take().persist
    assert persist is not None
    host.on_persisted(persist[0], 20_001)
    host.tick(40_000, 0)
    assert any(isinstance(job, SaveCheckpoint) and job.group == "a.1" for job in jobs_of(host))


def test_what_was_applied_before_an_entry_that_stops_the_group_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their writers need not retry; the outcome of the entries after it is unknown."""
    host = leads_alone()
    replica = host.replicas.data["a.1"]

    def fails(*_: object) -> None:
        raise EntryFailed(6, "unknown", [(5, Accepted(5))])

    monkeypatch.setattr(replica.machine, "apply_entries", fails)
    replica.proposals._tokens = {5: (1, [7]), 6: (1, [8])}
    replica._apply(5, [Entry(1, EntryKind.COMMAND, b"")] * 2)
    replies = run_out(host)
    assert replies[7] == Accepted(5)
    assert isinstance(replies[8], ErrorReply) and replies[8].code == "outcome_unknown"


def test_entries_of_the_replaced_log_are_not_applied_to_an_installed_state() -> None:
    """Until the log durably begins where the new state ends, committed entries may be of the old log."""
    opaque = Entry(1, EntryKind.COMMAND, data.encode(data.Opaque(b"x")))
    groups = {"a.1": (GroupLog(Base(1, 0, MEMBERS), HardState(1), [opaque] * 3), checkpoint())}
    host = opened(CONFIG, groups)
    replica = host.replicas.data["a.1"]
    host.on_raft("b", [Routed("a.1", SnapshotOffer(1, Base(9, 1, MEMBERS), "5" * 32))], 10)
    ((number, _),) = [(n, j) for n, j in host.take().jobs if isinstance(j, InstallSnapshot)]
    later = initial("a.1", ((0, 5),))
    later.apply(2, [opaque] * 8, 0)
    saved = Saved(Base(9, 1, MEMBERS), encode_checkpoint(later.checkpoint()), sent=True, group="a.1")
    host.on_job(number, Installed(msgspec.msgpack.encode(saved), 1), 20)
    persist = host.take().persist
    assert persist is not None and replica.applied_index == 9 and not replica.is_whole
    replica._apply(2, [opaque] * 3)
    assert replica.applied_index == 9 and replica.state.applied == 9
    host.on_persisted(persist[0], 30)
    replica._apply(10, [opaque])
    assert replica.applied_index == 10 and replica.is_whole


def test_a_node_remembers_its_promises_to_a_group_that_it_leaves() -> None:
    """If the node becomes a member again, it votes as if it still had its log, but not before its first
    record contains the promises. If the group no longer exists, the node forgets them."""
    memory = HardState(3, "b", (3, 2))
    opaque = Entry(3, EntryKind.COMMAND, data.encode(data.Opaque(b"x")))
    log = GroupLog(Base(1, 0, MEMBERS), HardState(3, "b"), [opaque])
    away = GroupRecord("a.1", "b", ("b", "c"), ("b", "c"))
    host = settled_host({"a.1": (log, checkpoint())}, away)
    persist = host.take().persist
    assert persist is not None and persist[1] == [Forget("a.1", memory)]

    gone = settled_host({"a.1": (log, checkpoint())})
    persist = gone.take().persist
    assert persist is not None and persist[1] == [Forget("a.1")]
    gone = settled_host({}, left={"a.1": memory})
    persist = gone.take().persist
    assert persist is not None and persist[1] == [Forget("a.1")], (
        "the group was removed while this node was down"
    )

    member = GroupRecord("a.1", "b", ("a", "b", "c"), ("b", "c"))
    host = settled_host({}, member, left={"a.1": memory})
    ((number, job),) = host.take().jobs
    assert isinstance(job, SaveCheckpoint)
    host.on_job(number, CheckpointSaved(""), 10)
    persist = host.take().persist
    assert persist is not None
    assert persist[1][0] == SetHard("a.1", memory) and isinstance(persist[1][1], Rebase)
    assert host.replicas.data["a.1"].raft.hard == memory


def leaves_group(record: GroupRecord | None) -> tuple[Host, int]:
    """Node a removes its replica of a.1. Returns the number of the job that removes its files."""
    host = settled_host({"a.1": (found(1), checkpoint())}, *([record] if record else []))
    persist = host.take().persist
    assert persist is not None and not host.replicas.data
    host.on_persisted(persist[0], 1)
    ((number, job),) = host.take().jobs
    assert job == RemoveGroup("a.1")
    return host, number


def test_no_meta_checkpoint_drops_a_group_before_its_files_are_removed() -> None:
    """A restart from it would take the rest of the directory for data whose log is lost."""
    host, number = leaves_group(None)
    assert host.cluster.meta_replica is not None
    host.cluster.meta_replica.context.unsaved.add()
    for now in range(200, 60_000, 200):
        host.tick(now, 0)
        assert not [j for j in jobs_of(host) if isinstance(j, SaveCheckpoint)]
    host.on_job(number, Done(), 60_000)
    host.tick(60_200, 0)
    ((_, job),) = [(n, j) for n, j in host.take().jobs if isinstance(j, SaveCheckpoint)]
    assert job.group == META


def test_a_group_that_returns_is_created_once_its_old_files_are_removed() -> None:
    """Otherwise the removal would delete the new replica's first checkpoint, from which its log continues."""
    members = ("b", "c", "d")
    host, number = leaves_group(GroupRecord("a.1", "a", members, MEMBERS.voters, ((0, 5),)))
    host.cluster.meta.image.groups["a.1"] = GroupRecord(
        "a.1", "a", (*members, "a"), MEMBERS.voters, ((0, 5),)
    )
    host.on_meta()
    assert not jobs_of(host)
    host.on_job(number, Done(), 2)
    (job,) = jobs_of(host)
    assert isinstance(job, SaveCheckpoint) and job.group == "a.1"


@pytest.mark.parametrize("level", ["mid", "weak"])
def test_no_read_is_answered_before_the_rows_are_back_in_memory(level: str) -> None:
    """After a restart some rows are only in the log, and no age would show that they are missing."""
    host = leads_alone()
    host.replicas.data["a.1"].state.rows.recovered_to = 99
    requests: list[Request] = [ScanRows("a.1", "g", SPEC, level), ListPartitions("a.1", read=level)]
    for token, request in enumerate(requests):
        host.on_request(token, request, 3_000, 3_000)
        ((_, reply),) = host.take().replies
        assert isinstance(reply, ErrorReply) and "still recovering" in reply.what


def test_a_proposal_is_answered_for_its_own_entry_only() -> None:
    """Another leader's entry at the same index acknowledges nothing; after a loss of leadership the outcome
    is unknown."""
    host = leads_alone()
    replica = host.replicas.data["a.1"]
    replica.proposals._tokens = {5: (1, [7]), 6: (1, [8])}
    replica.proposals.answer(5, [Entry(2, EntryKind.COMMAND, b"")], [(5, Accepted(5))])
    reply = run_out(host)[7]
    assert isinstance(reply, ErrorReply) and reply.code == "not_leader"
    replica.raft.abstain(3_000)
    reply = run_out(host)[8]
    assert isinstance(reply, ErrorReply) and reply.code == "outcome_unknown"


def test_a_checkpoint_before_a_leader_is_heard_purges_nothing() -> None:
    """After a restart the state is ahead of the commit index that Raft knows; the log must not be purged."""
    opaque = Entry(1, EntryKind.COMMAND, data.encode(data.Opaque(b"x")))
    state = initial("a.1", ((0, 5),))
    state.apply(2, [opaque] * 3, 0)
    payload = msgspec.msgpack.encode(Saved(Base(1, 0, MEMBERS), encode_checkpoint(state.checkpoint())))
    log = GroupLog(Base(1, 0, MEMBERS), HardState(1), [opaque] * 3)
    host = opened(CONFIG, {"a.1": (log, payload)})
    replica = host.replicas.data["a.1"]
    replica.context.unsaved.add()
    host.tick(1_000, 0)
    saves = [n for n, j in host.take().jobs if isinstance(j, SaveCheckpoint)]
    assert saves
    host.on_job(saves[0], Done(), 1_100)
    assert replica.state.applied == 4
    assert replica.raft.log.base.index == replica.raft.commit == 1


def test_a_snapshot_half_pulled_by_an_earlier_process_is_removed_unless_it_is_pulled_again() -> None:
    """Its leader may offer it again, so it stays for a while. Staged files of operations are not touched."""
    groups = {"a.1": (found(1), checkpoint())}
    areas = (install_area("s1"), install_area("s2"), "op-3")
    host = opened(CONFIG, groups, staged=areas)
    host.tick(INSTALL_KEEP_MS - 1, 0)
    assert not [j for _, j in host.take().jobs if isinstance(j, DropStaging)]
    host.replicas.data["a.1"].condition.installing = "s2"
    host.tick(INSTALL_KEEP_MS + 1, 0)
    assert [j for _, j in host.take().jobs if isinstance(j, DropStaging)] == [DropStaging(install_area("s1"))]


def test_a_snapshot_that_is_offered_again_keeps_its_area() -> None:
    """This holds even if the first removal failed."""
    groups = {"a.1": (found(1), checkpoint())}
    host = opened(CONFIG, groups, staged=(install_area("s1"),))
    host.tick(INSTALL_KEEP_MS, 0)
    ((number, _),) = [(n, j) for n, j in host.take().jobs if isinstance(j, DropStaging)]
    host.on_job(number, Failed("unavailable", "io"), INSTALL_KEEP_MS)
    assert host.effects.unremoved
    host.replicas.data["a.1"].condition.installing = "s1"
    host.tick(INSTALL_KEEP_MS + 5_000, 0)
    assert not [j for _, j in host.take().jobs if isinstance(j, DropStaging)] and not host.effects.unremoved


@pytest.mark.parametrize(
    "command,good",
    [
        (meta.encode(meta.MetaReady(1, "op-1")), True),
        (b"\xc1garbage", False),
        (meta.encode(meta.PutSchema(1, TableSchema("g", "t", 1, ()))), False),
        (meta.encode(meta.ControlOperation(1, "op-1", "dead", "", node="a")), False),
    ],
)
def test_only_progress_reports_are_forwarded_into_the_meta_log(command: bytes, good: bool) -> None:
    assert (report_at(9, command) is not None) is good


def test_a_progress_report_gets_the_time_of_the_leader() -> None:
    """The reporting node's clock may be hours off: a hold timed by it would end too early or too late."""
    at = report_at(9, meta.encode(meta.AdoptedBy(1, "op-1", "a.1", 5)))
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


@pytest.mark.parametrize("shard", [-1, CONFIG.cluster.shards, CONFIG.cluster.shards + 1])
def test_an_unknown_shard_is_refused(shard: int) -> None:
    """This includes deletes, and a cluster of one shard, in which the slot does not depend on the shard."""
    host = leads_alone()
    key = PartitionKey("g", 0, shard)
    for slot in range(CONFIG.cluster.slots):
        write = Write("a.1", slot, key, "t", 1, "s", 1, 0, 1, b"")
        delete = DeleteRows("a.1", slot, key, "t", "s", 1, 0, (), 0, 1)
        requests: list[Request] = [write, delete]
        for token, request in enumerate(requests, 1):
            host.on_request(token, request, 3_000, 3_000)
            reply = run_out(host)[token]
            assert isinstance(reply, ErrorReply) and f"shard {shard}:" in reply.what


def test_a_write_that_acknowledges_itself_is_refused() -> None:
    """A later write of the session would pass for a duplicate. Deletes are counted with the writes."""
    host = leads_alone()
    key = PartitionKey("g", 0, 0)
    for token, (sequence, settled) in enumerate([(1, 1), (0, 0), (3, 7), (1, -1)], 1):
        write = Write("a.1", 1, key, "t", 1, "s", sequence, settled, 1, b"")
        delete = DeleteRows("a.1", 1, key, "t", "s", sequence, settled, (), 0, 1)
        for at, request in ((token, write), (10 * token, delete)):
            host.on_request(at, request, 3_000, 3_000)
            reply = run_out(host)[at]
            assert isinstance(reply, ErrorReply) and "sequences begin at 1" in reply.what


def test_slots_named_many_times_are_refused_before_they_are_expanded() -> None:
    """Each range is valid, but together they are more slots than there are."""
    host = leads_alone()
    host.on_request(1, GetManifest("a.1", ((0, 10), (0, 10))), 3_000, 3_000)
    reply = run_out(host)[1]
    assert isinstance(reply, ErrorReply) and reply.code == "invalid_input"


def test_a_node_that_reads_its_own_retirement_in_the_log_serves_nobody() -> None:
    """Messages still reach the node, so it may learn this before a peer refuses it."""
    host = open_host(1)
    host.cluster.meta.image.retired.append("i")
    host.on_request(7, GetMeta(), 0, 0)
    (_, reply) = host.take().replies[0]
    assert isinstance(reply, ErrorReply) and reply.code == "unavailable" and "retired" in reply.what
    host.cluster.meta.image.retired.remove("i")  # the removal was cancelled
    assert not host.own_membership.fenced_reason


COLUMNS = (Column("d", "STRING", True), Column("v", "DOUBLE", False))


@pytest.mark.parametrize(
    "spec",
    [
        ScanSpec(TableSchema("g", "t", 1, COLUMNS), tags=(("v", "3"),)),
        ScanSpec(TableSchema("g", "t", 1, COLUMNS), tags=(("x", "3"),)),
        ScanSpec(TableSchema("g", "t", 1, COLUMNS), fields=("x",)),
        ScanSpec(TableSchema("g", "t", 1, (Column("v", "STRING", True),)), tags=(("v", "3"),)),
        ScanSpec(TableSchema("g", "t", 1, (Column("v", "NO TYPE", False),))),
        ScanSpec(TableSchema("g", "t", 1, (Column("v", "DOUBLE", False), Column("v", "DOUBLE", False)))),
        ScanSpec(TableSchema("g", "t", 1, (Column("time", "INT64", False),))),
    ],
)
def test_a_scan_for_unknown_columns_opens_no_file(spec: ScanSpec) -> None:
    """The TsFile package raises on such names, and its process is replaced after every error."""
    host = open_host(1)
    host.cluster.meta.tables.schemas["g", "t"] = TableSchema("g", "t", 1, COLUMNS)
    host.take()
    host.on_request(7, ScanRows("a.1", "g", spec, "weak"), 0, 0)
    did = host.take()
    (token, reply) = did.replies[0]
    assert token == 7 and isinstance(reply, ErrorReply) and reply.code == "invalid_input" and not did.jobs


def test_the_first_leader_creates_the_cluster_once_the_seeds_have_answered() -> None:
    """It checks repeatedly, with one timer."""
    host, looked = opened(CONFIG, {}), []
    cluster: Any = SimpleNamespace(meta_replica=SimpleNamespace())
    silent: Any = SimpleNamespace(ask_missing=lambda: False)
    bootstrap = Bootstrap(host.context, cluster, silent, lambda: looked.append(host.effects.now))
    for _ in range(2):
        bootstrap.propose()
        bootstrap.propose()
        host.effects.now += AGAIN_MS
        host.effects.fire()
    assert looked == [AGAIN_MS, 2 * AGAIN_MS]


@pytest.mark.parametrize("incarnation,member,known", [("i-a", True, False), ("other", False, True)])
def test_a_seed_that_was_late_is_known_by_its_incarnation(
    incarnation: str, member: bool, known: bool
) -> None:
    """The others may form the cluster while the seed restarts; it is a member nevertheless."""
    state = MetaState()
    state.image.cluster_id = "id"
    state.image.nodes["a"] = NodeRecord("a", "a", 1, 2, "i-a", 0)
    asked = CheckStatus("a", incarnation, "a", 1, 2, CONFIG.cluster, CONFIG.seeds, False)
    answer = check_status(CONFIG, "i-b", state, True, asked)
    assert (answer.member, answer.known) == (member, known)


@pytest.mark.parametrize(
    "other,conflicts", [({}, ()), ({"weight": 2.0}, ("seeds",)), ({"port": 9999}, ("seeds",))]
)
def test_seeds_that_disagree_form_no_cluster(other: dict[str, Any], conflicts: tuple[str, ...]) -> None:
    """Otherwise the first leader's list alone would decide."""
    seeds = (msgspec.structs.replace(CONFIG.seeds[0], **other), *CONFIG.seeds[1:])
    asked = CheckStatus("b", "i", "b", 1, 2, CONFIG.cluster, seeds, False)
    assert check_status(CONFIG, "i-a", MetaState(), True, asked).conflicts == conflicts


def test_the_next_step_of_a_change_follows_the_entry_it_waits_for() -> None:
    """Slots are closed between the steps, so the host continues when the entry is applied, not at a tick."""
    raft = SimpleNamespace(term=2, change=lambda config, now: 7)
    replica: Any = SimpleNamespace(group="a.1", raft=raft, applied_index=4, propose=lambda batch: 5)
    context: Any = SimpleNamespace(node="a", effects=EffectQueue(0, 0))
    replicas: Any = SimpleNamespace(cluster=None, data={"a.1": replica})
    unused: Any = None
    steps = GroupSteps(context, replicas, unused, unused, unused, unused, unused)
    steps.propose(replica, [b"seal", b"open"])
    assert not steps.is_due()
    replica.applied_index = 6
    assert steps.is_due() and not steps.is_due()
    steps._reconfigure(replica, membership.Change(MEMBERS))
    assert not steps.is_due()
    replica.applied_index = 7
    assert steps.is_due() and not steps.is_due()


def test_the_host_drives_between_two_ticks_when_a_step_is_due() -> None:
    host = open_host(1)
    host.take()  # the first tick
    driven: list[int] = []
    due = [True]
    operations: Any = host.operations
    operations.drive = lambda: driven.append(1)
    operations.is_due = lambda: bool(due) and due.pop()
    host.take()
    assert driven == [1] and host.effects.now < DRIVE_MS
    host.take()
    assert driven == [1]


@pytest.mark.parametrize("may_hold", [False, True])
def test_failpoints_are_refused_by_an_agent_not_started_for_tests(may_hold: bool) -> None:
    host = open_host(1)
    host.operations.failpoints.may_set = may_hold
    host.handlers.on_request(1, SetFailpoints(("after:OPEN",)))
    _, reply = host.take().replies[0]
    assert isinstance(reply, Accepted if may_hold else ErrorReply)
    assert host.operations.failpoints.points == (frozenset({"after:OPEN"}) if may_hold else frozenset())
    host.handlers.on_request(2, SetFailpoints(("after:LUNCH",)))
    _, unknown = host.take().replies[0]
    assert isinstance(unknown, ErrorReply)


def test_a_node_that_left_is_no_longer_named_as_a_peer() -> None:
    """Metrics use these names: an alert on its silence would never end."""
    host = open_host(1)
    host.peers.heard = {"b": 0, "gone": 0}
    assert set(host.status.of_node(5, 0).heard_ms) == {"b", "gone"}, "who is a member is not known yet"
    host.cluster.meta.image.nodes = {n: NodeRecord(n, "h", 1, 1, "i", 0) for n in ("a", "b")}
    assert host.status.of_node(5, 0).heard_ms == {"b": 5}


def test_an_exception_in_one_request_ends_that_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered and logged with its traceback, at once or after a read index; the next request is
    served."""
    host = open_host(1)

    def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("nodeagent.host.handlers.node.check_status", fails)
    monkeypatch.setattr("nodeagent.host.handlers.files.files_of", fails)
    question = CheckStatus("b", "i", "h", 1, 2, CONFIG.cluster, (), False)
    requests: list[Request] = [question, GetManifest("a.1")]
    for token, request in enumerate(requests, 1):
        host.on_request(token, request, 0, 0)
        effects = host.take()
        assert [t for t, r in effects.replies if isinstance(r, ErrorReply) and r.code == "error"] == [token]
        (fields,) = (f for event, f in effects.notes if event == "request_failed")
        assert "KeyError" in str(fields["why"]) and "fails" in str(fields["traceback"])
        assert host.requests_failed == token
    host.on_request(3, GetWriteRates("a.1"), 0, 0)
    assert [t for t, _ in host.take().replies] == [3]


def leads_alone() -> Host:
    """A host that leads the meta group and one data group, and is the only member of both."""
    alone = Config(("a",))
    record = GroupRecord("a.1", "a", alone.voters, alone.voters, ((0, 5),))
    image = Image(cluster_id="c", applied=5, settings=CONFIG.cluster, groups={"a.1": record})
    meta = Saved(Base(5, 1, alone), MetaState(image).encode(), group=META, owner=ME)
    saved = Saved(Base(1, 0, alone), encode_checkpoint(initial("a.1", ((0, 5),)).checkpoint()))
    groups = {
        META: (GroupLog(Base(5, 1, alone), HardState(1), []), msgspec.msgpack.encode(meta)),
        "a.1": (GroupLog(Base(1, 0, alone), HardState(1), []), msgspec.msgpack.encode(saved)),
    }
    host = opened(CONFIG, groups)
    for now in range(0, 3_000, 50):
        host.tick(now, now)
        run_out(host, now)
    assert all(r.leads for r in host.replicas)
    return host


def run_out(host: Host, now: int = 3_000) -> dict[int, Reply]:
    """Run until nothing is left to do, with every job done. Returns the answers."""
    replies: dict[int, Reply] = {}
    for _ in range(20):
        effects = host.take()
        assert replies.keys().isdisjoint(t for t, _ in effects.replies), "every request has one answer"
        replies |= dict(effects.replies)
        if effects.persist is not None:
            host.on_persisted(effects.persist[0], now)
        for number, job in effects.jobs:
            host.on_job(number, FilesHashed(()) if isinstance(job, HashFiles) else Done(), now)
    return replies


SPEC = ScanSpec(TableSchema("g", "t", 1, (Column("v", "INT64", False),)))


def test_only_the_leader_changes_the_meta_group() -> None:
    """Another member names the leader, and proposes nothing."""
    ask = TakeLock("ann@here 1", "a roll", "ann", 30_000)
    leader, follower = leads_alone(), settled_host({})
    leader.on_request(1, ask, 3_000, 0)
    assert isinstance(run_out(leader)[1], LockReply)
    follower.on_request(1, ask, 0, 0)
    (reply,) = run_out(follower, 0).values()
    assert isinstance(reply, ErrorReply) and reply.code == "not_leader"


def test_a_node_that_is_heard_is_not_declared_dead() -> None:
    """The change continues with it, and the caller learns why."""
    host = leads_alone()
    host.cluster.meta.image.nodes["b"] = NodeRecord("b", "h", 1, 1, "i-b", 0)
    op = Operation("op-9", "add-node", "b", "me", 0, 1, 9, [], [], Options(), Stage.RECONFIGURING)
    host.cluster.meta.image.operations.append(op)
    host.peers.heard["b"] = 3_000
    host.on_request(1, ControlOperation("op-9", "dead", "me", node="b"), 3_000, 0)
    (reply,) = run_out(host).values()
    assert isinstance(reply, ErrorReply) and "b" in reply.what, reply
    assert not op.dead


def test_a_configured_seed_is_no_member_once_the_cluster_is_formed() -> None:
    """It may have been removed since, and have returned with a new directory."""
    assert leads_alone().membership_status("b", "any", 3_000) is MembershipStatus.UNKNOWN


def test_a_request_may_wait_for_the_sessions_of_a_seal() -> None:
    """They are sent in the turn in which the seal is applied, or refused a while later if there is no
    seal."""
    host = leads_alone()
    host.on_request(1, OpenSession("a.1"), 3_000, 0)
    opened = run_out(host)[1]
    assert isinstance(opened, SessionOpened)
    host.cluster.meta.tables.schemas["g", "t"] = SPEC.schema
    place = PartitionKey("g", 2, 0)
    slot = slot_of("g", 2, 0, CONFIG.cluster)
    write = DeleteRows("a.1", slot, place, "t", opened.session, 1, 0, (), 0, 1)
    host.on_request(2, write, 3_000, 0)
    assert isinstance(run_out(host)[2], Written)
    host.on_request(3, GetSealedSessions("op-9", "a.1", 0, wait=True), 3_000, 0)
    host.on_request(4, GetSealedSessions("op-8", "a.1", 0, wait=True), 3_000, 0)
    host.on_request(5, GetSealedSessions("op-9", "a.1", 0), 3_000, 0)
    replies = run_out(host)
    assert list(replies) == [5] and isinstance(replies[5], ErrorReply) and replies[5].code == "not_found"
    host.replicas.data["a.1"].propose([data.encode(data.Seal("op-9", 1, ((0, 5),)))])
    replies = run_out(host)
    assert list(replies) == [3] and isinstance(replies[3], SealedSessions)
    host.tick(3_000 + SEAL_WAIT_MS, 0)
    replies = run_out(host, 3_000 + SEAL_WAIT_MS)
    assert list(replies) == [4] and isinstance(replies[4], ErrorReply) and replies[4].code == "not_found"


def test_rows_expire_by_a_ttl_that_the_meta_group_has_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader of a data group may be cut off from the meta group, which has revoked the TTL in the
    meantime. Rows that had already expired when the leader asked are deleted; rows that expired later are
    not."""
    host = leads_alone()
    replica, now = host.replicas.data["a.1"], [10_000]
    asked: list[tuple[Callable[[], None], Callable[[str], None]]] = []
    proposed: list[bytes] = []
    assert host.cluster.meta_replica is not None
    monkeypatch.setattr(host.cluster.meta_replica, "read", lambda then, fail: asked.append((then, fail)))
    monkeypatch.setattr(replica, "propose", proposed.extend)
    monkeypatch.setattr(host.context.clocks, "passed", lambda _: now[0])
    place = PartitionKey("g", 2, 0)
    file = FileMeta(
        "00002-000000000001-0000.tsfile", 2, place, "t", (1,), 10, "f" * 32, 1, 0, 19_000, (1, 1, 1)
    )
    replica.state.files.manifest.add([file])
    host.compactor._expire_at = 0
    host.compactor.keep()
    assert not asked, "no table has a TTL"
    host.cluster.meta.tables.schemas["g", "t"] = msgspec.structs.replace(SPEC.schema, ttl_ms=1_000)
    host.compactor._expire_at = 0
    host.compactor.keep()
    asked.pop()[1]("no quorum")
    host.compactor.keep()
    assert not proposed, "nothing was confirmed"
    host.compactor._expire_at = 0
    host.compactor.keep()
    now[0] = 20_000
    host.compactor.keep()
    assert len(asked) == 1 and not proposed
    asked[0][0]()
    host.compactor.keep()
    (expire,) = map(data.decode, proposed)
    assert isinstance(expire, data.Expire)
    assert (expire.before, expire.passed) == (cut_off(1_000, 10_000), 10_000)


def test_an_invalid_progress_report_is_refused_before_it_is_logged() -> None:
    """Otherwise every member would apply it."""
    host = leads_alone()
    assert host.cluster.meta_replica is not None
    last = host.cluster.meta_replica.raft.log.last_index
    bad = (
        meta.encode(meta.RecoveryCompleted(0, "x.1", "op-1")),
        meta.encode(meta.SetDraining(0, "a", True, "me")),
        b"\xc1",
        meta.encode(meta.RecoveryCompleted(0, "x.1", "op-1")).replace(b"op-1", b"op\xff1"),
    )
    for token, command in enumerate(bad):
        host.on_request(token, Forward(command), 3_000, 3_000)
        reply = run_out(host)[token]
        assert isinstance(reply, ErrorReply) and reply.code == "invalid_input"
    assert host.cluster.meta_replica.raft.log.last_index == last


def test_a_progress_report_goes_to_every_new_meta_leader_at_once() -> None:
    """Slots are closed until it is in the record, and the previous leader's copy may be lost."""
    host = settled_host({})
    report = partial(host.operations.reports.report, meta.RecoveryCompleted(0, "a.1", "op-1"))

    def asked(now: int) -> list[To]:
        host.effects.now = now
        report()
        return [to for _, to, request in host.take().calls if isinstance(request, Forward)]

    def lead(node: str, term: int, now: int) -> None:
        host.on_raft(node, [Routed(META, Heartbeat(term, 0))], now)

    assert not asked(1_000), "nobody leads yet"
    lead("b", 2, 1_001)
    assert asked(1_002) == ["b"] and not asked(1_003)
    assert not asked(1_001 + REPORT_AGAIN_MS) and asked(1_002 + REPORT_AGAIN_MS) == ["b"]
    lead("c", 3, 1_600)
    host.effects.now = 1_601
    report()
    ((number, to, _),) = [call for call in host.take().calls if isinstance(call[2], Forward)]
    host.on_reply(number, ErrorReply("invalid_input", "there is no group a.1"), 1_602)  # it lags
    assert to == "c" and not asked(1_603) and asked(1_602 + REFUSED_AGAIN_MS) == ["c"]
    lead("c", 4, 1_710)
    assert asked(1_711) == ["c"], "c was deposed in between: its uncommitted entries may be lost"


@pytest.mark.parametrize("level", ["mid", "weak"])
def test_every_answer_that_is_not_strong_carries_its_age(level: str) -> None:
    host = leads_alone()
    requests: list[Request] = [ScanRows("a.1", "g", SPEC, level), ListPartitions("a.1", read=level)]
    for token, request in enumerate(requests):
        host.on_request(token, request, 3_000, 3_000)
        reply = run_out(host)[token]
        assert isinstance(reply, RowsScanned | PartitionsListed) and 0 <= reply.age_ms <= 3_000


def test_mid_is_refused_by_a_replica_that_no_leader_confirms() -> None:
    """This applies to rows and lists. A weak read is answered, with an unknown age."""
    host = open_host(1)
    kinds: list[ScanRows | ListPartitions] = [ScanRows("a.1", "g", SPEC), ListPartitions("a.1")]
    for token, kind in enumerate(kinds):
        for level in ("mid", "weak"):
            host.on_request(token, msgspec.structs.replace(kind, read=level), 0, 0)
            ((_, reply),) = host.take().replies
            if level == "mid":
                assert isinstance(reply, ErrorReply) and reply.details == {"age_ms": -1}
            else:
                assert isinstance(reply, RowsScanned | PartitionsListed) and reply.age_ms == -1


@pytest.mark.parametrize(
    "request_,breaks",
    [
        (CheckFiles("a.1"), "handlers.files.FilesChecked"),
        (ExportFiles("a.1", ()), "handlers.files.SourceOpened"),
        (ListPartitions("a.1", paged=True), "handlers.lists._list"),
        (ScanRows("a.1", "g", SPEC), "handlers.scans._plan"),
        (ScanRows("a.1", "g", SPEC, "weak"), "handlers.scans._plan"),
        (GetMeta(strong=True), "handlers.meta.meta_view"),
        (GetRuns(), "handlers.meta.runs_view"),
        (GetAudit(), "handlers.meta.audit_view"),
        (GetOperation("op-1"), "handlers.meta.operation_view"),
    ],
)
def test_an_exception_behind_a_read_index_or_a_job_ends_that_request(
    monkeypatch: pytest.MonkeyPatch, request_: Request, breaks: str
) -> None:
    """The rest of the request runs in another turn; it is still answered once."""
    host = leads_alone()

    def fails(*_: object, **__: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(f"nodeagent.host.{breaks}", fails)
    host.on_request(1, request_, 3_000, 3_000)
    reply = run_out(host)[1]
    assert isinstance(reply, ErrorReply) and reply.code == "error" and host.requests_failed == 1
    host.on_request(2, GetWriteRates("a.1"), 3_000, 3_000)
    assert 2 in run_out(host)


def test_an_exception_in_the_last_check_of_a_change_ends_that_request() -> None:
    """The last check runs when the groups have answered, which is another turn."""
    host = leads_alone()

    def fails() -> None:
        raise KeyError("a bug")

    assert host.cluster.meta_replica is not None
    begin = meta.ControlOperation(0, "op-1", "resume", "me")
    leading = host.cluster.meta_replica
    Probes(host.context, host.replicas, 1, leading, begin, {"a.1": ("a",)}, fails).start()
    reply = run_out(host)[1]
    assert isinstance(reply, ErrorReply) and reply.code == "error" and host.requests_failed == 1


def test_an_exception_after_the_answer_sends_no_second_answer() -> None:
    """A second answer would have the token of no open request."""
    effects = EffectQueue(0, 0)

    def answers_and_fails() -> None:
        effects.reply(1, Accepted())
        raise KeyError("a bug")

    effects.guarded(1, "a read", answers_and_fails)()
    assert effects.replies == [(1, Accepted())] and effects.failures == 1


def test_a_half_changed_state_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside Raft concerns more than one request: to continue might break a promise."""
    host = open_host(1)

    def fails(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Raft, "propose", fails)
    with pytest.raises(InvariantBroken):
        host.on_request(1, Propose("a.1", (b"x",)), 0, 0)


def test_an_entry_that_is_too_large_for_a_frame_is_refused_by_name() -> None:
    """No follower would ever get it, or any entry after it. Without a waiting request it is logged."""
    host = open_host(1)
    host.on_request(1, Propose("a.1", (bytes(ENTRY_BYTES_MAX),)), 0, 0)
    (_, reply) = host.take().replies[0]
    assert isinstance(reply, ErrorReply) and reply.code == "invalid_input" and "limit" in reply.what
    last = host.replicas.data["a.1"].raft.log.last_index
    assert host.replicas.data["a.1"].propose([bytes(ENTRY_BYTES_MAX + 1)]) is None
    assert host.replicas.data["a.1"].raft.log.last_index == last
    assert "entry_refused" in [event for event, _ in host.take().notes]
    leader = leads_alone().replicas.data["a.1"]
    last = leader.raft.log.last_index
    assert leader.propose([b"x", bytes(ENTRY_BYTES_MAX + 1)]) is None, "behind a good one"
    assert leader.raft.log.last_index == last


def test_an_entry_of_the_maximum_size_is_replicated() -> None:
    """It still fits into a frame with its headers."""
    entry = Entry(1 << 48, int(EntryKind.COMMAND), bytes(ENTRY_BYTES_MAX))
    append = AppendRequest(1 << 48, 1 << 53, 1 << 48, 1 << 53, [entry], 1 << 53, 1 << 53)
    assert len(encode_raft([Routed("g" * 255, append)])) == 1


@pytest.fixture
def age_as_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "nodeagent.host.handlers.meta.meta_view", lambda node, replica, age, held: Accepted(age)
    )


@pytest.mark.usefixtures("age_as_answer")
def test_a_meta_read_is_refused_by_a_node_that_no_leader_confirms() -> None:
    """Routing and status ask for the state of any age, and get its age."""
    host = settled_host({})
    host.on_request(1, GetMeta(), 0, 0)
    host.on_request(2, GetMeta(any_age=True), 0, 0)
    replies = run_out(host, 0)
    assert isinstance(refused := replies[1], ErrorReply)
    assert refused.code == "unavailable" and refused.details == {"age_ms": -1}
    assert replies[2] == Accepted(-1)


@pytest.mark.usefixtures("age_as_answer")
def test_a_node_that_applies_no_more_meta_entries_becomes_too_old() -> None:
    """The leader still confirms its commit index, which the state does not reach."""
    host, bound = leads_alone(), CONFIG.meta_staleness_max_ms
    replica = host.cluster.meta_replica
    assert replica is not None
    host.on_request(1, GetMeta(), 3_000, 0)
    host.on_request(2, GetMeta(strong=True), 3_000, 0)
    replies = run_out(host)
    assert isinstance(age := replies[1], Accepted) and 0 <= age.index <= CONFIG.meta_confirm_every_ms
    assert replies[2] == Accepted(0)
    replica.condition.rebasing = True  # nothing is applied
    host.on_request(3, TakeLock("ann@here 1", "a roll", "ann", 30_000), 3_000, 0)
    replies = run_out(host)
    for now in range(3_000, 3_000 + 2 * bound, 1_000):
        host.tick(now, now)
        replies |= run_out(host, now)
    host.on_request(4, GetMeta(), now, 0)
    for later in range(now, now + 4_000, 1_000):
        host.tick(later, later)
        replies |= run_out(host, later)
    assert isinstance(refused := replies.pop(4), ErrorReply) and int(str(refused.details["age_ms"])) > bound
    assert not replies, "the entry is not answered either"

"""How often a replica saves its state."""

import msgspec
import pytest

from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.host.found import fault_of, unsaid
from nodeagent.host.log_start import SNAPSHOT_KEEPS
from nodeagent.host.saved import Saved
from nodeagent.host.snapshot_offers import Offered
from nodeagent.log import GroupLog
from nodeagent.model.entries import Base, Config, HardState, Rebase
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import Owner, PartitionKey
from nodeagent.model.jobs import (
    CheckpointSaved,
    CompactFiles,
    DeleteFiles,
    Done,
    Failed,
    FileChanges,
    FilesClosed,
    HashFiles,
    JobResult,
    SaveCheckpoint,
)
from nodeagent.model.limits import LOG_ENTRIES_MAX, LOG_KEEP_MS_MAX
from nodeagent.storage.checkpoint import with_files
from tests.host.opened import opened
from tests.host.test_closing import opened_session, write_row
from tests.host.test_compactor import GOOD, GROUP, Node, P, output
from tests.host.test_host import CONFIG


def files(number: int) -> list[FileMeta]:
    """Files, each in a time partition of its own."""
    keys = [PartitionKey("sg", i, 0) for i in range(number)]
    return [
        FileMeta(f"00003-{i:012d}-0000.tsfile", 3, key, "t", (i,), 10, "f" * 32, 1, i, i, (1, 1, 1))
        for i, key in enumerate(keys)
    ]


@pytest.mark.parametrize(("held", "early"), [(2, 1), (45_000, 0)])
def test_a_large_state_is_saved_less_often(held: int, early: int) -> None:
    node = Node(files(held))
    node.replica.context.unsaved.add()
    node.save()
    node.replica.context.unsaved.add()
    node.pass_ms(600)
    assert len(node.under_way(SaveCheckpoint)) == early
    node.pass_ms(8_000)
    assert len(node.under_way(SaveCheckpoint)) == 1


def test_rows_alone_are_saved_less_often_than_what_a_restart_must_know() -> None:
    """Within a second only changes other than rows are saved; after five seconds rows are too."""
    node = Node()
    session = opened_session(node)
    write_row(node, session, 1)
    node.save()
    write_row(node, session, 2)
    node.pass_ms(1_000)
    assert not node.under_way(SaveCheckpoint)
    node.pass_ms(4_500)
    assert len(node.under_way(SaveCheckpoint)) == 1
    node.save()
    write_row(node, session, 3)
    node.replica.closer.close([P])
    node.pass_ms(1_000)
    assert len(node.under_way(SaveCheckpoint)) == 1


def saved_now(node: Node, result: JobResult) -> FileChanges:
    """The file changes of the next checkpoint, which ends with `result`."""
    node.replica.context.unsaved.add()
    while not node.under_way(SaveCheckpoint):
        node.pass_ms(500)
    job = node.finish(SaveCheckpoint, result)
    assert isinstance(job, SaveCheckpoint) and job.changes is not None and len(job.payload) < 4_000
    return job.changes


def test_a_checkpoint_costs_what_changed() -> None:
    """It names only the files added and removed, of twenty thousand, until all files are saved again."""
    whole = files(20_000)
    node = Node(whole)
    first = saved_now(node, CheckpointSaved("b1"))
    assert first.base == "" and len(first.files) == 20_000
    more = files(22_000)[20_000:]
    node.replica.state.files.manifest.add(more[:1])
    node.replica.state.files.manifest.remove([whole[5].name])
    assert saved_now(node, CheckpointSaved("b1")) == FileChanges("b1", (more[0],), (whole[5].name,))
    node.replica.state.files.manifest.add(more[1:3])
    assert saved_now(node, CheckpointSaved("b1")).files == tuple(more[:3])
    node.replica.state.files.manifest.add(more[3:])
    folded = saved_now(node, CheckpointSaved("b2"))
    assert folded.base == "" and len(folded.files) == len(node.replica.state.files.manifest)
    assert saved_now(node, CheckpointSaved("b2")) == FileChanges("b2", ())


def test_after_a_checkpoint_that_failed_all_files_are_saved() -> None:
    """The content of the disk is unknown then, and changes during the failed save must not be lost."""
    node = Node(files(3))
    assert saved_now(node, Failed("overloaded", "disk full")).base == ""
    assert saved_now(node, CheckpointSaved("b1")).base == ""
    assert saved_now(node, Failed("unavailable", "io")).base == "b1"
    found = saved_now(node, CheckpointSaved("b2"))
    assert found.base == "" and set(found.files) == set(node.replica.state.files.manifest.files())


ME = Owner("a", "i", 0)


def payload_saved(node: Node) -> bytes:
    """The next checkpoint as a restart reads it; it is durable, and the work that waited for it has begun."""
    node.replica.context.unsaved.add()
    while not node.under_way(SaveCheckpoint):
        node.pass_ms(500)
    files = node.replica.state.files.manifest.files()
    job = node.finish(SaveCheckpoint, Done())
    assert isinstance(job, SaveCheckpoint)
    return with_files(job.payload, files)


def log_of(node: Node) -> GroupLog:
    """The group's records in the log."""
    log = node.replica.raft.log
    said = [op.base for op in node.logged if isinstance(op, Rebase)]
    base = said[-1] if said else Base(log.base.index, log.base.term, log.base.config)
    assert base.index == log.base.index
    return GroupLog(
        base, HardState(node.replica.raft.term), log.slice(log.first_index, log.last_index, 1 << 62)
    )


def test_files_are_removed_when_the_log_says_that_it_needs_a_checkpoint_without_them() -> None:
    """A row in memory pins the log. Without this rule, a restored older checkpoint, or the newest one without
    its delta, would name deleted files or cause others to be swept. After a kill at any step, the log accepts
    the checkpoint on disk."""
    node = Node()
    session = opened_session(node)
    write_row(node, session, 1)
    older = payload_saved(node)
    before = log_of(node)
    node.finish(HashFiles, GOOD)
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    node.finish(CompactFiles, FilesClosed((output(job),)))
    node.not_durable = []
    newest = payload_saved(node)
    node.pass_ms(4_000)
    assert not node.under_way(DeleteFiles) and not node.under_way(SaveCheckpoint)
    assert not fault_of(GROUP, before, newest, ME) and not fault_of(GROUP, before, older, ME)
    (said,) = unsaid({GROUP: (before, newest)})
    node.host.on_persisted(node.not_durable[-1], node.now)
    node.not_durable = None
    node.take()
    assert len(node.under_way(DeleteFiles)) == 1
    after = log_of(node)
    assert isinstance(said, Rebase) and said.base.checkpoint == after.base.checkpoint > 0
    assert not fault_of(GROUP, after, newest, ME) and not unsaid({GROUP: (after, newest)})
    assert after.base.index == before.base.index
    assert "files were removed after number" in fault_of(GROUP, after, older, ME)
    write_row(node, session, 2)
    assert not fault_of(GROUP, after, payload_saved(node), ME)
    assert log_of(node).base.checkpoint == after.base.checkpoint, "nothing was removed since"


def test_an_older_checkpoint_that_the_log_goes_on_from_gives_the_same_state() -> None:
    """If nothing was removed since, the log holds all later entries: an older checkpoint is no damage."""
    node = Node()
    session = opened_session(node)
    payloads = []
    for number in range(1, 5):
        write_row(node, session, number)
        payloads.append(payload_saved(node))
    write_row(node, session, 5)
    log = log_of(node)
    states = [state_from(log, payload) for payload in payloads]
    assert states[0] and states.count(states[0]) == len(states)


def state_from(log: GroupLog, payload: bytes) -> bytes:
    """The state of a node that starts from this checkpoint and log, once all entries are applied."""
    assert not fault_of(GROUP, log, payload, ME)
    node = Node.__new__(Node)
    node.host = opened(CONFIG, {GROUP: (log, payload)})
    node.jobs, node.replies, node.logged, node.calls, node.notes = [], [], [], [], []
    node.not_durable, node.now = None, 0
    node.pass_ms(3_000)
    state = node.replica.state
    assert node.replica.leads and state.rows.memtable.rows == 5
    return encode_checkpoint(state.checkpoint())


def test_a_state_that_was_installed_is_taken_until_own_checkpoints_follow() -> None:
    """The installed state has no number. If the process is killed before the log begins after the state, the
    state is ahead of the log."""
    node = Node()
    own = msgspec.msgpack.decode(payload_saved(node), type=Saved)
    counted = msgspec.structs.replace(log_of(node).base, index=7, checkpoint=3)
    log = GroupLog(counted, HardState(1), [])

    def sent(index: int) -> bytes:
        base = msgspec.structs.replace(own.base, index=index, checkpoint=0)
        return msgspec.msgpack.encode(msgspec.structs.replace(own, base=base, sent=True))

    assert not fault_of(GROUP, log, sent(9), ME)
    assert "an older one" in fault_of(GROUP, log, sent(7), ME)
    uncounted = GroupLog(msgspec.structs.replace(counted, checkpoint=0), HardState(1), [])
    assert not fault_of(GROUP, uncounted, sent(7), ME)
    first_release = msgspec.structs.replace(
        own, base=msgspec.structs.replace(own.base, index=7, checkpoint=0)
    )
    assert not fault_of(GROUP, log, msgspec.msgpack.encode(first_release), ME), "0.1.0 did not count"


def test_what_pins_a_log_is_bounded_in_bytes_entries_and_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers pin the log up to a limit, snapshots up to a higher one. A follower that needs a snapshot
    anyway pins nothing, nor does one that makes no progress for long."""
    monkeypatch.setattr("tests.host.test_compactor.ALONE", Config(("a",), ("b",)))
    node = Node()
    replica, keep = node.replica, node.host.effects.space.log_keep
    replica.snapshots._offered["b"] = Offered("5a", 1)
    base, last = replica.raft.log.base.index, replica.raft.log.last_index
    assert base < last

    def pins(kept: int, match: int) -> list[str]:
        monkeypatch.setattr(replica.context, "log_bytes", lambda: kept)
        assert replica.raft._lead is not None
        replica.raft._lead.peers.progress["b"].match = match
        return [str(pin) for pin, _ in replica.log_start.pins()]

    assert pins(keep - 1, base) == ["a snapshot offered to b", "follower b"]
    assert pins(keep - 1, base - 1) == ["a snapshot offered to b"]
    assert pins(keep, base) == pins(keep * SNAPSHOT_KEEPS - 1, base) == ["a snapshot offered to b"]
    assert pins(keep * SNAPSHOT_KEEPS, base) == []
    for entries, expected in (
        (last - base + 1, ["a snapshot offered to b", "follower b"]),
        (last - base, ["a snapshot offered to b"]),
        ((last - base) / SNAPSHOT_KEEPS, []),
    ):
        monkeypatch.setattr(type(replica.machine), "log_entries_max", entries)
        assert pins(0, base) == expected
    monkeypatch.setattr(type(replica.machine), "log_entries_max", LOG_ENTRIES_MAX)
    assert "follower b" in pins(keep - 1, base)
    node.host.effects.now += LOG_KEEP_MS_MAX
    assert "follower b" not in pins(keep - 1, base)
    assert "follower b" in pins(keep - 1, last), "it has all there is"

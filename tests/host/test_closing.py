"""When a replica closes its rows into files."""

import msgspec
import pyarrow as pa
import pytest

from nodeagent.data import commands as c
from nodeagent.host.failing import CLOSE, PARK_TRIES
from nodeagent.host.state_jobs import SEALED_CLOSE_MS
from nodeagent.model import limits
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CloseFiles, CloseUnit, Failed, FilesClosed
from nodeagent.model.space import Room
from nodeagent.table import arrow
from tests.host.test_compactor import SCHEMA, Node, P


def opened_session(node: Node) -> str:
    return f"a.1:{node.replica.propose([c.encode(c.OpenSession())])}.{node.replica.raft.term}"


def write_row(node: Node, session: str, sequence: int, partition: PartitionKey = P) -> None:
    rows = pa.record_batch({"time": pa.array([1], pa.int64()), "v": pa.array([7], pa.int64())})
    ipc = memoryview(arrow.encode(arrow.normalise(rows, SCHEMA)))
    node.replica.propose([c.encode(c.WriteRows(session, sequence, 0, 3, partition, "t", 1, 1, 1, 1, ipc))])
    node.take()


def node_with_a_row() -> Node:
    node = Node()
    write_row(node, opened_session(node), 1)
    assert node.replica.state.rows.memtable.nbytes
    return node


def test_files_of_sealed_slots_are_made_when_the_slots_had_time_to_open_elsewhere() -> None:
    node = node_with_a_row()
    node.replica.propose([c.encode(c.Seal("op-1", 1, ((3, 4),)))])
    node.take()
    assert node.replica.state.closes.pending
    node.pass_ms(SEALED_CLOSE_MS - 50)
    assert not node.under_way(CloseFiles)
    node.pass_ms(50)
    assert len(node.under_way(CloseFiles)) == 1


def test_other_files_are_made_at_once_and_again_after_a_failure() -> None:
    node = node_with_a_row()
    node.replica.closer.close([P])
    node.take()
    closes = node.replica.state_jobs.is_closing
    assert closes
    node.finish(CloseFiles, Failed("unavailable", "the disk is full"))
    assert not node.under_way(CloseFiles) and not node.replica.state_jobs.is_closing
    node.pass_ms(1_000)
    assert len(node.under_way(CloseFiles)) == 1


PARTITIONS = [PartitionKey("sg", n, 0) for n in range(1, 6)]
BAD = PARTITIONS[2]


def node_closing_five() -> Node:
    """A node on which one close of five partitions runs."""
    node = Node(())
    session = opened_session(node)
    for number, partition in enumerate(PARTITIONS, 1):
        write_row(node, session, number, partition)
    node.replica.closer.close(PARTITIONS)
    node.take()
    return node


def made_of(unit: CloseUnit) -> FileMeta:
    spec = unit.spec
    return FileMeta(spec.name, 3, spec.partition, "t", spec.order, 10, "0" * 32, 1, 1, 1, (1, 1, 1))


def close_all_but(node: Node, bad: PartitionKey, why: Failed) -> int:
    """End every running close; those with `bad` fail. Returns the number of closes."""
    tried = 0
    while node.under_way(CloseFiles):
        job = node.under_way(CloseFiles)[0]
        assert isinstance(job, CloseFiles)
        files = tuple(made_of(u) for u in job.units)
        node.finish(CloseFiles, why if bad in [f.partition for f in files] else FilesClosed(files))
        tried += 1
    return tried


def test_a_unit_that_cannot_be_closed_is_isolated_and_the_others_get_their_files() -> None:
    """Halves are tried at once; the bad unit is retried at growing intervals and named in the status."""
    node = node_closing_five()
    assert close_all_but(node, BAD, Failed("file_corrupt", "wrote 2 rows, the file has 1")) <= 7
    state = node.replica.state
    assert {f.partition for f in state.files.manifest.files()} == {*PARTITIONS} - {BAD}
    assert list(state.rows.memtable.partitions()) == [BAD]
    assert "sg.t (time partition 3, shard 0)" in node.replica.trouble and "has 1" in node.replica.trouble
    waited = []
    for _ in range(3):
        before = node.now
        while not node.under_way(CloseFiles):
            node.pass_ms(100)
        waited.append(node.now - before)
        close_all_but(node, BAD, Failed("file_corrupt", "again"))
    assert waited[1] >= 2 * waited[0] - 200 and waited[2] >= 2 * waited[1] - 200
    node.pass_ms(60_000)
    close_all_but(node, PARTITIONS[0], Failed("", ""))
    assert not node.replica.trouble and len(state.files.manifest) == 5 and state.base() == state.applied


def test_a_full_disk_splits_no_close() -> None:
    """No file can be written then, and an attempt per unit would only cost more."""
    node = node_closing_five()
    assert close_all_but(node, BAD, Failed("overloaded", "no space left")) == 1
    node.pass_ms(1_000)
    (job,) = node.under_way(CloseFiles)
    assert isinstance(job, CloseFiles) and len(job.units) == 5 and "no space left" in node.replica.trouble


def test_sessions_end_in_entries_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """All old sessions end together; a session that was used in the meantime stays."""
    monkeypatch.setattr(limits, "EXPIRED_PER_ENTRY_MAX", 3)
    node = Node()
    sessions = [opened_session(node) for _ in range(8)]
    node.take()
    node.replica.sessions.expire()
    node.pass_ms(node.replica.config.session_ttl_ms + 1)
    node.replica.sessions.on_used(sessions[4])
    log = node.replica.raft.log
    before = log.last_index
    node.replica.sessions.expire()
    node.take()
    entries = [c.decode(e.data) for e in log.slice(before + 1, log.last_index, 1 << 40)]
    assert [len(e.sessions) for e in entries if isinstance(e, c.ExpireSessions)] == [3, 3, 1]
    assert node.replica.state.sessions.known() == {sessions[4]}


def test_an_error_of_native_code_on_a_full_disk_splits_no_close() -> None:
    """The TsFile library has its own error text. While the disk is known to be full, no unit is considered
    bad."""
    node = node_closing_five()
    node.replica.effects.space.measured(0, 1 << 30, 0)
    for _ in range(4):
        assert close_all_but(node, BAD, Failed("unavailable", "TsFile writer: error 28")) == 1
        node.pass_ms(1_000)
        (job,) = node.under_way(CloseFiles)
        assert isinstance(job, CloseFiles) and len(job.units) == 5


def fail_again(node: Node, times: int) -> None:
    """The bad unit's close fails `times` times in a row."""
    for _ in range(times):
        while not node.under_way(CloseFiles):
            node.pass_ms(100)
        node.finish(CloseFiles, Failed("file_corrupt", "wrote 2 rows, the file has 1"))


def test_a_unit_that_fails_repeatedly_is_parked_and_named() -> None:
    """The leader parks it after enough attempts. The rows are then in an Arrow file, which the status
    names."""
    node = node_closing_five()
    close_all_but(node, BAD, Failed("file_corrupt", "wrote 2 rows, the file has 1"))
    fail_again(node, PARK_TRIES - 2)
    assert not any(u.spec.parked for p in node.replica.state.closes.pending for u in p.units)
    fail_again(node, 1)
    node.pass_ms(100)
    (job,) = node.under_way(CloseFiles)
    assert isinstance(job, CloseFiles)
    (unit,) = job.units
    assert unit.spec.name.endswith(".arrow") and unit.spec.parked == "wrote 2 rows, the file has 1"
    parked = msgspec.structs.replace(made_of(unit), parked=unit.spec.parked)
    fail_again(node, PARK_TRIES)
    assert [note for note in node.notes if note == "parking"] == ["parking"], "it is logged once"
    while not node.under_way(CloseFiles):
        node.pass_ms(1_000)
    node.finish(CloseFiles, FilesClosed((parked,)))
    node.pass_ms(CLOSE.pace.retry_ms_max + 1_000)
    state = node.replica.state
    assert not node.under_way(CloseFiles) and not state.closes.pending and len(state.files.manifest) == 5
    assert unit.spec.name in node.replica.trouble and "has 1" in node.replica.trouble
    assert "time partition 3" in node.replica.trouble


def test_nothing_is_parked_while_the_disk_is_full() -> None:
    node = node_closing_five()
    close_all_but(node, BAD, Failed("file_corrupt", "no"))
    node.host.effects.space.room = Room.LOW
    fail_again(node, PARK_TRIES + 2)
    node.host.effects.space.room = Room.ENOUGH
    assert not any(u.spec.parked for p in node.replica.state.closes.pending for u in p.units)
    fail_again(node, 1)
    node.pass_ms(100)
    assert any(u.spec.parked for p in node.replica.state.closes.pending for u in p.units)

"""When a replica has its rows made into files."""

import pyarrow as pa

from nodeagent.data import commands as c
from nodeagent.host.data_replica import SEALED_CLOSE_MS
from nodeagent.model.jobs import CloseFiles, Failed
from nodeagent.table import arrow
from tests.host.test_compactor import SCHEMA, Node, P


def opened_session(node: Node) -> str:
    return f"a.1:{node.replica.propose([c.encode(c.OpenSession())])}.{node.replica.raft.term}"


def write_row(node: Node, session: str, sequence: int) -> None:
    rows = pa.record_batch({"time": pa.array([1], pa.int64()), "v": pa.array([7], pa.int64())})
    ipc = arrow.encode(arrow.normalise(rows, SCHEMA))
    node.replica.propose([c.encode(c.WriteRows(session, sequence, 0, 3, P, "t", 1, 1, 1, 1, ipc))])
    node.take()


def node_with_a_row() -> Node:
    node = Node()
    write_row(node, opened_session(node), 1)
    assert node.replica.state.memtable.nbytes
    return node


def test_files_of_sealed_slots_are_made_when_the_slots_had_time_to_open_elsewhere() -> None:
    node = node_with_a_row()
    node.replica.propose([c.encode(c.Seal("op-1", 1, ((3, 4),)))])
    node.take()
    assert node.replica.state.pending
    node.pass_ms(SEALED_CLOSE_MS - 50)
    assert not node.under_way(CloseFiles)
    node.pass_ms(50)
    assert len(node.under_way(CloseFiles)) == 1


def test_other_files_are_made_at_once_and_again_after_a_failure() -> None:
    node = node_with_a_row()
    node.replica.close([P])
    node.take()
    node.finish(CloseFiles, Failed("unavailable", "the disk is full"))
    assert not node.under_way(CloseFiles)
    node.pass_ms(1_000)
    assert len(node.under_way(CloseFiles)) == 1

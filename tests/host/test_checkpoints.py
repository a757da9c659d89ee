"""How often a replica saves its state."""

import pytest

from nodeagent.model.files import FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CheckpointSaved, Failed, FileChanges, SaveCheckpoint
from tests.host.test_closing import opened_session, write_row
from tests.host.test_compactor import Node, P


def files(number: int) -> list[FileMeta]:
    """Each of a time partition of its own."""
    keys = [PartitionKey("sg", i, 0) for i in range(number)]
    return [
        FileMeta(f"00003-{i:012d}-0000.tsfile", 3, key, "t", (i,), 10, "f" * 32, 1, i, i, (1, 1, 1))
        for i, key in enumerate(keys)
    ]


@pytest.mark.parametrize(("held", "early"), [(2, 1), (45_000, 0)])
def test_a_large_state_is_saved_less_often(held: int, early: int) -> None:
    node = Node(files(held))
    node.replica.changed()
    node.save()
    node.replica.changed()
    node.pass_ms(600)
    assert len(node.under_way(SaveCheckpoint)) == early
    node.pass_ms(8_000)
    assert len(node.under_way(SaveCheckpoint)) == 1


def test_rows_alone_are_saved_less_often_than_what_a_restart_must_know() -> None:
    """Within a second only a change that is not rows is saved; after five rows are, too."""
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
    node.replica.close([P])
    node.pass_ms(1_000)
    assert len(node.under_way(SaveCheckpoint)) == 1


def saved_now(node: Node, result: object) -> FileChanges:
    """What the next checkpoint says of the files; it ends with `result`."""
    node.replica.changed()
    while not node.under_way(SaveCheckpoint):
        node.pass_ms(500)
    job = node.finish(SaveCheckpoint, result)
    assert isinstance(job, SaveCheckpoint) and job.changes is not None and len(job.payload) < 4_000
    return job.changes


def test_a_checkpoint_costs_what_changed() -> None:
    """Of twenty thousand files the one that came and the one that left, until all are saved again."""
    whole = files(20_000)
    node = Node(whole)
    first = saved_now(node, CheckpointSaved("b1"))
    assert first.base == "" and len(first.files) == 20_000
    more = files(22_000)[20_000:]
    node.replica.state.manifest.add(more[:1])
    node.replica.state.manifest.remove([whole[5].name])
    assert saved_now(node, CheckpointSaved("b1")) == FileChanges("b1", (more[0],), (whole[5].name,))
    node.replica.state.manifest.add(more[1:3])
    assert saved_now(node, CheckpointSaved("b1")).files == tuple(more[:3])
    node.replica.state.manifest.add(more[3:])
    folded = saved_now(node, CheckpointSaved("b2"))
    assert folded.base == "" and len(folded.files) == len(node.replica.state.manifest)
    assert saved_now(node, CheckpointSaved("b2")) == FileChanges("b2", ())


def test_after_a_checkpoint_that_failed_all_files_are_saved() -> None:
    """Nobody knows what is on disk then; nothing that changed meanwhile is forgotten."""
    node = Node(files(3))
    assert saved_now(node, Failed("overloaded", "disk full")).base == ""
    assert saved_now(node, CheckpointSaved("b1")).base == ""
    assert saved_now(node, Failed("unavailable", "io")).base == "b1"
    found = saved_now(node, CheckpointSaved("b2"))
    assert found.base == "" and set(found.files) == set(node.replica.state.manifest.files())

"""How often a replica saves its state."""

import pytest

from nodeagent.model.files import FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import SaveCheckpoint
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

"""What late completions of log writes prove, and what they do not."""

from nodeagent.raft.durability import Durability


def test_an_old_write_of_the_same_entry_proves_nothing_after_a_truncation() -> None:
    """An entry is written, overwritten and written again; only the last completion counts."""
    disk = Durability(4)
    disk.started(5, 2)
    disk.truncated(5)
    disk.started(5, 3)
    disk.truncated(5)
    disk.started(5, 2)
    assert not disk.completed(5, 2)
    assert disk.index == 4
    assert not disk.completed(5, 3)
    assert disk.completed(5, 2)
    assert disk.index == 5


def test_a_truncated_write_still_proves_what_lies_before_the_cut() -> None:
    """The part of a write before the truncation is in the log and on disk."""
    disk = Durability(0)
    disk.started(6, 1)
    disk.truncated(4)
    disk.started(4, 2)
    assert disk.completed(6, 1)
    assert disk.index == 3


def test_one_completion_covers_all_earlier_writes() -> None:
    """One fsync for several Readies is reported once."""
    disk = Durability(0)
    for index in (1, 2, 3):
        disk.started(index, 1)
    assert disk.completed(3, 1)
    assert disk.index == 3
    assert not disk.completed(2, 1)


def test_truncation_lowers_the_mark() -> None:
    """An entry that the log no longer contains is not durable, whatever the disk contains."""
    disk = Durability(9)
    disk.truncated(5)
    assert disk.index == 4

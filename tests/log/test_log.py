"""A log returns what was written to it: the same tests run on files and in memory."""

import random

import pytest

from nodeagent.log import LogSettings
from nodeagent.log.check import check, dump
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Base, Config, Forget, HardState, Rebase, SetHard
from nodeagent.testing.batches import Batches, append, base, entry
from nodeagent.testing.durable import State, follow
from tests.log.small import GROUPS, SMALL, open_log


def reopened(disk: Disk, settings: LogSettings = SMALL) -> State:
    log, found = open_log(disk, settings)
    assert found.damaged == [] and found.torn_bytes == 0 and found.healed == 0
    log.close()
    return found.groups


def test_empty_log(disk: Disk) -> None:
    """A new directory contains no group, and opening it twice changes nothing."""
    for _ in range(3):
        assert reopened(disk) == {}


def test_entries_hard_state_and_config_come_back(disk: Disk) -> None:
    """A new group needs no base first; every field is recovered."""
    log, _ = open_log(disk)
    log.write([append("g.1", 1, 3), SetHard("g.1", HardState(4, "node1")), SetHard("meta", HardState(9))])
    log.write([Rebase("h.2", base(70, 6), False), append("h.2", 71, 2, 6)])
    log.sync()
    log.close()
    groups = reopened(disk)
    assert groups["g.1"].hard == HardState(4, "node1")
    assert groups["g.1"].base == Base(0, 0, Config())
    assert groups["g.1"].entries == append("g.1", 1, 3).entries
    assert groups["meta"].hard == HardState(9) and groups["meta"].entries == []
    assert groups["h.2"].base == base(70, 6) and groups["h.2"].entries == append("h.2", 71, 2, 6).entries


def test_statistics_count_batches_and_syncs(disk: Disk) -> None:
    log, _ = open_log(disk)
    before = log.statistics()
    for index in (1, 2, 3):
        log.write([append("g.1", index, 1)])
    log.sync()
    after = log.statistics()
    assert (after.batches - before.batches, after.syncs - before.syncs) == (3, 1)
    log.close()


def test_append_replaces_the_suffix(disk: Disk) -> None:
    """An append at or below the last index cuts the entries from there on, even across segments."""
    log, _ = open_log(disk)
    for first in range(1, 101, 5):
        log.write([append("g", first, 5, 1, "z" * 40)])
    log.write([append("g", 7, 2, 3, "new")])
    log.close()
    entries = reopened(disk)["g"].entries
    assert len(entries) == 8
    assert entries[5].term == 1 and entries[6:] == append("g", 7, 2, 3, "new").entries


def test_rebase_keeps_or_drops_the_suffix(disk: Disk) -> None:
    """A purge keeps what follows the base; an installed snapshot does not."""
    log, _ = open_log(disk)
    log.write([append("g", 1, 10), append("h", 1, 10)])
    log.write([Rebase("g", base(4), True), Rebase("h", base(4), False)])
    log.close()
    groups = reopened(disk)
    assert groups["g"].entries == append("g", 1, 10).entries[4:]
    assert groups["h"].entries == []


def test_forgotten_group_is_deleted_and_may_be_created_again(disk: Disk) -> None:
    """No state of the earlier replica remains in a new replica of the same name."""
    log, _ = open_log(disk)
    log.write([append("g", 1, 10), SetHard("g", HardState(8, "x")), append("h", 1)])
    log.write([Forget("g")])
    log.write([Forget("nobody")])
    log.close()
    assert list(reopened(disk)) == ["h"]
    log, _ = open_log(disk)
    log.write([append("g", 1, 2, 1, "again"), Forget("h"), append("h", 1, 1, 1, "again")])
    log.close()
    groups = reopened(disk)
    assert groups["g"].hard == HardState()
    assert groups["g"].entries == append("g", 1, 2, 1, "again").entries
    assert groups["h"].entries == append("h", 1, 1, 1, "again").entries


def test_the_held_state_of_a_group_stays_until_the_group_returns_or_is_deleted(disk: Disk) -> None:
    log, _ = open_log(disk)
    left = {name: HardState(7, "b", (6, index)) for index, name in enumerate(("g", "h", "k"), 3)}
    log.write([append(name, 1) for name in left])
    log.write([Forget(name, memory) for name, memory in left.items()])
    log.close()
    log, found = open_log(disk)
    assert found.left == left and found.groups == {}
    log.write([SetHard("h", left["h"]), Rebase("h", base(0), False)])
    log.write([Forget("k")])
    log.close()
    _, found = open_log(disk)
    assert found.left == {"g": left["g"]} and list(found.groups) == ["h"]
    assert found.groups["h"].hard == left["h"]


def test_many_segments_are_read_in_numeric_order(disk: Disk) -> None:
    """There are more than ten segments, so that sorting plain numbers as text would fail."""
    log, _ = open_log(disk)
    for index in range(1, 301):
        log.write([append("g", index, 1, 1, "z" * 100)])
    log.sync()
    assert len(log.segments) > 12 and log.segments == sorted(log.segments)
    log.close()
    assert [e.data for e in reopened(disk)["g"].entries] == [b"z" * 100 + b"%d" % n for n in range(1, 301)]


def test_batch_larger_than_a_segment(disk: Disk) -> None:
    """The batch gets a segment of its own size, and the next batch goes to the next segment."""
    log, _ = open_log(disk)
    log.write([append("g", 1)])
    log.write([append("g", 2, 1, 1, "L" * 10_000)])
    log.write([append("g", 3)])
    log.sync()
    assert len(log.segments) == 3
    log.close()
    assert [len(e.data) for e in reopened(disk)["g"].entries] == [2, 10_001, 2]


def test_reopening_continues_in_the_same_segment(disk: Disk) -> None:
    """Restarts alone do not consume segments."""
    for index in range(1, 6):
        log, found = open_log(disk)
        assert sum(len(group.entries) for group in found.groups.values()) == index - 1
        log.write([append("g", index)])
        log.close()
        assert log.segments == [1]


def test_misuse_is_a_broken_invariant(disk: Disk) -> None:
    """A gap, and entries at or below the base, are bugs of the caller."""
    log, _ = open_log(disk)
    log.write([Rebase("g", base(10), False)])
    for first in (10, 12):
        with pytest.raises(AssertionError):
            log.write([append("g", first)])


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_match_a_dict(disk: Disk, seed: int) -> None:
    """Any sequence of batches, reopenings and reclaims recovers what a dict would contain."""
    workload = Batches(random.Random(seed), GROUPS)
    rng = random.Random(seed)
    log, _ = open_log(disk)
    for _ in range(150):
        log.write(workload.batch())
        dice = rng.random()
        if dice < 0.3:
            log.sync()
        elif dice < 0.4:
            log.reclaim()
        elif dice < 0.45:
            log.close()
            log, found = open_log(disk)
            assert found.damaged == [] and found.groups == workload.state
    log.close()
    assert reopened(disk) == workload.state
    assert check(disk, "log").groups == {
        name: (g.base.index + 1, g.base.index + len(g.entries)) for name, g in workload.state.items()
    }


def test_the_dict_model_is_correct() -> None:
    """The dict model agrees with a case that was computed manually."""
    state: State = {}
    follow(state, [append("g", 1, 5), append("g", 4, 1, 2, "n"), Rebase("g", base(2), True)])
    assert state["g"].entries == [entry(1, "x3"), entry(2, "n4")]


def test_dump_shows_every_operation(disk: Disk) -> None:
    """The dump contains one line per operation with its place, in order."""
    log, _ = open_log(disk)
    log.write([append("g", 1, 3, 2), SetHard("g", HardState(2, "a"))])
    log.write([Rebase("g", base(3), True), Forget("h")])
    log.close()
    lines = [line for line in dump(disk, "log") if line["group"]]
    assert [(line["kind"], line["index"], line["count"], line["term"]) for line in lines] == [
        ("append", 1, 3, 2),
        ("hard", 0, 0, 2),
        ("rebase_keep", 3, 0, 1),
        ("forget", 0, 0, 0),
    ]
    assert all(line["valid"] and line["segment"] == 1 for line in lines)
    assert lines[0]["offset"] == lines[1]["offset"] != lines[2]["offset"]

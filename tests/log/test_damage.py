"""Torn tails are cut; corruption is reported and never cut.

If a log becomes shorter than what the node acknowledged, the node can help to elect a leader that lacks
committed entries (NATS JetStream 2025: one bad bit on one of five nodes lost half of the acknowledged
writes). Every test of this module is therefore a safety test.
"""

import random

import pytest

from nodeagent.log import Damage, Log, LogSettings, Recovered
from nodeagent.log.check import check, dump
from nodeagent.log.index import GroupIndex
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Base, Config, Forget, HardState, LogOp, Rebase, SetHard
from nodeagent.testing.batches import Batches, append, base
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault
from tests.log.small import SMALL, open_log

ONE = LogSettings(segment_bytes=1 << 20, zero_step_bytes=8192, reserve_bytes=0)
TWO_KIB = LogSettings(segment_bytes=2048, zero_step_bytes=1024, reserve_bytes=0)
PATH = "log/000000000001.log"


def written(batches: list[list[LogOp]], settings: LogSettings = ONE) -> tuple[SimDisk, Log, list[int]]:
    """A log with these batches, each of them synced, and the offset at which each batch begins in its
    segment."""
    disk = SimDisk()
    log, _ = open_log(disk, settings)
    offsets = []
    for batch in batches:
        log.write(batch)
        log.sync()
    for line in dump(disk, "log"):
        if line["group"] and line["offset"] not in offsets:
            offsets.append(int(line["offset"]))
    return disk, log, offsets


def flip_byte(disk: SimDisk, path: str, offset: int) -> None:
    disk.flip(path, offset, 6)


def damages(found: Recovered) -> dict[str, Damage]:
    return {damage.group: damage for damage in found.damaged}


TWO_GROUPS: list[list[LogOp]] = [
    [append("g", 1, 3), append("h", 1, 2)],
    [append("g", 4, 2, 2), SetHard("g", HardState(2, "a"))],
    [append("h", 3, 2)],
    [append("g", 6), append("h", 5)],
]


def test_tail_torn_at_every_byte_is_cut() -> None:
    """However many bytes of the last batch reached the disk, the batch is recovered as a whole or not at
    all."""
    disk, _, offsets = written(TWO_GROUPS[:2])
    content = disk.read(PATH)
    start = offsets[-1]
    end = len(content.rstrip(b"\0"))
    whole = 0
    for cut in range(start, end + 1):
        torn = SimDisk()
        torn.mkdirs("log")
        torn.write_atomic(PATH, content[:cut] + bytes(len(content) - cut))
        log, found = open_log(torn, ONE)
        assert found.damaged == []
        complete = len(found.groups["g"].entries) == 5
        whole += complete
        if not complete:
            assert found.groups["g"].hard == HardState() and len(found.groups["g"].entries) == 3
            assert found.torn_bytes == len(content[start:cut].rstrip(b"\0"))
            aside = [name for name in torn.listdir("log") if name.endswith(".torn")]
            assert bool(aside) == bool(found.torn_bytes)
        log.write([append("h", 3)])
        log.close()
        _, again = open_log(torn, ONE)
        assert again.damaged == [] and len(again.groups["h"].entries) == 3
    assert 0 < whole < (end - start) / 2


def test_flip_in_the_unsynced_tail_is_cut() -> None:
    """Nothing proves that the last batch was durable, so any damage in it counts as a torn write."""
    disk, _, offsets = written(TWO_GROUPS[:3])
    end = len(disk.read(PATH).rstrip(b"\0"))
    for offset in range(offsets[-1], end):
        copied = SimDisk()
        copied.mkdirs("log")
        copied.write_atomic(PATH, disk.read(PATH))
        flip_byte(copied, PATH, offset)
        _, found = open_log(copied, ONE)
        assert found.damaged == []
        assert len(found.groups["h"].entries) in (2, 4) and len(found.groups["g"].entries) == 5


def test_batches_that_were_cut_do_not_reappear_after_the_next_batch() -> None:
    """A disk may write out of order: of two batches only the second is whole, and both are cut. The next
    batch is as long as the first one, so that the second one would seem to follow it."""
    disk = SimDisk()
    log, _ = open_log(disk, ONE)
    log.write([append("g", 1)])
    log.sync()
    start = disk.written(PATH)
    log.write([append("g", 2, text="lost")])
    log.write([append("g", 3, text="lost")])
    flip_byte(disk, PATH, disk.read(PATH).index(b"lost2", start))
    disk.restart()
    log, found = open_log(disk, ONE)
    assert found.torn_bytes and found.groups["g"].entries == append("g", 1).entries
    log.write([append("g", 2, text="next")])
    log.sync()
    disk.restart()
    _, found = open_log(disk, ONE)
    assert found.damaged == [] and not found.torn_bytes
    assert found.groups["g"].entries == [*append("g", 1).entries, *append("g", 2, text="next").entries]


@pytest.mark.parametrize("mark", [False, True])
def test_flip_in_the_synced_part_is_reported_with_the_lost_range(mark: bool) -> None:
    """Every single bad bit is either healed by the second header, or the group and the range are reported;
    nothing is changed.

    If a mark follows the last batch, this batch is protected like all others.
    """
    disk, log, offsets = written(TWO_GROUPS)
    if mark:
        log.mark_synced()
    content = disk.read(PATH)
    victim = 3 if mark else 1
    stop = len(content.rstrip(b"\0")) if victim + 1 == len(offsets) else offsets[victim + 1]
    healed = named = 0
    for offset in range(offsets[victim], stop):
        copied = SimDisk()
        copied.mkdirs("log")
        copied.write_atomic(PATH, content)
        flip_byte(copied, PATH, offset)
        flipped = copied.read(PATH)
        is_damaged = flipped[:stop] != content[:stop]
        assert is_damaged
        _, found = open_log(copied, ONE)
        assert copied.read(PATH) == flipped and found.torn_bytes == 0
        healed += found.healed
        if not found.damaged:
            assert [len(found.groups[g].entries) for g in "gh"] == [6, 5]
            continue
        named += 1
        by_group = damages(found)
        assert by_group["g"].segment == 1 and by_group["g"].offset == offsets[victim]
        first, last = (6, 6) if mark else (4, 5)
        assert (by_group["g"].first, by_group["g"].last) == (first, last), found.damaged
        assert len(found.groups["g"].entries) == first - 1
        if mark:
            assert (by_group["h"].first, by_group["h"].last) == (5, 5)
        else:
            assert set(by_group) == {"g"} and len(found.groups["h"].entries) == 5
            assert sorted(d.what for d in found.damaged) == ["entries", "hard"]
    assert healed > 50 and named > 10


def test_damage_is_reported_again_until_it_is_repaired() -> None:
    """Opening the log again reports the same damage, other groups can write, and a new base ends the
    damage."""
    disk, _, offsets = written(TWO_GROUPS)
    flip_byte(disk, PATH, disk.read(PATH).index(b"x4"))
    for index in range(6, 9):
        log, found = open_log(disk, ONE)
        assert set(damages(found)) == {"g"}
        log.write([append("h", index)])
        log.close()
    log, found = open_log(disk, ONE)
    assert len(found.groups["h"].entries) == 8
    assert log.reclaim() == 0 and 1 in log.segments
    log.write([Rebase("g", base(6), False), SetHard("g", HardState(3, "b")), append("g", 7)])
    log.close()
    log, found = open_log(disk, ONE)
    assert found.damaged == [] and len(found.groups["g"].entries) == 1
    log.write([Rebase("h", base(8), False)])
    assert log.reclaim() > 0 and 1 not in log.segments
    log.close()
    _, found = open_log(disk, ONE)
    assert found.damaged == [] and found.groups["g"].hard == HardState(3, "b")


def test_batches_that_are_read_after_damage_are_durable_after_the_start() -> None:
    """A failed sync leaves pages that the kernel considers clean, and the next process reads them: the log
    has to write them again, even if an unrelated group is damaged. Found by seed 68."""
    disk, log, _ = written(TWO_GROUPS)
    log.mark_synced()
    log.write([append("h", 6, 3)])
    disk.faults.append(Fault("sync", path="log/"))
    with pytest.raises(OSError):
        log.sync()
    disk.restart()
    flip_byte(disk, PATH, disk.read(PATH).index(b"x4"))
    _, found = open_log(disk, ONE)
    assert set(damages(found)) == {"g"} and len(found.groups["h"].entries) == 8
    disk.crash(random.Random(1))
    _, found = open_log(disk, ONE)
    assert set(damages(found)) == {"g"} and len(found.groups["h"].entries) == 8


def test_a_group_without_entries_is_known_from_the_next_segment() -> None:
    """What was lost at the end of a segment was no entry of this group. Found by seed 41: the group was
    reported as damaged until the segment was deleted."""
    disk = SimDisk()
    log, _ = open_log(disk, TWO_KIB)
    log.write([append("g", 1, 2), append("h", 1)])
    log.write([Rebase("g", base(2), False), SetHard("g", HardState(3, "a"))])
    log.sync()
    rebased = max(int(line["offset"]) for line in dump(disk, "log") if line["group"] == "g")
    log.write([append("h", 2, text="y" * TWO_KIB.segment_bytes)])
    log.close()
    wipe(disk, PATH, rebased, len(disk.read(PATH)))
    _, found = open_log(disk, TWO_KIB)
    assert found.damaged == [] and len(found.groups["h"].entries) == 2
    assert (found.groups["g"].base, found.groups["g"].hard) == (base(2), HardState(3, "a"))
    assert found.groups["g"].entries == []


def wipe(disk: Disk, path: str, start: int, end: int) -> None:
    with disk.open(path) as file:
        file.zero_fill(start, end - start)
        file.sync()


def test_wiped_block_is_reported_for_the_groups_with_records_in_it() -> None:
    """Zeros in the middle are corruption. Later records prove which groups lost nothing."""
    disk, _, offsets = written([*TWO_GROUPS, [append("h", 6)], [append("k", 1)]])
    wipe(disk, PATH, offsets[1], offsets[2])
    _, found = open_log(disk, ONE)
    by_group = damages(found)
    assert set(by_group) == {"", "g"}
    assert (by_group["g"].offset, by_group["g"].first, by_group["g"].last) == (offsets[1], 4, 5)
    assert len(found.groups["g"].entries) == 3
    assert len(found.groups["h"].entries) == 6 and len(found.groups["k"].entries) == 1


def test_a_loss_before_a_vote_has_an_unknown_end() -> None:
    """The vote proves that entries are missing, but not how many."""
    disk, _, offsets = written([[append("g", 1, 3)], [append("g", 4, 2)], [SetHard("g", HardState(7))]])
    wipe(disk, PATH, offsets[1], offsets[2])
    lost = damages(open_log(disk, ONE)[1])["g"]
    assert (lost.first, lost.last) == (4, 0) and "entries 4..?" in lost.text


def test_a_base_that_replaces_lost_entries_does_not_repair_the_vote() -> None:
    group = GroupIndex("g", last=5, damages=[Damage(1, 64, "g", 3, 9, "lost")])
    group.rebase(Base(12, 2, Config()), keep_suffix=False)
    assert group.damages == [Damage(1, 64, "g", 0, 0, "lost", "hard")] and group.last == 12


def test_wiped_block_leaves_groups_suspect_that_write_nothing_later() -> None:
    """A group that may have lost entries, and for which no record proves the contrary, is damaged: a node
    never votes on a guess."""
    disk, _, offsets = written(TWO_GROUPS[:3])
    wipe(disk, PATH, offsets[1], offsets[2])
    for _ in range(2):
        log, found = open_log(disk, ONE)
        assert set(damages(found)) == {"", "g"}
        assert (damages(found)["g"].first, damages(found)["g"].last) == (4, 0)
        log.close()


def test_lost_forget_and_lost_creation() -> None:
    """A group that was forgotten or created in a wiped block is neither confused with its predecessor nor
    considered intact."""
    first: list[LogOp] = [append("g", 1, 9), SetHard("g", HardState(7, "x")), append("h", 1)]
    disk, _, offsets = written(
        [first, [Forget("g"), append("h", 2)], [append("g", 1, 2, 1, "new"), append("h", 3)]]
    )
    wipe(disk, PATH, offsets[1], offsets[2])
    _, found = open_log(disk, ONE)
    assert set(damages(found)) == {"", "h"}
    assert found.groups["g"].hard == HardState()
    assert found.groups["g"].entries == append("g", 1, 2, 1, "new").entries

    reborn: list[LogOp] = [Forget("g"), append("g", 1)]
    disk, _, offsets = written([first, reborn, [append("g", 2), append("h", 2)], [append("h", 3)]])
    wipe(disk, PATH, offsets[1], offsets[2])
    _, found = open_log(disk, ONE)
    assert set(damages(found)) == {"", "g"} and found.groups["g"].entries == []


def test_a_bad_record_of_a_removal_prevents_votes_up_to_its_term() -> None:
    """The header contains the length and the term of the log. Nobody knows for whom the node voted in that
    term, so the node does not vote in any term up to it."""
    forget: list[LogOp] = [Forget("g", HardState(7, "x", (5, 9))), Forget("h")]
    disk, _, offsets = written([[append("g", 1, 9), append("h", 1)], forget, [append("k", 1)]])
    content = disk.read(PATH)
    at = content.index(b"\xa1x", offsets[1], offsets[2])
    with disk.open(PATH) as file:
        file.pwrite(at, b"\xa1y")
        file.sync()
    _, found = open_log(disk, ONE)
    assert found.left == {"g": HardState(8, "", (7, 9))} and list(found.groups) == ["k"]


def long_log() -> tuple[SimDisk, Log]:
    """A log in which `idle` writes to the first segment only and `busy` to all; both have a hard state."""
    disk = SimDisk()
    log, _ = open_log(disk)
    log.write([append("idle", 1, 5), SetHard("idle", HardState(3, "a"))])
    for index in range(1, 81):
        log.write([append("busy", index, 1, 1, "z" * 100)])
        if index > 60:
            log.write([append("late", index - 60)])
    log.sync()
    assert len(log.segments) > 6
    return disk, log


def test_missing_middle_segment_is_reported_with_groups_and_ranges() -> None:
    """The next segment starts with the state of every group: the lost range is known, and idle groups lost
    nothing."""
    disk, log = long_log()
    disk.unlink("log/000000000003.log")
    _, found = open_log(disk)
    by_group = damages(found)
    assert set(by_group) == {"busy"}
    assert by_group["busy"].segment == 3
    lost = range(by_group["busy"].first, by_group["busy"].last + 1)
    assert len(found.groups["busy"].entries) == lost[0] - 1 and 3 < len(lost) < 40
    assert len(found.groups["idle"].entries) == 5 and found.groups["idle"].hard == HardState(3, "a")
    assert len(found.groups["late"].entries) == 20
    del log


def test_missing_first_segment_is_reported_with_its_entries() -> None:
    """Bases and hard states are known from the second segment; the entries of the first one are reported as
    lost."""
    disk, _ = long_log()
    disk.unlink("log/000000000001.log")
    _, found = open_log(disk)
    by_group = damages(found)
    assert set(by_group) == {"busy", "idle"}
    assert (by_group["idle"].first, by_group["idle"].last) == (1, 5)
    assert by_group["busy"].first == 1 and by_group["busy"].last > 3
    assert found.groups["idle"].hard == HardState(3, "a") and found.groups["idle"].entries == []


def test_missing_newest_segment_makes_every_group_suspect() -> None:
    """No later segment shows what it contained; that it existed is known."""
    disk, log = long_log()
    newest = log.segments[-1]
    disk.unlink(f"log/{newest:012d}.log")
    for _ in range(2):
        log, found = open_log(disk)
        assert {"busy", "idle", "late"} <= set(damages(found))
        assert all(damage.segment == newest for damage in found.damaged)
        log.close()
        found.damaged.clear()


def test_bad_bytes_in_an_old_segment_are_never_a_torn_tail() -> None:
    """A segment that is not the newest was durable up to its end, whatever its blocks contain."""
    disk, log = long_log()
    path = "log/000000000002.log"
    end = disk.stat(path).size
    offsets = sorted(
        {int(x["offset"]) for x in dump(disk, "log") if x["segment"] == 2 and x["kind"] == "append"}
    )
    wipe(disk, path, offsets[-1], end)
    before = disk.read(path)
    log, found = open_log(disk)
    assert set(damages(found)) == {"busy"} and disk.read(path) == before
    assert found.torn_bytes == 0
    log.close()


def test_truncated_old_segment_is_noticed() -> None:
    """A file that lost its end contains no bad byte; the start of the next segment proves the loss."""
    disk, log = long_log()
    path = "log/000000000002.log"
    with disk.open(path) as file:
        file.truncate(disk.stat(path).size // 2 & -8)
    _, found = open_log(disk)
    assert set(damages(found)) - {""} == {"busy"}
    del log


def test_lost_start_loses_nothing_if_the_rest_is_intact() -> None:
    """A start only repeats what is known; without it no group is suspect."""
    disk, _ = long_log()
    path = "log/000000000003.log"
    first = min(int(x["offset"]) for x in dump(disk, "log") if x["segment"] == 3 and x["kind"] == "append")
    wipe(disk, path, 0, first)
    _, found = open_log(disk)
    assert found.damaged == [] and len(found.groups["busy"].entries) == 80


def test_wrong_length_allocates_nothing() -> None:
    """A length is used only if its checksum is correct: a header that claims 4 GiB is just a bad header."""
    disk, _, offsets = written(TWO_GROUPS)
    with disk.open(PATH) as file:
        file.pwrite(offsets[1] + 40, b"\xff" * 8)
        file.sync()
    _, found = open_log(disk, ONE)
    assert found.damaged == [] and found.healed == 1


def test_block_copied_to_another_place_is_not_valid_there() -> None:
    """A misdirected write of a well-formed block is corruption at its target, and never a record."""
    disk, _, offsets = written([[append("g", n)] for n in range(1, 6)])
    size = offsets[2] - offsets[1]
    with disk.open(PATH) as file:
        file.pwrite(offsets[2], file.pread(offsets[1], size))
        file.sync()
    _, found = open_log(disk, ONE)
    assert damages(found)["g"].first == 3 and len(found.groups["g"].entries) == 2


def test_check_changes_nothing() -> None:
    """The offline check reports what opening would report, and leaves every byte and name unchanged."""
    disk, _, offsets = written(TWO_GROUPS)
    flip_byte(disk, PATH, len(disk.read(PATH).rstrip(b"\0")) - 70)
    before = {name: disk.read(f"log/{name}") for name in disk.listdir("log")}
    report = check(disk, "log")
    assert report.is_whole or report.torn_bytes
    assert [line["kind"] for line in dump(disk, "log")][-1] in ("torn", "append")
    assert before == {name: disk.read(f"log/{name}") for name in disk.listdir("log")}


def test_logs_are_readable_with_other_settings() -> None:
    """Logs that were written with either of the two settings of this module can be read with the other."""
    disk, log, _ = written(TWO_GROUPS)
    log.close()
    _, found = open_log(disk, SMALL)
    assert found.damaged == [] and len(found.groups["g"].entries) == 6


@pytest.mark.parametrize("seed", range(120))
def test_any_damage_is_noticed(seed: int) -> None:
    """Whatever is wiped, flipped, cut or removed: a group that is not reported is exactly as written.

    The log cannot detect the loss of a last batch that nothing records as synced, so the workload ends with a
    close, which records it.
    """
    rng = random.Random(seed)
    workload = Batches(random.Random(seed), [f"n.{n}" for n in range(rng.randint(2, 8))])
    disk = SimDisk()
    log, _ = open_log(disk)
    for _ in range(rng.randint(5, 80)):
        log.write(workload.batch())
        log.sync()
        if rng.random() < 0.1:
            log.reclaim()
    log.close()
    for _ in range(rng.randint(1, 3)):
        damage_somewhere(disk, rng)
    for _ in range(3):
        log, found = open_log(disk)
        named = {damage.group for damage in found.damaged}
        for name, group in found.groups.items():
            if name not in named:
                assert group == workload.state[name], (name, found.damaged)
        missing = workload.state.keys() - found.groups.keys()
        assert not missing or "" in named, (missing, found.damaged)
        assert found.torn_bytes == 0 or named
        log.close()


def damage_somewhere(disk: SimDisk, rng: random.Random) -> None:
    """Damage one place in the log that contains data."""
    name = rng.choice([n for n in disk.listdir("log") if n.endswith(".log")])
    path = f"log/{name}"
    end = len(disk.read(path).rstrip(b"\0"))
    dice = rng.random()
    if dice < 0.1 and len(disk.listdir("log")) > 2:
        disk.unlink(path)
    elif dice < 0.5:
        start = rng.randrange(end)
        wipe(disk, path, start, min(end, start + rng.choice([64, 512, 4096])))
    elif dice < 0.8:
        for _ in range(rng.randint(1, 5)):
            disk.flip(path, rng.randrange(end), rng.randrange(8))
    else:
        with disk.open(path) as file:
            offset = rng.randrange(end)
            file.pwrite(offset, rng.randbytes(min(end - offset, rng.choice([16, 600]))))

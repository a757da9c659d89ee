"""`RaftLog` and its config agree with a plain list."""

import random

from nodeagent.model.entries import Base, Config, Entry, EntryKind
from nodeagent.raft import RaftLog, encode_config
from nodeagent.raft.log import ENTRY_OVERHEAD_BYTES

FIRST = Config(("a", "b", "c"))


def command(term: int, size: int = 1) -> Entry:
    return Entry(term, int(EntryKind.COMMAND), b"x" * size)


def config_entry(term: int, config: Config) -> Entry:
    return Entry(term, int(EntryKind.CONFIG), encode_config(config))


class Twin:
    """The whole history in one list, from which nothing is dropped."""

    def __init__(self) -> None:
        self.base = 0
        self.all: list[Entry] = []

    def term(self, index: int) -> int | None:
        if index < self.base or index > len(self.all):
            return None
        return self.all[index - 1].term if index else 0

    def config_at(self, index: int) -> Config:
        kinds = [i for i, e in enumerate(self.all[:index]) if e.kind == EntryKind.CONFIG]
        return Config(("n", str(kinds[-1] + 1))) if kinds else FIRST


def test_the_log_equals_a_plain_list_under_random_changes() -> None:
    """Terms, slices, configs and sizes agree after every append, truncation and rebase."""
    draw = random.Random(7)
    for _ in range(60):
        log, twin, term = RaftLog(Base(0, 0, FIRST), []), Twin(), 1
        for _ in range(60):
            roll = draw.random()
            if roll < 0.6:
                term += draw.random() < 0.2
                batch = []
                for i in range(draw.randrange(1, 5)):
                    index = len(twin.all) + i + 1
                    is_config = draw.random() < 0.1
                    new = config_entry(term, Config(("n", str(index)))) if is_config else command(term, i)
                    batch.append(new)
                log.append(batch)
                twin.all += batch
            elif roll < 0.8 and len(twin.all) > twin.base:
                first = draw.randrange(twin.base + 1, len(twin.all) + 2)
                log.truncate(first)
                del twin.all[first - 1 :]
            else:
                twin.base = draw.randrange(twin.base, len(twin.all) + 1)
                expected = Base(twin.base, twin.term(twin.base) or 0, twin.config_at(twin.base))
                assert log.rebase(twin.base) == expected
            agree(log, twin, draw)


def agree(log: RaftLog, twin: Twin, draw: random.Random) -> None:
    last = len(twin.all)
    assert (log.first_index, log.last_index) == (twin.base + 1, last)
    assert log.last_term == (twin.term(last) or 0)
    assert [log.term(i) for i in range(last + 3)] == [twin.term(i) for i in range(last + 3)]
    assert log.config == twin.config_at(last)
    first = draw.randrange(twin.base + 1, last + 2)
    assert log.slice(first, last, 1 << 40) == twin.all[first - 1 :]
    low = draw.randrange(twin.base, last + 1)
    assert log.config_at(low) == twin.config_at(low)
    size = sum(len(e.data) + ENTRY_OVERHEAD_BYTES for e in twin.all[low:])
    assert log.bytes_between(low, last) == size
    term = draw.randrange(0, 12)
    fits = [i for i in range(twin.base, last + 1) if (twin.term(i) or 0) <= term]
    assert log.last_not_after(last + 2, term) == max(fits, default=twin.base - 1)


def test_slice_is_cut_by_bytes_but_never_empty() -> None:
    """A slice contains as many whole entries as fit; an entry larger than the limit is sent alone."""
    log = RaftLog(Base(0, 0, FIRST), [command(1, 84), command(1, 84), command(1, 84), command(1, 984)])
    assert len(log.slice(1, 4, 200)) == 2
    assert len(log.slice(1, 4, 199)) == 1
    assert len(log.slice(1, 4, 1)) == 1
    assert len(log.slice(4, 4, 100)) == 1
    assert log.slice(5, 4, 100) == []


def test_reset_keeps_a_suffix_only_when_it_continues_the_snapshot() -> None:
    """With the same term at the base, the node may have promised the suffix; with another term, the suffix is
    from an old leader."""
    entries = [command(1), command(1), command(2)]
    kept = RaftLog(Base(0, 0, FIRST), list(entries))
    assert kept.reset(Base(2, 1, FIRST))
    assert (kept.base.index, kept.last_index, kept.last_term) == (2, 3, 2)
    dropped = RaftLog(Base(0, 0, FIRST), list(entries))
    assert not dropped.reset(Base(2, 2, FIRST))
    assert (dropped.base.index, dropped.last_index, dropped.last_term) == (2, 2, 2)


def test_reset_discards_a_config_that_the_snapshot_does_not_contain() -> None:
    """An uncommitted config of an old leader must not survive the installation of a snapshot."""
    phantom = Config(("a", "b", "c", "x"))
    log = RaftLog(Base(0, 0, FIRST), [command(1), config_entry(1, phantom)])
    assert log.config == phantom
    log.reset(Base(5, 2, FIRST))
    assert (log.config, log.config_index) == (FIRST, 5)

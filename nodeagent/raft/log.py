"""The log of one group as Raft sees it: every entry after `base`, in memory, and the configs in it.

The entries are contiguous and their terms never decrease, so a term is searched by bisection.
`durability` records which entries are durable.
"""

from bisect import bisect_right
from itertools import accumulate
from operator import attrgetter

from nodeagent.model.entries import Base, Config, Entry, EntryKind
from nodeagent.raft.membership import decode_config

ENTRY_OVERHEAD_BYTES = 16
"""Added to the size of each entry, so that byte limits also bound the number of empty entries."""

_CONFIG = int(EntryKind.CONFIG)
_term_of = attrgetter("term")


class RaftLog:
    """All entries after `base`.

    Invariant: `config` is that of the newest CONFIG entry, otherwise `base.config` (a config takes effect
    when it is appended, thesis 4.1), and `config_index` is its index.
    """

    __slots__ = ("_configs", "_ends", "_entries", "base", "config", "config_index", "last_index")

    base: Base
    last_index: int
    config: Config
    config_index: int

    def __init__(self, base: Base, entries: list[Entry]) -> None:
        self._entries: list[Entry] = []
        self._ends: list[int] = [0]
        """`_ends[i]`: bytes of everything up to entry `base.index + i`; one more item than entries."""

        self._configs: list[tuple[int, Config]] = []
        self._start(base)
        self.append(entries)

    def _start(self, base: Base) -> None:
        self.base = base
        self.last_index = base.index
        self._entries = []
        self._ends = [0]
        self._configs = [(base.index, base.config)]
        self.config_index, self.config = self._configs[-1]

    @property
    def first_index(self) -> int:
        """Index of the first entry held; one past `last_index` when there is none."""
        return self.base.index + 1

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base.term

    def term(self, index: int) -> int | None:
        """Term of the entry at `index`, the base included; None below the base or beyond the end."""
        at = index - self.base.index
        if at > 0:
            return self._entries[at - 1].term if index <= self.last_index else None
        return self.base.term if at == 0 else None

    def slice(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries `first..last`, cut at `bytes_max`; at least one entry if there is any."""
        low = first - self.base.index - 1
        high = last - self.base.index
        assert low >= 0 and high <= len(self._entries), (first, last, self.base.index, self.last_index)
        if high > low + 1 and self._ends[high] - self._ends[low] > bytes_max:
            high = max(low + 1, bisect_right(self._ends, self._ends[low] + bytes_max, low, high) - 1)
        return self._entries[low:high]

    def bytes_between(self, after: int, last: int) -> int:
        """Bytes of the entries `after + 1 .. last`."""
        return self._ends[last - self.base.index] - self._ends[after - self.base.index]

    def last_not_after(self, index: int, term: int) -> int:
        """Highest position at or below `index` whose term is at most `term`.

        One less than `base.index` if even the base is of a later term: then the follower needs a snapshot.
        `index` itself if it is below the base. Leader and follower both call this function, so that each
        round skips a whole term (thesis 3.5, last paragraph).
        """
        high = min(index, self.last_index) - self.base.index
        if high < 0:
            return index
        at = bisect_right(self._entries, term, 0, high, key=_term_of)
        if at == 0 and self.base.term > term:
            return self.base.index - 1
        return self.base.index + at

    def config_at(self, index: int) -> Config:
        """The config that was in effect when the log ended at `index`."""
        assert index >= self.base.index, (index, self.base.index)
        for at, config in reversed(self._configs):
            if at <= index:
                return config
        raise AssertionError("the base always has a config")

    def append(self, entries: list[Entry], *, commands_only: bool = False) -> None:
        """Add `entries` at the end; with `commands_only`, none of them is a CONFIG."""
        if not entries:
            return
        if not commands_only and _CONFIG in [e.kind for e in entries]:
            for index, entry in enumerate(entries, self.last_index + 1):
                if entry.kind == _CONFIG:
                    self._configs.append((index, decode_config(entry.data)))
            self.config_index, self.config = self._configs[-1]
        self._entries.extend(entries)
        self._ends.extend(
            accumulate([len(e.data) + ENTRY_OVERHEAD_BYTES for e in entries], initial=self._ends.pop())
        )
        self.last_index += len(entries)

    def truncate(self, first: int) -> None:
        """Remove the entries from `first` on; a config among them is rolled back."""
        assert first > self.base.index, (first, self.base.index)
        if first > self.last_index:
            return
        keep = first - self.base.index - 1
        del self._entries[keep:]
        del self._ends[keep + 1 :]
        self.last_index = first - 1
        while self._configs[-1][0] >= first:
            self._configs.pop()
        self.config_index, self.config = self._configs[-1]

    def rebase(self, index: int) -> Base:
        """Purge the entries up to `index` and keep the rest; returns the new base."""
        term = self.term(index)
        assert term is not None, (index, self.base.index, self.last_index)
        base = Base(index, term, self.config_at(index))
        self._drop_prefix(base)
        return base

    def reset(self, base: Base) -> bool:
        """Start the log after a snapshot up to `base`; returns whether the entries after it were kept.

        They are kept if this log holds the entry of `base`: then they follow it, and may have been
        acknowledged to a leader (thesis 5.3). Otherwise all entries are removed.
        """
        if self.term(base.index) == base.term:
            self._drop_prefix(base)
            return True
        self._start(base)
        return False

    def _drop_prefix(self, base: Base) -> None:
        count = base.index - self.base.index
        del self._entries[:count]
        del self._ends[:count]
        self._configs = [(base.index, base.config), *(c for c in self._configs if c[0] > base.index)]
        self.config_index, self.config = self._configs[-1]
        self.base = base

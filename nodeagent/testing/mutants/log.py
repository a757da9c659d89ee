"""Bugs in the log."""

from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "what a start recovered is not made durable again",
        "log/log.py",
        "            file.pwrite(tail.synced, file.pread(tail.synced, tail.end - tail.synced))\n",
        "            pass\n",
    ),
    Mutant(
        "a torn tail is not removed before the next blocks",
        "log/log.py",
        "            file.zero_fill(tail.end, tail.torn_end - tail.end)\n",
        "",
        breaks="S15",
    ),
    Mutant(
        "a failed sync is retried",
        "log/space.py",
        "        except OSError as error:\n            self.error = error\n            raise\n",
        "        except OSError:\n            action()\n",
    ),
    Mutant(
        "small writes are not synced",
        "log/log.py",
        "if segment.synced < segment.end:",
        "if segment.synced + 200 < segment.end:",
    ),
    Mutant(
        "a segment is sealed and not synced",
        "log/log.py",
        "            self._space.guard(old.sync)\n            old.closed = True",
        "            old.closed = True",
    ),
    Mutant(
        "a segment gets its name before its first block is durable",
        "log/segments.py",
        "            segment.sync()\n            self._disk.rename(temporary, path)",
        "            self._disk.rename(temporary, path)",
    ),
    Mutant(
        "the name of a new segment is not durable",
        "log/segments.py",
        "            self._disk.rename(temporary, path)\n            self._disk.sync_dir(self._directory)\n",
        "            self._disk.rename(temporary, path)\n",
    ),
    Mutant(
        "segments are deleted before their replacement is durable",
        "log/reclaim.py",
        "            self._sync()  # make the writes durable that replaced their entries\n",
        "            pass\n",
    ),
    Mutant(
        "a segment is deleted while one of its entries is needed",
        "log/reclaim.py",
        "if n not in live and n not in damaged and self._is_recorded(n)]",
        "if live.get(n, 0) < 100 and n not in damaged and self._is_recorded(n)]",
    ),
    Mutant(
        "a damaged segment is deleted",
        "log/reclaim.py",
        "if n not in live and n not in damaged and self._is_recorded(n)]",
        "if n not in live and self._is_recorded(n)]",
        breaks="S15",
    ),
    Mutant(
        "an append replaces nothing",
        "log/index.py",
        "        self.truncate(first)\n        tail = self.extents[-1]",
        "        tail = self.extents[-1]",
    ),
    Mutant(
        "a truncation keeps one entry too many",
        "log/index.py",
        "            self.extents[-1].cut_from(first)\n        self.last = min",
        "            self.extents[-1].cut_from(min(first + 1, self.extents[-1].last))\n        self.last = min",
    ),
    Mutant(
        "a new base keeps what it should drop",
        "log/index.py",
        "        if not keep_suffix:\n            self._drop(base.index)\n            return\n",
        "",
    ),
    Mutant(
        "a group's hard state is read from the last segment only",
        "log/index.py",
        "        self.hard = hard\n        self.damages = [\n            msgspec",
        "        self.hard = self.hard if self.hard.term == hard.term else hard\n        self.damages = [\n"
        "            msgspec",
        breaks="S5",
    ),
    Mutant(
        "a body is accepted without checking its checksum",
        "log/record.py",
        "if len(body) != head.body_length or zlib.crc32(body) != head.body_crc:",
        "if len(body) != head.body_length:",
        breaks="S15",
    ),
    Mutant(
        "damage that may be a torn write is never reported",
        "log/scan.py",
        "            if found.offset >= floor:\n                break",
        "            if durable is not None:\n                break",
        breaks="S15",
    ),
    Mutant(
        "a missing operation of a group is ignored",
        "log/replay.py",
        "        elif row.previous != have:\n            self._lost_before(row, state, number, offset)",
        "        elif row.previous > have + 1_000_000:\n            self._lost_before(row, state, number, offset)",
        breaks="S15",
    ),
    Mutant(
        "an unreadable place makes no group suspect",
        "log/replay.py",
        "            self.suspects.setdefault(group, damage)\n",
        "            pass\n",
        breaks="S15",
    ),
    Mutant(
        "a segment begins without the memory of groups that were left",
        "log/index.py",
        "dict(sorted(self.left.items()))",
        "{}",
    ),
    Mutant(
        "a copy is remembered at its old place",
        "log/index.py",
        "self.extents = [*before, Extent(first, last, segment, size, kept), *after]",
        "self.extents = [*before, Extent(first, last, self.extents[0].segment, size, kept), *after]",
    ),
)

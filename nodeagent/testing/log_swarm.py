"""One log under a swarm of faults: the real `log` through many restarts, without groups.

Each life opens the log, writes some batches, and ends: the log is closed, the process is killed, the power
fails during a disk change, or the disk fails. Between two lives bits may flip, sectors may be wiped or
misplaced, and segments may disappear, within the part that the log can know to be synced. A start must
recover what was synced and may recover a prefix of what was written since; it must report what it lacks (S6,
S7, S15).

`python -m nodeagent.testing.log_swarm FIRST [COUNT]` prints one line per seed.
"""

import errno
from collections import Counter
from typing import Any

import msgspec

from nodeagent.log import Log, NoSpace
from nodeagent.log.identity import LOG_DIR, begin_start, known_identity
from nodeagent.log.record import Block
from nodeagent.log.replay import SUFFIX, list_segments, path_of
from nodeagent.log.scan import scan_segment
from nodeagent.model.entries import Forget, HardState, LogOp, SetHard
from nodeagent.model.errors import Damaged
from nodeagent.model.ids import GroupId
from nodeagent.storage import layout
from nodeagent.testing.batches import Batches, copy_state
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.durable import Durable
from nodeagent.testing.inodes import SECTOR_BYTES
from nodeagent.testing.log_plan import CALLS, Plan
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.sim import Sim
from nodeagent.testing.volume import Fault, PowerCut

NODE = "m1"

LIVES = 200
OPENINGS_MAX = 5
"""Number of starts that may be interrupted before one is left undisturbed."""

PURGED_SEGMENTS_MAX = 4
"""Maximum number of segments of a log in which no group has an entry."""

ROOM_BYTES = 16_384
"""Bytes that a full disk gains beyond two segments."""


class Report(msgspec.Struct):
    """Results of one run."""

    seed: int
    trace: int
    events: int
    """Number of batches and starts."""

    ends: dict[str, int]
    odd: dict[str, int]


class LogSwarm:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sim: Sim[Any] = Sim(seed)
        rng = self.rng = self.sim.rng
        self.plan = Plan.draw(rng)
        names = [f"g{n}" for n in range(self.plan.groups)]
        self.batches = Batches(rng, names, self.plan.slower, self.plan.ops, self.plan.text)
        self.ends: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.events = 0
        self.life = 0
        self._replace_disk()

    def _replace_disk(self) -> None:
        """Continue on an empty disk, as a replaced node does."""
        self.disk = SimDisk(self.plan.capacity)
        self.durable = Durable(NODE)
        self.hurt = False
        """Whether the log was corrupted since the last start; otherwise no further group may be damaged."""

        self.unread = False
        """Whether some sectors cannot be read at this start; they may be readable at the next."""

        self.reported: set[GroupId] = set()
        """Groups reported as permanently damaged at the last start."""

        self.damaged_in: set[tuple[GroupId, int]] = set()
        """(damaged group, number of a segment that shows the damage)"""

    def run(self) -> Report:
        for self.life in range(1, LIVES + 1):
            self._live(self.rng.choice(self.plan.ends))
        ends, odd = dict(sorted(self.ends.items())), dict(sorted(self.odd.items()))
        return Report(self.seed, self.sim.trace, self.events, ends, odd)

    # --- a start -----------------------------------------------------------------------------------

    def _start(self) -> Log:
        for _ in range(OPENINGS_MAX):
            if self.rng.random() < self.plan.cut_starts:
                self._plan_cut()
            failed = self.disk.failed.total()
            try:
                return self._open()
            except PowerCut:
                self.odd["power cut at a start"] += 1
                self.disk.crash(self.rng)
            except NoSpace:
                self._give_room()
            except Damaged as error:
                assert self.hurt, f"S6: {error.what} although nothing was corrupted"
                self.odd["does not start"] += 1
                self._replace_disk()
            except OSError as error:
                assert self.disk.failed.total() > failed, f"{error} although no disk call failed"
                self.odd["error at a start"] += 1
                self.disk.restart()
            self.disk.faults.clear()
        return self._open()

    def _plan_cut(self) -> None:
        rng = self.rng
        what = rng.choice(["power", "read", *CALLS])
        if what == "power":
            self.disk.cut_power_at = self.disk.operations + rng.randint(1, 15)
        elif what == "read":
            self.hurt = self.unread = True  # counts as damage while it cannot be read
            self.disk.faults.append(Fault("read", errno.EIO, SUFFIX, skip=rng.randint(0, 3)))
        else:
            self.disk.faults.append(Fault(what, errno.EIO, f"{LOG_DIR}/", skip=rng.randint(0, 3)))

    def _open(self) -> Log:
        known = known_identity(self.disk, NODE, layout.GROUPS)
        log, found = Log.open(self.disk, LOG_DIR, self.plan.settings)
        named = {d.group for d in found.damaged}
        assert self.hurt or named <= self.durable.lost, f"S6: {found.damaged} although nothing was corrupted"
        self.sim.note(f"{self.life}: {len(log.segments)} segments, damaged {sorted(named)}")
        if "" in named:
            self.odd["damaged as a whole"] += 1
            self._replace_disk()
            return self._open()
        self.events += 1
        self.odd["torn"] += found.torn_bytes > 0
        self.odd["healed"] += found.healed
        self.odd["damaged"] += len(named)
        self.durable.reopened(found, must_fit=True, hurt=self.hurt)
        unreported = (self.reported & self.durable.lost) - named
        assert not unreported, (
            f"S15: {unreported}, damaged at the last start and not repaired, are not reported"
        )
        self.reported = set() if self.unread else named
        self.hurt = self.unread = False
        self.damaged_in = {(d.group, d.segment) for d in found.damaged if d.segment in log.segments}
        begin_start(self.disk, log, NODE, known, lambda: f"{self.life}.{self.disk.operations}")
        lost = self.durable.lost
        self.batches.state = copy_state({n: g for n, g in found.groups.items() if n not in lost})
        return log

    # --- a life ------------------------------------------------------------------------------------

    def _live(self, end: str) -> None:
        log, disk, rng = self._start(), self.disk, self.rng
        disk.faults.clear()
        self.ends[end] += 1
        if end == "power":
            disk.cut_power_at = disk.operations + rng.randint(1, 4 * self.plan.batches)
        elif end in CALLS:
            disk.faults.append(Fault(end, errno.EIO, f"{LOG_DIR}/", skip=rng.randint(0, 30)))
        if rng.random() < self.plan.full:
            skip, times = rng.randint(0, 20), rng.randint(1, 4)
            disk.faults.append(Fault("write", errno.ENOSPC, f"{LOG_DIR}/", skip=skip, times=times))
        try:
            for _ in range(rng.randint(0, self.plan.batches)):
                self._step(log)
            if end == "close":
                log.close()
                self.durable.synced()
        except PowerCut:
            disk.faults.clear()
            disk.crash(rng)
        except OSError as error:
            self.sim.note(f"{end}: {error}")
            self._stop()
        else:
            self._stop()
        if self.plan.hurts and rng.random() < self.plan.hurt:
            is_marked = end == "close" and not log.space_low
            known = self._known_ends(is_marked)
            for _ in range(rng.randint(1, 3)):
                self._hurt(known)

    def _stop(self) -> None:
        """End the process, sometimes with a power cut."""
        self.disk.faults.clear()
        if self.rng.random() < self.plan.dark:
            self.disk.crash(self.rng)
        else:
            self.disk.restart()

    def _step(self, log: Log) -> None:
        chances, rng = self.plan.chances, self.rng
        lost = self.durable.lost
        if lost and rng.random() < chances["repair"]:
            repaired = rng.choice(sorted(lost))
            self.damaged_in = {(group, n) for group, n in self.damaged_in if group != repaired}
            self._write(log, [Forget(repaired)])
        self._write(log, self.batches.batch(frozenset(lost)))
        if rng.random() < chances["sync"]:
            self._sync(log)
            if rng.random() < chances["mark"]:
                log.mark_synced()
        if rng.random() < chances["reclaim"]:
            before = log.segments
            log.reclaim()
            after = log.segments
            away = {(group, n) for group, n in self.damaged_in if n not in after}
            assert not away, f"S15: the damaged segments {away} were deleted before a repair"
            self.odd["segments gone"] += len(before) - len(after)
            self.odd["gaps"] += after[-1] - after[0] >= len(after)
        if rng.random() < chances["purge"]:
            self._purge(log)

    def _write(self, log: Log, ops: list[LogOp]) -> None:
        if not ops:
            return
        self.events += 1
        self.durable.writes(ops)
        try:
            log.write(ops)
        except NoSpace:
            self.odd["no room"] += 1
            self.durable.refused()
            self._make_room(log, ops)
        except OSError as error:
            self._is_final(log, error)
            raise
        self.durable.written()

    def _make_room(self, log: Log, ops: list[LogOp]) -> None:
        """Give the disk more space; the log must accept the batch then."""
        log.reclaim()
        self._give_room()
        self.durable.writes(ops)
        try:
            log.write(ops)
        except NoSpace as error:
            raise AssertionError(f"L7: {error} although there is space again") from error

    def _give_room(self) -> None:
        self.disk.faults = [f for f in self.disk.faults if f.errno != errno.ENOSPC]
        self.disk.capacity_bytes += 2 * self.plan.settings.segment_bytes + ROOM_BYTES

    def _sync(self, log: Log) -> None:
        try:
            log.sync()
        except OSError as error:
            self._is_final(log, error)
            raise
        self.durable.synced()

    def _is_final(self, log: Log, error: OSError) -> None:
        """Check that a log with a disk error raises it at every later call."""
        for call in (log.sync, lambda: log.write([SetHard("g0", HardState(1))])):
            try:
                call()
            except OSError as again:
                assert again is error, f"S7: {error}, then {again}"
            else:
                raise AssertionError(f"S7: the log continues after {error}")

    def _purge(self, log: Log) -> None:
        """Drop all entries; the log must delete its segments."""
        self._write(log, self.batches.purge())
        self._sync(log)
        while log.reclaim():
            pass
        held = self.durable.lost or log.space_low
        assert held or len(log.segments) <= PURGED_SEGMENTS_MAX, (
            f"L5: {log.segments} remain although no entry is needed"
        )

    # --- corruption --------------------------------------------------------------------------------

    def _known_ends(self, is_marked: bool) -> dict[str, int]:
        """By segment, the offset up to which the log can know that it was synced.

        Args:
            is_marked: whether the log recorded that all of it was synced.
        """
        disk = self.disk
        numbers = list_segments(disk, LOG_DIR)
        ends = {path_of(LOG_DIR, n): disk.written(path_of(LOG_DIR, n)) for n in numbers}
        if not is_marked:
            newest = path_of(LOG_DIR, numbers[-1])
            with memoryview(disk.read(newest)) as content:
                blocks = [b for b in scan_segment(content, numbers[-1], 0) if isinstance(b, Block)]
            ends[newest] = blocks[-1].head.synced if blocks else 0  # the block itself is not included
        return ends

    def _hurt(self, known: dict[str, int]) -> None:
        """Corrupt something within the offsets `known` to be synced."""
        rng, disk = self.rng, self.disk
        paths = [path for path in known if disk.exists(path)]
        path = rng.choice(paths)
        end = min(known[path], disk.written(path))
        if not end:
            return  # nothing is synced, or it was wiped already
        what = rng.choice(self.plan.hurts)
        self.odd[what] += 1
        self.hurt = True
        if what == "flip":
            for _ in range(rng.randint(1, 5)):
                disk.flip(path, rng.randrange(end), rng.randrange(8))
        elif what == "lose" and len(paths) > 1 and path != paths[-1]:
            disk.unlink(path)
            disk.sync_dir(LOG_DIR)
        elif what == "stray":
            source = rng.choice(paths)
            ends = disk.written(source), end - 1
            at, to = (SECTOR_BYTES * rng.randint(0, last // SECTOR_BYTES) for last in ends)
            disk.misdirect(source, at, path, to, min(SECTOR_BYTES, end - to))
        else:
            start = rng.randrange(end)
            length = min(end - start, rng.choice([64, 512, 4_096]))
            with disk.open(path) as file:
                file.pwrite(start, rng.choice([bytes(length), rng.randbytes(length)]))
                file.sync()


def run(seed: int) -> Report:
    swarm = LogSwarm(seed)
    command = f"nodeagent.testing.log_swarm {seed}"
    with replayable(seed, command, swarm.sim, lambda: f"{swarm.plan}\n{swarm.disk.trace[-10:]}"):
        return swarm.run()


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

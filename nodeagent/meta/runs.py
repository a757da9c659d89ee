"""The cluster lock and the records of runs.

Invariants:
    at most one owner holds the lock; the serial of a later owner is greater than every earlier serial;
    an entry is recorded once, at its number, and only by the owner of the lock;
    an unfinished run is not dropped (from `Feature.UNFINISHED_RUNS` on), and every run can end;
    a command sent under a lock has no effect once that lock is lost.
"""

from typing import Protocol

from msgspec.structs import replace

from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.model.features import Feature
from nodeagent.model.limits import RUN_BYTES_MAX, RUN_END_BYTES, RUNS_KEPT
from nodeagent.model.requests import Accepted, ErrorReply, LockReply, Reply
from nodeagent.model.runs import Lock, Run


class Kept(Protocol):
    """The fields of the image that this module uses: it changes `lock` and `runs`, and reads `level`."""

    lock: Lock | None
    runs: list[Run]
    level: int


class Runs:
    """The cluster lock, and the runs that were recorded under it."""

    def __init__(self, kept: Kept, audit: Audit) -> None:
        self._kept = kept
        self._audit = audit

    def take(self, index: int, t: c.TakeLock) -> Reply:
        """Give the lock to a new owner, or renew it for its owner; reply with the lock."""
        held = self._kept.lock
        if t.serial and (held is None or held.serial != t.serial):
            return lost(t.serial)
        if held is not None and held.owner != t.owner:
            return busy(held)
        if held is None:
            lock = Lock(t.owner, t.what, t.by, index, t.now, t.ttl_ms, index)
            self._audit.note(t.now, t.by, f"lock {lock.serial} taken by {t.owner}: {t.what}")
        else:
            lock = replace(held, ttl_ms=t.ttl_ms, renewed=index)
        self._kept.lock = lock
        return LockReply(lock)

    def drop(self, index: int, d: c.DropLock) -> Reply:
        """Release the lock `d.serial`, if it is held."""
        held = self._kept.lock
        if held is None or held.serial != d.serial or d.renewed not in (0, held.renewed):
            what = f"no lock was released: lock {d.serial} is not held"
            return ErrorReply("not_found", what, "iotctl ops list")
        self._kept.lock = None
        self._audit.note(d.now, d.by, f"lock {d.serial} of {held.owner} given up: {d.outcome}")
        return Accepted(index)

    def fenced(self, serial: int) -> ErrorReply | None:
        """Why a command under the lock `serial` (0: none) must have no effect; None if it may have one."""
        held = self._kept.lock
        return lost(serial) if serial and (held is None or held.serial != serial) else None

    def record(self, index: int, r: c.RecordRun) -> Reply:
        """Append one entry to the record of a run; a retry changes nothing."""
        if self._kept.lock is None or self._kept.lock.serial != r.serial:
            return lost(r.serial)
        known = next((run for run in self._kept.runs if run.id == r.run), None)
        run = known or Run(r.run, r.name, r.by, r.now)
        if r.number < len(run.entries) and run.entries[r.number] == r.entry:
            return Accepted(index)
        if r.number != len(run.entries):
            what = (
                f"entry {r.number} of run {r.run} was not recorded: the run already has "
                f"{len(run.entries)} entries: another process continued it"
            )
            return ErrorReply("refused", what, "iotctl playbook run FILE --resume", {"lost": True})
        if sum(map(len, run.entries)) + len(r.entry) > self._bytes_max(r):
            limit = f"the record of a run may have at most {RUN_BYTES_MAX} bytes"
            what = f"entry {r.number} of run {r.run} was not recorded: {limit}"
            return ErrorReply("refused", what, "split the playbook into smaller runs")
        if known is None and not self._has_room():
            what = f"run {r.run} was not recorded: the cluster has {RUNS_KEPT} unfinished runs, the maximum"
            return ErrorReply("refused", what, "resume or abandon runs: iotctl playbook runs")
        others = [other for other in self._kept.runs if other is not run]
        if known is None or (r.ended and self._keeps_unfinished()):
            self._kept.runs = [*others, run]  # ended runs are in the order of their ends
        run.entries.append(r.entry)
        run.ended |= r.ended
        self._drop_oldest()
        return Accepted(index)

    def _bytes_max(self, r: c.RecordRun) -> int:
        """Bytes that the record may have with this entry. From the level on, the last entry always fits."""
        return RUN_BYTES_MAX + (RUN_END_BYTES if r.ended and self._keeps_unfinished() else 0)

    def _has_room(self) -> bool:
        """Whether a further run may begin."""
        return not self._keeps_unfinished() or sum(not run.ended for run in self._kept.runs) < RUNS_KEPT

    def _drop_oldest(self) -> None:
        """Drop the oldest ended run if there are too many of them. Below the level, if there are too many
        runs, drop the oldest ended one before the newest run, or the oldest of all if there is none."""
        runs = self._kept.runs
        keeps = self._keeps_unfinished()
        counted = [run for run in runs if run.ended or not keeps]
        if len(counted) > RUNS_KEPT:
            ended = counted if keeps else [run for run in runs[:-1] if run.ended]
            dropped = ended[0] if ended else runs[0]
            self._kept.runs = [run for run in runs if run is not dropped]

    def _keeps_unfinished(self) -> bool:
        return self._kept.level >= Feature.UNFINISHED_RUNS


def busy(held: Lock) -> ErrorReply:
    return ErrorReply(
        "busy",
        f"{held.owner} holds the lock of the cluster: {held.what}",
        f"wait until it ends; if that process no longer runs: iotctl ops unlock {held.serial}",
        {"owner": held.owner, "by": held.by, "started_ms": held.since_ms, "lock": held.serial},
    )


def lost(serial: int) -> ErrorReply:
    return ErrorReply(
        "refused",
        f"the command had no effect: cluster lock {serial} is no longer held: it expired or was released",
        "see what was done (`iotctl cluster events`), then run the command again",
        {"lost": True},
    )

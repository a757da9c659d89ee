"""The cluster's lock and the records of runs.

Invariants:
    one owner holds the lock; a later owner's serial is greater than every earlier one's;
    an entry is recorded once, at its number, and only by who holds the lock;
    what is done under a lock has no effect once that is lost.
"""

from typing import Protocol

from msgspec.structs import replace

from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.model.limits import RUN_BYTES_MAX, RUNS_KEPT
from nodeagent.model.requests import Accepted, ErrorReply, LockReply, Reply
from nodeagent.model.runs import Lock, Run


class Kept(Protocol):
    """The part of the image that is changed here."""

    lock: Lock | None
    runs: list[Run]


class Runs:
    """The lock, and what runs under it."""

    def __init__(self, kept: Kept, audit: Audit) -> None:
        self._kept = kept
        self._audit = audit

    def take(self, index: int, t: c.TakeLock) -> Reply:
        """The lock as it is held now, by a new owner or renewed by the same one."""
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
        """Give the lock up, unless it is another's or gone already."""
        held = self._kept.lock
        if held is None or held.serial != d.serial or d.renewed not in (0, held.renewed):
            return ErrorReply("not_found", f"lock {d.serial} is not held", "iotctl ops list")
        self._kept.lock = None
        self._audit.note(d.now, d.by, f"lock {d.serial} of {held.owner} given up: {d.outcome}")
        return Accepted(index)

    def fenced(self, serial: int) -> ErrorReply | None:
        """Why what was sent under the lock `serial` (0: under none) must have no effect, if so."""
        held = self._kept.lock
        return lost(serial) if serial and (held is None or held.serial != serial) else None

    def record(self, index: int, r: c.RecordRun) -> Reply:
        """Append one entry; the same one again changes nothing."""
        if self._kept.lock is None or self._kept.lock.serial != r.serial:
            return lost(r.serial)
        known = next((run for run in self._kept.runs if run.id == r.run), None)
        run = known or Run(r.run, r.name, r.by, r.now)
        if r.number < len(run.entries) and run.entries[r.number] == r.entry:
            return Accepted(index)
        if r.number != len(run.entries):
            what = f"run {r.run} has {len(run.entries)} entries: another process went on with it"
            return ErrorReply("refused", what, "iotctl playbook run FILE --resume", {"lost": True})
        if sum(map(len, run.entries)) + len(r.entry) > RUN_BYTES_MAX:
            return ErrorReply("refused", f"the record of run {r.run} is full")
        if known is None:
            self._kept.runs = [*_fewer(self._kept.runs), run]
        run.entries.append(r.entry)
        run.ended |= r.ended
        return Accepted(index)


def busy(held: Lock) -> ErrorReply:
    return ErrorReply(
        "busy",
        f"{held.owner} holds the lock of the cluster: {held.what}",
        f"wait for its end; if that process is gone: iotctl ops unlock {held.serial}",
        {"owner": held.owner, "by": held.by, "started_ms": held.since_ms, "lock": held.serial},
    )


def lost(serial: int) -> ErrorReply:
    return ErrorReply(
        "refused",
        f"the lock {serial} of the cluster is not held any more: it lapsed or was taken away",
        "look what was done (`iotctl cluster events`), then run the command again",
        {"lost": True},
    )


def _fewer(runs: list[Run]) -> list[Run]:
    """With room for one more: an ended one goes first, the oldest of them."""
    if len(runs) < RUNS_KEPT:
        return runs
    gone = next((run for run in runs if run.ended), runs[0])
    return [run for run in runs if run is not gone]

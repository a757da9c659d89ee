"""The cluster lock: only one operator command at a time changes a cluster and its machines."""

import hashlib
import os
import re
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec

from iotctl.errors import BusyProblem, Partly, RefusedProblem
from iotctl.humanize import span_text
from iotctl.renewal import Renewal
from nodeagent.model.errors import Busy, NodeAgentError, NotFound
from nodeagent.model.requests import (
    DropLock,
    GetRuns,
    LockReply,
    RecordRun,
    Reply,
    Request,
    RunsReply,
    TakeLock,
)
from nodeagent.model.runs import Lock, Run

TTL_MS = 30_000
_PROCESS = secrets.token_hex(2)


class Asks(Protocol):
    def call_meta(self, request: Request) -> Reply: ...


class HeldLock:
    """The lock, held and renewed from `__enter__` to `__exit__`. If the process is killed, the lock stays
    held for up to `TTL_MS`, or until `iotctl ops unlock`."""

    def __init__(self, cluster: Asks, what: str, by: str, now_ms: int) -> None:
        self._cluster = cluster
        self._what = what
        self._by = by
        self._now_ms = now_ms
        self._owner = owner_name(by)
        self._renewal = Renewal(lambda: self._take(self.serial), TTL_MS, "lock", is_lost)
        self.serial = 0
        self.outcome = "done"
        """Written to the audit log when the lock is released."""

    @property
    def lost(self) -> str:
        """Why the lock was lost; "" while it is held."""
        return self._renewal.lost

    def __enter__(self) -> Self:
        """Raises `BusyProblem`, which says who holds the lock and since when."""
        try:
            self.serial = self._first().serial
        except Busy as error:
            raise busy(error, self._now_ms) from None
        self._renewal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewal.__exit__(kind, error, trace)
        if error is not None:
            self.outcome = str(error).partition("\n")[0][:200] or type(error).__name__
        lost = self.lost
        with suppress(NodeAgentError):  # the lock expires by itself, or has expired
            self._cluster.call_meta(DropLock(self.serial, self._by, self.outcome))
        if error is None and lost:
            raise Partly(
                "the command completed, but lost the cluster lock before it ended",
                why=lost,
                next="iotctl cluster events (it shows whether another command changed the cluster)",
            )

    def check(self) -> int:
        """Call before each step that changes something.

        Returns: the lock's serial, which the cluster checks once more.

        Raises:
            RefusedProblem: the lock was lost.
        """
        if self.lost:
            raise RefusedProblem(
                "the cluster lock was lost; no further step was started",
                why=self.lost,
                next="iotctl cluster events, then run the command again",
            )
        return self.serial

    def record(self, run: str, name: str, number: int, entry: bytes, *, ended: bool) -> None:
        """Store entry `number` of a run's record in the cluster.

        Implements `playbook.journal.ClusterRecord`.
        """
        request = RecordRun(run, name, number, entry, self.serial, self._by, ended)
        self._cluster.call_meta(request)

    def _first(self) -> Lock:
        """Take the lock; first drop a lock whose process died on this machine."""
        try:
            return self._take(0)
        except Busy as error:
            self._drop_dead(error)
        return self._take(0)

    def _drop_dead(self, error: Busy) -> None:
        """Drop the lock that `error` names; re-raise `error` if its owner may be alive."""
        owner, serial = error.details.get("owner"), error.details.get("lock")
        if not (isinstance(owner, str) and isinstance(serial, int) and process_has_ended(owner)):
            raise error
        with suppress(NodeAgentError):
            self._cluster.call_meta(DropLock(serial, self._by, "its process has ended"))

    def _take(self, serial: int) -> Lock:
        reply = self._cluster.call_meta(TakeLock(self._owner, self._what, self._by, TTL_MS, serial))
        assert isinstance(reply, LockReply), reply
        return reply.lock


def lock_purpose(what: str, plan: object) -> str:
    """A lock's purpose with the digest of the plan, so that the audit log identifies the plan."""
    return f"{what}, plan {plan_digest(plan)}"


def plan_digest(plan: object) -> str:
    """A short digest of a plan; saving and loading the plan does not change it."""
    return hashlib.sha256(msgspec.json.encode(plan, order="sorted")).hexdigest()[:12]


def is_lost(error: NodeAgentError) -> bool:
    """Whether the answer means that the lock is no longer ours: another program holds it (`Busy`), or it was
    dropped. After other errors it may still be ours."""
    return isinstance(error, Busy) or bool(error.details.get("lost"))


def kept(cluster: Asks, run: str = "") -> tuple[Lock | None, tuple[Run, ...]]:
    """The lock, and the runs recorded in the cluster; entries only of the named run."""
    reply = cluster.call_meta(GetRuns(run))
    assert isinstance(reply, RunsReply), reply
    return reply.lock, reply.runs


def described(held: Lock, now_ms: int) -> str:
    return f"{held.owner} ({held.what}, for {span_text((now_ms - held.since_ms) / 1000)})"


class Unlocked(msgspec.Struct, frozen=True):
    """A lock that was taken from its owner."""

    number: int
    owner: str
    what: str
    by: str
    since_ms: int


def drop(cluster: Asks, held: Lock, by: str) -> Unlocked:
    """Take the lock from its owner, whose next step is refused."""
    with suppress(NotFound):  # released before, or by the first attempt of a retried call
        cluster.call_meta(DropLock(held.serial, by, f"taken away by {by}"))
    return Unlocked(held.serial, held.owner, held.what, held.by, held.since_ms)


def owner_name(by: str) -> str:
    """A unique, readable name of this process."""
    return f"{by}@{socket.gethostname()} pid {os.getpid()} ({_machine()}.{_PROCESS})"


def process_has_ended(owner: str) -> bool:
    """Whether the owner was a process on this machine that has ended."""
    named = re.search(r" pid (\d+) \((\w+)\.\w+\)$", owner)
    if named is None or named[2] != _machine():
        return False
    try:
        os.kill(int(named[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's process
    return False


def _machine() -> str:
    """Identifies the scope of process ids: one boot of one kernel and one namespace."""
    try:
        seen = Path("/proc/sys/kernel/random/boot_id").read_text() + str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return secrets.token_hex(4)
    return hashlib.sha256(seen.encode()).hexdigest()[:8]


def busy(error: Busy, now_ms: int) -> BusyProblem:
    """The refusal, with the age of the lock or operation that blocks the command."""
    since = error.details.get("started_ms")
    age = f"the other one started {span_text((now_ms - since) / 1000)} ago" if isinstance(since, int) else ""
    return BusyProblem(f"{error.what}; nothing was changed", why=age, next=error.next_step)

"""The cluster's lock: one operator's program at a time changes a cluster and its machines."""

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
    """Held from `__enter__` to `__exit__`, renewed meanwhile. A program that is killed holds it for
    `TTL_MS` more, or until `iotctl ops unlock`."""

    def __init__(self, cluster: Asks, what: str, by: str, now_ms: int) -> None:
        self._cluster = cluster
        self._what = what
        self._by = by
        self._now_ms = now_ms
        self._owner = owner_name(by)
        self._renewal = Renewal(lambda: self._take(self.serial), TTL_MS, "lock", is_lost)
        self.serial = 0
        self.outcome = "done"
        """Goes to the audit log when it is given up."""

    @property
    def lost(self) -> str:
        """Why it is not ours any more, "" while it is."""
        return self._renewal.lost

    def __enter__(self) -> Self:
        """Raises `BusyProblem`, with who holds it and for how long."""
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
        with suppress(NodeAgentError):  # it lapses by itself, or has done so
            self._cluster.call_meta(DropLock(self.serial, self._by, self.outcome))
        if error is None and lost:
            raise Partly(
                "the work was done, but the lock of the cluster was lost meanwhile",
                why=lost,
                next="iotctl cluster events tells whether another program worked beside it",
            )

    def check(self) -> int:
        """Before each step that changes something; its serial, for the cluster to check once more.

        Raises:
            RefusedProblem: it is not ours any more.
        """
        if self.lost:
            raise RefusedProblem(
                "the lock of the cluster was lost; nothing more was begun",
                why=self.lost,
                next="iotctl cluster events, then run the command again",
            )
        return self.serial

    def record(self, run: str, name: str, number: int, entry: bytes, *, ended: bool) -> None:
        """Keep entry `number` of a run's record in the cluster; as `playbook.journal.Keeper`."""
        request = RecordRun(run, name, number, entry, self.serial, self._by, ended)
        self._cluster.call_meta(request)

    def _first(self) -> Lock:
        """Without waiting for the lock of a program that died on this machine."""
        try:
            return self._take(0)
        except Busy as error:
            self._drop_dead(error)
        return self._take(0)

    def _drop_dead(self, error: Busy) -> None:
        """Raises it again when its owner may live."""
        owner, serial = error.details.get("owner"), error.details.get("lock")
        if not (isinstance(owner, str) and isinstance(serial, int) and is_gone(owner)):
            raise error
        with suppress(NodeAgentError):
            self._cluster.call_meta(DropLock(serial, self._by, "its process is gone"))

    def _take(self, serial: int) -> Lock:
        reply = self._cluster.call_meta(TakeLock(self._owner, self._what, self._by, TTL_MS, serial))
        assert isinstance(reply, LockReply), reply
        return reply.lock


def of_plan(what: str, plan: object) -> str:
    """What a lock is taken for, with the digest of the plan: the audit log tells which one it was."""
    return f"{what}, plan {plan_digest(plan)}"


def plan_digest(plan: object) -> str:
    """The same for a plan that was saved and read again."""
    return hashlib.sha256(msgspec.json.encode(plan, order="sorted")).hexdigest()[:12]


def is_lost(error: NodeAgentError) -> bool:
    """Whether the answer means that the lock is another's or nobody's, not that the leader is busy."""
    return isinstance(error, Busy) or bool(error.details.get("lost"))


def kept(cluster: Asks, run: str = "") -> tuple[Lock | None, tuple[Run, ...]]:
    """The lock, and the runs the cluster remembers; entries only of the named one."""
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
    """Take it from its owner, whose next step is refused."""
    with suppress(NotFound):  # gone already, or by the first of two tries
        cluster.call_meta(DropLock(held.serial, by, f"taken away by {by}"))
    return Unlocked(held.serial, held.owner, held.what, held.by, held.since_ms)


def owner_name(by: str) -> str:
    """This process, for people; no other has the same."""
    return f"{by}@{socket.gethostname()} pid {os.getpid()} ({_machine()}.{_PROCESS})"


def is_gone(owner: str) -> bool:
    """Whether this was a process of this machine, and is none any more."""
    named = re.search(r" pid (\d+) \((\w+)\.\w+\)$", owner)
    if named is None or named[2] != _machine():
        return False
    try:
        os.kill(int(named[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # somebody else's
    return False


def _machine() -> str:
    """Where process numbers mean the same: one boot of one kernel, one namespace."""
    try:
        seen = Path("/proc/sys/kernel/random/boot_id").read_text() + str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return secrets.token_hex(4)
    return hashlib.sha256(seen.encode()).hexdigest()[:8]


def busy(error: Busy, now_ms: int) -> BusyProblem:
    """A refusal with the age of what is in the way."""
    since = error.details.get("started_ms")
    age = f"for {span_text((now_ms - since) / 1000)}" if isinstance(since, int) else ""
    return BusyProblem(f"{error.what}; nothing was changed", why=age, next=error.next_step)

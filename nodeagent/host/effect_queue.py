"""The effect queue of a host: the parts of the host add their effects here and receive the results."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from traceback import format_exc
from typing import assert_never

from nodeagent.host.space import Space
from nodeagent.model.entries import LogOp
from nodeagent.model.errors import Busy, InvariantBroken
from nodeagent.model.ids import NodeId, Owner
from nodeagent.model.jobs import DropSnapshot, DropStaging, Failed, Job, JobResult, Removal, RemoveGroup
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import ErrorReply, Reply, Request

REMOVE_AGAIN_MS = 250
REMOVE_AGAIN_MS_MAX = 60_000
"""The wait before the next try to remove a directory doubles with each failure, up to this."""

UNREMOVED_MAX = 64
"""Directories that the status names; the removal of all is retried."""

To = NodeId | tuple[str, int]
NOBODY = Owner()


@dataclass(slots=True)
class Effects:
    """What the shell must do now, in any order of the fields: the outbox holds back messages that must
    wait."""

    persist: tuple[int, list[LogOp]] | None = None
    """Batch number and operations; call `Host.on_persisted(batch)` when they are durable."""

    sends: list[tuple[NodeId, list[Routed]]] = field(default_factory=list)
    """One frame per peer."""

    replies: list[tuple[int, Reply]] = field(default_factory=list)
    jobs: list[tuple[int, Job]] = field(default_factory=list)
    calls: list[tuple[int, To, Request]] = field(default_factory=list)
    notes: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    """Log lines: event name and fields."""

    applied: int = 0
    """Entries that this turn applied, to explain a slow turn."""

    applied_bytes: int = 0
    """Bytes of these entries."""


class EffectQueue:
    """Numbers jobs and calls, remembers what to run with their results, and runs timers.

    Before it passes on an event, the host sets `now` (monotonic time), but `wall` (wall clock, for records)
    only for requests and ticks; both in milliseconds. `space` is the free space of the disk; checkpoints name
    `owner` as the node that wrote them.
    """

    def __init__(self, now: int, wall: int, owner: Owner = NOBODY) -> None:
        self.now = now
        self.wall = wall
        self.owner = owner
        self.space = Space(owner.node)
        self.replies: list[tuple[int, Reply]] = []
        self.jobs: list[tuple[int, Job]] = []
        self.calls: list[tuple[int, To, Request]] = []
        self.notes: list[tuple[str, dict[str, object]]] = []
        self._amend: dict[int, Callable[[Reply], Reply]] = {}
        """token -> change of its reply"""

        self.unremoved: dict[str, str] = {}
        """Directories below `data/` whose removal fails and is retried, and why."""

        self.failures = 0
        """Requests, pulls, copies and repairs that ended with an exception."""

        self._number = 0
        self._jobs: dict[int, Callable[[JobResult], None]] = {}
        self._calls: dict[int, Callable[[Reply], None]] = {}
        self._timers: list[tuple[int, int, Callable[[], None]]] = []

    def _next(self) -> int:
        self._number += 1
        return self._number

    def reply(self, token: int, reply: Reply) -> None:
        amend = self._amend.pop(token, None) if self._amend else None
        self.replies.append((token, reply if amend is None else amend(reply)))

    def amend(self, token: int, change: Callable[[Reply], Reply]) -> None:
        """Pass the later reply through `change`."""
        self._amend[token] = change

    def refuse(self, token: int, code: str, what: str, next_step: str = "") -> None:
        self.reply(token, ErrorReply(code, what, next_step))

    def guarded(self, token: int, what: str, then: Callable[..., None]) -> Callable[..., None]:
        """`then`, as the rest of the work on request `token`: an exception in it fails that request only."""
        return partial(self._run_apart, what, partial(self._refuse_failed, token), then)

    def isolated(
        self, what: str, then: Callable[..., None], failed: Callable[[str], None]
    ) -> Callable[..., None]:
        """`then`, as a part of one piece of work: an exception in it fails that work only, by calling
        `failed` with the reason."""
        return partial(self._run_apart, what, failed, then)

    def _run_apart(
        self, what: str, failed: Callable[[str], None], then: Callable[..., None], *args: object
    ) -> None:
        """For calls that read state and answer, or check and then propose. A call that changes state and
        stops half way raises `InvariantBroken`, which is not caught."""
        try:
            then(*args)
        except InvariantBroken:
            raise
        except Exception as error:
            failed(self._note_failure(what, error))

    def failed(self, token: int, what: str, error: Exception) -> None:
        """Refuse request `token` because of the exception that is being handled."""
        self._refuse_failed(token, self._note_failure(what, error))

    def _note_failure(self, what: str, error: Exception) -> str:
        self.failures += 1
        self.note("request_failed", request=what, why=repr(error)[:1024], traceback=format_exc(limit=-8))
        return f"{what} failed in the node: {type(error).__name__}"

    def _refuse_failed(self, token: int, why: str) -> None:
        if all(answered != token for answered, _ in self.replies):
            self.refuse(token, "error", why, "see the node's log")

    def job(self, job: Job, then: Callable[[JobResult], None]) -> None:
        number = self._next()
        self._jobs[number] = then
        self.jobs.append((number, job))

    def remove(
        self,
        job: Removal,
        then: Callable[[], None] = lambda: None,
        still: Callable[[], bool] = lambda: True,
        tries: int = 0,
    ) -> None:
        """Run `job` until its directory is removed, then `then`.

        Failures are retried indefinitely, and the status names the directory.

        Args:
            still: asked before each try; False if the directory is needed again, which ends the retries
                without a call of `then`.
        """
        place = _place_of(job)
        if not still():
            self.unremoved.pop(place, None)
            return

        def done(result: JobResult) -> None:
            if not isinstance(result, Failed):
                self.unremoved.pop(place, None)
                return then()
            if result.code != Busy.code:  # busy: a pull is about to stop
                self._name_unremoved(place, result.what)
            delay_ms = min(REMOVE_AGAIN_MS << min(tries, 16), REMOVE_AGAIN_MS_MAX)
            return self.later(delay_ms, lambda: self.remove(job, then, still, tries + 1))

        self.job(job, done)

    def _name_unremoved(self, place: str, why: str) -> None:
        if place not in self.unremoved:
            self.note("not_removed", place=place, why=why)
        if place in self.unremoved or len(self.unremoved) < UNREMOVED_MAX:
            self.unremoved[place] = why

    def call(self, to: To, request: Request, then: Callable[[Reply], None]) -> None:
        number = self._next()
        self._calls[number] = then
        self.calls.append((number, to, request))

    def later(self, delay_ms: int, then: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + delay_ms, self._next(), then))

    def note(self, event: str, **fields: object) -> None:
        self.notes.append((event, fields))

    def on_job(self, number: int, result: JobResult) -> None:
        then = self._jobs.pop(number, None)
        if then is not None:
            then(result)

    def on_reply(self, call: int, reply: Reply) -> None:
        then = self._calls.pop(call, None)
        if then is not None:
            then(reply)

    def fire(self) -> None:
        """Run the timers whose time has come."""
        while self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()

    @property
    def deadline(self) -> int | None:
        return self._timers[0][0] if self._timers else None


def _place_of(job: Removal) -> str:
    """The directory to be removed, below `data/`."""
    match job:
        case DropStaging():
            return f"staging/{job.operation}"
        case DropSnapshot():
            return f"snapshots/{job.snapshot}"
        case RemoveGroup():
            return f"groups/{job.group}"
    assert_never(job)

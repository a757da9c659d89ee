"""Measures the turns of the loop, and logs what a slow turn did."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nodeagent.model.limits import TURN_MS_MAX
from nodeagent.runtime.ports import EffectsPort

OWN_SAMPLE_S = 0.01
"""The thread's processor time is read at most this often: reading takes a system call, and a turn may be
shorter than that."""

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""For the thread that opens it: nanoseconds running, and runnable but not running; see proc(5)."""

Note = Callable[[str, dict[str, object]], None]


class ThreadUse(NamedTuple):
    """Processor use of a thread since its start."""

    own_s: float
    """Running on a processor."""

    waited_s: float
    """Runnable, while other threads had the processors; always 0 if the kernel does not count it."""


def thread_use() -> Callable[[], ThreadUse]:
    """A function that reads the use of the calling thread; it must be called in the same thread."""
    schedstat = None
    with contextlib.suppress(OSError):
        schedstat = SCHEDSTAT.open("rb", buffering=0)

    def read() -> ThreadUse:
        waited_ns = 0
        # An error here would lose the event that is about to be handled.
        with contextlib.suppress(OSError, ValueError, IndexError):
            waited_ns = int(os.pread(schedstat.fileno(), 64, 0).split()[1]) if schedstat else 0
        return ThreadUse(time.thread_time(), waited_ns / 1e9)

    return read


class Turns:
    """A turn begins with the first event after the last turn, and ends when the host's effects are
    submitted."""

    def __init__(
        self,
        note: Note,
        clock: Callable[[], float] = time.perf_counter,
        used: Callable[[], ThreadUse] | None = None,
    ) -> None:
        """Must be created in the loop's thread."""
        self._note = note
        self._clock = clock
        self._used = used or thread_use()
        """Shows whether a slow turn computed or waited. The times in the note may be too long by up to
        `OWN_SAMPLE_S`."""

        self._began: float | None = None
        self._used_before = ThreadUse(0.0, 0.0)
        self._sampled_at = -OWN_SAMPLE_S
        self._events = 0
        self.count = 0
        self.slow = 0
        """Turns longer than `TURN_MS_MAX`."""

        self.seconds = 0.0
        self.longest_s = 0.0

    def event(self) -> None:
        """Must be called before an event is handled."""
        self._events += 1
        if self._began is None:
            self._began = now = self._clock()
            if now - self._sampled_at >= OWN_SAMPLE_S:
                self._used_before, self._sampled_at = self._used(), now

    def end(self, effects: EffectsPort) -> None:
        took_s = 0.0 if self._began is None else self._clock() - self._began
        events, self._events, self._began = self._events, 0, None
        self.count += 1
        self.seconds += took_s
        if took_s > self.longest_s:
            self.longest_s = took_s
        if took_s * 1000 > TURN_MS_MAX:
            self.slow += 1
            used, before = self._used(), self._used_before
            fields: dict[str, object] = {
                "ms": round(took_s * 1000),
                "own_ms": round((used.own_s - before.own_s) * 1000),
                "waited_ms": round((used.waited_s - before.waited_s) * 1000),
                "events": events,
            }
            self._note("slow_turn", fields | described(effects))


def described(effects: EffectsPort) -> dict[str, object]:
    """The work of a turn, in numbers."""
    kinds = sorted({type(job).__name__ for _, job in effects.jobs})
    return {
        "applied": effects.applied,
        "applied_bytes": effects.applied_bytes,
        "persisted": len(effects.persist[1]) if effects.persist is not None else 0,
        "sends": len(effects.sends),
        "replies": len(effects.replies),
        "jobs": len(effects.jobs),
        "kinds": ",".join(kinds),
    }

"""How long the loop is busy at a time, and with what when it was too long."""

import time
from collections.abc import Callable

from nodeagent.model.limits import TURN_MS_MAX
from nodeagent.runtime.ports import EffectsPort

OWN_SAMPLE_S = 0.01
"""The thread's processor time is read at most this often: it takes a system call, and a turn may take less
than that."""

Note = Callable[[str, dict[str, object]], None]


class Turns:
    """A turn begins with the first event after the last, and ends when the host's effects are under way."""

    def __init__(
        self,
        note: Note,
        clock: Callable[[], float] = time.perf_counter,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._note = note
        self._clock = clock
        self._used = used
        """Processor time of the loop's thread: a slow turn that took little of it waited for the machine or
        another thread. What the note says of it may be `OWN_SAMPLE_S` too much."""

        self._began: float | None = None
        self._used_before = 0.0
        self._sampled_at = -OWN_SAMPLE_S
        self._events = 0
        self.count = 0
        self.slow = 0
        """Longer than `TURN_MS_MAX`."""

        self.seconds = 0.0
        self.longest_s = 0.0

    def event(self) -> None:
        """Something comes in; called before it is handled."""
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
            own_ms = round((self._used() - self._used_before) * 1000)
            fields = {"ms": round(took_s * 1000), "own_ms": own_ms, "events": events, **described(effects)}
            self._note("slow_turn", fields)


def described(effects: EffectsPort) -> dict[str, object]:
    """What was done in a turn, in numbers."""
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

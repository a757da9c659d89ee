"""Waiting for something that another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.05
BUSY_FACTOR = 3


def until(
    probe: Callable[[], T | None],
    timeout_s: float = 30.0,
    why: Callable[[], object] = lambda: "it did not happen",
    *,
    poll_s: float = POLL_S,
) -> T:
    """Return the first true result of `probe`; fail with `why()` after the timeout.

    `timeout_s` is ample on an idle machine. A busy one gets `BUSY_FACTOR` times as long, since a wait checks
    that the result comes, not when: a Spark job starts in 11 s alone, in 49 s beside two other processes of
    tests, and on a slow machine once took more than 90 s.
    """
    deadline = time.monotonic() + timeout_s * BUSY_FACTOR
    while True:
        found = probe()
        if found:
            return found
        assert time.monotonic() < deadline, why()
        time.sleep(poll_s)

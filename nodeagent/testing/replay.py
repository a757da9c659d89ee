"""Report on a seed: the command that repeats it if it failed; its results and speed if it passed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from nodeagent.testing.sim import Sim

LINES = 80
"""Number of last events in the report of a failure."""


class Counted(Protocol):
    """The report of a run."""

    events: int


R = TypeVar("R", bound=Counted)


@contextmanager
def replayable(
    seed: int, command: str, sim: Sim[Any], details: Callable[[], object] = lambda: ""
) -> Iterator[None]:
    """Turn a failure within the block into an `AssertionError` with the command that repeats the seed, the
    result of `details`, and the last events."""
    try:
        yield
    except Exception as error:
        parts = [f"seed {seed}: {error!r}", f"replay: python -m {command}", str(details()), *sim.log[-LINES:]]
        raise AssertionError("\n".join(filter(None, parts))) from error


def timed(run: Callable[[int], R], seed: int) -> str:
    """Run a seed; returns its report, its duration and its speed as one line."""
    began = time.monotonic()
    report = run(seed)
    took = time.monotonic() - began
    return f"{msgspec.json.encode(report).decode()} {took:.1f} s, {report.events / took:.0f} events/s"

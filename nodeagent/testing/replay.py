"""What is said of a seed: how it is run again when it failed, its evidence and its speed when it passed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import msgspec

from nodeagent.testing.sim import Sim

LINES = 80
"""Of what happened last."""


class Counted(Protocol):
    """A report of a run."""

    events: int


R = TypeVar("R", bound=Counted)


@contextmanager
def replayable(
    seed: int, command: str, sim: Sim[Any], told: Callable[[], object] = lambda: ""
) -> Iterator[None]:
    """Make a failure within an `AssertionError` with the command that runs the seed again, what `told` gives
    then, and what happened last."""
    try:
        yield
    except Exception as error:
        parts = [f"seed {seed}: {error!r}", f"replay: python -m {command}", str(told()), *sim.log[-LINES:]]
        raise AssertionError("\n".join(filter(None, parts))) from error


def timed(run: Callable[[int], R], seed: int) -> str:
    """The report of a run as a line, and how fast it was."""
    began = time.monotonic()
    report = run(seed)
    took = time.monotonic() - began
    return f"{msgspec.json.encode(report).decode()} {took:.1f} s, {report.events / took:.0f} events/s"

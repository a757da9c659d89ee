"""The clock and the pauses of waits; tests replace them."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """`clock` returns monotonic seconds; `sleep` pauses for seconds."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_TIME = Timing()

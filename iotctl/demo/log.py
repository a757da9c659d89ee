"""What the demo reports while it runs: notes with the elapsed time, failures, and progress."""

import time
from collections.abc import Callable
from typing import Protocol


class OnProgress(Protocol):
    def __call__(
        self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = ""
    ) -> None: ...


class DemoLog:
    """`failures` lists every check that failed; `seconds` is the time since the start."""

    def __init__(self, note: Callable[[str], None], on_progress: OnProgress) -> None:
        self.progress = on_progress
        self.failures: list[str] = []
        self._note = note
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def say(self, what: str) -> None:
        self._note(f"[{self.seconds:5.1f} s] {what}")

    def fail(self, what: str) -> None:
        self.failures.append(what)
        self._note(f"FAILED: {what}")


class JobProgress:
    """Shows the progress of a Spark job as progress of the demo."""

    def __init__(self, log: DemoLog) -> None:
        self._on = log.progress

    def update(self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = "") -> None:
        self._on(phase, done, total, unit=unit, note=note)

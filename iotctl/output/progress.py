"""Progress on stderr: a bar on a terminal, else a line per phase and every 30 s."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from iotctl.humanize import bytes_text, span_text
from nodeagent.model.text import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LINE_EVERY_S = 30.0


class Progress(Protocol):
    """`done` and `total` are bytes if `unit` is "B", else counts; a `total` of 0 is unknown."""

    def update(
        self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = ""
    ) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Quiet:
    def update(self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = "") -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class LineProgress(_Quiet):
    """For logs and CI."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._phase = ""
        self._said = self._unsaid = ""
        self._started = clock()
        self._printed = 0.0

    def update(self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = "") -> None:
        now = self._clock()
        show = bytes_text if unit == "B" else str
        amount = f" {show(done)}/{show(total)}" if total else f" {show(done)}" if done else ""
        tail = f" ({note})" if note else ""
        if f"{phase} {note}" != self._phase:
            self._close()
        elif now - self._printed < LINE_EVERY_S:
            self._unsaid = f"{phase}{amount}{tail}"
            return
        self._phase, self._printed = f"{phase} {note}", now
        self._say(f"{phase}{amount}{tail}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _say(self, text: str) -> None:
        self._said, self._unsaid = text, ""
        self._stream.write(f"{span_text(self._clock() - self._started):>8}  {printable(text)}\n")
        self._stream.flush()

    def _close(self) -> None:
        """Print the last progress of the phase that ended."""
        if self._unsaid and self._unsaid != self._said:
            self._say(self._unsaid)


class BarProgress(_Quiet):
    """For a terminal. Rich draws the bar; it is imported with the first update."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rich: RichProgress | None = None
        self._task: TaskID | None = None
        self._unit = ""

    def update(self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = "") -> None:
        if self._rich is None or unit != self._unit:
            self._open(unit)
        assert self._rich is not None and self._task is not None
        text = printable(f"{phase} ({note})" if note else phase)
        self._rich.update(self._task, description=text, completed=done, total=total or None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rich is not None:
            self._rich.stop()

    def _open(self, unit: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        if self._rich is not None:
            self._rich.stop()
        amounts = (DownloadColumn(), TransferSpeedColumn()) if unit == "B" else (MofNCompleteColumn(),)
        self._rich = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            *amounts,
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
        )
        self._unit = unit
        self._task = self._rich.add_task("", total=None)
        self._rich.start()


def open_progress(stream: TextIO, *, quiet: bool = False) -> Progress:
    """The progress for the kind of `stream`; use it as a context manager."""
    if quiet:
        return _Quiet()
    return BarProgress(stream) if stream.isatty() else LineProgress(stream)

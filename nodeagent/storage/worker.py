"""The parent's side of the TsFile worker: a spawned process that may crash, hang or leak memory.

It is spawned, never forked: a fork of a process that used the package hangs. It is replaced after an error
that native code may have caused (its heap may be damaged), after a timeout, and after `FILES_MAX` files or
`SCANS_MAX` pages.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import msgspec

import nodeagent
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.errors import FileCorrupt, FrameError, Unavailable
from nodeagent.model.files import FileMeta
from nodeagent.model.jobs import CloseUnit, Scanned
from nodeagent.storage import packets, pipes
from nodeagent.storage.engine import made_of, scanned_of
from nodeagent.storage.handler import (
    CLOSE,
    COMPACT,
    SCAN,
    CloseRequest,
    CompactRequest,
    ErrorReply,
    Opening,
    Reply,
    Request,
    ScanRequest,
    TemporaryFile,
)

FILES_MAX = 5_000
"""Files made, compacted or read by pages with `PageSpec.whole` in one process before it is replaced."""

SCANS_MAX = 20_000
"""Pages read by one process before it is replaced."""

DEATHS_MAX = 2
"""If this many processes die or fail in native code on one file, the file counts as the cause."""

SUSPECTS_MAX = 1024
"""The number of files for which such deaths are counted."""

NICE_MAX = 19
COMPACT_NICE = 15
CLOSE_NICE = 5
HEAVY_NICE = 5
"""Lower priority than the processes for writes and short reads, which would otherwise wait for a whole close
on few processors; but high enough that closes keep up with writes."""

SESSION_TRIES = 5
"""Attempts to set the session's niceness at process start; until one succeeds, each later request
makes one more."""

SESSION_PAUSE_S = 0.11

COMPACT_TIMEOUT_FACTOR = 5
"""Factor on the usual timeout: compactions have the lowest priority and wait on a busy machine."""

_WATCHDOG_FACTOR = 1.5
"""The child ends itself after this many timeouts from the start of a request."""


class WorkerDied(Unavailable):
    """`details["path"]` is the file that was being read, "" if there was none."""


class TsFileWorker:
    """One worker process, started when first needed. Calls from several threads wait for each other.

    `work` is the kind of work, used in the names of temporary files.
    """

    def __init__(self, root: str, timeout_s: float = 120.0, nice: int = 0, work: str = CLOSE) -> None:
        self._root = root
        self._timeout_s = timeout_s
        self._nice = nice
        self._work = work
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
        self._used = 0.0
        """Used share of the process's lifetime; at 1 it is replaced."""

        self._session_due = False
        """Whether the niceness of the process's session must still be set."""

        self._opening = ""
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Pid of the running process, for tests and status."""
        process = self._process
        return None if process is None else process.pid

    @property
    def opening(self) -> str:
        """The last file that the last call opened."""
        return self._opening

    def call(self, request: Request, timeout_s: float | None = None) -> Reply:
        """Send one request and wait for its reply.

        Raises:
            WorkerDied: the process died or took too long, or the request or the reply is too long for a
                pipe. No output has its final name: a retry is safe.
            OSError: the process could not be started.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        with self._lock:
            process = self._running()
            try:
                reply = self._exchange(process, request, time.monotonic() + limit_s)
            except pipes.Timeout as error:
                self._end()
                raise self._died(f"took longer than {limit_s} s") from error
            except (Unavailable, FrameError, OSError, *UNDECODABLE) as error:
                self._end()
                raise self._died(f"died (exit {process.returncode}): {error}") from error
            except BaseException:  # the process may be waiting for the rest of a message
                self._end()
                raise
            self._used += _weight(request)
            if (isinstance(reply, ErrorReply) and not reply.sound) or self._used >= 1:
                self._end()
            return reply

    def _died(self, how: str) -> WorkerDied:
        over = f" while reading {self._opening}" if self._opening else ""
        return WorkerDied(f"the TsFile worker {how}{over}", path=self._opening)

    def start(self) -> None:
        """Start the process before the first call (it takes most of a second)."""
        with self._lock:
            self._running()

    def stop(self) -> None:
        with self._lock:
            self._end()

    def _exchange(self, process: "subprocess.Popen[bytes]", request: Request, deadline: float) -> Reply:
        assert process.stdin is not None and process.stdout is not None
        self._opening = ""
        length, pieces = packets.encode(request)
        pipes.send_pieces(process.stdin.fileno(), length, pieces, deadline)
        while True:
            answer = pipes.receive(process.stdout.fileno(), deadline)
            if answer is None:
                raise Unavailable("it closed its pipe")
            reply = self._decoder.decode(answer)
            if not isinstance(reply, Opening):
                return reply
            self._opening = reply.path

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None:
            if self._session_due:
                self._session_due = not _lower_session(self._process.pid, self._nice, 1)
            return self._process
        self._end()
        package = str(Path(nodeagent.__path__[0]).parent)
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "nodeagent.storage.child",
                self._root,
                str(self._timeout_s * _WATCHDOG_FACTOR),
                self._work,
                str(os.getpid()),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=self._nice > 0,
        )
        assert process.stdin is not None and process.stdout is not None
        # Lower the priority here, because the imports are expensive too. It is relative to our own, above
        # which only root may go.
        nice = min(NICE_MAX, os.getpriority(os.PRIO_PROCESS, 0) + self._nice)
        os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        self._session_due = self._nice > 0 and not _lower_session(process.pid, self._nice, SESSION_TRIES)
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._process, self._used = process, 0.0
        self.starts += 1
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _lower_session(pid: int, nice: int, tries: int) -> bool:
    """Set the niceness of the session that the process leads. Returns False if the kernel refused each time:
    it allows all users except root, taken together, ten changes a second.

    If Linux groups processes by session ("autogroup", sched(7)), a process's own niceness counts only within
    its session. In the agent's session, a worker would take processor time from the event loop.
    """
    for left in reversed(range(tries)):
        try:
            Path(f"/proc/{pid}/autogroup").write_text(str(min(NICE_MAX, nice)))
        except BlockingIOError:
            time.sleep(SESSION_PAUSE_S if left else 0.0)
        except OSError:
            return True  # this kernel has no autogroups
        else:
            return True
    return False


def _weight(request: Request) -> float:
    """The share of a process's lifetime that the request uses."""
    match request:
        case CloseRequest():
            return len(request.units) / FILES_MAX
        case CompactRequest():
            return (len(request.paths) + 1) / FILES_MAX
        case ScanRequest():
            whole = len(request.files) if request.page.whole else 0
            return whole / FILES_MAX + 1 / SCANS_MAX


class Suspects:
    """Files on which workers died, or failed in native code although the bytes are correct.

    Reads that need such a file are refused without an attempt until the agent restarts. A single death is no
    proof, because a process may be killed for other reasons.
    """

    def __init__(self) -> None:
        self._deaths: OrderedDict[tuple[str, str], int] = OrderedDict()

    def check(self, files: Iterable[tuple[str, FileMeta]]) -> None:
        """Raise `FileCorrupt` for a file that ended `DEATHS_MAX` processes."""
        for path, meta in files:
            if self._deaths.get((path, meta.xxh3), 0) >= DEATHS_MAX:
                raise FileCorrupt(
                    f"{path}: reading this file ended {DEATHS_MAX} workers, so it is no longer read",
                    file=meta.name,
                )

    def note(self, path: str, files: Iterable[tuple[str, FileMeta]]) -> None:
        """Count a process that ended while it read `path`, one of `files`."""
        for one, meta in files:
            if one == path:
                key = (path, meta.xxh3)
                self._deaths[key] = self._deaths.pop(key, 0) + 1
        while len(self._deaths) > SUSPECTS_MAX:
            self._deaths.popitem(last=False)


class WorkerEngine:
    """`Engine` with a process for each kind of work, so that a long close delays no read, and a long read
    delays no short read. The processes for compactions and heavy scans start when first needed; compactions
    have the lowest priority."""

    def __init__(self, root: str, timeout_s: float = 120.0) -> None:
        self.closer = TsFileWorker(root, timeout_s, CLOSE_NICE)
        self.scanner = TsFileWorker(root, timeout_s, work=SCAN)
        self.heavy_scanner = TsFileWorker(root, timeout_s, HEAVY_NICE, SCAN)
        self.compactor = TsFileWorker(root, timeout_s * COMPACT_TIMEOUT_FACTOR, COMPACT_NICE, COMPACT)
        self._suspects = Suspects()

    def start(self) -> None:
        self.closer.start()
        self.scanner.start()

    def close_units(self, units: tuple[CloseUnit, ...]) -> tuple[TemporaryFile | None, ...]:
        return made_of(self.closer.call(CloseRequest(units)))

    def compact(self, request: CompactRequest) -> TemporaryFile | None:
        return made_of(self.compactor.call(request))[0]

    def scan(self, request: ScanRequest) -> Scanned:
        """See `Engine.scan`. Also raises `FileCorrupt` for a file that repeatedly ended workers."""
        self._suspects.check(request.files)
        worker = self.heavy_scanner if request.heavy else self.scanner
        try:
            reply = worker.call(request)
        except WorkerDied as error:
            self._suspects.note(str(error.details["path"]), request.files)
            raise
        if isinstance(reply, ErrorReply) and not reply.sound and reply.code == FileCorrupt.code:
            self._suspects.note(worker.opening, request.files)
        return scanned_of(reply)

    def stop(self) -> None:
        for worker in (self.closer, self.scanner, self.heavy_scanner, self.compactor):
            worker.stop()

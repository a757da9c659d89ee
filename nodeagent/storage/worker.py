"""The parent's side of the TsFile worker: a spawned process that may crash, hang or leak.

Spawned, never forked: a fork of a process that used the package hangs. The process is replaced after
every error (the native heap may be damaged), after a timeout, and after `FILES_MAX` files.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

import nodeagent
from nodeagent.model.errors import FrameError, Unavailable
from nodeagent.model.jobs import CloseUnit, Scanned
from nodeagent.storage import pipes
from nodeagent.storage.engine import made_of, scanned_of
from nodeagent.storage.handler import (
    CLOSE,
    COMPACT,
    SCAN,
    CloseRequest,
    CompactRequest,
    ErrorReply,
    Made,
    Reply,
    Request,
    ScanRequest,
)

FILES_MAX = 5_000
"""Files made or read by one process before it is replaced."""

NICE_MAX = 19
COMPACT_NICE = 15
COMPACT_PATIENCE = 5
"""Times the usual timeout: it works with what time is left over."""

_WATCHDOG_FACTOR = 1.5
"""The child ends itself this many timeouts after a request began."""


class TsFileWorker:
    """One worker process, started when first needed. Calls from several threads wait for each other.

    `work` is the kind its temporary files are named by.
    """

    def __init__(self, root: str, timeout_s: float = 120.0, nice: int = 0, work: str = CLOSE) -> None:
        self._root = root
        self._timeout_s = timeout_s
        self._nice = nice
        self._work = work
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
        self._files = 0
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """The process now running, for tests and status."""
        process = self._process
        return None if process is None else process.pid

    def call(self, request: Request, timeout_s: float | None = None) -> Reply:
        """Send one request and wait for its reply.

        Raises:
            Unavailable: the process died or took too long; nothing has a name yet, so try again.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        body = msgspec.msgpack.encode(request)
        with self._lock:
            process = self._running()
            try:
                reply = self._exchange(process, body, time.monotonic() + limit_s)
            except pipes.Timeout as error:
                self._end()
                raise Unavailable(f"the TsFile worker took longer than {limit_s} s") from error
            except (Unavailable, FrameError, OSError, msgspec.DecodeError) as error:
                self._end()
                raise Unavailable(f"the TsFile worker died (exit {process.returncode}): {error}") from error
            self._files += _weight(request)
            if isinstance(reply, ErrorReply) or self._files >= FILES_MAX:
                self._end()
            return reply

    def start(self) -> None:
        """Start the process ahead of the first call (it takes a good part of a second)."""
        with self._lock:
            self._running()

    def stop(self) -> None:
        with self._lock:
            self._end()

    def _exchange(self, process: "subprocess.Popen[bytes]", body: bytes, deadline: float) -> Reply:
        assert process.stdin is not None and process.stdout is not None
        pipes.send(process.stdin.fileno(), body, deadline)
        answer = pipes.receive(process.stdout.fileno(), deadline)
        if answer is None:
            raise Unavailable("it closed its pipe")
        return self._decoder.decode(answer)

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is None:
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
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert process.stdin is not None and process.stdout is not None
        # From here, for its imports cost much too; below our own priority, which nobody but root may raise.
        nice = min(NICE_MAX, os.getpriority(os.PRIO_PROCESS, 0) + self._nice)
        os.setpriority(os.PRIO_PROCESS, process.pid, nice)
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._process, self._files = process, 0
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


def _weight(request: Request) -> int:
    match request:
        case CloseRequest():
            return len(request.units)
        case CompactRequest():
            return len(request.paths) + 1
        case ScanRequest():
            return len(request.files)


class WorkerEngine:
    """`Engine` with a process for each kind of work, so that a long close delays no read. The one that
    compacts starts when first needed, and the system runs it when the others leave it time."""

    def __init__(self, root: str, timeout_s: float = 120.0) -> None:
        self.closer = TsFileWorker(root, timeout_s)
        self.scanner = TsFileWorker(root, timeout_s, work=SCAN)
        self.compactor = TsFileWorker(root, timeout_s * COMPACT_PATIENCE, COMPACT_NICE, COMPACT)

    def start(self) -> None:
        self.closer.start()
        self.scanner.start()

    def close_units(self, units: tuple[CloseUnit, ...]) -> tuple[Made | None, ...]:
        return made_of(self.closer.call(CloseRequest(units)))

    def compact(self, request: CompactRequest) -> Made | None:
        return made_of(self.compactor.call(request))[0]

    def scan(self, request: ScanRequest) -> Scanned:
        return scanned_of(self.scanner.call(request))

    def stop(self) -> None:
        self.closer.stop()
        self.scanner.stop()
        self.compactor.stop()

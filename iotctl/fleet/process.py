"""Detached processes that are identified by a pid file and never killed by mistake.

A pid alone proves nothing, since the kernel reuses pids. The pid file also stores the process's start time as
the kernel reports it, and a process is ours only if pid, start time and a word of its command line match.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from nodeagent.model.decoding import UNDECODABLE

POLL_S = 0.02
KILL_WAIT_S = 5.0
EXEC_WAIT_S = 0.2
NUMBER_MAX = (1 << 63) - 1
"""The largest number that a record has room for."""


class PidFile(msgspec.Struct, frozen=True):
    """`started` is field 22 of /proc/PID/stat: clock ticks since boot."""

    pid: int
    started: int
    word: str


def start(command: Sequence[str], *, directory: Path, log: Path, pid_file: Path, word: str) -> int:
    """Start `command` in its own session, its output appended to `log`; returns the pid.

    `word` must appear in the command line; it later identifies the process.

    Raises:
        OSError: nothing runs. Disk space for the record is reserved before the process is started.
    """
    temporary = pid_file.with_suffix(".tmp")
    widest = PidFile(NUMBER_MAX, NUMBER_MAX, word)
    size = len(msgspec.json.encode(widest))
    temporary.write_bytes(bytes(size))
    with log.open("ab") as out, _unbroken():
        process = subprocess.Popen(
            list(command),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            record = PidFile(process.pid, _started(process.pid), word)
            with temporary.open("r+b") as file:
                file.write(msgspec.json.encode(record).ljust(size))
            temporary.replace(pid_file)
        except BaseException:
            process.kill()
            process.wait()
            raise
    return process.pid


@contextmanager
def _unbroken() -> Iterator[None]:
    """Defers Ctrl-C and SIGTERM to the end of the block: an unrecorded process could never be stopped."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {n: signal.signal(n, lambda number, frame: came.append(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for one in dict.fromkeys(came):
            os.kill(os.getpid(), one)


def running(pid_file: Path) -> int | None:
    """The pid if the process of `pid_file` is alive, else None."""
    record = _read(pid_file)
    if record is None:
        return None
    deadline = time.monotonic() + EXEC_WAIT_S
    while _is_there(record):
        line = _command_line(record.pid)
        if line or time.monotonic() > deadline:
            return record.pid if record.word in line else None
        time.sleep(POLL_S)  # while it starts or ends, a process briefly has no command line
    return None


def stop(pid_files: Sequence[Path], *, grace_s: float = 10.0) -> list[Path]:
    """SIGTERM all, SIGKILL those still alive after `grace_s`; returns those that had to be killed."""
    ours = {f: r for f in pid_files if running(f) and (r := _read(f)) is not None}
    for file in ours:
        _signal(file, signal.SIGTERM)
    alive = _wait_gone(ours, grace_s)
    for file in alive:
        _signal(file, signal.SIGKILL)
    _wait_gone({f: ours[f] for f in alive}, grace_s)
    for file in pid_files:
        file.unlink(missing_ok=True)
    return alive


def kill(pid_file: Path) -> bool:
    """SIGKILL at once, like a crash; False if it was not running. The pid file stays.

    Returns once the kernel has released the process, so that an immediate start does not find it alive.
    """
    record = _read(pid_file)
    if record is None or not _signal(pid_file, signal.SIGKILL):
        return False
    _wait_gone({pid_file: record}, KILL_WAIT_S)
    return True


def _wait_gone(records: dict[Path, PidFile], timeout_s: float) -> list[Path]:
    """Wait until the kernel has released every process; returns those it has not.

    A process that is ending no longer has a command line but still holds its ports and locks, so only its
    start time counts here.
    """
    deadline = time.monotonic() + timeout_s
    alive = [f for f, r in records.items() if _is_there(r)]
    while alive and time.monotonic() < deadline:
        time.sleep(POLL_S)
        alive = [f for f in alive if _is_there(records[f])]
    return alive


def _read(pid_file: Path) -> PidFile | None:
    try:
        return msgspec.json.decode(pid_file.read_bytes(), type=PidFile)
    except (OSError, *UNDECODABLE):
        return None


def _is_there(record: PidFile) -> bool:
    return record.started != 0 and _started(record.pid) == record.started


def _signal(pid_file: Path, number: signal.Signals) -> bool:
    pid = running(pid_file)
    if pid is None:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _started(pid: int) -> int:
    """Start time of a live process; 0 if there is none (a zombie does not count)."""
    _reap(pid)
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def _reap(pid: int) -> None:
    """Collect our own ended child, so that it does not linger as a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except (ChildProcessError, OSError):
        return


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""

"""The raw limits of this machine, to which the benches are compared.

All are single-threaded figures of the plain system calls or libraries that the agents use.
"""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self

import xxhash

from nodeagent.client import identity
from nodeagent.model.limits import KIB, MIB
from nodeagent.transport.tls import client_context, server_context
from tests.bench.figures import Figure, Report, of, percentile

RUNS = 5
SYNC_S = 0.4
TLS_BYTES = 256 * MIB


def measure() -> Report:
    """All limits that need no data of their own."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bench-raw-") as directory:
        figures = (
            of("fdatasync of a 4 KiB overwrite", [syncs_per_s(directory) for _ in range(RUNS)], "1/s"),
            of("loopback round trip, 64 B", [round_trip_us() for _ in range(RUNS)], "us"),
            of("loopback stream, plain", [stream_mb_s(None) for _ in range(RUNS)], "MB/s"),
            of("loopback stream, TLS 1.3", [stream_mb_s(directory) for _ in range(RUNS)], "MB/s"),
            cpu_share(),
        )
    return Report("raw", "raw limits of this machine", figures, time.monotonic() - started)


def cpu_share() -> Figure:
    """Share of one core that a busy loop gets: below 100 the machine is shared, and every figure is too
    low."""
    shares = []
    for _ in range(RUNS):
        wall, cpu = time.perf_counter(), time.process_time()
        while time.perf_counter() - wall < 0.2:
            pass
        shares.append(100 * (time.process_time() - cpu) / (time.perf_counter() - wall))
    return of("share of a core that a busy loop gets", shares, "%")


class Lateness:
    """While in its context, measures how late a sleeping thread wakes up (time that the machine takes from
    all processes), and the share of processor time that the hypervisor gave to others."""

    SLEEP_S = 0.005

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.stolen_percent = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._before = _processor_ticks()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        ticks = [after - before for before, after in zip(self._before, _processor_ticks(), strict=True)]
        self.stolen_percent = 100 * ticks[_STEAL] / max(1, sum(ticks))

    def _watch(self) -> None:
        before = time.perf_counter()
        while not self._ended.wait(self.SLEEP_S):
            now = time.perf_counter()
            self.longest_ms = max(self.longest_ms, (now - before - self.SLEEP_S) * 1000)
            before = now


_STEAL = 7


def _processor_ticks() -> list[int]:
    """Ticks of all processors: user, nice, system, idle, iowait, irq, softirq, steal. See proc_stat(5)."""
    return [int(field) for field in Path("/proc/stat").read_text().split()[1 : _STEAL + 2]]


def syncs_per_s(directory: str) -> float:
    """Overwrites of one 4 KiB block of a file that is already on disk, each made durable."""
    fd = os.open(Path(directory, "sync"), os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, bytes(MIB), 0)
        os.fsync(fd)
        block = os.urandom(4 * KIB)
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SYNC_S:
            os.pwrite(fd, block, 0)
            os.fdatasync(fd)
            count += 1
        return count / (time.perf_counter() - start)
    finally:
        os.close(fd)


def round_trip_us(count: int = 2000) -> float:
    """Median of ping-pong between two processes over TCP, with blocking calls."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", _ECHO, str(server.getsockname()[1])]
        with subprocess.Popen(command) as process:
            near, _ = server.accept()
            with near:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                times = [timed(lambda: _ping(near)) for _ in range(count)]
            process.wait(10)
    return percentile(times, 0.5) * 1e6


def _ping(end: socket.socket) -> None:
    end.sendall(bytes(64))
    assert end.recv(64), "the echo has ended"


_ECHO = """
import socket, sys
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while piece := end.recv(64):
    end.sendall(piece)
"""


def stream_mb_s(directory: str | None) -> float:
    """Bytes through one loopback connection in 1 MiB writes; with a `directory` for keys, over TLS."""
    contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None
    if directory is not None:
        authority = identity.create_authority("bench")
        pair = identity.issue(authority, "node1", "node", hosts=("127.0.0.1",))
        found = identity.write_identity(Path(directory, "tls"), pair, authority.cert)
        contexts = server_context(found), client_context(found)
    with _connected() as (near, far):

        def drain() -> None:
            end = contexts[0].wrap_socket(far, server_side=True) if contexts else far
            buffer = bytearray(256 * KIB)
            left = TLS_BYTES
            while left and (got := end.recv_into(buffer)):
                left -= got
            end.sendall(b"!")
            if isinstance(end, ssl.SSLSocket):
                end.detach()

        thread = threading.Thread(target=drain, daemon=True)
        thread.start()
        start_end = contexts[1].wrap_socket(near) if contexts else near
        piece = os.urandom(MIB)
        start = time.perf_counter()
        for _ in range(TLS_BYTES // MIB):
            start_end.sendall(piece)
        start_end.recv(1)
        seconds = time.perf_counter() - start
        thread.join()
        if isinstance(start_end, ssl.SSLSocket):
            start_end.close()
    return TLS_BYTES / seconds / 1e6


def copy_hash_mb_s(files: Iterable[Path], target: Path, bytes_wanted: int) -> tuple[float, int, int]:
    """Copy files, hash them on the way, sync each and the directory: what a pull does without a network.

    Returns:
        MB/s, files, bytes.
    """
    target.mkdir()
    total = count = 0
    start = time.perf_counter()
    for number, path in enumerate(files):
        if total >= bytes_wanted:
            break
        total += _copy_hash(path, target / f"{number}")
        count += 1
    _sync_dir(target)
    seconds = time.perf_counter() - start
    for copied in target.iterdir():
        copied.unlink()
    target.rmdir()
    return total / seconds / 1e6, count, total


def _copy_hash(source: Path, target: Path) -> int:
    state = xxhash.xxh3_128()
    size = 0
    with source.open("rb", buffering=0) as old, target.open("xb", buffering=0) as new:
        while piece := old.read(MIB):
            state.update(piece)
            new.write(piece)
            size += len(piece)
        os.fdatasync(new.fileno())
    return size


def _sync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with near, far:
        yield near, far


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start

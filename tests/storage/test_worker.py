"""The worker process may die, hang and be replaced; the caller gets an error and continues."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import xxhash

from nodeagent.model.errors import FileCorrupt, Unavailable
from nodeagent.model.files import FileMeta
from nodeagent.model.jobs import CloseFiles, Failed, FilesClosed, FilesHashed, HashFiles, Scan, Scanned
from nodeagent.runtime.disk import RealDisk
from nodeagent.storage import packets
from nodeagent.storage.executor import Storage
from nodeagent.storage.handler import CloseReply, CloseRequest, ErrorReply, ScanRequest
from nodeagent.storage.worker import SESSION_TRIES, Suspects, TsFileWorker, WorkerEngine
from nodeagent.table.arrow import decode

from .units import GROUP, close, path_of, rows, spec, unit


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[TsFileWorker]:
    made = TsFileWorker(str(tmp_path), timeout_s=60)
    yield made
    made.stop()


REQUEST = CloseRequest((unit("a", (1, rows(10))),))


def test_a_worker_killed_between_calls_is_replaced(worker: TsFileWorker) -> None:
    """The next call after a death starts a new process."""
    assert isinstance(worker.call(REQUEST), CloseReply)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert isinstance(worker.call(REQUEST), CloseReply)
    assert worker.starts == 2


def test_a_worker_killed_during_a_job_fails_it_and_is_replaced(worker: TsFileWorker) -> None:
    """If a process dies during a request, the request fails as Unavailable; a retry succeeds."""
    worker.start()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)  # the request cannot be answered before the kill
    killer = threading.Timer(0.05, os.kill, (worker.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(Unavailable, match="died"):
        worker.call(REQUEST)
    killer.join()
    assert isinstance(worker.call(REQUEST), CloseReply)


def test_a_worker_ignores_an_interrupt_at_the_terminal(worker: TsFileWorker) -> None:
    """The terminal sends the signal to the whole process group: the current request is completed first."""
    assert isinstance(worker.call(REQUEST), CloseReply)
    first = worker.pid
    assert first is not None
    os.kill(first, signal.SIGINT)
    assert isinstance(worker.call(REQUEST), CloseReply) and worker.pid == first


def test_a_hanging_worker_is_killed_at_the_timeout(worker: TsFileWorker) -> None:
    """A process that does not answer is replaced, even if it does not read the whole of a long request."""
    for request in (REQUEST, CloseRequest((unit("big", (1, rows(50_000))),))):
        worker.start()
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(Unavailable, match="longer"):
            worker.call(request, timeout_s=0.05)
        assert worker.pid is None
    assert isinstance(worker.call(REQUEST), CloseReply)


def _garbage(root: str, meta: FileMeta, size: int = 1 << 20) -> FileMeta:
    """A file whose bytes match its meta, but which is not a TsFile."""
    content = b"no TsFile" * (size // 9)
    (Path(root) / "garbage").write_bytes(content)
    return msgspec.structs.replace(meta, size=len(content), xxh3=xxhash.xxh3_128_hexdigest(content))


def test_a_worker_is_replaced_after_an_error_in_native_code(worker: TsFileWorker) -> None:
    """The native heap may be damaged: the process that reported the error is not used again."""
    meta = close(Storage(RealDisk(worker._root), WorkerlessEngine(worker)), unit("a", (1, rows(10))))[0]
    first = worker.pid
    reply = worker.call(ScanRequest(spec(), (("garbage", _garbage(worker._root, meta)),)))
    assert isinstance(reply, ErrorReply) and reply.code == "file_corrupt" and not reply.sound
    assert worker.pid is None and first is not None


def test_a_worker_continues_after_an_error_before_native_code(worker: TsFileWorker) -> None:
    """A missing or damaged file fails only its own read: the process is not replaced."""
    storage = Storage(RealDisk(worker._root), WorkerlessEngine(worker))
    meta = close(storage, unit("a", (1, rows(10))))[0]
    first = worker.pid
    reply = worker.call(ScanRequest(spec(), (("no/such/file", meta),)))
    assert isinstance(reply, ErrorReply) and reply.code == "not_found"
    path = Path(worker._root) / path_of(meta)
    path.write_bytes(b"x" * meta.size)
    for _ in range(3):
        failed = storage.run(Scan(GROUP, spec(), (meta,), (), ()))
        assert isinstance(failed, Failed) and (failed.code, failed.file) == ("file_corrupt", meta.name)
        assert failed.found == xxhash.xxh3_128_hexdigest(b"x" * meta.size)
    assert worker.pid == first


def test_a_file_that_ends_workers_is_refused_after_two_attempts(worker: TsFileWorker) -> None:
    """After it ended two processes the file is refused without an attempt, and other files are readable as
    before."""
    engine = WorkerlessEngine(worker)
    meta = close(Storage(RealDisk(worker._root), engine), unit("a", (1, rows(10))))[0]
    bad = ScanRequest(spec(), ((path_of(meta), meta), ("garbage", _garbage(worker._root, meta))))
    for _ in range(2):
        with pytest.raises(FileCorrupt):
            engine.scan(bad)
    starts = worker.starts
    with pytest.raises(FileCorrupt, match="no longer read"):
        engine.scan(bad)
    assert engine.scan(ScanRequest(spec(), ((path_of(meta), meta),))).rows == 10
    assert worker.starts == starts + 1


def test_the_file_that_a_worker_read_when_it_died_is_named(worker: TsFileWorker) -> None:
    """A process that was killed from outside proves nothing against a file; the file that was read is
    known."""
    suspects = Suspects()
    meta = close(Storage(RealDisk(worker._root), WorkerlessEngine(worker)), unit("a", (1, rows(10))))[0]
    files = ((path_of(meta), meta), ("other", meta))
    suspects.note("other", files)
    suspects.check(files)
    suspects.note("other", files)
    with pytest.raises(FileCorrupt, match="other"):
        suspects.check(files)
    suspects.check(files[:1])


class WorkerlessEngine(WorkerEngine):
    """One process serves both kinds of call, so that a test starts fewer processes."""

    def __init__(self, worker: TsFileWorker) -> None:
        self.closer = self.scanner = self.heavy_scanner = worker
        self._suspects = Suspects()


def test_calls_from_threads_do_not_mix(worker: TsFileWorker) -> None:
    """Each thread gets the reply to its own request."""
    found: dict[int, int] = {}

    def one(n: int) -> None:
        reply = worker.call(CloseRequest((unit(f"f{n}", (1, rows(n))),)))
        assert isinstance(reply, CloseReply) and reply.made[0] is not None
        found[n] = reply.made[0].meta.rows

    threads = [threading.Thread(target=one, args=(n,)) for n in range(1, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: n for n in range(1, 13)} and worker.starts == 1


_PARENT = """
import os, sys, threading
from nodeagent.storage.worker import TsFileWorker
from tests.storage.test_worker import REQUEST
worker = TsFileWorker(sys.argv[1])
worker.start()
print(worker.pid, flush=True)
for line in sys.stdin:
    threading.Thread(target=worker.call, args=(REQUEST,), daemon=True).start()
    print("asked", flush=True)
os._exit(9)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process with a worker in `tmp_path`, which sends a request for each line; and the worker's pid."""
    made = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    with made:
        assert made.stdin is not None and made.stdout is not None
        yield made, int(made.stdout.readline())
        made.kill()


def ends(pidfd: int) -> bool:
    """Whether the process ends within half a minute."""
    over = bool(select.select([pidfd], [], [], 30)[0])
    os.close(pidfd)
    return over


def test_a_worker_ends_with_its_parent(parent: tuple["subprocess.Popen[str]", int]) -> None:
    """If the parent dies without a message, the worker reads the end of its stdin and exits."""
    process, pid = parent
    watch = os.pidfd_open(pid)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(30) == 9
    assert ends(watch), "the worker outlived its parent"


def test_the_processes_of_an_engine_end_with_it(tmp_path: Path) -> None:
    engine = WorkerEngine(str(tmp_path))
    engine.start()
    processes = [worker._running() for worker in (engine.closer, engine.scanner, engine.compactor)]
    assert all(process.poll() is None for process in processes)
    engine.stop()
    assert all(process.poll() is not None for process in processes)


def test_a_file_that_a_worker_writes_after_its_parent_died_is_deleted(
    parent: tuple["subprocess.Popen[str]", int], tmp_path: Path
) -> None:
    """The next start may have swept the directory before a worker of the previous start finishes."""
    process, pid = parent
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGSTOP)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "asked\n"
    time.sleep(0.3)  # the request is in the pipe
    process.kill()
    process.wait(30)
    os.kill(pid, signal.SIGCONT)
    assert ends(watch), "the worker outlived its parent"
    assert list((tmp_path / "tmp").iterdir()) == []


def test_close_scan_and_hash_work_on_a_real_disk(worker: TsFileWorker, tmp_path: Path) -> None:
    """Jobs run end to end: files appear under their names, scans merge them with memory, and damage is
    detected."""
    storage = Storage(RealDisk(tmp_path), WorkerlessEngine(worker))
    storage.prepare()
    units = (unit("a", (1, rows(100))), unit("none"), unit("b", (2, rows(80, seed=2)), slot=6))
    result = storage.run(CloseFiles(GROUP, units))
    assert isinstance(result, FilesClosed) and result.files[1] is None
    files = tuple(m for m in result.files if m is not None)
    assert [(tmp_path / path_of(m)).stat().st_size for m in files] == [m.size for m in files]
    assert list((tmp_path / "tmp").iterdir()) == []
    scanned = storage.run(Scan(GROUP, spec(), files[:1], unit("", (200, rows(120, seed=3))).batches, ()))
    assert isinstance(scanned, Scanned) and decode(scanned.ipc).num_rows == scanned.rows == 120
    assert storage.run(CloseFiles(GROUP, units)) == result

    path = tmp_path / path_of(files[0])
    bad = bytearray(path.read_bytes())
    bad[len(bad) // 2] ^= 1
    path.write_bytes(bad)
    broken = storage.run(Scan(GROUP, spec(), files[:1], (), ()))
    assert isinstance(broken, Failed) and broken.code == "file_corrupt"
    hashed = storage.run(HashFiles(GROUP, files))
    assert isinstance(hashed, FilesHashed)
    assert [found == m.xxh3 for (_, found), m in zip(hashed.found, files, strict=True)] == [False, True]


def test_the_priority_of_a_worker_is_below_that_of_its_node(tmp_path: Path) -> None:
    """An agent that runs at a lower priority may not give a child a higher one: the kernel refuses."""
    found: list[int] = []

    def start() -> None:  # each thread has its own niceness
        os.nice(2)
        for nice in (0, 4, 30):
            worker = TsFileWorker(str(tmp_path), nice=nice)
            worker.start()
            assert worker.pid is not None
            found.append(os.getpriority(os.PRIO_PROCESS, worker.pid))
            worker.stop()

    own = os.getpriority(os.PRIO_PROCESS, 0)
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert found == [min(19, own + n) for n in (2, 6, 32)]


def session_niceness(pid: int) -> int | None:
    """The niceness of the session of a process; None if the kernel does not weigh processes by session
    first."""
    try:
        words = Path(f"/proc/{pid}/autogroup").read_text().split()
    except OSError:
        return None
    return int(words[-1]) if words else None


def test_the_priority_of_a_worker_counts_against_other_sessions_too(tmp_path: Path) -> None:
    """In the session of its agent, a close would use up the share of the processor that the loop needs."""
    for nice in (0, 7):
        worker = TsFileWorker(str(tmp_path), nice=nice)
        worker.start()
        assert worker.pid is not None
        assert (os.getsid(worker.pid) == worker.pid) == (nice > 0)
        group, own = f"/proc/{worker.pid}/autogroup", session_niceness(os.getpid())
        if own is not None and os.access(group, os.W_OK):
            for _ in range(20):
                worker.start()
                if session_niceness(worker.pid) == (nice or own):
                    break
                time.sleep(0.1)  # refused: too soon after another request
            assert (session_niceness(worker.pid), session_niceness(os.getpid())) == (nice or own, own)
        worker.stop()


def test_the_priority_of_a_session_is_lowered_later_if_the_kernel_refuses_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker tries several times at first, because its first request may be a long one, then before each
    request."""
    answers: list[OSError] = [*(BlockingIOError() for _ in range(SESSION_TRIES + 1)), FileNotFoundError()]
    written: list[tuple[str, str]] = []

    pauses: list[float] = []

    def write(path: Path, text: str) -> int:
        written.append((str(path), text))
        raise answers.pop(0)

    worker = TsFileWorker(str(tmp_path), nice=30)
    with monkeypatch.context() as now:
        now.setattr(Path, "write_text", write)
        now.setattr(time, "sleep", pauses.append)
        worker.start()
        assert len(written) == SESSION_TRIES and len([p for p in pauses if p > 0.1]) == SESSION_TRIES - 1
        for _ in range(5):
            worker.start()
    assert written == [(f"/proc/{worker.pid}/autogroup", "19")] * (SESSION_TRIES + 2) and worker.starts == 1
    worker.stop()


def test_closes_and_long_reads_leave_the_processor_to_short_reads(tmp_path: Path) -> None:
    engine = WorkerEngine(str(tmp_path))
    short, close, long, compact = (
        w._nice for w in (engine.scanner, engine.closer, engine.heavy_scanner, engine.compactor)
    )
    assert 0 == short < close == long < compact


def test_a_broken_off_message_is_not_completed_by_the_next(
    worker: TsFileWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a reader would get the reply to another reader's request."""
    encode = packets.encode

    def broken(request: object) -> tuple[int, Iterator[bytes]]:
        length, pieces = encode(REQUEST)

        def some() -> Iterator[bytes]:
            yield next(pieces)[:-1]
            raise MemoryError

        return length, some()

    with monkeypatch.context() as now:
        now.setattr("nodeagent.storage.worker.packets.encode", broken)
        with pytest.raises(MemoryError):
            worker.call(REQUEST)
    assert isinstance(worker.call(REQUEST, 20), CloseReply) and worker.starts == 2

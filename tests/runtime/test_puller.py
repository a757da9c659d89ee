"""Pulling files over the network: verified, refetched from another source, counted, limited."""

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from nodeagent.model.errors import NotFound, OutcomeUnknown
from nodeagent.model.files import FileMeta, FileRef
from nodeagent.model.ids import NodeId, PartitionKey
from nodeagent.model.jobs import (
    Done,
    DropSnapshot,
    Failed,
    FilesStaged,
    Installed,
    InstallSnapshot,
    Job,
    JobResult,
    MakeSnapshot,
    StagedFile,
    StageFiles,
)
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.model.requests import Chunk, ErrorReply, FetchChunk, Reply
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.jobs import PULLS, Jobs
from nodeagent.runtime.puller import Puller
from nodeagent.runtime.rate import Rate
from nodeagent.storage import layout
from nodeagent.storage.arrow_format import ArrowFormat
from nodeagent.storage.engine import InlineEngine
from nodeagent.storage.executor import Storage
from nodeagent.wire.faults import to_error

SNAPSHOT = "ab12"
CONTENT = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"tail"


def meta(name: str, content: bytes = CONTENT) -> FileMeta:
    digest = xxhash.xxh3_128_hexdigest(content)
    key = PartitionKey("root", 1, 0)
    return FileMeta(name, 7, key, "t", (5,), len(content), digest, 1, 0, 0, (0, 0, 0))


class Node:
    """Storage and jobs of one node; `peers` answer its chunk requests."""

    def __init__(self, root: Path, peers: "dict[NodeId, Node]") -> None:
        disk = RealDisk(root)
        self.storage = Storage(disk, InlineEngine(disk, ArrowFormat()))
        self.storage.prepare()
        self.disk = disk
        self.peers = peers
        self.asked: list[FetchChunk] = []
        self.flip: set[int] = set()
        """Offsets of the chunks that are served with a wrong byte."""

        self.results: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.puller = Puller(self.loop, self.ask)
        self.jobs = Jobs(
            self.storage,
            disk,
            self.puller,
            lambda call: None if self.loop.call_soon_threadsafe(call) else None,
            lambda number, result: self.results.put(result),
        )

    async def ask(self, node: NodeId, wanted: FetchChunk, timeout_s: float) -> Reply:
        if node not in self.peers:
            raise OutcomeUnknown(f"{node} is gone", lost=True)
        peer = self.peers[node]
        peer.asked.append(wanted)
        done: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        peer.jobs.chunk(wanted, lambda reply: _settle(loop, done, reply))
        reply = await done
        if isinstance(reply, ErrorReply):
            raise to_error(reply)
        assert isinstance(reply, Chunk)
        if wanted.offset in peer.flip and reply.data and wanted.name not in (layout.INDEX, layout.PAYLOAD):
            return Chunk(bytes([reply.data[0] ^ 1]) + reply.data[1:], reply.size)
        return reply

    def run(self, job: Job) -> JobResult:
        self.jobs.submit(1, job)
        return self.results.get(timeout=10)

    def hold(self, group: str, names: list[str]) -> None:
        """Create files in a group and a snapshot of them."""
        for name in names:
            path = layout.file_path(group, 7, name)
            self.disk.mkdirs(layout.slot_dir(group, 7))
            self.disk.write_atomic(path, CONTENT)
        job = MakeSnapshot(SNAPSHOT, group, tuple(meta(n) for n in names), b"state")
        assert isinstance(self.run(job), Done)

    def close(self) -> None:
        self.puller.stop()
        self.jobs.stop(5)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(5)
        self.loop.close()


def _settle(loop: asyncio.AbstractEventLoop, done: "asyncio.Future[Reply]", reply: Reply) -> None:
    loop.call_soon_threadsafe(done.set_result, reply)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    peers: dict[NodeId, Node] = {}
    made = [Node(tmp_path / name, peers) for name in ("a", "b", "c")]
    peers.update(zip("abc", made, strict=True))
    for node in made[:2]:
        node.hold("a.1", ["f1", "f2"])
    yield made
    for node in made:
        node.close()


def wanted(name: str, *sources: str) -> StagedFile:
    refs = tuple(FileRef(node, SNAPSHOT, name, len(CONTENT), meta(name).xxh3) for node in sources)
    return StagedFile(meta(name), refs)


def test_files_arrive_verified_and_are_counted(nodes: list[Node]) -> None:
    """All bytes arrive, each chunk is requested once, and the bytes are counted under the operation."""
    a, _, c = nodes
    result = c.run(StageFiles("op1", "c.9", (wanted("f1", "a"), wanted("f2", "a"))))
    assert result == FilesStaged(("f1", "f2"), (), 2 * len(CONTENT), 0)
    assert c.disk.read(layout.staged_path("op1", "c.9", 7, "f1")) == CONTENT
    assert len(a.asked) == len(set(a.asked)) == 8
    assert c.puller.received_bytes == {"op1": 2 * len(CONTENT)}


def test_flipped_byte_is_fetched_again_from_the_next_source(nodes: list[Node]) -> None:
    """A file with a wrong byte is never renamed into place; it is fetched from the other holder."""
    a, b, c = nodes
    a.flip = {CHUNK_BYTES}
    result = c.run(StageFiles("op1", "c.9", (wanted("f1", "a", "b"),)))
    assert isinstance(result, FilesStaged)
    assert result.names == ("f1",) and result.refetched == 1
    assert c.disk.read(layout.staged_path("op1", "c.9", 7, "f1")) == CONTENT
    assert b.asked


def test_dead_source_is_skipped(nodes: list[Node]) -> None:
    """The first source cannot be reached: the file comes from the second."""
    result = nodes[2].run(StageFiles("op1", "c.9", (wanted("f1", "gone", "b"),)))
    assert isinstance(result, FilesStaged) and result.names == ("f1",)


@pytest.mark.parametrize("more,size", [(1, len(CONTENT)), (0, CHUNK_BYTES - 1)])
def test_a_source_that_sends_too_much_is_skipped(nodes: list[Node], more: int, size: int) -> None:
    """More bytes than requested, which no rate would limit, or more than the size it reports."""
    _, b, c = nodes
    ask = c.ask

    async def ask_generous(node: NodeId, wanted: FetchChunk, timeout_s: float) -> Reply:
        if node != "a":
            return await ask(node, wanted, timeout_s)
        return Chunk(CONTENT[wanted.offset : wanted.offset + wanted.length + more], size)

    c.puller._ask = ask_generous
    result = c.run(StageFiles("op1", "c.9", (wanted("f1", "a", "b"),)))
    assert result == FilesStaged(("f1",), (), len(CONTENT), 0)
    assert c.puller.received_bytes == {"op1": len(CONTENT)}
    assert b.asked and b.asked[0].offset == 0, "the file came from this source alone"


def test_missing_file_is_a_failure_not_an_empty_file(nodes: list[Node]) -> None:
    """The result contains `not_found` of the source; no file is created."""
    result = nodes[2].run(StageFiles("op1", "c.9", (wanted("f9", "a"),)))
    assert isinstance(result, FilesStaged) and result.names == ()
    assert "has no f9" in result.failed[0][1]


def test_snapshot_is_installed(nodes: list[Node]) -> None:
    """Files and payload of a group's snapshot are put in place."""
    result = nodes[2].run(InstallSnapshot("a.1", "a", SNAPSHOT))
    assert isinstance(result, Installed) and result.payload == b"state"
    assert nodes[2].storage.checkpoint("a.1") == b"state"
    assert nodes[2].disk.read(layout.file_path("a.1", 7, "f2")) == CONTENT


@pytest.mark.parametrize("group", ["meta", "a.1"])
def test_no_snapshot_waits_for_files_of_moved_slots(nodes: list[Node], group: str) -> None:
    """At a low rate those files take very long, and the snapshot itself may contain the raised rate."""
    a, _, c = nodes
    c.puller.rate.bytes_per_s = 1
    for number in range(2, 2 + 2 * PULLS):
        c.jobs.submit(number, StageFiles(f"op{number}", "c.9", (wanted("f1", "a"),)))
    assert isinstance(a.run(MakeSnapshot("cd34", group, (), b"newer")), Done)
    result = c.run(InstallSnapshot(group, "a", "cd34"))
    assert isinstance(result, Installed) and result.payload == b"newer"


def test_chunk_of_an_unknown_snapshot_is_not_found(nodes: list[Node]) -> None:
    """The answer is never an empty chunk."""
    replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    nodes[0].jobs.chunk(FetchChunk("dead", "f1", 0, 10), replies.put)
    reply = replies.get(timeout=5)
    assert isinstance(reply, ErrorReply) and isinstance(to_error(reply), NotFound)


def test_hostile_name_is_refused(nodes: list[Node]) -> None:
    """A name that is a path is refused."""
    replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
    nodes[0].jobs.chunk(FetchChunk(SNAPSHOT, "../../LOCK", 0, 10), replies.put)
    reply = replies.get(timeout=5)
    assert isinstance(reply, ErrorReply) and reply.code == "invalid_name"


def test_stopped_puller_fails_the_job(nodes: list[Node]) -> None:
    """A pull that runs while the agent stops fails with a reason instead of hanging."""
    nodes[2].puller.stop()
    result = nodes[2].run(StageFiles("op1", "c.9", (wanted("f1", "a"),)))
    assert isinstance(result, FilesStaged) and "is stopping" in result.failed[0][1]


def test_rate_spreads_bytes_over_time() -> None:
    """The wait grows with the bytes, unused time allows only a short burst, 0 means no limit."""
    rate = Rate(1000)
    assert rate.take(250, 100.0) == 0.0
    assert rate.take(1000, 100.0) == pytest.approx(1.0)
    assert rate.take(500, 100.5) == pytest.approx(1.0)
    assert rate.take(250, 500.0) == 0.0
    assert Rate(0).take(10**12, 0.0) == 0.0


def test_errors_of_jobs_never_end_a_lane(nodes: list[Node]) -> None:
    """A job with a bad name fails with its code, and the lane runs the next one."""
    result = nodes[0].run(MakeSnapshot("../x", "a.1", ()))
    assert getattr(result, "code", "") == "invalid_name"
    assert isinstance(nodes[0].run(MakeSnapshot("cd", "a.1", ())), Done)


def test_a_job_that_raises_is_answered_before_the_next_job(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the host would wait indefinitely, and no counter would show it. The same holds for a job that
    pulls files."""
    a, _, c = nodes

    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(a.storage.snapshots, "make", fail)
    monkeypatch.setattr(c.puller, "_no_room", fail)
    a.jobs.submit(1, MakeSnapshot("cd", "a.1", ()))
    a.jobs.submit(2, DropSnapshot("cd"))
    assert a.results.get(timeout=10) == Failed("error", "MakeSnapshot: KeyError: 'a bug'")
    assert a.results.get(timeout=10) == Done()
    assert c.run(StageFiles("op", "c.9", (wanted("f1", "a"),))) == Failed(
        "error", "StageFiles: KeyError: 'a bug'"
    )
    assert (a.jobs.failed, c.jobs.failed) == (1, 1)


def test_a_changed_rate_forgets_bytes_taken_at_the_old_rate() -> None:
    """Bytes taken at a low rate do not delay a higher rate."""
    rate = Rate(10)
    assert rate.take(1000, 100.0) == pytest.approx(99.75)
    rate.bytes_per_s = 10
    assert rate.take(0, 100.0) == pytest.approx(99.75)
    rate.bytes_per_s = 10_000
    assert rate.take(1000, 100.0) == 0.0


def test_without_room_no_file_is_pulled_and_received_files_are_used_later(nodes: list[Node]) -> None:
    """The job fails as `overloaded`; index and checkpoint of a snapshot are still pulled."""
    a, _, c = nodes
    why = ["the disk of c has 1 MiB left"]
    c.puller._no_room = lambda: why[0]
    job = StageFiles("op", "c.1", (wanted("f1", "a"),))
    refused = c.run(job)
    assert isinstance(refused, FilesStaged) and why[0] in refused.failed[0][1]
    assert not [x for x in a.asked if x.name == "f1"]
    why[0] = ""
    done = c.run(job)
    assert isinstance(done, FilesStaged) and not done.failed

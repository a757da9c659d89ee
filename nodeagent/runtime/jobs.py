"""Executes the host's jobs and answers chunk requests, each kind on its own lane.

disk    checkpoints, snapshots, adoption, deletes: in order, so that a later job of a group sees
        the result of an earlier one
close   writing TsFiles (in a worker process)
compact merging files into one (in another worker process, at low priority)
scan    reads (in another worker process)
heavy   reads that open large files (in another worker process)
hash    reading and hashing whole files
chunks  parts of snapshot files for other nodes
meta    the meta group's snapshot: everything else depends on it, even the rate of pulls, so it never waits
        for a pull
install snapshots of data groups, on several lanes: a lagging member does not wait for files of moved slots
pull    files of moved slots, on several lanes, because they wait for the network
"""

from collections.abc import Callable
from itertools import chain

from nodeagent.model.disk import Disk
from nodeagent.model.errors import NodeAgentError, Overloaded
from nodeagent.model.ids import META, GroupId
from nodeagent.model.jobs import (
    CloseFiles,
    CompactFiles,
    Failed,
    HashFiles,
    InstallSnapshot,
    Job,
    JobResult,
    Scan,
    StageFiles,
)
from nodeagent.model.requests import Chunk, FetchChunk, Reply
from nodeagent.runtime.lanes import Lane
from nodeagent.runtime.puller import Fetcher, Puller
from nodeagent.storage import layout
from nodeagent.storage.executor import Storage
from nodeagent.wire.faults import to_reply

JOBS_QUEUED_MAX = 65_536
SCANS_QUEUED_MAX = 512
CHUNKS_QUEUED_MAX = 1024
PULLS = 4
"""Lanes in each pool."""
PULLS_QUEUED_MAX = 4096
CATCH_UP = "catch-up"
"""The operation name under which the bytes of snapshots outside any operation are counted."""

Post = Callable[[Callable[[], None]], None]
"""Run a call on the loop; safe from any thread."""

OnResult = Callable[[int, JobResult], None]
OperationOf = Callable[[GroupId], str]
"""The open operation by which this node joins the group, "" if there is none."""


class Jobs:
    """Runs jobs on their lanes. `on_result` is called on the loop, once per submitted job unless the agent
    stops first."""

    def __init__(
        self,
        storage: Storage,
        disk: Disk,
        puller: Puller,
        post: Post,
        on_result: OnResult,
        operation_of: OperationOf = lambda group: "",
    ) -> None:
        self._storage = storage
        self._disk = disk
        self._puller = puller
        self._post = post
        self._on_result = on_result
        self._operation_of = operation_of
        self._lanes = {
            "disk": Lane("disk", JOBS_QUEUED_MAX),
            "close": Lane("close", JOBS_QUEUED_MAX),
            "compact": Lane("compact", JOBS_QUEUED_MAX),
            "scan": Lane("scan", SCANS_QUEUED_MAX),
            "heavy": Lane("heavy", SCANS_QUEUED_MAX),
            "hash": Lane("hash", SCANS_QUEUED_MAX),
            "chunks": Lane("chunks", CHUNKS_QUEUED_MAX),
            "meta": Lane("meta", PULLS_QUEUED_MAX),
        }
        self._pools = {
            kind: [Lane(f"{kind}-{i}", PULLS_QUEUED_MAX) for i in range(PULLS)]
            for kind in ("install", "pull")
        }
        self.done = 0
        self.failed = 0

    def submit(self, number: int, job: Job) -> None:
        lane = self._lane_of(job)
        operation = self._counted_under(job)
        if not lane.submit(lambda: self._run(number, job, operation)):
            full = Failed(Overloaded.code, f"too many {type(job).__name__} jobs are queued")
            self._post(lambda: self._finish(number, full))

    def chunk(self, wanted: FetchChunk, done: Callable[[Reply], None]) -> None:
        """Read a chunk; `done` is called on the loop with the reply."""

        def read() -> None:
            reply: Reply
            try:
                data = self._storage.read_chunk(wanted.snapshot, wanted.name, wanted.offset, wanted.length)
                path = layout.snapshot_path(wanted.snapshot, wanted.name)
                reply = Chunk(data, self._disk.stat(path).size)
            except NodeAgentError as error:
                reply = to_reply(error)
            except OSError as error:
                reply = to_reply(NodeAgentError(f"{wanted.name} cannot be read: {error}"))
            self._post(lambda: done(reply))

        if not self._lanes["chunks"].submit(read):
            done(to_reply(Overloaded("too many chunk requests are queued", next_step="try again later")))

    def in_background(self, call: Callable[[], None]) -> None:
        """Run a housekeeping call between the disk jobs; it is dropped if the lane is full."""
        self._lanes["disk"].submit(call)

    def queued(self) -> dict[str, int]:
        """Queued and running jobs per lane or pool."""
        pools = {kind: sum(lane.queued for lane in pool) for kind, pool in self._pools.items()}
        return {name: lane.queued for name, lane in self._lanes.items()} | pools

    def stop(self, timeout_s: float) -> None:
        """Wait for running jobs and drop queued jobs: jobs are idempotent and are submitted again later."""
        for lane in chain(self._lanes.values(), *self._pools.values()):
            lane.stop(timeout_s)

    def _lane_of(self, job: Job) -> Lane:
        if isinstance(job, CloseFiles):
            return self._lanes["close"]
        if isinstance(job, CompactFiles):
            return self._lanes["compact"]
        if isinstance(job, Scan):
            return self._lanes["heavy" if job.heavy else "scan"]
        if isinstance(job, HashFiles):
            return self._lanes["hash"]
        if isinstance(job, InstallSnapshot):
            return self._lanes["meta"] if job.group == META else self._free_of("install")
        if isinstance(job, StageFiles):
            return self._free_of("pull")
        return self._lanes["disk"]

    def _free_of(self, pool: str) -> Lane:
        return min(self._pools[pool], key=lambda lane: lane.queued)

    def _counted_under(self, job: Job) -> str:
        """The operation that a pull's bytes are counted under. Determined on the loop, before the job is
        queued."""
        if isinstance(job, StageFiles):
            return job.operation
        return (self._operation_of(job.group) if isinstance(job, InstallSnapshot) else "") or CATCH_UP

    def _run(self, number: int, job: Job, operation: str) -> None:
        """On a lane's thread."""
        fetcher: Fetcher | None = None
        result: JobResult
        try:
            if isinstance(job, InstallSnapshot | StageFiles):
                fetcher = self._puller.fetcher(operation)
                result = self._storage.run_pull(job, fetcher.fetch)
            else:
                result = self._storage.run(job)
        except NodeAgentError as error:
            result = Failed(error.code, error.what)
        except Exception as error:  # a failed job must not end the node; the host decides what follows
            result = Failed(NodeAgentError.code, f"{type(job).__name__}: {type(error).__name__}: {error}")
        finally:
            if fetcher is not None:
                fetcher.close()
        self._post(lambda: self._finish(number, result))

    def _finish(self, number: int, result: JobResult) -> None:
        self.done += 1
        self.failed += isinstance(result, Failed)
        self._on_result(number, result)

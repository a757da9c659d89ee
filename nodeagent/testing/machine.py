"""One simulated machine: a disk that survives, and a process that starts and ends.

It does on virtual time what the real agent's runtime does: it writes the log, runs jobs and timers, and
dispatches effects once per turn. The subclass decides what it runs: a whole `Host` (`node`) or Raft groups
only (`groups`).
"""

import errno
import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from nodeagent.host.desk import Effects
from nodeagent.host.replica import INSTALL_KEEP_MS, Replica
from nodeagent.log import Log, LogSettings, NoSpace, Recovered
from nodeagent.log.identity import LOG_DIR, LOG_ID_FILE, NodeFile, begin_start, known_identity
from nodeagent.log.replay import list_segments, path_of
from nodeagent.model.disk import Disk
from nodeagent.model.entries import LogOp
from nodeagent.model.errors import Damaged, Overloaded, Unavailable
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import CompactFiles, Failed, InstallSnapshot, Job, JobResult, StageFiles
from nodeagent.model.limits import SEGMENT_SHARE
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import Reply, Request
from nodeagent.model.space import reserve, zero_step
from nodeagent.storage import layout
from nodeagent.storage.engine import InlineEngine
from nodeagent.storage.executor import Storage
from nodeagent.testing.builds import PLAIN, LibraryFormat
from nodeagent.testing.disk import ENDLESS_BYTES, Fault, PowerCut, SimDisk
from nodeagent.testing.durable import Durable
from nodeagent.testing.sim import Sim, WallClock

BALLAST = "ballast"
UPKEEP_MS = 1_000
SNAPSHOT_TTL_MS = 6_000
SEGMENT_BYTES_MAX = 1 << 18
"""Maximum size of a log segment. Longer preallocated segments would only be copied and searched."""

STALL_POLL_MS = 10
NO_SPACE_RETRY_MS = 100
CLEAN_MS = max(SNAPSHOT_TTL_MS, INSTALL_KEEP_MS) + 2 * UPKEEP_MS
"""Time after the last event at which no file may be left that no manifest names."""


class Inside(Protocol):
    """What a machine requires from what runs on it: the contract of `host.host`."""

    def take(self) -> Effects: ...
    def on_persisted(self, batch: int, now: int) -> None: ...
    def on_job(self, number: int, result: JobResult, now: int) -> None: ...
    def on_snapshots_expired(self, names: list[str], now: int) -> None: ...
    def on_reply(self, call: int, reply: Reply, now: int) -> None: ...
    def tick(self, now: int, wall: int) -> None: ...
    def deadline(self) -> int: ...
    def on_disk(self, free: int, total: int, now: int) -> None: ...

    @property
    def idle(self) -> bool: ...

    @property
    def no_room(self) -> str: ...


class Machine:
    """A simulated machine; `life` counts its processes."""

    host: Any
    """The `Inside` that the subclass runs."""

    def __init__(self, sim: Sim[Any], node: NodeId) -> None:
        self.sim = sim
        self.node = node
        self.disk = SimDisk(now_ms=lambda: self.wall)
        self.durable = Durable(node)
        self.alive = False
        self.gone = False
        """Whether the machine is permanently lost: it never starts again."""

        self.damaged = ""
        """Why the damaged data directory prevents a start; "" if it does not."""

        self.lossy = False
        """Whether parts of the data directory were lost or changed, so that its groups may be damaged."""

        self.clock = WallClock()
        self.pace = 1.0
        """Rate of its monotonic clock relative to simulated time."""

        self.asleep_until = 0
        """Until then the process is suspended, and its messages wait."""

        self.life = 0
        self.incarnation = f"{sim.rng.getrandbits(64):016x}"
        self.identity: NodeFile
        self.storage: Storage
        self._log: Log
        self._tokens: dict[int, Callable[[Reply], None]] = {}
        self._token = 0
        self.held = 0
        """How often the log writer had no disk space."""

        self.build = PLAIN
        """The release that its next process runs."""

        self.segment_bytes = SEGMENT_BYTES_MAX
        self.upkeep_ms = UPKEEP_MS
        self._writing = False
        self._jobs: dict[int, Job] = {}
        """Jobs in progress."""

        self._queue: list[tuple[int, list[LogOp]]] = []
        self._turn_due = False
        self._tick_at = -1

    @property
    def now(self) -> int:
        """The machine's monotonic clock in milliseconds."""
        return self.sim.now if self.pace == 1.0 else int(self.sim.now * self.pace)

    @property
    def unanswered(self) -> int:
        """Number of requests that this process has not answered yet."""
        return len(self._tokens)

    @property
    def wall(self) -> int:
        return self.clock.at(self.sim.now)

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.alive
        if self.gone or self.damaged:
            return
        self.life += 1
        self.alive = True
        self._tokens.clear()
        self._queue.clear()
        self._writing = self._turn_due = False
        self._tick_at = -1
        self._guard(self._open)

    def _open(self) -> None:
        try:
            known = known_identity(self.disk, self.node, layout.GROUPS)
        except Damaged as error:
            self.alive, self.damaged = False, error.what
            self.sim.tell(f"{self.node} does not start: {error.what}")
            return
        total = self.disk.total_bytes()
        zeros = min(zero_step(total), SEGMENT_BYTES_MAX)
        settings = LogSettings(min(self.segment_bytes, total // SEGMENT_SHARE), zeros, reserve(total))
        self._log, recovered = Log.open(self.disk, LOG_DIR, settings)
        self.durable.reopened(recovered, must_fit=not self.lossy)
        self.identity = begin_start(self.disk, self._log, self.node, known, self._draw)
        engine = InlineEngine(_under(self.disk), LibraryFormat(self.build.maker))
        self.storage = Storage(_under(self.disk), engine)
        self.storage.prepare()
        self._open_host(recovered)
        self.wake()

    def _open_host(self, recovered: Recovered) -> None:
        """Create `host` from the recovered log and the files on disk."""
        raise NotImplementedError

    def _draw(self) -> str:
        """Draw a nonce for this directory; the first is the incarnation by which the scenario knows the
        node."""
        return f"{self.life}.{self.disk.operations}" if self.disk.exists(LOG_ID_FILE) else self.incarnation

    def segments(self) -> list[str]:
        """Paths of the log segments, oldest first."""
        return [path_of(LOG_DIR, number) for number in list_segments(self.disk, LOG_DIR)]

    def lose(self, *paths: str) -> None:
        """Delete files or directories while the node is down, as an operator or a file system repair may."""
        assert not self.alive
        self.lossy = True
        for path in paths:
            if self.disk.exists(path):
                self.disk.rmtree(path) if self.disk.stat(path).is_dir else self.disk.unlink(path)
        self.sim.tell(f"{self.node} loses {paths}")

    def put_back(self, older: SimDisk) -> None:
        """Replace the whole data directory by an older copy of it."""
        assert not self.alive
        self.lossy = True
        self.disk = older
        older.restart()
        self.sim.tell(f"{self.node} is put back from an older copy")

    def _upkeep(self) -> None:
        gone = self.storage.expire_snapshots(self.now, SNAPSHOT_TTL_MS)
        self.host.on_snapshots_expired(gone, self.now)
        self.wake()
        if not self._writing:
            self._log.mark_synced()
        self.later(self.upkeep_ms, self._upkeep)

    def cut_power_soon(self) -> None:
        """Cut the power during one of the next 40 disk changes."""
        self.disk.cut_power_at = self.disk.operations + self.sim.rng.randint(1, 40)

    def fill_disk(self) -> None:
        """Fail some of the next writes of TsFiles for lack of disk space."""
        self.disk.faults.append(
            Fault("write", errno.ENOSPC, f"{layout.TMP}/", times=self.sim.rng.randint(1, 6))
        )

    def take_room(self, leave: int) -> None:
        """Fill the disk with a foreign file except for `leave` bytes, or delete that file."""
        cut, self.disk.cut_power_at = self.disk.cut_power_at, None  # a power cut must hit a write of the node
        if self.disk.exists(BALLAST):
            self.disk.unlink(BALLAST)
        size = self.disk.free_bytes() - leave
        if size > 0:
            with self.disk.create(BALLAST) as file:
                file.pwrite(0, bytes(size))
                file.sync()
        self.disk.sync_dir("")
        self.disk.cut_power_at = cut

    def stop(self, *, power: bool) -> None:
        """Kill the process; with `power`, also lose what was not synced."""
        self.alive = False
        self.asleep_until = 0
        self.sim.tell(f"{self.node} {'loses power' if power else 'is killed'}")
        for what in self._under_way():
            self.sim.seen["power cut" if power else "kill", what] += 1
        self._jobs.clear()
        if power:
            self.disk.crash(self.sim.rng)
        else:
            self.disk.restart()

    def _under_way(self) -> set[str]:
        """Effects that have begun and not completed, by name."""
        found = {type(job).__name__ for job in self._jobs.values()}
        if self._writing:
            found.add("log written, not synced")
        if self._queue:
            found.add("log not written")
        return found or {"at rest"}

    def sleep(self, ms: int) -> None:
        """Suspend the process, as SIGSTOP does; messages wait in its sockets until it continues."""
        self.asleep_until = max(self.asleep_until, self.sim.now + ms)
        self.sim.tell(f"{self.node} sleeps {ms} ms")

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Schedule an event of this process. It is dropped when the process ends, and late if it is
        suspended."""
        life = self.life

        def run() -> None:
            if not self.alive or self.life != life:
                return
            if self.asleep_until > self.sim.now:
                self.sim.at(self.asleep_until - self.sim.now, run)
            else:
                self._guard(action)

        self.sim.at(delay_ms, run)

    def _guard(self, action: Callable[[], None]) -> None:
        """Run `action`. A power cut or a disk error of the log ends the process, as it ends the real one; the
        node restarts later."""
        try:
            action()
        except PowerCut:
            self._go_down(power=True)
        except OSError as error:
            if not self.sim.may_err:
                raise
            self.sim.tell(f"{self.node} ends: {error}")
            self._go_down(power=False)

    def _go_down(self, *, power: bool) -> None:
        self.stop(power=power)
        self.sim.at(self.sim.rng.randint(50, 3000), lambda: None if self.alive else self.start())

    # --- the shell ---------------------------------------------------------------------------------

    def wake(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.later(0, self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        effects = self.host.take()
        for check in self.sim.checks:
            check(self, effects)
        if effects.persist is not None:
            self._queue.append(effects.persist)
            self._write()
        for peer, messages in effects.sends:
            self.sim.carry(self.node, peer, lambda n, m=messages: n.arrive(self.node, m))  # type: ignore[misc]
        for token, reply in effects.replies:
            self._tokens.pop(token)(reply)
        for number, job in effects.jobs:
            faults = self.sim.faults
            self._jobs[number] = job
            if ambush := self.sim.ambushes.pop(type(job).__name__, None):
                ambush(self)
            slow = faults.compact_ms if isinstance(job, CompactFiles) else None
            self.later(self.sim.lasting(slow or faults.job_ms), lambda n=number, j=job: self._run(n, j))  # type: ignore[misc]
        for call, to, request in effects.calls:
            self._call(call, to, request)
        for event, fields in effects.notes:
            self.sim.tell(f"{self.node} {event} {fields}")
            self.sim.seen["note", event] += 1
            assert event != "group_stopped" or self.sim.may_stop, (self.node, fields)
            assert event != "request_failed", fields
        if not self.host.idle:
            self.wake()
        self._arm()

    def _arm(self) -> None:
        wait = max(self.host.deadline() - self.now, 1)
        due = self.sim.now + (wait if self.pace == 1.0 else math.ceil(wait / self.pace))
        if self._tick_at < self.sim.now or due < self._tick_at:
            self._tick_at = due
            self.later(due - self.sim.now, self._tick)

    def _tick(self) -> None:
        self._tick_at = -1
        if self.now >= self.host.deadline():
            self.host.tick(self.now, self.wall)
            self._look_at_disk()
            self.wake()
        else:
            self._arm()

    def _look_at_disk(self) -> None:
        if self.disk.total_bytes() < ENDLESS_BYTES:
            self.host.on_disk(self.disk.free_bytes(), self.disk.total_bytes(), self.now)

    def write_log(self, ops: list[LogOp]) -> None:
        self.durable.writes(ops)
        self._log.write(ops)
        self.durable.written()

    def sync_log(self) -> None:
        self._log.sync()
        self.durable.synced()

    def _write(self) -> None:
        """Do what the writer thread does: write all queued batches, then sync once."""
        if self._writing or not self._queue:
            return
        self._writing = True
        written = 0
        try:
            for _, ops in self._queue:
                self.write_log(ops)
                written += 1
        except NoSpace:
            self.durable.refused()
            if not written:
                self.later(NO_SPACE_RETRY_MS, self._write_again)
                return
        last = self._queue[written - 1][0]
        del self._queue[:written]
        self.later(self.sim.lasting(self.sim.faults.sync_ms), lambda: self._synced(last))

    def _write_again(self) -> None:
        """Retry a write that failed because the disk was full."""
        self.held += 1
        self._log.reclaim()
        self._writing = False
        self._write()

    def _synced(self, batch: int) -> None:
        if self.node in self.sim.faults.stalled:
            self.later(STALL_POLL_MS, lambda: self._synced(batch))
            return
        self.sync_log()
        self.sim.events += 1
        self._log.reclaim()
        self._writing = False
        self.host.on_persisted(batch, self.now)
        self._write()
        self.wake()

    def _run(self, number: int, job: Job) -> None:
        result: JobResult
        kind = type(job).__name__
        if isinstance(job, StageFiles | InstallSnapshot):
            result = self.storage.run_pull(job, self._fetch)
        else:
            result = self.storage.run(job)
        self._jobs.pop(number, None)
        self.sim.events += 1
        if isinstance(result, Failed):
            self.sim.tell(f"{self.node} job {kind} failed: {result.what}")
            self.sim.seen["failed job", kind] += 1
        else:
            self.sim.jobs[kind] += 1
        self.host.on_job(number, result, self.now)
        self.wake()

    def _fetch(self, source: NodeId, snapshot: str, name: str, offset: int, length: int) -> bytes:
        sim = self.sim
        if self.host.no_room:
            raise Overloaded(self.host.no_room)
        node = sim.nodes.get(source)
        lost = (self.node, source) in sim.faults.cut or sim.rng.random() < sim.faults.drop / 4
        if node is None or not node.alive or lost:
            raise Unavailable(f"{source} is not there")
        data: bytes = node.storage.read_chunk(snapshot, name, offset, length)
        return data

    def _call(self, call: int, to: NodeId | tuple[str, int], request: Request) -> None:
        target = to if isinstance(to, str) else to[0]
        life = self.life

        def then(reply: Reply) -> None:
            if self.alive and self.life == life:
                self.host.on_reply(call, reply, self.now)
                self.wake()

        self.sim.call(self.node, target, request, then)

    # --- what runs in it ---------------------------------------------------------------------------

    def replicas(self) -> Iterable[Replica]:
        raise NotImplementedError

    def replica(self, group: GroupId) -> Replica | None:
        raise NotImplementedError

    def damage(self, group: GroupId) -> str:
        """Why the group does not run; "" if it is not damaged."""
        raise NotImplementedError

    # --- arrivals ----------------------------------------------------------------------------------

    def arrive(self, sender: NodeId, messages: list[Routed]) -> None:
        self.sim.events += len(messages) - 1  # each message is one event
        for routed in messages:
            replica = self.replica(routed.group)
            role = replica.raft.role if replica is not None else "no replica"
            self.sim.seen["message", f"{type(routed.message).__name__} at {role}"] += 1
        self.on_raft(sender, messages)

    def on_raft(self, sender: NodeId, messages: list[Routed]) -> None:
        raise NotImplementedError

    def serve(self, peer: NodeId, request: Request, answer: Callable[[Reply], None]) -> None:
        raise NotImplementedError

    def token(self, answer: Callable[[Reply], None]) -> int:
        """A number that identifies the request until `answer` is called."""
        self._token += 1
        self._tokens[self._token] = answer
        return self._token


def _under(disk: SimDisk) -> Disk:
    """The log and the data share one simulated disk, in separate directories."""
    return disk

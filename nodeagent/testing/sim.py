"""Clock, network and nodes of a simulated cluster.

Everything that happens is an event on one heap, ordered by (time, number); all chance comes from one
seeded generator. So a seed is a run, and running it again gives the same trace.
"""

import errno
import heapq
import random
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from nodeagent.data.state import decode_checkpoint
from nodeagent.host.desk import Effects
from nodeagent.host.found import fault_of, is_traceless, lost_meta, unsaid
from nodeagent.host.host import Host
from nodeagent.host.replica import INSTALL_KEEP_MS, Saved
from nodeagent.log import Damage, Log, LogSettings, NoSpace, Recovered
from nodeagent.log.identity import LOG_DIR, LOG_ID_FILE, NodeFile, begin_start, known_identity, mark_damaged
from nodeagent.model.config import ClusterSettings, NodeConfig, RaftSettings, Seed
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Base, Config, HardState, LogOp
from nodeagent.model.errors import Damaged, Overloaded, Unavailable
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import META, GroupId, NodeId, Owner
from nodeagent.model.jobs import CompactFiles, Failed, InstallSnapshot, Job, JobResult, StageFiles
from nodeagent.model.limits import SEGMENT_SHARE
from nodeagent.model.requests import CheckStatus, Chunk, ErrorReply, FetchChunk, GetStatus, Reply, Request
from nodeagent.model.space import reserve, zero_step
from nodeagent.model.standing import Standing
from nodeagent.storage import layout
from nodeagent.storage.arrow_format import ArrowFormat
from nodeagent.storage.engine import InlineEngine
from nodeagent.storage.executor import Storage
from nodeagent.testing.disk import ENDLESS_BYTES, Fault, PowerCut, SimDisk

WALL_START_MS = 1_700_000_000_000
CALL_TIMEOUT_MS = 3_000
LATE_MS = 2_500
"""A duplicate may be so much later than what it repeats."""

CLIENT = "client"
LOOK_MS = 10
"""A condition that is waited for is looked at this often."""

BALLAST = "ballast"
UPKEEP_MS = 1_000
SNAPSHOT_TTL_MS = 6_000
STALL_POLL_MS = 10
NO_SPACE_RETRY_MS = 100
CLEAN_MS = max(SNAPSHOT_TTL_MS, INSTALL_KEEP_MS) + 2 * UPKEEP_MS
"""So long after the last event nothing may be left that no manifest names."""


@dataclass(slots=True)
class Faults:
    """Chances and ranges in force; all off when healed."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_ms: tuple[int, int] = (1, 3)
    cut: set[tuple[NodeId, NodeId]] = field(default_factory=set)
    """One-way: (from, to)"""

    sync_ms: tuple[int, int] = (1, 3)
    stalled: set[NodeId] = field(default_factory=set)
    """Whose disk stands still: no sync ends there. Messages come and go."""

    job_ms: tuple[int, int] = (1, 10)
    compact_ms: tuple[int, int] | None = None
    """Of compactions alone, when they are to be slower or faster."""

    def heal(self) -> None:
        self.drop = self.duplicate = 0.0
        self.cut.clear()
        self.stalled.clear()
        self.delay_ms, self.sync_ms, self.job_ms = (1, 3), (1, 3), (1, 10)
        self.compact_ms = None


@dataclass(frozen=True, slots=True)
class WallClock:
    """A node's wall clock: it was set wrong by `ahead_ms` at `since_ms` and goes `rate` times too fast from
    then on; a rate of 0 is a clock that stands still."""

    ahead_ms: int = 0
    since_ms: int = 0
    rate: float = 1.0

    def at(self, now_ms: int) -> int:
        """What it shows, in milliseconds since the epoch."""
        return WALL_START_MS + self.ahead_ms + self.since_ms + int((now_ms - self.since_ms) * self.rate)


class Sim:
    """The virtual world. `trace` is a running hash of all that happened."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0
        self.faults = Faults()
        self.nodes: dict[NodeId, SimNode] = {}
        self.events = 0
        self.trace = 0
        self.log: list[str] = []
        """The last things that happened, for a failure's report."""

        self.checks: list[Callable[[SimNode, Effects], None]] = []
        self.may_stop = False
        """Whether a group may meet an entry that cannot be applied; else that is a bug of ours."""

        self.unknown = 0
        """Frames of nodes that the receiver did not know as members."""

        self.jobs: Counter[str] = Counter()
        """Jobs that were done, by kind."""

        self._heap: list[tuple[int, int, Callable[[], None]]] = []

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        self.events += 1
        heapq.heappush(self._heap, (self.now + max(0, delay_ms), self.events, action))

    def tell(self, what: str) -> None:
        self.trace = zlib.crc32(f"{self.now} {what}".encode(), self.trace)
        self.log.append(f"{self.now:>8} {what}")
        if len(self.log) > 400:
            del self.log[:200]

    def run(self, until: Callable[[], bool], limit_ms: int) -> bool:
        """Run events until the condition holds; False when `limit_ms` passed first."""
        end = self.now + limit_ms
        look_at = self.now
        while True:
            if self.now >= look_at:
                if until():
                    return True
                look_at = self.now + LOOK_MS
            if not self._heap or self._heap[0][0] > end:
                self.now = end
                return until()
            self.now, _, action = heapq.heappop(self._heap)
            action()

    def pause(self, ms: int) -> None:
        self.run(lambda: False, ms)

    def between(self, span: tuple[int, int]) -> int:
        return self.rng.randint(*span)

    # --- network -----------------------------------------------------------------------------------

    def carry(self, source: NodeId, target: NodeId, deliver: Callable[["SimNode"], None]) -> None:
        """Deliver to the process that runs on `target` when it arrives, unless it is lost."""
        f = self.faults
        if (source, target) in f.cut or self.rng.random() < f.drop:
            return
        self.at(self.between(f.delay_ms), lambda: self._arrive(target, deliver))
        if self.rng.random() < f.duplicate:
            late = self.between(f.delay_ms) + self.rng.choice((0, self.rng.randint(0, LATE_MS)))
            self.at(late, lambda: self._arrive(target, deliver))

    def _arrive(self, target: NodeId, deliver: Callable[["SimNode"], None]) -> None:
        node = self.nodes.get(target)
        if node is not None and node.alive:
            deliver(node)

    def call(self, source: NodeId, target: NodeId, request: Request, then: Callable[[Reply], None]) -> None:
        """A request and exactly one reply; a lost one is `unavailable` after a time-out."""
        done = False

        def finish(reply: Reply) -> None:
            nonlocal done
            if not done:
                done = True
                then(reply)

        def serve(node: "SimNode") -> None:
            node.serve(source, request, lambda reply: self._back(target, source, lambda: finish(reply)))

        self.carry(source, target, serve)
        self.at(CALL_TIMEOUT_MS, lambda: finish(ErrorReply("unavailable", f"{target} did not answer")))

    def _back(self, source: NodeId, target: NodeId, deliver: Callable[[], None]) -> None:
        f = self.faults
        if (source, target) not in f.cut and self.rng.random() >= f.drop:
            self.at(self.between(f.delay_ms), deliver)


class SimNode:
    """One machine: a disk that survives, and a process that comes and goes (`life` counts them)."""

    def __init__(self, sim: Sim, config: NodeConfig) -> None:
        self.sim = sim
        self.config = config
        self.node = config.node
        self.disk = SimDisk(now_ms=lambda: self.wall)
        self.alive = False
        self.gone = False
        """The machine is no more: nothing starts it again."""

        self.damaged = ""
        """Why its directory does not let it start any more; it stays down."""

        self.lossy = False
        """Parts of its directory were taken away, so groups of it may be damaged."""

        self.holds: tuple[str, ...] = ()
        self.clock = WallClock()
        self.life = 0
        self.incarnation = f"{sim.rng.getrandbits(64):016x}"
        self.host: Host
        self.identity: NodeFile
        self.storage: Storage
        self._log: Log
        self._tokens: dict[int, Callable[[Reply], None]] = {}
        self._token = 0
        self.held = 0
        """How often the log's writer found no room."""

        self._writing = False
        self._queue: list[tuple[int, list[LogOp]]] = []
        self._turn_due = False
        self._tick_at = -1

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
        settings = LogSettings(min(1 << 18, total // SEGMENT_SHARE), zero_step(total), reserve(total))
        self._log, recovered = Log.open(self.disk, LOG_DIR, settings)
        self.identity = begin_start(self.disk, self._log, self.node, known, self._draw)
        start = self.identity.start
        engine = InlineEngine(_under(self.disk), ArrowFormat())
        self.storage = Storage(_under(self.disk), engine)
        self.storage.prepare()
        groups = self._found(recovered)
        holding = {g for g in self.storage.groups() if any(self.storage.files.names(g).values())}
        lost = lost_meta(groups, holding)
        damaged = [*recovered.damaged, *([Damage(0, 0, META, 0, 0, lost)] if lost else [])]
        if self.identity.damaged:
            damaged.append(Damage(0, 0, "", 0, 0, self.identity.damaged))
        owner = Owner(self.node, self.incarnation, start)
        faults = [f for g, (log, payload) in groups.items() if (f := fault_of(g, log, payload, owner))]
        assert self.lossy or not (damaged or faults), (self.node, damaged, faults)
        self._sweep({} if damaged else groups, owner)
        self.host = Host.open(
            self.config,
            self.incarnation,
            groups,
            damaged,
            random.Random(self.sim.rng.getrandbits(64)),
            self.sim.now,
            self.wall,
            self.storage.staging.operations(),
            start=start,
            holding=holding,
            starts=self.host.starts.newest if self.life > 1 and hasattr(self, "host") else {},
        )
        unexplained = self.host.damaged.keys() - set(self.host.unsettled)
        assert self.lossy or recovered.damaged or not unexplained, self.host.damaged
        self.host.operations.may_hold = True
        self.host.operations.hold(self.holds)
        self.sim.tell(f"{self.node} starts, life {self.life}, groups {sorted(self.host.data)}")
        self.wake()

    def _found(self, recovered: Recovered) -> "dict[str, tuple[_Found, bytes | None]]":
        out: dict[str, tuple[_Found, bytes | None]] = {}
        for group in sorted({*recovered.groups, *self.storage.groups()}):
            log = recovered.groups.get(group)
            found = _Found(log.base, log.hard, log.entries) if log else _Found()
            try:
                out[group] = (found, self.storage.checkpoint(group))
            except Damaged as error:
                raise AssertionError(f"{self.node}: {error.what}") from error
        return out

    def _draw(self) -> str:
        """Names of this directory: its first one is the incarnation that the scenario knows the node by."""
        return f"{self.life}.{self.disk.operations}" if self.disk.exists(LOG_ID_FILE) else self.incarnation

    def _sweep(self, groups: "dict[str, tuple[_Found, bytes | None]]", owner: Owner) -> None:
        """As a starting node does: what no checkpoint of a whole group names goes."""
        self.later(UPKEEP_MS, self._upkeep)
        whole = {
            group: (log, payload)
            for group, (log, payload) in groups.items()
            if not is_traceless(log) and not fault_of(group, log, payload, owner)
        }
        try:
            self._log.write(unsaid(whole))
            self._log.sync()
        except NoSpace:
            return
        known: dict[str, dict[int, set[str]]] = {}
        for group in whole:
            files = self.saved(group)
            if files is not None:
                slots = known.setdefault(group, {})
                for meta in files:
                    slots.setdefault(meta.slot, set()).add(meta.name)
        self.storage.sweep(known)

    def lose(self, *paths: str) -> None:
        """Take files or directories away while the node is down, as a person or a repair of the file system
        may."""
        assert not self.alive
        self.lossy = True
        for path in paths:
            if self.disk.exists(path):
                self.disk.rmtree(path) if self.disk.stat(path).is_dir else self.disk.unlink(path)
        self.sim.tell(f"{self.node} loses {paths}")

    def saved(self, group: GroupId) -> list[FileMeta] | None:
        """What the checkpoint of a data group on disk names; None when there is none."""
        payload = self.storage.checkpoint(group)
        if payload is None or group == META:
            return None
        files = decode_checkpoint(msgspec.msgpack.decode(payload, type=Saved).state).files
        return sorted(files, key=lambda f: f.name)

    def _upkeep(self) -> None:
        gone = self.storage.expire_snapshots(self.sim.now, SNAPSHOT_TTL_MS)
        self.host.on_snapshots_expired(gone, self.sim.now)
        self.wake()
        if not self._writing:
            self._log.mark_synced()
        self.later(UPKEEP_MS, self._upkeep)

    def cut_power_soon(self) -> None:
        """Go down in the middle of one of the next changes on disk."""
        self.disk.cut_power_at = self.disk.operations + self.sim.rng.randint(1, 40)

    def fill_disk(self) -> None:
        """No room for new TsFiles for some attempts."""
        self.disk.faults.append(
            Fault("write", errno.ENOSPC, f"{layout.TMP}/", times=self.sim.rng.randint(1, 6))
        )

    def take_room(self, leave: int) -> None:
        """Somebody else's file takes all of the disk but `leave` bytes, or gives all of it back."""
        if self.disk.exists(BALLAST):
            self.disk.unlink(BALLAST)
        size = self.disk.free_bytes() - leave
        if size > 0:
            with self.disk.create(BALLAST) as file:
                file.pwrite(0, bytes(size))
                file.sync()
        self.disk.sync_dir("")

    def stop(self, *, power: bool) -> None:
        """Kill the process; with `power` also lose what was not synced."""
        self.alive = False
        self.sim.tell(f"{self.node} {'loses power' if power else 'is killed'}")
        if power:
            self.disk.crash(self.sim.rng)
        else:
            self.disk.restart()

    @property
    def wall(self) -> int:
        return self.clock.at(self.sim.now)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """An event of this process: gone when it is."""
        life = self.life

        def run() -> None:
            if self.alive and self.life == life:
                self._guard(action)

        self.sim.at(delay_ms, run)

    def _guard(self, action: Callable[[], None]) -> None:
        """Power may go in the middle of it; then the node comes back after a while."""
        try:
            action()
        except PowerCut:
            self.stop(power=True)
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
            self.sim.carry(self.node, peer, lambda n, m=messages: n.on_raft(self.node, m))  # type: ignore[misc]
        for token, reply in effects.replies:
            self._tokens.pop(token)(reply)
        for number, job in effects.jobs:
            faults = self.sim.faults
            slow = faults.compact_ms if isinstance(job, CompactFiles) else None
            self.later(self.sim.between(slow or faults.job_ms), lambda n=number, j=job: self._run(n, j))  # type: ignore[misc]
        for call, to, request in effects.calls:
            self._call(call, to, request)
        for event, fields in effects.notes:
            self.sim.tell(f"{self.node} {event} {fields}")
            assert event != "group_stopped" or self.sim.may_stop, (self.node, fields)
            assert event != "request_failed", fields
        if not self.host.idle:
            self.wake()
        self._arm()

    def _arm(self) -> None:
        due = max(self.host.deadline(), self.sim.now + 1)
        if self._tick_at < self.sim.now or due < self._tick_at:
            self._tick_at = due
            self.later(due - self.sim.now, self._tick)

    def _tick(self) -> None:
        self._tick_at = -1
        if self.sim.now >= self.host.deadline():
            self.host.tick(self.sim.now, self.wall)
            if self.disk.total_bytes() < ENDLESS_BYTES:
                self.host.on_disk(self.disk.free_bytes(), self.disk.total_bytes(), self.sim.now)
            self.wake()
        else:
            self._arm()

    def _write(self) -> None:
        """The writer thread: everything queued is written, then synced at once."""
        if self._writing or not self._queue:
            return
        self._writing = True
        written = 0
        try:
            for _, ops in self._queue:
                self._log.write(ops)
                written += 1
        except NoSpace:
            if not written:
                self.later(NO_SPACE_RETRY_MS, self._write_again)
                return
        last = self._queue[written - 1][0]
        del self._queue[:written]
        self.later(self.sim.between(self.sim.faults.sync_ms), lambda: self._synced(last))

    def _write_again(self) -> None:
        """After a moment on a full disk."""
        self.held += 1
        self._log.reclaim()
        self._writing = False
        self._write()

    def _synced(self, batch: int) -> None:
        if self.node in self.sim.faults.stalled:
            self.later(STALL_POLL_MS, lambda: self._synced(batch))
            return
        self._log.sync()
        self._log.reclaim()
        self._writing = False
        self.host.on_persisted(batch, self.sim.now)
        self._write()
        self.wake()

    def _run(self, number: int, job: Job) -> None:
        result: JobResult
        if isinstance(job, StageFiles | InstallSnapshot):
            result = self.storage.run_pull(job, self._fetch)
        else:
            result = self.storage.run(job)
        if isinstance(result, Failed):
            self.sim.tell(f"{self.node} job {type(job).__name__} failed: {result.what}")
        else:
            self.sim.jobs[type(job).__name__] += 1
        self.host.on_job(number, result, self.sim.now)
        self.wake()

    def _fetch(self, source: NodeId, snapshot: str, name: str, offset: int, length: int) -> bytes:
        sim = self.sim
        if self.host.no_room:
            raise Overloaded(self.host.no_room)
        node = sim.nodes.get(source)
        lost = (self.node, source) in sim.faults.cut or sim.rng.random() < sim.faults.drop / 4
        if node is None or not node.alive or lost:
            raise Unavailable(f"{source} is not there")
        return node.storage.read_chunk(snapshot, name, offset, length)

    def _call(self, call: int, to: NodeId | tuple[str, int], request: Request) -> None:
        target = to if isinstance(to, str) else to[0]
        life = self.life

        def then(reply: Reply) -> None:
            if self.alive and self.life == life:
                self.host.on_reply(call, reply, self.sim.now)
                self.wake()

        self.sim.call(self.node, target, request, then)

    # --- arrivals ----------------------------------------------------------------------------------

    def _standing(self, peer: NodeId) -> Standing:
        """Of a node by the incarnation it has now; a client is heard by its certificate."""
        source = self.sim.nodes.get(peer)
        if source is None:
            return Standing.MEMBER
        own = source.identity
        self.host.starts.meet(source.incarnation, peer, own.start, own.nonces)
        standing = self.host.standing(peer, source.incarnation, self.sim.now)
        if standing is Standing.UNKNOWN:
            self.sim.unknown += 1
            self.wake()
        return standing

    def on_raft(self, sender: NodeId, messages: list) -> None:  # type: ignore[type-arg]
        standing = self._standing(sender)
        if standing is Standing.RETIRED:
            why = f"the incarnation of {sender} was retired"
            self.sim.carry(self.node, sender, lambda n: n.host.on_retired(why, self.sim.now))
        elif standing is Standing.OLDER:
            older = self.host.starts.older[self.sim.nodes[sender].incarnation]
            self.sim.carry(self.node, sender, lambda n: n.on_older_copy(older))
        elif standing is Standing.MEMBER:
            self.host.on_raft(sender, messages, self.sim.now)
            self.wake()

    def on_older_copy(self, why: str) -> None:
        """A peer refuses to hear this node."""
        self.host.on_older_copy(why, self.sim.now)
        if not self.identity.damaged:
            self.identity = mark_damaged(self.disk, self.identity, why)
        self.lossy = True
        self.wake()

    def serve(self, peer: NodeId, request: Request, answer: Callable[[Reply], None]) -> None:
        standing = self._standing(peer)
        if standing is Standing.OLDER:
            answer(ErrorReply("forbidden", f"{peer} runs on an older copy of its directory"))
            return
        if standing is Standing.RETIRED:
            answer(ErrorReply("forbidden", f"the incarnation of {peer} was retired"))
            return
        if standing is Standing.UNKNOWN and not isinstance(request, CheckStatus):
            answer(ErrorReply("unavailable", f"{peer} is not known here"))
            return
        if isinstance(request, GetStatus):
            answer(self.host.node_status(self.sim.now, self.wall))
            return
        if isinstance(request, FetchChunk):
            data = self.storage.read_chunk(request.snapshot, request.name, request.offset, request.length)
            answer(Chunk(data, len(data)))
            return
        self._token += 1
        self._tokens[self._token] = answer
        self.host.on_request(self._token, request, self.sim.now, self.wall)
        self.wake()


@dataclass(frozen=True, slots=True)
class _Found:
    base: Base = Base(0, 0, Config())
    hard: HardState = HardState()
    entries: list = field(default_factory=list)  # type: ignore[type-arg]


def _under(disk: SimDisk) -> Disk:
    """Log and data share one simulated disk; their directories do not meet."""
    return disk


def configs(names: list[NodeId], settings: ClusterSettings, seeds: int) -> list[NodeConfig]:
    """Node configurations; the first `seeds` nodes bootstrap, the others join. Addresses are names."""
    seed_list = tuple(Seed(n, n, 1) for n in names[:seeds])
    return [
        NodeConfig(
            node=name,
            host=name,
            port=1,
            http_port=2,
            seeds=seed_list,
            cluster=settings,
            join=i >= seeds,
            raft=RaftSettings(heartbeat_ms=50, election_timeout_ms=500),
            memtable_bytes_max=1 << 16,
            partition_bytes_max=1 << 14,
            idle_close_ms=1_500,
            compact_files_min=2,
            compact_files_min_in_change=4,
            compact_every_ms=400,
            compact_deletes_ms=1_000,
            expire_every_ms=700,
        )
        for i, name in enumerate(names)
    ]

"""The processes of a simulated machine, one after the other: they open the log and the files, and end."""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from nodeagent.host.effect_queue import Effects
from nodeagent.log import Log, LogSettings, Recovered
from nodeagent.log.identity import LOG_DIR, LOG_ID_FILE, NodeFile, begin_start, known_identity
from nodeagent.meta.sections import check_image
from nodeagent.model.disk import Disk
from nodeagent.model.entries import LogOp
from nodeagent.model.errors import Damaged
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import Job, JobResult
from nodeagent.model.limits import SEGMENT_SHARE
from nodeagent.model.requests import Reply
from nodeagent.model.space import reserve, zero_step
from nodeagent.storage import layout
from nodeagent.storage.engine import InlineEngine
from nodeagent.storage.executor import Storage
from nodeagent.testing.builds import PLAIN, LibraryFormat
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.durable import Durable
from nodeagent.testing.hardware import Hardware
from nodeagent.testing.sim import Sim
from nodeagent.testing.volume import PowerCut

UPKEEP_MS = 1_000

SEGMENT_BYTES_MAX = 1 << 18
"""Maximum size of a log segment. Copying and searching longer preallocated ones would only take time."""


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


def _under(disk: SimDisk) -> Disk:
    """The log and the data share one simulated disk, in separate directories."""
    return disk


class Process(Hardware):
    """A machine on which processes start and end; `life` counts them."""

    host: Any
    """The `Inside` that the subclass runs."""

    def __init__(self, sim: Sim[Any], node: NodeId) -> None:
        super().__init__(sim, node)
        self.durable = Durable(node)
        self.damaged = ""
        """Why the damaged data directory prevents a start; "" if it does not."""

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
    def unanswered(self) -> int:
        """Number of requests that this process has not answered yet."""
        return len(self._tokens)

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
            self.sim.note(f"{self.node} does not start: {error.what}")
            return
        total = self.disk.total_bytes()
        zeros = min(zero_step(total), SEGMENT_BYTES_MAX)
        settings = LogSettings(min(self.segment_bytes, total // SEGMENT_SHARE), zeros, reserve(total))
        self._log, recovered = Log.open(self.disk, LOG_DIR, settings)
        self.durable.reopened(recovered, must_fit=not self.lossy)
        self.identity = begin_start(self.disk, self._log, self.node, known, self._draw)
        engine = InlineEngine(_under(self.disk), LibraryFormat(self.build.maker))
        self.storage = Storage(_under(self.disk), engine, partial(check_image, levels=self.build.levels))
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

    def stop(self, *, power: bool) -> None:
        """Kill the process; with `power`, also lose what was not synced."""
        self.alive = False
        self.asleep_until = 0
        self.sim.note(f"{self.node} {'loses power' if power else 'is killed'}")
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

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Schedule an event of this process. It is dropped if the process ends first, and delayed while the
        process is suspended."""
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
            self.sim.note(f"{self.node} ends: {error}")
            self._go_down(power=False)

    def _go_down(self, *, power: bool) -> None:
        self.stop(power=power)
        self.sim.at(self.sim.rng.randint(50, 3000), lambda: None if self.alive else self.start())

    def wake(self) -> None:
        """Schedule a turn."""
        raise NotImplementedError

    def token(self, answer: Callable[[Reply], None]) -> int:
        """A number that identifies the request until `answer` is called."""
        self._token += 1
        self._tokens[self._token] = answer
        return self._token

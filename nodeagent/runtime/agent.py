"""The node agent as a process: opens a directory, serves, and ends cleanly.

A broken invariant, or a log that cannot be written, ends the process with an error: nothing is acknowledged
any more and the cluster continues without this node.
"""

import asyncio
import contextlib
import gc
import signal
import ssl
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy.ma  # noqa: F401  # `np.unique` imports it when first called, which would hold up the loop for 40 ms
import psutil
import pyarrow as pa

from nodeagent.log.identity import mark_damaged
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.limits import EVENTS_REPLY_MAX
from nodeagent.model.requests import EventsReply, FetchChunk, GetEvents, NodeStatus, Reply
from nodeagent.runtime.certificates import Certificates
from nodeagent.runtime.clock import Clock
from nodeagent.runtime.driver import Driver
from nodeagent.runtime.hosting import create_host, joining_operation
from nodeagent.runtime.http import HttpServer
from nodeagent.runtime.jobs import Jobs
from nodeagent.runtime.log_thread import LogThread
from nodeagent.runtime.notes import EventLog
from nodeagent.runtime.peer_starts import save_starts
from nodeagent.runtime.peers import Peers
from nodeagent.runtime.ports import HostPort
from nodeagent.runtime.puller import Puller
from nodeagent.runtime.rate import AutoRate
from nodeagent.runtime.space import Space
from nodeagent.runtime.startup import Opened, open_directory
from nodeagent.transport.endpoints import Listener

EXPIRE_EVERY_S = 60.0
STOP_TIMEOUT_S = 5.0
TRANSFER_S_MAX = 2.0
"""At SIGTERM the node waits at most this long for other nodes to take over its leaderships, then stops."""

TRANSFER_POLL_S = 0.02
SWITCH_INTERVAL_S = 0.0005
"""The log thread waits at most this long for a busy loop to release the interpreter; Python's default is
5 ms."""

EXIT_OK, EXIT_FAILED = 0, 1

MakeHost = Callable[[Opened, int, int], HostPort]


class Agent:
    """One node. `run` serves until SIGTERM, SIGINT (`leave`) or `stop`."""

    def __init__(
        self,
        directory: Path,
        *,
        notes: EventLog | None = None,
        make_host: MakeHost | None = None,
        failpoints: Sequence[str] | None = None,
    ) -> None:
        """`failpoints` (`scaling.failpoints`) are set, for tests; with None, none may be set."""
        self._failpoints = failpoints
        self._clock = Clock()
        self._make_host = make_host or self._open_host
        self._rate: Callable[[], int] = int
        """Pull rate of the open operation in bytes per second, 0 for `auto`; read at every tick."""

        self._auto = AutoRate()

        self._operation_of: Callable[[GroupId], str] = lambda group: ""
        """The operation by which this node joins a group."""

        self.opened = open_directory(directory)
        self.notes = notes or EventLog(node=self.opened.config.node)
        self._done = asyncio.Event()
        self._leaving = False
        self._exit_code = EXIT_OK
        self._certificates = Certificates(directory, self.notes)
        self._space = Space(self.opened.home, self.opened.data, self.notes)
        self._host: HostPort
        self._driver: Driver
        self._log_thread: LogThread
        self._jobs: Jobs
        self._peers: Peers
        self._puller: Puller
        self._http: HttpServer
        self.listener: Listener

    async def run(self) -> int:
        """Serve until stopped; return the exit code.

        Raises:
            InvalidInput: the certificate is missing or unreadable.
            OSError: an address cannot be bound.
        """
        try:
            await self._start()
            await self._done.wait()
        finally:
            await self._close()
        return self._exit_code

    def stop(self) -> None:
        """End `run` cleanly."""
        self._done.set()

    def leave(self) -> None:
        """As `stop`, but first transfer the leaderships of this node. A second call stops at once."""
        if self._leaving:
            return self.stop()
        self._leaving = True
        loop = asyncio.get_running_loop()
        return self._transfer_leadership(loop, loop.time())

    def _transfer_leadership(self, loop: asyncio.AbstractEventLoop, began: float) -> None:
        waited = loop.time() - began
        busy = self._driver.transfer_leadership()
        if busy and waited < TRANSFER_S_MAX:
            loop.call_later(TRANSFER_POLL_S, self._transfer_leadership, loop, began)
            return
        self.notes.write("handed_over", {"complete": not busy, "seconds": round(waited, 3)})
        self.stop()

    @property
    def http_port(self) -> int:
        return self._http.port

    def status(self) -> NodeStatus:
        """The host's status, completed by the values that only the shell knows."""
        status = self._host.status.of_node(self._clock.now(), self._clock.wall())
        return msgspec.structs.replace(
            status,
            disk_free_bytes=self.opened.data.free_bytes(),
            disk_total_bytes=self._space.room()[1],
            log_bytes=self.opened.log.bytes_total,
            log_segments=len(self.opened.log.segments),
            log_waits=self._log_thread.held,
            cert_expires_ms=self._certificates.expires_ms,
            received_bytes=dict(self._puller.received_bytes),
        )

    def events(self, asked: GetEvents) -> EventsReply:
        """The events of this agent since its start, and the audit entries of the meta group."""
        most = max(0, min(asked.limit, EVENTS_REPLY_MAX))
        own = [e for e in self.notes.recent if e.time_ms >= asked.since_ms]
        audit = [a for a in self._host.cluster.audit if a[0] >= asked.since_ms]
        return EventsReply(
            self.opened.config.node,
            self._host.cluster.applied,
            tuple(own[len(own) - min(most, len(own)) :]),
            tuple(audit[len(audit) - min(most, len(audit)) :]),
        )

    def counters(self) -> dict[str, float]:
        """The counters of the shell, for `/metrics`."""
        log, driver = self._log_thread, self._driver
        connected = [up for up, _, _ in self._peers.statistics().values()]
        dropped = sum(dropped for _, _, dropped in self._peers.statistics().values())
        return {
            "log_syncs_total": log.syncs,
            "log_batches_total": log.batches,
            "log_sync_seconds_total": log.sync_seconds,
            "log_reclaimed_bytes_total": log.reclaimed_bytes,
            "pull_rate_bytes_per_s": self._puller.rate.bytes_per_s,
            "log_space_low": float(self.opened.log.space_low),
            "log_segments": len(self.opened.log.segments),
            "log_batches_waiting": log.held,
            "requests_total": driver.requests,
            "raft_frames_total": driver.frames,
            "reads_waiting": driver.reads_waiting,
            "requests_failed_total": driver.failures + self._host.requests_failed,
            "frames_of_strangers_total": driver.strangers,
            "raft_messages_dropped_total": dropped,
            "turns_total": driver.turns.count,
            "turns_slow_total": driver.turns.slow,
            "turn_seconds_total": driver.turns.seconds,
            "turn_seconds_max": driver.turns.longest_s,
            "jobs_done_total": self._jobs.done,
            "jobs_failed_total": self._jobs.failed,
            "connections": len(self.listener.connections),
            "peers_connected": sum(connected),
            "peers": len(connected),
            "notes_dropped_total": self.notes.dropped,
            **{f"jobs_queued_{lane}": count for lane, count in self._jobs.queued().items()},
        }

    async def _start(self) -> None:
        opened, config = self.opened, self.opened.config
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        # The first conversion makes pyarrow look for pandas. Unless `pandas_free` forbids that import, it
        # takes up to a second, which must not delay the first write.
        pa.array([0]).to_numpy()
        if config.tls:
            self._certificates.load()
        self._host = self._make_host(opened, self._clock.now(), self._clock.wall())
        self._driver = driver = Driver(
            self._host,
            config.node,
            opened.identity,
            clock=self._clock,
            notes=self.notes,
            status=self.status,
            events=self.events,
            on_tick=self._on_tick,
        )
        post = partial(_post, loop)
        self._peers = Peers(config.node, driver, self._certificates.client, driver.on_refused)
        self._puller = Puller(loop, self._ask, lambda: self._host.no_room)
        self._jobs = Jobs(opened.storage, opened.data, self._puller, post, driver.on_job, self._operation_of)
        self._log_thread = LogThread(
            opened.log,
            lambda batch: post(partial(driver.on_persisted, batch)),
            lambda error: post(partial(self._on_log_failed, error)),
        )
        self._log_thread.start()
        driver.attach(self._log_thread.submit, self._jobs.submit, self._jobs.chunk, self._peers)
        self.listener = Listener(driver, self._certificates.server)
        self._http = HttpServer(self.status, self.counters)
        await self.listener.start(config.host, config.port)
        await self._http.start(config.host, config.http_port)
        self._handle_signals(loop)
        self._expire_later(loop)
        # All objects that exist now, some hundred thousand from imported modules, are permanent. A garbage
        # collection that visits them takes 0.07 s on a quiet machine, more on a busy one, and stops every
        # group of this node.
        gc.collect()
        gc.freeze()
        driver.start()
        self.notes.write(
            "started",
            {
                "incarnation": opened.identity.incarnation,
                "port": self.listener.port,
                "http_port": self._http.port,
                "groups": len(opened.groups),
                "starts_readable": opened.starts_readable,
                "damaged": [msgspec.structs.asdict(damage) for damage in opened.damaged],
                "torn_bytes": opened.torn_bytes,
                "swept_files": opened.swept,
                "recovery_s": round(opened.seconds, 3),
            },
        )

    def _on_tick(self) -> None:
        self._save_starts()
        self._puller.rate.bytes_per_s = self._rate() or self._auto_rate()
        if self._space.is_due():
            self._host.on_disk(*self._space.room(), self._clock.now())

    def _save_starts(self) -> None:
        """Save facts for later starts: that this directory is an older copy, and the starts of other
        nodes."""
        opened, starts = self.opened, self._host.peers.starts
        older = self._host.own_membership.older_copy
        if older and not opened.identity.damaged:
            with contextlib.suppress(OSError):  # a full disk: retried at the next tick
                opened.identity = mark_damaged(opened.home, opened.identity, older)
        if not starts.is_saved:
            starts.is_saved = True
            newest = dict(starts.newest)

            def save() -> None:
                try:
                    save_starts(opened.home, newest)
                except OSError:
                    starts.is_saved = False

            self._jobs.in_background(save)

    def _auto_rate(self) -> int:
        now = time.monotonic()
        if self._auto.is_due(now):
            times = psutil.cpu_times()
            self._auto.adjust(
                now, self._log_thread.syncs + self._driver.data_requests, times.idle, sum(times)
            )
        return self._auto.bytes_per_s

    def _open_host(self, opened: Opened, now: int, wall: int) -> HostPort:
        host = create_host(opened, now, wall, self._failpoints)
        self._rate = lambda: host.operations.slot_copier.rate_bytes_per_s
        self._operation_of = partial(joining_operation, host, opened.config.node)
        return host

    async def _close(self) -> None:
        """Stop accepting work, finish the log writes, release the directory."""
        if hasattr(self, "_driver"):
            self._driver.stop()
        if hasattr(self, "listener"):
            self.listener.close()
        if hasattr(self, "_http"):
            self._http.close()
        if hasattr(self, "_peers"):
            self._peers.close()
        if hasattr(self, "_puller"):
            self._puller.stop()
        if hasattr(self, "_log_thread") and self._exit_code == EXIT_OK:
            await asyncio.to_thread(self._log_thread.stop)
        await asyncio.to_thread(self.opened.storage.stop)
        if hasattr(self, "_jobs"):
            await asyncio.to_thread(self._jobs.stop, STOP_TIMEOUT_S)
        self.opened.home.unlock()
        self.notes.write("stopped", {"exit_code": self._exit_code})

    async def _ask(self, node: NodeId, wanted: FetchChunk, timeout_s: float) -> Reply:
        connection = await self._peers.get(node).bulk()
        return await connection.call(wanted, timeout_s)

    def _handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):  # not the main thread
            loop.add_signal_handler(signal.SIGTERM, self.leave)
            loop.add_signal_handler(signal.SIGINT, self.leave)
            if self.opened.config.tls:
                loop.add_signal_handler(signal.SIGHUP, self._certificates.renew)

    def _expire_later(self, loop: asyncio.AbstractEventLoop) -> None:
        def expire() -> None:
            with contextlib.suppress(
                OSError, RuntimeError
            ):  # retried at the next interval; or the loop is closed
                ttl_ms = self.opened.config.snapshot_ttl_ms
                expired = self.opened.storage.expire_snapshots(self._clock.now(), ttl_ms)
                if expired:
                    loop.call_soon_threadsafe(self._driver.on_snapshots_expired, expired)

        self._jobs.in_background(expire)
        self._space.log_changes()
        again_s = min(EXPIRE_EVERY_S, max(1.0, self.opened.config.snapshot_ttl_ms / 1000))
        loop.call_later(again_s, self._expire_later, loop)

    def _on_log_failed(self, error: BaseException) -> None:
        self._fail("log_failed", f"the log cannot be written, so this node stops: {error}")

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An uncaught exception, unless from a connection, is a bug: stop, because a running node might break
        a guarantee."""
        error = context.get("exception")
        if isinstance(error, OSError | asyncio.CancelledError | ssl.SSLError):
            self.notes.write("connection_error", {"what": str(error)})
            return
        if error is not None:
            traceback.print_exception(error, file=sys.stderr)
        self._fail("invariant_broken", f"{context.get('message', '')}: {error!r}")

    def _fail(self, event: str, what: str) -> None:
        if self._exit_code == EXIT_OK:
            self._exit_code = EXIT_FAILED
            self._driver.stop()
            self.notes.write(event, {"what": what})
        self._done.set()


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Run a call on the loop, from any thread; dropped if the loop is closed, because then nothing waits
    for it."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(call)

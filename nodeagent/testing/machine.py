"""One simulated machine: a disk that survives, and a process that starts and ends.

It does on virtual time what the real agent's runtime does: it writes the log, runs jobs and timers, and
dispatches effects once per turn. The subclass decides what it runs: a whole `Host` (`node`) or Raft groups
only (`groups`).
"""

import math
from collections.abc import Callable, Iterable

from nodeagent.host.installs import INSTALL_KEEP_MS
from nodeagent.host.replica import Replica
from nodeagent.log import NoSpace
from nodeagent.model.entries import LogOp
from nodeagent.model.errors import Overloaded, Unavailable
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import CompactFiles, Failed, InstallSnapshot, Job, JobResult, StageFiles
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import Reply, Request
from nodeagent.testing.process import UPKEEP_MS, Process
from nodeagent.testing.volume import ENDLESS_BYTES

SNAPSHOT_TTL_MS = 6_000

STALL_POLL_MS = 10
NO_SPACE_RETRY_MS = 100
CLEAN_MS = max(SNAPSHOT_TTL_MS, INSTALL_KEEP_MS) + 2 * UPKEEP_MS
"""Time after the last event within which every file that no manifest names must be deleted."""


class Machine(Process):
    """A simulated machine; `life` counts its processes."""

    def _upkeep(self) -> None:
        gone = self.storage.expire_snapshots(self.now, SNAPSHOT_TTL_MS)
        self.host.on_snapshots_expired(gone, self.now)
        self.wake()
        if not self._writing:
            self._log.mark_synced()
        self.later(self.upkeep_ms, self._upkeep)

    # --- turns -------------------------------------------------------------------------------------

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
            self.sim.note(f"{self.node} {event} {fields}")
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
            self.sim.note(f"{self.node} job {kind} failed: {result.what}")
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

    # --- replicas ----------------------------------------------------------------------------------

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

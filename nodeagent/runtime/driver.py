"""Feeds events to the host and executes its effects.

Every event (a frame, a finished sync, job or call, a timer) is passed to the host at once; the host's effects
are taken once per turn of the loop, after all events of that turn. So one sync, and one frame per peer, serve
all events that arrived together.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from traceback import format_exc

from nodeagent.log.identity import NodeFile
from nodeagent.model.entries import LogOp
from nodeagent.model.errors import Forbidden, NodeAgentError
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import Job, JobResult
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import (
    DeleteRows,
    ErrorReply,
    EventsReply,
    FetchChunk,
    GetEvents,
    GetStatus,
    Hello,
    NodeStatus,
    OfShell,
    Reply,
    Request,
    ScanRows,
    Write,
)
from nodeagent.runtime import shares
from nodeagent.runtime.admission import REFUSED, Admission
from nodeagent.runtime.clock import Clock
from nodeagent.runtime.notes import EventLog
from nodeagent.runtime.peers import Peers
from nodeagent.runtime.ports import Address, HostPort
from nodeagent.runtime.rights import check_right
from nodeagent.runtime.timer import Timer
from nodeagent.runtime.turns import Turns
from nodeagent.transport.connection import Connection
from nodeagent.wire.faults import to_reply

CALL_TIMEOUT_S = 5.0
SLOW_CALL_TIMEOUT_S = 120.0
"""Timeout of calls that the peer needs long to answer."""

_Rows = Write | DeleteRows
"""A constant, because building the union costs as much as the rest of a request here."""

Submit = Callable[[int, list[LogOp]], None]
SubmitJob = Callable[[int, Job], None]
ReadChunk = Callable[[FetchChunk, Callable[[Reply], None]], None]


class Driver:
    """The handler of all connections. Runs on the loop's thread; it cannot restart after `stop`."""

    def __init__(
        self,
        host: HostPort,
        node: NodeId,
        identity: NodeFile,
        *,
        clock: Clock,
        notes: EventLog,
        status: Callable[[], NodeStatus],
        events: Callable[[GetEvents], EventsReply],
        on_tick: Callable[[], None],
    ) -> None:
        self._host = host
        self._node = node
        self._incarnation = identity.incarnation
        self._clock = clock
        self._notes = notes
        self._status = status
        self._events = events
        self._on_tick = on_tick
        self._loop = asyncio.get_running_loop()
        self._turn_due = False
        self._timer = Timer(self._loop, clock, self._on_timer)
        self._admission = Admission(host, node, identity, clock, self._wake)
        self._token = 0
        self._asked: dict[int, tuple[Connection, int]] = {}
        """token -> the connection that waits for the reply, and its request number"""

        self._shares = shares.FairQueue()
        self._running_reads: dict[int, shares.Peer] = {}
        """token -> the peer whose slow read it is"""

        self._refused: dict[NodeId, str] = {}
        self._addresses: Mapping[NodeId, Address] = {}
        self._stopped = False
        self._submit: Submit
        self._submit_job: SubmitJob
        self._read_chunk: ReadChunk
        self._peers: Peers
        self.turns = Turns(notes.write)
        self.requests = 0
        self.data_requests = 0
        self.frames = 0
        self.failures = 0
        """Requests to the shell that ended with an exception."""

        self.strangers = 0
        """Frames of nodes that this node does not know as members."""

    def attach(self, submit: Submit, submit_job: SubmitJob, read_chunk: ReadChunk, peers: Peers) -> None:
        self._submit = submit
        self._submit_job = submit_job
        self._read_chunk = read_chunk
        self._peers = peers

    def start(self) -> None:
        self._follow_addresses()
        self._wake()

    def stop(self) -> None:
        self._stopped = True
        self._timer.cancel()

    def transfer_leadership(self) -> bool:
        """Transfer the leaderships of this node to others; return whether that is still in progress."""
        if self._stopped:
            return False
        busy = self._host.transfer_leadership(self._clock.now())
        self._wake()
        return busy

    # --- events --------------------------------------------------------------------------------------

    def on_persisted(self, batch: int) -> None:
        if not self._stopped:
            self._wake()
            self._host.on_persisted(batch, self._clock.now())

    def on_job(self, number: int, result: JobResult) -> None:
        if not self._stopped:
            self._wake()
            self._host.on_job(number, result, self._clock.now())

    def on_snapshots_expired(self, names: Collection[str]) -> None:
        if not self._stopped:
            self._wake()
            self._host.on_snapshots_expired(names, self._clock.now())

    def on_reply(self, call: int, reply: Reply) -> None:
        if self._stopped:
            return
        if isinstance(reply, ErrorReply) and reply.details.get("lost"):
            reply = ErrorReply("unavailable", reply.what)
        self._wake()
        self._host.on_reply(call, reply, self._clock.now())

    def on_refused(self, node: NodeId, error: NodeAgentError) -> None:
        """A connection to `node` failed; logged only if the reason differs from the last one."""
        if error.details.get("retired") == self._incarnation:
            self._host.on_retired(error.what, self._clock.now())
        if error.details.get("older") == self._incarnation:
            self._host.on_older_copy(error.what, self._clock.now())
            self._wake()
        if self._refused.get(node) != error.what:
            self._refused[node] = error.what
            self._notes.write("peer_unreachable", {"peer": node, "code": error.code, "what": error.what})

    # --- connections (transport.Handler) ---------------------------------------------------------------

    def my_hello(self) -> Hello:
        return self._admission.hello()

    def check_peer(self, hello: Hello) -> None:
        self._admission.check(hello)

    def on_open(self, connection: Connection) -> None:
        if connection.name in self._refused:
            del self._refused[connection.name]
            self._notes.write("peer_connected", {"peer": connection.name})

    def on_raft(self, connection: Connection, messages: list[Routed]) -> None:
        if self._stopped:
            return
        if self._admission.heard(connection) is not MembershipStatus.MEMBER:
            self.strangers += 1
            return
        self.frames += 1
        self._wake()
        self._host.on_raft(connection.name, messages, self._clock.now())

    def on_request(self, connection: Connection, number: int, request: Request) -> None:
        peer = connection.peer
        assert peer is not None
        status = self._admission.heard(connection) if peer.role == "node" else MembershipStatus.MEMBER
        if status in REFUSED:
            return
        self.requests += 1
        self.strangers += status is MembershipStatus.UNKNOWN
        try:
            check_right(peer.role if status is MembershipStatus.MEMBER else "guest", peer.name, request)
        except NodeAgentError as error:
            connection.reply(number, to_reply(error))
            return
        if self._stopped:
            connection.reply(number, ErrorReply("unavailable", f"{self._node} is stopping"))
        elif isinstance(request, OfShell):
            self._answer(connection, number, request)
        elif request.traits.is_queued:
            self.data_requests += isinstance(request, ScanRows)
            self._queue(connection, number, request, (peer.role, peer.name))
        else:
            self.data_requests += isinstance(request, _Rows)
            self._pass_to_host(connection, number, request)

    def _pass_to_host(self, connection: Connection, number: int, request: Request) -> int:
        """Pass the request to the host; return the token of its reply."""
        self._token += 1
        self._asked[self._token] = (connection, number)
        clock = self._clock
        self._wake()
        self._host.on_request(self._token, request, clock.now(), clock.wall())
        return self._token

    def _queue(self, connection: Connection, number: int, request: Request, who: shares.Peer) -> None:
        """Start a slow read when it is its peer's turn, if the connection is still open then."""

        def start() -> bool:
            if self._stopped or not connection.is_open:
                return False
            self._running_reads[self._pass_to_host(connection, number, request)] = who
            return True

        if not self._shares.add(who, start):
            what = f"{shares.WAITING_MAX} reads of {who[0]} {who[1]} are already queued"
            connection.reply(number, ErrorReply("overloaded", what, "send fewer reads at a time"))

    def _answer(self, connection: Connection, number: int, request: OfShell) -> None:
        """Answer a request from the shell's own state; a failure changes nothing and ends only this
        request."""
        try:
            match request:
                case GetStatus():
                    connection.reply(number, self._status())
                case GetEvents():
                    connection.reply(number, self._events(request))
                case FetchChunk():
                    self._read_chunk(request, partial(connection.reply, number))
        except Exception as error:
            self.failures += 1
            what = type(request).__name__
            fields = {"request": what, "why": repr(error), "traceback": format_exc(limit=-8)}
            self._notes.write("request_failed", fields)
            reply = ErrorReply(
                "error", f"{what} failed in the node: {type(error).__name__}", "see the node's log"
            )
            connection.reply(number, reply)

    @property
    def reads_waiting(self) -> int:
        """Slow reads that wait for their turn."""
        return self._shares.waiting

    def on_close(self, connection: Connection, error: NodeAgentError) -> None:
        self._peers.lost(connection)
        if isinstance(error, Forbidden) and connection.is_accepted:
            self._notes.write("connection_refused", {"from": connection.address, "what": error.what})

    # --- turns -----------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Must be called before an event is handled, so that the turn includes its handling."""
        self.turns.event()
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if self._stopped:
            return
        effects = self._host.take()
        if effects.persist is not None:
            self._submit(*effects.persist)
        for node, messages in effects.sends:
            self._peers.send(node, messages)
        for token, reply in effects.replies:
            connection, number = self._asked.pop(token, (None, 0))
            who = self._running_reads.pop(token, None)
            if who is not None:
                self._shares.done(who)
            if connection is not None:  # None if the request failed after it had been answered
                connection.reply(number, reply)
        for number, job in effects.jobs:
            self._submit_job(number, job)
        for call, to, request in effects.calls:
            self._call(call, to, request)
        for event, fields in effects.notes:
            self._notes.write(event, fields)
        self.turns.end(effects)
        if not self._host.idle:
            self._wake()
        self._timer.arm(self._host.deadline())

    def _call(self, call: int, to: NodeId | Address, request: Request) -> None:
        timeout_s = SLOW_CALL_TIMEOUT_S if request.traits.is_long else CALL_TIMEOUT_S
        self._peers.call(to, request, timeout_s, partial(self.on_reply, call))

    def _follow_addresses(self) -> None:
        """Update the peers; the host creates a new mapping when an address changes."""
        if self._addresses is not self._host.peers.addresses:
            self._addresses = self._host.peers.addresses
            self._peers.update(self._addresses)

    def _on_timer(self) -> None:
        if self._stopped:
            return
        now = self._clock.now()
        if now >= self._host.deadline():
            self._wake()
            self._host.tick(now, self._clock.wall())
            self._on_tick()
            self._follow_addresses()
        else:
            self._timer.arm(self._host.deadline())

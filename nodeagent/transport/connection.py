"""One connection: hello, then frames both ways, requests paired with replies.

The dialling side sends its `Hello` first; the accepting side checks it and answers with its own `Hello`, or
with an error frame (a reply with number 0) and closes. Other frames follow only after both hellos.

Writing: all frames of one turn of the loop leave in one write. If the socket is full, they are queued up to a
limit; above it Raft frames are dropped (Raft repeats them) and requests fail with `Overloaded`. Replies are
never dropped: the accepting side stops reading until they are sent. The dialling side never stops reading, so
the two sides cannot wait for each other.

The accepting side creates no task or future per request: `Handler.on_request` is a plain call.
"""

import asyncio
import ssl
from typing import cast

from nodeagent.model.errors import (
    Forbidden,
    FrameError,
    InvalidInput,
    NodeAgentError,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from nodeagent.model.limits import FRAME_BYTES_MAX, MIB, REQUESTS_PER_CONNECTION_MAX
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import ErrorReply, Hello, Reply, Request
from nodeagent.transport.connection_limits import ConnectionLimits
from nodeagent.transport.frame_deadline import FrameDeadline
from nodeagent.transport.handler import Handler
from nodeagent.transport.hello import check_hello
from nodeagent.transport.outbox import Outbox
from nodeagent.transport.pending import OnReply, Pending
from nodeagent.transport.secure import Secure
from nodeagent.transport.sockets import address_text, is_loopback, tune
from nodeagent.transport.tls import PeerName, explain, peer_name
from nodeagent.wire import codec
from nodeagent.wire.faults import to_error, to_reply
from nodeagent.wire.frames import FIRST_BYTES, FIRST_BYTES_TRUSTED, HELLO_BYTES_MAX, Frame, FrameReader, Kind

SOCKET_BUFFER_HIGH = 4 * MIB
"""Bytes the transport buffers before it calls `pause_writing`."""

QUEUE_BYTES_MAX = 32 * MIB
"""Bytes queued while paused; above it Raft frames are dropped and requests refused."""

REPLY_BYTES_MAX = 512 * MIB
"""Above this many bytes of unsent replies the connection is aborted: the peer does not read."""

HELLO_TIMEOUT_S = 5.0
"""Timeout of handshake and hello together."""

LINGER_S = 1.0
"""The peer has this long to read an error frame before the connection is aborted."""


class Connection(asyncio.Protocol):
    """One connection (see the module).

    `dialled`: this side opened it, to the node `expect` ("" for any). `context` is None without TLS.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        dialled: bool,
        context: ssl.SSLContext | None,
        expect: str = "",
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._limits = limits
        self._handler = handler
        self._dialled = dialled
        self._secure = Secure(context, server_side=not dialled) if context else None
        self._expect = expect
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(HELLO_BYTES_MAX)
        self._pending = Pending(self._loop, lambda: self.name)
        self._outbox = Outbox(self._loop, self._secure)
        self._error: NodeAgentError | None = None
        self._closed = False
        self._answering = 0
        self._certificate: PeerName | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._frame_deadline = FrameDeadline(self._loop, self._on_late_frame)
        self._held = 0
        """Bytes of the unfinished frame that are counted in `_limits`."""

        self.peer: Hello | None = None
        """The peer's hello, once it is accepted."""

        self.address = ""
        """`host:port` of the other end."""

        self.opened: asyncio.Future[None] = self._loop.create_future()
        """Done when both hellos are exchanged; fails with the reason if that does not happen."""

        self.raft_dropped = 0
        self.bytes_in = 0

    # --- use -------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.peer is not None and not self._closed

    @property
    def is_accepted(self) -> bool:
        """Whether the other side dialled."""
        return not self._dialled

    @property
    def name(self) -> str:
        return self.peer.name if self.peer else (self._expect or self.address)

    def send_raft(self, messages: list[Routed]) -> bool:
        """Queue the messages, or drop them and return False."""
        if not self.is_open or self._outbox.bytes > QUEUE_BYTES_MAX:
            self.raft_dropped += len(messages)
            return False
        frames = codec.encode_raft(messages)
        if not frames:
            self.raft_dropped += len(messages)
        for frame in frames:
            self._outbox.send(frame)
        return bool(frames)

    def request(self, request: Request, timeout_s: float, on_reply: OnReply) -> None:
        """Send a request; `on_reply` is called with the reply. If the connection ends or the timeout passes
        first, it is called with an `ErrorReply` with the code `outcome_unknown` and the detail `lost`.

        Raises (nothing was sent, and `on_reply` is not called):
            Unavailable, or the error that closed the connection: the connection is not open.
            Overloaded: too many requests or bytes are waiting.
            InvalidInput: the request is too large.
        """
        if not self.is_open:
            raise self._error or Unavailable(f"no connection to {self.name}")
        if len(self._pending) >= REQUESTS_PER_CONNECTION_MAX or self._outbox.bytes > QUEUE_BYTES_MAX:
            raise Overloaded(
                f"{len(self._pending)} requests and {self._outbox.bytes} bytes wait for {self.name}",
                next_step="retry later",
            )
        frame = codec.encode_request(self._pending.next_number, request)
        self._pending.add(timeout_s, on_reply)
        self._outbox.send(frame)

    async def call(self, request: Request, timeout_s: float) -> Reply:
        """Send a request and wait for its reply.

        Raises:
            NodeAgentError: the node's error reply, or an error of `request`.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()

        def on_reply(reply: Reply) -> None:
            if not future.done():
                future.set_result(reply)

        self.request(request, timeout_s, on_reply)
        reply = await future
        if isinstance(reply, ErrorReply):
            raise to_error(reply)
        return reply

    def reply(self, number: int, reply: Reply) -> None:
        """Answer request `number`; does nothing after the connection has ended."""
        self._answering -= 1
        if self._closed:
            return
        try:
            frame = codec.encode_reply(number, reply)
        except NodeAgentError as error:
            frame = codec.encode_reply(number, to_reply(error))
        self._outbox.send(frame)
        if self._outbox.bytes > REPLY_BYTES_MAX:
            self.abort(Overloaded(f"{self.name} does not read its replies"))

    def close(self, error: NodeAgentError | None = None) -> None:
        """Close after the queued frames are sent; send `error` to the peer, if given."""
        transport = self._transport
        if self._closed or transport is None:
            return
        last = None
        if error is not None:
            self._error = self._error or error
            if self._secure is None or self._secure.is_ready:
                last = codec.encode_reply(0, to_reply(error))
        self._outbox.finish(last)
        self._end()
        if error is None:
            transport.close()
            return
        # A close with unread input resets the connection, and the peer could lose the error frame.
        if transport.can_write_eof():
            transport.write_eof()
        self._loop.call_later(LINGER_S, transport.abort)

    def abort(self, error: NodeAgentError) -> None:
        """Close at once, without sending the queued frames."""
        if self._closed:
            return
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()
        self._end()

    # --- asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._closed:
            self._transport.abort()
            self._end()
            return
        self._outbox.attach(self._transport)
        if self._limits is not None:
            self._limits.add(self)
        self._transport.set_write_buffer_limits(high=SOCKET_BUFFER_HIGH)
        peer = transport.get_extra_info("peername")
        self.address = address_text(peer)
        tune(transport.get_extra_info("socket"))
        self._hello_timer = self._loop.call_later(HELLO_TIMEOUT_S, self._on_hello_timeout)
        if self._secure is not None:
            if self._dialled:
                self._secure.start()
                self._transport.write(self._secure.outgoing())
        elif not is_loopback(peer):
            self.close(Forbidden("connections without TLS are allowed on loopback only"))
        elif self._dialled:
            self._outbox.send(codec.encode_hello(self._handler.my_hello()))

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        if self._limits is not None and not self.bytes_in:
            self._limits.on_first_bytes(self)
        self.bytes_in += len(data)
        try:
            if self._secure is None:
                self._on_bytes(data)
            else:
                for piece in self._on_records(self._secure, data):
                    self._on_bytes(piece)
        except (FrameError, Forbidden, Overloaded) as error:
            self.close(error)

    def pause_writing(self) -> None:
        self._outbox.paused = True
        if not self._dialled and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._outbox.paused = False
        self._outbox.flush()
        if not self._dialled and not self._outbox.paused and not self._closed and self._transport is not None:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    # --- frames ----------------------------------------------------------------------------------

    def _on_records(self, secure: Secure, data: bytes) -> list[bytes]:
        """Decrypt; also handle the end or failure of the handshake."""
        assert self._transport is not None
        was_ready = secure.is_ready
        try:
            pieces = secure.receive(data)
        except ssl.SSLError as error:
            reason = explain(error, self._expect or self.address)
            self._transport.write(secure.outgoing())
            secure.is_ready = False
            raise reason from error
        if not was_ready:
            if secure.is_ready:
                self._certificate = peer_name(secure.certificate())
                if self._dialled:
                    self._outbox.send(codec.encode_hello(self._handler.my_hello()))
            self._transport.write(secure.outgoing())
        return pieces

    def _on_bytes(self, data: bytes) -> None:
        if self._closed:
            return
        frames = self._reader.feed(data)
        for frame in frames:
            self._on_frame(frame)
            if self._closed:
                return
        if self._reader.announced or self._held or self._frame_deadline.due:
            self._watch_partial(bool(frames))

    def _watch_partial(self, any_came: bool) -> None:
        """Limit the memory of an unfinished frame, and the time until it is complete."""
        announced = self._reader.announced
        self._frame_deadline.follow(announced, any_came)
        if self._limits is not None and self.peer is not None:
            before, self._held = self._held, self._reader.pending_bytes if announced else 0
            self._limits.hold(self.peer.role, self._held - before)

    def _on_late_frame(self) -> None:
        self.abort(Unavailable(f"{self.name} did not complete a frame in time"))

    def _on_frame(self, frame: Frame) -> None:
        if self.peer is None:
            self._on_first(frame)
        elif frame.kind is Kind.RAFT:
            if self.peer.role != "node":
                raise Forbidden(f"{self.peer.role} {self.peer.name} may not take part in consensus")
            self._handler.on_raft(self, codec.decode_raft(frame))
        elif frame.kind is Kind.REQUEST:
            self._on_request(frame)
        elif frame.kind is Kind.REPLY:
            self._on_reply(frame)
        else:
            raise FrameError("the peer sent a second hello")

    def _on_first(self, frame: Frame) -> None:
        """Handle the first frame: the peer's hello, or its refusal."""
        if self._dialled and frame.kind is Kind.REPLY and frame.number == 0:
            self._on_reply(frame)
            return
        if frame.kind is not Kind.HELLO:
            raise FrameError(f"a {frame.kind.name} frame arrived before the hello")
        hello = codec.decode_hello(frame)
        check_hello(self._handler.my_hello(), hello, self._certificate, self._expect)
        if self._dialled and hello.role != "node":
            raise Forbidden(f"{self.address} is not a node: {hello.role} {hello.name} answered")
        self._handler.check_peer(hello)
        if self._limits is not None:
            self._limits.on_hello(self, hello.role, hello.name)
        self.peer = hello
        self._reader.bytes_max = FRAME_BYTES_MAX
        self._reader.first_bytes = FIRST_BYTES if hello.role == "reader" else FIRST_BYTES_TRUSTED
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if not self._dialled:
            self._outbox.send(codec.encode_hello(self._handler.my_hello()))
        if not self.opened.done():
            self.opened.set_result(None)
        self._handler.on_open(self)

    def _on_request(self, frame: Frame) -> None:
        if self._dialled or frame.number == 0:
            raise FrameError(
                "the peer sent a request that has no number, or sent it on a connection that this side opened"
            )
        self._answering += 1
        try:
            request = codec.decode_request(frame)
        except FrameError as error:  # e.g. a request of a later release: refuse only this one
            self.reply(frame.number, to_reply(InvalidInput(error.what)))
            return
        if self._answering > REQUESTS_PER_CONNECTION_MAX:
            refusal = Overloaded(
                f"{REQUESTS_PER_CONNECTION_MAX} requests of this connection are already open"
            )
            self.reply(frame.number, to_reply(refusal))
            return
        self._handler.on_request(self, frame.number, request)

    def _on_reply(self, frame: Frame) -> None:
        reply = codec.decode_reply(frame)
        if frame.number == 0:
            if isinstance(reply, ErrorReply):
                self._error = to_error(reply)
            self.close()
            return
        self._pending.answer(frame.number, reply)

    def _on_hello_timeout(self) -> None:
        if self.peer is None:
            self.abort(Unavailable(f"{self.name} sent no hello in time"))

    def _end(self) -> None:
        """Run once at the end: every pending call and future fails with the reason."""
        if self._closed:
            return
        self._closed = True
        if self._limits is not None:
            self._limits.remove(self)
            if self.peer is not None:
                self._limits.hold(self.peer.role, -self._held)
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._pending.cancel()
        self._frame_deadline.cancel()
        self._outbox.close()
        error = self._error or Unavailable(f"connection to {self.name} was lost")
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # mark as retrieved: nothing may await it
        self._pending.fail(to_reply(OutcomeUnknown(f"no answer: {error.what}", lost=True)))
        self._handler.on_close(self, error)

"""Connections: which peers are admitted, what a refused peer receives, and that the server keeps serving."""

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import msgspec
import pytest

from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import Forbidden, NodeAgentError, OutcomeUnknown, Overloaded, Unavailable
from nodeagent.model.limits import FRAME_BYTES_MAX, KIB, REQUESTS_PER_CONNECTION_MAX
from nodeagent.model.raft_messages import AppendRequest, Heartbeat, Routed
from nodeagent.model.requests import (
    Accepted,
    Chunk,
    ErrorReply,
    FetchChunk,
    GetStatus,
    Hello,
    Propose,
    Reply,
    Request,
)
from nodeagent.runtime.peers import Peers
from nodeagent.transport import connection as room
from nodeagent.transport import frame_deadline
from nodeagent.transport.connection import Connection
from nodeagent.transport.connection_limits import UNKNOWN_MAX
from nodeagent.transport.endpoints import Listener, dial
from nodeagent.transport.hello import check_hello
from nodeagent.transport.tls import Identity, client_context, server_context
from nodeagent.wire import codec
from nodeagent.wire.frames import FIRST_BYTES, FIRST_BYTES_TRUSTED, NUMBERED_HEAD, PROTOCOL, Kind
from tests.runtime.links import Recorder, admin_hello, identity, node_hello

Test = Callable[[], Coroutine[None, None, None]]


def run(test: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 10))


@asynccontextmanager
async def serving(handler: Recorder, tls: bool = True) -> AsyncIterator[Listener]:
    context = server_context(identity(handler.hello.name, "node")) if tls else None
    listener = Listener(handler, context)
    await listener.start("127.0.0.1", 0)
    try:
        yield listener
    finally:
        listener.close()


def only(listener: Listener) -> Connection:
    """The only connection of the listener."""
    (served,) = listener.connections.all()
    assert isinstance(served, Connection)
    return served


async def reach(
    port: int, who: Identity | None = None, hello: Hello | None = None, expect: str = ""
) -> Connection:
    context = client_context(who or identity("alice", "admin"))
    return await dial(Recorder(hello or admin_hello()), "127.0.0.1", port, context=context, expect=expect)


async def refused(
    port: int, who: Identity | None = None, hello: Hello | None = None, expect: str = ""
) -> str:
    """Return the text of the refusal, and check that the server still serves others afterwards."""
    with pytest.raises(Forbidden) as caught:
        await reach(port, who, hello, expect)
    good = await reach(port)
    assert await good.call(GetStatus(), 1) is not None
    good.close()
    return str(caught.value)


def test_request_and_reply() -> None:
    """Replies reach their requests in any order."""

    async def test() -> None:
        waiting: list[tuple[Connection, int, Request]] = []

        def answer(link: Connection, number: int, request: Request) -> None:
            waiting.append((link, number, request))
            if len(waiting) == 3:
                for link, number, asked in reversed(waiting):
                    assert isinstance(asked, FetchChunk)
                    link.reply(number, Chunk(b"", asked.offset))

        async with serving(Recorder(node_hello(), answer)) as listener:
            link = await reach(listener.port, expect="node1")
            replies = await asyncio.gather(*(link.call(FetchChunk("s", "n", i, 1), 2) for i in range(3)))
            assert replies == [Chunk(b"", 0), Chunk(b"", 1), Chunk(b"", 2)]
            link.close()

    run(test())


def test_frames_of_one_turn_leave_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small frames of one turn take one write."""

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            me = node_hello("node2")
            link = await reach(listener.port, identity("node2", "node"), me)
            writes: list[int] = []
            transport = link._transport
            assert transport is not None
            write = transport.write

            def counted(data: bytes) -> None:
                writes.append(len(data))
                write(data)

            monkeypatch.setattr(transport, "write", counted)
            for term in range(100):
                link.send_raft([Routed("meta", Heartbeat(term, 0))])
            await link.call(GetStatus(), 2)
            assert len(handler.raft) == 100 and len(writes) == 1
            link.close()

    run(test())


def test_certificate_of_another_authority_is_refused() -> None:
    """Both client and server refuse such a certificate."""

    async def test() -> None:
        async with serving(Recorder(node_hello())) as listener:
            text = await refused(listener.port, identity("alice", "admin", signer="other"))
            assert "refuses our certificate: unknown ca" in text
            text = await refused(listener.port, identity("alice", "admin", signer="other", trusts="other"))
            assert "is refused: self-signed certificate in certificate chain" in text

    run(test())


def test_expired_certificate_is_refused_with_that_word() -> None:
    """The error says `expired`, on the server too."""

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            text = await refused(listener.port, identity("alice", "admin", days=-1))
            assert "certificate expired" in text
            assert any("certificate has expired" in error.what for error in handler.errors)

    run(test())


@pytest.mark.parametrize(
    ("who", "hello", "expect", "text"),
    [
        (("alice", "reader"), admin_hello(), "", "certificate says reader alice"),
        (("alice", "admin"), admin_hello("bob"), "", "hello says admin bob"),
        (("alice", "admin"), node_hello("alice"), "", "hello says node alice"),
        (("alice", "admin"), admin_hello(cluster="elsewhere"), "", "belongs to cluster elsewhere"),
        (("alice", "admin"), Hello(99, "admin", "alice"), "", "speaks protocol 99"),
        (("alice", "admin"), admin_hello(), "node2", "expected node2 at this address, but node1 answered"),
    ],
)
def test_wrong_hello_is_refused(who: tuple[str, str], hello: Hello, expect: str, text: str) -> None:
    """Role, name, cluster, protocol and expected node: each mismatch has its own text at the other end."""

    async def test() -> None:
        async with serving(Recorder(node_hello())) as listener:
            assert text in await refused(listener.port, identity(*who), hello, expect)

    run(test())


@pytest.mark.parametrize(
    ("newest", "oldest", "text"),
    [
        (PROTOCOL, 0, ""),
        (PROTOCOL + 1, PROTOCOL, ""),
        (PROTOCOL + 5, 1, ""),
        (PROTOCOL + 1, 0, f"speaks protocol {PROTOCOL + 1}, node1 speaks {PROTOCOL}"),
        (PROTOCOL + 2, PROTOCOL + 1, f"speaks protocol {PROTOCOL + 1} to {PROTOCOL + 2}"),
        (0, 0, "speaks protocol 0"),
    ],
)
def test_two_sides_connect_if_they_have_a_protocol_in_common(newest: int, oldest: int, text: str) -> None:
    """While nodes are upgraded one by one, a later release still speaks the protocol of this release."""
    theirs = Hello(newest, "admin", "alice", oldest_protocol=oldest)
    if not text:
        return check_hello(node_hello(), theirs, None)
    with pytest.raises(Forbidden, match=text):
        check_hello(node_hello(), theirs, None)
    return None


@pytest.mark.parametrize(
    ("mine", "theirs", "text"),
    [
        ({}, {"level": 2}, "feature level 2, but node1 supports 1"),
        ({"level": 2, "newest_level": 2}, {}, "feature level 2, but node2 supports 1"),
        ({"level": 1}, {"oldest_level": 2, "newest_level": 3}, "feature level 1, but node2 supports 2 to 3"),
        ({"level": 2, "newest_level": 2}, {"level": 1, "newest_level": 2}, ""),
        ({"newest_level": 2}, {"level": 1}, ""),
        ({}, {}, ""),
    ],
)
def test_a_node_that_does_not_speak_the_cluster_s_level_is_refused(
    mine: dict[str, int], theirs: dict[str, int], text: str
) -> None:
    """Whichever of the two nodes detects it; a client may be of any release."""

    def meet(hello: Hello) -> None:
        check_hello(msgspec.structs.replace(node_hello("node1"), **mine), hello, None)

    other = msgspec.structs.replace(node_hello("node2"), **theirs)
    if text:
        with pytest.raises(Forbidden, match=text):
            meet(other)
    else:
        meet(other)
    meet(msgspec.structs.replace(admin_hello(), **theirs))


def test_retired_incarnation_is_refused() -> None:
    """The peer receives a refusal of the handler like any other refusal."""

    async def test() -> None:
        handler = Recorder(node_hello())

        def check(hello: Hello) -> None:
            if hello.incarnation == "old":
                raise Forbidden("incarnation old was retired")

        handler.check = check
        async with serving(handler) as listener:
            hello = node_hello("node2", incarnation="old")
            assert "retired" in await refused(listener.port, identity("node2", "node"), hello)

    run(test())


def test_only_nodes_take_part_in_consensus() -> None:
    """A Raft frame from an operator ends the connection with a clear text."""

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            link = await reach(listener.port)
            link.send_raft([Routed("meta", Heartbeat(1, 0))])
            with pytest.raises(OutcomeUnknown, match="may not take part in consensus"):
                await link.call(GetStatus(), 2)
            assert not handler.raft and not link.is_open

    run(test())


@pytest.mark.parametrize("tls", [True, False])
def test_random_bytes_end_only_their_connection(tls: bool) -> None:
    """Random bytes before a hello end the connection; other peers are served."""

    async def test() -> None:
        async with serving(Recorder(node_hello()), tls) as listener:
            rng = random.Random(1)
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(rng.randbytes(200))
                writer.write_eof()
                await reader.read()
                writer.close()
            context = client_context(identity("alice", "admin")) if tls else None
            link = await dial(Recorder(admin_hello()), "127.0.0.1", listener.port, context=context)
            assert await link.call(GetStatus(), 2) == Accepted(1)
            link.close()

    run(test())


def test_large_frame_before_the_hello_is_refused() -> None:
    """An unknown peer cannot make us hold megabytes."""

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler, tls=False) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(codec.encode_request(1, FetchChunk("s", "n" * 20_000, 0, 1)))
            assert b"announced a frame" in await reader.read()
            writer.close()
            assert not handler.requests

    run(test())


def test_half_open_connection_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that connects but sends nothing is disconnected."""
    monkeypatch.setattr(room, "HELLO_TIMEOUT_S", 0.05)

    async def test() -> None:
        async with serving(Recorder(node_hello())) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            assert await reader.read() == b""
            writer.close()
            assert not listener.connections

    run(test())


def test_silent_server_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dialling a port that accepts but never answers fails in time."""

    async def test() -> None:
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Unavailable):
            await dial(
                Recorder(admin_hello()),
                "127.0.0.1",
                port,
                context=client_context(identity("alice", "admin")),
                timeout_s=0.1,
            )
        server.close()

    run(test())


def test_a_refused_connection_is_unavailable() -> None:
    """A refused connection is `Unavailable`: nothing was sent."""

    async def test() -> None:
        async with serving(Recorder(node_hello())) as listener:
            port = listener.port
        with pytest.raises(Unavailable, match="cannot be reached"):
            await reach(port)

    run(test())


def test_a_node_that_moved_is_reached_at_its_new_address() -> None:
    """Requests and file chunks use the new address as soon as it is known."""

    class Mine(Recorder):
        peers: Peers

        def on_close(self, connection: Connection, error: NodeAgentError) -> None:
            self.peers.lost(connection)

    async def test() -> None:
        before, now, mine = Recorder(node_hello()), Recorder(node_hello()), Mine(node_hello("node2"))
        unreachable: list[str] = []
        mine.peers = peers = Peers(
            "node2",
            mine,
            client_context(identity("node2", "node")),
            lambda node, error: unreachable.append(error.what),
        )
        async with serving(before) as old, serving(now) as new:
            peers.update({"node1": ("127.0.0.1", old.port)})
            peer = peers.get("node1")
            while peer.connection is None:
                await asyncio.sleep(0.001)
            await peer.bulk()
            peers.update({"node1": ("127.0.0.1", new.port)})
            old.close()
            while not (now.opened and peer.connection) and not unreachable:
                await asyncio.sleep(0.001)
            assert unreachable == []
            assert await (await peer.bulk()).call(GetStatus(), 5) == Accepted(1)
            assert (len(before.opened), len(now.opened)) == (2, 2)
            peers.close()

    run(test())


def test_no_connection_outlives_a_call_to_an_unknown_node_or_the_peers() -> None:
    """Otherwise the other side would hold every connection until the process ends."""

    async def ended(node: Recorder, count: int) -> None:
        async with asyncio.timeout(5):
            while len(node.errors) < count:
                await asyncio.sleep(0.001)

    async def test() -> None:
        stranger, peer = Recorder(node_hello()), Recorder(node_hello())
        context = client_context(identity("node2", "node"))
        peers = Peers("node2", Recorder(node_hello("node2")), context, lambda node, error: None)
        async with serving(stranger) as asked, serving(peer) as connected:
            answers: list[Reply] = []
            peers.call(("127.0.0.1", asked.port), GetStatus(), 5, answers.append)
            await ended(stranger, 1)
            assert answers == [Accepted(1)]
            peers.update({"node1": ("127.0.0.1", connected.port)})
            while peers.get("node1").connection is None:
                await asyncio.sleep(0.001)
            peers.close()
            await ended(peer, 1)

    run(test())


def test_late_reply_is_outcome_unknown() -> None:
    """A request without an answer may have taken effect; its late reply is ignored."""

    async def test() -> None:
        held: list[tuple[Connection, int]] = []
        handler = Recorder(node_hello(), lambda link, number, _: held.append((link, number)))
        async with serving(handler) as listener:
            link = await reach(listener.port)
            with pytest.raises(OutcomeUnknown, match="in time") as caught:
                await link.call(GetStatus(), 0.01)
            assert caught.value.details["lost"] is True
            handler.answer = None
            held[0][0].reply(held[0][1], Accepted(1))
            assert await link.call(GetStatus(), 2) == Accepted(2)
            link.close()

    run(test())


def test_lost_connection_answers_every_call() -> None:
    """When the server stops, waiting calls fail at once, and later calls are `Unavailable`."""

    async def test() -> None:
        handler = Recorder(node_hello(), lambda link, number, _: None)
        async with serving(handler) as listener:
            link = await reach(listener.port)
            calls = [asyncio.ensure_future(link.call(GetStatus(), 9)) for _ in range(3)]
            while len(handler.requests) < 3:
                await asyncio.sleep(0)
            handler.opened[0].abort(Unavailable("gone"))
            for call in calls:
                with pytest.raises(OutcomeUnknown):
                    await call
            with pytest.raises(Unavailable):
                await link.call(GetStatus(), 1)

    run(test())


def test_slow_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit Raft frames are dropped and requests refused; the queue does not grow."""
    monkeypatch.setattr(room, "QUEUE_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(room, "SOCKET_BUFFER_HIGH", 1 << 16)

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            link = await reach(listener.port, identity("node2", "node"), node_hello("node2"))
            peer = handler.opened[0]._transport
            assert peer is not None
            peer.pause_reading()
            sent = 0
            large = AppendRequest(1, 0, 0, 0, [Entry(1, int(EntryKind.COMMAND), bytes(50_000))])
            while link.send_raft([Routed("g", large)]):
                sent += 1
                await asyncio.sleep(0)
                assert sent < 1000
            assert link.raft_dropped == 1 and link._outbox.bytes < 2 << 20
            with pytest.raises(Overloaded):
                await link.call(GetStatus(), 1)
            peer.resume_reading()
            while len(handler.raft) < sent:
                await asyncio.sleep(0)
            assert await link.call(GetStatus(), 2) == Accepted(1)
            link.close()

    run(test())


def test_too_many_open_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accepting side answers `Overloaded` above its limit, even if the client sends more."""

    async def test() -> None:
        handler = Recorder(node_hello(), lambda link, number, _: None)
        async with serving(handler) as listener:
            link = await reach(listener.port)
            opened = [asyncio.ensure_future(link.call(GetStatus(), 9)) for _ in range(2)]
            while len(handler.requests) < 2:
                await asyncio.sleep(0)
            monkeypatch.setattr(handler.opened[0], "_answering", REQUESTS_PER_CONNECTION_MAX)
            with pytest.raises(Overloaded):
                await link.call(GetStatus(), 2)
            link.close()
            for call in opened:
                with pytest.raises(NodeAgentError):
                    await call

    run(test())


def test_large_replies_arrive_complete() -> None:
    """Many megabytes through TLS, several at once, arrive unchanged."""

    async def test() -> None:
        blob = random.Random(2).randbytes(3 << 20)
        handler = Recorder(node_hello(), lambda link, number, _: link.reply(number, Chunk(blob, len(blob))))
        async with serving(handler) as listener:
            link = await reach(listener.port)
            replies = await asyncio.gather(*(link.call(GetStatus(), 9) for _ in range(6)))
            assert all(isinstance(reply, Chunk) and reply.data == blob for reply in replies)
            link.close()

    run(test())


def test_without_tls_only_the_protocol_version_and_names_count() -> None:
    """On loopback without TLS, the name in the hello counts."""

    async def test() -> None:
        async with serving(Recorder(node_hello()), tls=False) as listener:
            link = await dial(Recorder(admin_hello()), "127.0.0.1", listener.port, context=None)
            assert link.peer == node_hello() and link.peer.protocol == PROTOCOL
            link.close()

    run(test())


def test_a_request_that_does_not_decode_is_refused_and_the_connection_continues() -> None:
    """A request of a later release, or out of range, has a known number, so it gets a reply."""

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            link = await reach(listener.port, identity("alice", "admin"), admin_hello())
            for bad in (
                {"type": "OfALaterRelease"},
                {"type": "GetManifest", "group": "g", "slots": [[0, -1]]},
            ):
                replies: list[Reply] = []
                link.request(GetStatus(), 5, replies.append)
                body = msgspec.msgpack.encode(bad)
                link._outbox._queue[-1] = (
                    NUMBERED_HEAD.pack(9 + len(body), Kind.REQUEST, link._pending.next_number - 1) + body
                )
                while not replies:
                    await asyncio.sleep(0)
                assert isinstance(replies[0], ErrorReply) and replies[0].code == "invalid_input"
            assert isinstance(await link.call(GetStatus(), 5), Accepted)
            assert handler.requests == [GetStatus()]
            link.close()

    run(test())


def test_a_frame_that_does_not_end_ends_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends however slowly bytes arrive; its counted bytes are released."""
    monkeypatch.setattr(frame_deadline, "FRAME_TIMEOUT_S", 0.05)
    monkeypatch.setattr(frame_deadline, "FRAME_BYTES_PER_S_MIN", 1 << 40)

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            link = await reach(listener.port, identity("bob", "reader"), Hello(PROTOCOL, "reader", "bob"))
            link._outbox.send(NUMBERED_HEAD.pack(1 << 20, Kind.REQUEST, 1) + bytes(100))
            while not listener.connections._partial["reader"]:
                await asyncio.sleep(0)
            while link.is_open:
                await asyncio.sleep(0.01)
            assert not listener.connections and not listener.connections._partial["reader"]

    run(test())


def test_bytes_after_a_close_are_not_counted_as_an_unfinished_frame() -> None:
    """A handler closes the connection at a request: the rest of that read would be counted permanently."""

    class Closing(Recorder):
        def on_request(self, connection: Connection, number: int, request: Request) -> None:
            connection.close(Forbidden("enough"))

    async def test() -> None:
        handler = Closing(node_hello())
        async with serving(handler) as listener:
            link = await reach(listener.port, identity("bob", "reader"), Hello(PROTOCOL, "reader", "bob"))
            served = only(listener)
            served._on_bytes(bytes(codec.encode_request(1, GetStatus())))
            served._on_bytes(NUMBERED_HEAD.pack(1000, Kind.REQUEST, 2) + bytes(100))
            await asyncio.sleep(0)
            assert not served.is_open and not listener.connections._partial["reader"]
            link.close()

    run(test())


@pytest.mark.parametrize(
    "role,at_once", [("reader", FIRST_BYTES), ("admin", FIRST_BYTES_TRUSTED), ("node", FIRST_BYTES_TRUSTED)]
)
def test_memory_for_a_frame_grows_with_received_bytes(role: str, at_once: int) -> None:
    """A few bytes of a reader allocate at most 64 KiB, whatever length it announces; for no role is the
    announced length allocated at once."""

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            hello = node_hello("bob") if role == "node" else Hello(PROTOCOL, role, "bob")
            link = await reach(listener.port, identity("bob", role), hello)
            served = only(listener)
            tracemalloc.start()
            served._on_bytes(NUMBERED_HEAD.pack(FRAME_BYTES_MAX, Kind.REQUEST, 1) + bytes(100))
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert at_once <= held < at_once + 64 * KIB
            link.close()

    run(test())


def test_each_frame_has_its_own_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """One timer serves all frames of a connection: it never ends a frame too early, nor a short frame by the
    deadline of the long frame before."""
    monkeypatch.setattr(frame_deadline, "FRAME_TIMEOUT_S", 0.2)

    async def test() -> None:
        clock = asyncio.get_running_loop().time
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            link = await reach(listener.port, identity("alice", "admin"), admin_hello())
            served = only(listener)
            whole = bytes(codec.encode_request(1, Propose("g", (bytes(1 << 20),))))
            served._on_bytes(whole[:9])
            served._on_bytes(whole[9:])
            began = clock()
            served._on_bytes(NUMBERED_HEAD.pack(1000, Kind.REQUEST, 1))
            while served.is_open:
                await asyncio.sleep(0.01)
            assert 0.19 < clock() - began < 10, "the deadline is not the 16 s of the previous frame"
            link.close()
        async with serving(handler) as listener:
            link = await reach(listener.port, identity("alice", "admin"), admin_hello())
            served = only(listener)
            for _ in range(4):  # each begins before the deadline of the frame before
                frame = bytes(codec.encode_request(1, GetStatus()))
                served._on_bytes(frame[:7])
                await asyncio.sleep(0.1)
                served._on_bytes(frame[7:])
            served._on_bytes(frame[:7])
            await asyncio.sleep(0.1)
            assert served.is_open
            while served.is_open:
                await asyncio.sleep(0.01)

    run(test())


def test_a_frame_that_arrived_in_pieces_ends_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides no deadline remains once the last byte has arrived."""
    monkeypatch.setattr(frame_deadline, "FRAME_TIMEOUT_S", 0.05)

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            link = await reach(listener.port, identity("alice", "admin"), admin_hello())
            served = only(listener)
            frame = bytes(codec.encode_request(1, GetStatus()))
            reply = bytes(codec.encode_reply(9, Accepted(1)))
            for side in (link, served):
                side._on_bytes(reply[:6])
                assert side._frame_deadline.due
                side._on_bytes(reply[6:])
                assert not side._frame_deadline.due and not side._held
            served._on_bytes(frame[:7])
            served._on_bytes(frame[7:])
            await asyncio.sleep(0.2)
            assert link.is_open and served.is_open

    run(test())


def test_many_half_open_connections_lock_no_operator_out() -> None:
    """The operator is admitted at once, without waiting for their timeout."""

    async def test() -> None:
        handler = Recorder(node_hello())
        async with serving(handler) as listener:
            strangers = [
                await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(UNKNOWN_MAX + 20)
            ]
            link = await reach(listener.port, identity("alice", "admin"), admin_hello())
            assert isinstance(await link.call(GetStatus(), 5), Accepted)
            assert UNKNOWN_MAX <= len(listener.connections) <= UNKNOWN_MAX + 1
            async with asyncio.timeout(room.HELLO_TIMEOUT_S / 2):
                assert await strangers[0][0].read() == b"", "the oldest was aborted"
            link.close()
            for _, writer in strangers:
                writer.close()

    run(test())

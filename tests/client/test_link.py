"""The client over real connections on loopback, TLS on."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from nodeagent.client.blocking import BlockingCluster
from nodeagent.client.cluster import Cluster
from nodeagent.client.link import NetworkLink, _Channel
from nodeagent.client.spec import ClusterSpec, Endpoint, Identity
from nodeagent.client.tasks import run_bounded
from nodeagent.model.errors import Forbidden, NodeAgentError, NotFound, OutcomeUnknown, Unavailable
from nodeagent.model.files import ScanSpec
from nodeagent.model.requests import Accepted, CloseAll, GetStatus, NodeStatus, Reply, Request, ScanRows
from nodeagent.transport.connection import Connection
from nodeagent.transport.endpoints import Listener
from nodeagent.transport.tls import server_context
from nodeagent.wire.faults import to_reply
from tests.client.fake import FakeCluster
from tests.client.rows import SCHEMA, SG, TABLE, rows
from tests.runtime.links import Recorder, identity, node_hello

Answer = Callable[[str, Request], Reply]


class Served:
    """One fake node behind a real socket."""

    def __init__(self, node: str, answer: Answer) -> None:
        self.recorder = Recorder(node_hello(node), self._on_request)
        self.node = node
        self.answer = answer
        self.port = 0

    def _on_request(self, connection: Connection, number: int, request: Request) -> None:
        try:
            reply = self.answer(self.node, request)
        except NodeAgentError as error:
            reply = to_reply(error)
        connection.reply(number, reply)


@asynccontextmanager
async def serving(node: str, answer: Answer) -> AsyncIterator[Served]:
    served = Served(node, answer)
    listener = Listener(served.recorder, server_context(identity(node, "node")))
    await listener.start("127.0.0.1", 0)
    served.port = listener.port
    try:
        yield served
    finally:
        listener.close()


def link_to(*served: Served, identity_: Identity | None = None) -> NetworkLink:
    endpoints = tuple(Endpoint(s.node, "127.0.0.1", s.port) for s in served)
    return NetworkLink(endpoints, identity_ or identity("alice", "admin"))


def accept(node: str, request: Request) -> Reply:
    return Accepted(7)


def test_calls_share_a_connection_and_rows_have_their_own() -> None:
    """A write never waits behind a file or a scan."""

    async def scenario() -> None:
        async with serving("node1", accept) as node:
            link = link_to(node)
            await asyncio.gather(*(link.call("node1", CloseAll("g"), 5) for _ in range(20)))
            assert len(node.recorder.opened) == 1
            await link.call("node1", ScanRows("g", SG, ScanSpec(SCHEMA)), 5)
            assert len(node.recorder.opened) == 2
            await link.close()

    asyncio.run(scenario())


def test_a_closed_link_does_not_dial() -> None:
    """Background tasks would otherwise open connections that are never closed."""

    async def scenario() -> None:
        async with serving("node1", lambda node, request: Accepted(1)) as served:
            link = link_to(served)
            assert await link.call("node1", CloseAll("g"), 5.0) == Accepted(1)
            await link.close()
            with pytest.raises(Unavailable, match="closed"):
                await link.call("node1", CloseAll("g"), 5.0)

    asyncio.run(scenario())


def test_closing_a_link_cancels_its_dialling() -> None:
    """Dialling a peer that accepts but sends nothing takes seconds."""

    async def scenario() -> None:
        silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        link = NetworkLink((Endpoint("node1", "127.0.0.1", port),), identity("alice", "admin"))
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        calling = asyncio.create_task(link.call("node1", CloseAll("g"), 30))
        await asyncio.sleep(0.1)
        (dialling,) = [channel.dialling for channel in link._channels.values()]
        assert dialling is not None and not dialling.done()
        await link.close()
        assert dialling.done(), "the task continues after the link is closed"
        with pytest.raises((NodeAgentError, asyncio.CancelledError)):
            await calling
        assert not failures
        silent.close()

    asyncio.run(scenario())


def test_an_error_reply_is_raised_with_its_details() -> None:
    """The caller sees the error that the node raised."""

    def refuse(node: str, request: Request) -> Reply:
        raise NotFound("no group g", group="g")

    async def scenario() -> None:
        async with serving("node1", refuse) as node:
            link = link_to(node)
            with pytest.raises(NotFound) as caught:
                await link.call("node1", CloseAll("g"), 5)
            assert caught.value.details == {"group": "g"}
            await link.close()

    asyncio.run(scenario())


def test_not_sent_and_not_answered_are_different_errors() -> None:
    """Without a connection the request was not sent. If the connection ends before the answer, the outcome is
    unknown."""

    async def scenario() -> None:
        async with serving("node1", accept) as node:
            node.recorder.answer = lambda connection, number, request: connection.close()
            link = link_to(node)
            with pytest.raises(OutcomeUnknown):
                await link.call("node1", CloseAll("g"), 5)
        with pytest.raises(Unavailable):
            await link.call("node1", CloseAll("g"), 5)
        with pytest.raises(Unavailable):
            await link.call("nobody", CloseAll("g"), 5)
        await link.close()

    asyncio.run(scenario())


def test_a_node_is_reached_again_after_it_was_down() -> None:
    """The pause between attempts is bounded; a new address is used at once."""

    async def scenario() -> None:
        async with serving("node1", accept) as gone:
            link = link_to(gone)
        with pytest.raises(Unavailable):
            await link.call("node1", CloseAll("g"), 5)
        async with serving("node1", accept) as back:
            link.learn("node1", "127.0.0.1", back.port)
            assert await link.call("node1", CloseAll("g"), 5) == Accepted(7)
            await link.close()

    asyncio.run(scenario())


def test_a_node_that_is_down_is_dialled_less_and_less_often() -> None:
    async def scenario() -> None:
        link = NetworkLink((Endpoint("node1", "127.0.0.1", 1),), identity("alice", "admin"))
        channel, pauses = _Channel(), []
        for _ in range(7):
            pauses.append(channel.pause_s)
            with pytest.raises(Unavailable):
                await link._dial("node1", channel)
        assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
        await link.close()

    asyncio.run(scenario())


def test_run_bounded_cancels_the_other_jobs_at_the_first_failure() -> None:
    ended = []

    async def job(n: int) -> None:
        try:
            await asyncio.sleep(0 if n == 1 else 60)
            raise Unavailable(str(n))
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ended.append(n)

    async def scenario() -> None:
        with pytest.raises(Unavailable, match="1"):
            await run_bounded((job(n) for n in range(3)), 3)
        assert sorted(ended) == [0, 1, 2]

    asyncio.run(scenario())


def test_another_node_or_authority_at_the_address_is_forbidden() -> None:
    """The certificate identifies a node, not its address."""

    async def scenario() -> None:
        async with serving("node2", accept) as node:
            link = NetworkLink((Endpoint("node1", "127.0.0.1", node.port),), identity("alice", "admin"))
            with pytest.raises(Forbidden, match="node2 answered") as caught:
                await link.call("node1", GetStatus(), 5)
            assert not caught.value.connected
            await link.close()
            stranger = link_to(node, identity_=identity("eve", "admin", signer="theirs", trusts="theirs"))
            with pytest.raises(Forbidden):
                await stranger.call("node2", GetStatus(), 5)
            await stranger.close()

    asyncio.run(scenario())


def test_the_blocking_client_writes_reads_and_counts_over_sockets() -> None:
    """Write, read and count from synchronous code, through sockets, by an endpoint without a node name."""
    fake = FakeCluster()
    fake.add_table(SCHEMA)
    ready, done = threading.Event(), threading.Event()
    ports: dict[str, int] = {}

    async def serve() -> None:
        async with (
            serving("node1", fake.handle) as a,
            serving("node2", fake.handle) as b,
            serving("node3", fake.handle) as c,
            serving("node4", fake.handle) as d,
        ):
            for served in (a, b, c, d):
                ports[served.node] = served.port
                fake.learn(served.node, "127.0.0.1", served.port)
            fake.publish()
            ready.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10)
        spec = ClusterSpec((Endpoint("", "127.0.0.1", ports["node2"]),), identity("alice", "admin"))
        with BlockingCluster.connect(spec) as cluster:
            data = rows(*((t, "a", float(t), None) for t in range(0, 5000, 100)))
            assert cluster.write(SG, TABLE, data).rows == 50
            assert cluster.write_many([(SG, TABLE, data.slice(0, 10))]).rows == 10
            assert cluster.scan(SG, TABLE).num_rows == 50
            assert sum(b.num_rows for b in cluster.scan_batches(SG, TABLE)) == 50
            assert cluster.count()[0]["rows"] == 50
            statuses = cluster.statuses()
            assert sorted(n for n, s in statuses.items() if isinstance(s, NodeStatus)) == sorted(ports)
        cluster.close()
    finally:
        done.set()
        thread.join(10)


def test_connect_contacts_no_node() -> None:
    """A client of a dead cluster is created at once, and lists which nodes are dead."""

    async def scenario() -> None:
        spec = ClusterSpec((Endpoint("node1", "127.0.0.1", 1),), None, 1.0)
        async with await Cluster.connect(spec) as cluster:
            statuses = await cluster.statuses(1.0)
            assert isinstance(statuses["node1"], Unavailable)

    asyncio.run(scenario())

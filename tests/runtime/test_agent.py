"""The whole agent, over a host that the test scripts."""

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Coroutine
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nodeagent.client.identity import issue, write_identity
from nodeagent.host.effect_queue import Effects
from nodeagent.host.levels import PeerLevels
from nodeagent.host.starts import Starts
from nodeagent.model.config import ClusterSettings, NodeConfig, Seed
from nodeagent.model.entries import HardState, SetHard
from nodeagent.model.errors import (
    Forbidden,
    InvalidInput,
    NodeAgentError,
    OutcomeUnknown,
    Refused,
    Unavailable,
)
from nodeagent.model.features import SPOKEN
from nodeagent.model.files import ScanSpec
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import JobResult, SaveCheckpoint
from nodeagent.model.limits import EVENTS_KEPT
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.raft_messages import Heartbeat, Routed
from nodeagent.model.requests import (
    Accepted,
    CheckStatus,
    ErrorReply,
    EventsReply,
    FetchChunk,
    Forward,
    GetEvents,
    GetMeta,
    GetStatus,
    NodeStatus,
    PutSchema,
    Reply,
    Request,
    ScanRows,
)
from nodeagent.model.schema import TableSchema
from nodeagent.runtime.agent import Agent
from nodeagent.runtime.config import dump_config
from nodeagent.runtime.http import CONNECTIONS_MAX as HTTP_CONNECTIONS_MAX
from nodeagent.runtime.notes import EventLog
from nodeagent.runtime.ports import HostPort
from nodeagent.runtime.shares import RUNNING_MAX
from nodeagent.runtime.startup import open_directory
from nodeagent.transport.connection import Connection
from nodeagent.transport.endpoints import dial
from nodeagent.transport.tls import client_context
from tests.runtime.links import Recorder, admin_hello, authority, identity, node_hello

SCHEMA = TableSchema("root", "t", 1, ())


class ScriptedHost:
    """Holds each request until its batch is durable, then answers with the batch number."""

    def __init__(self) -> None:
        audit = [(1, "me", "begin op-1"), (2, "", "op-1 enters SEALED")]
        self.cluster: Any = SimpleNamespace(id="cluster", table_version=3, level=0, applied=7, audit=audit)
        self.starts = Starts({})
        self.peers: Any = SimpleNamespace(
            addresses={}, starts=self.starts, levels=PeerLevels("node1", SPOKEN)
        )
        self.own_membership: Any = SimpleNamespace(older_copy="")
        self.status: Any = SimpleNamespace(of_node=self.status_at)
        self.retired = {"old"}
        self.unknown: set[str] = set()
        self.no_room = ""
        self.requests_failed = 0
        self.effects = Effects()
        self.batch = 0
        self.waiting: dict[int, list[int]] = {}
        self.events: list[str] = []
        self.results: list[JobResult] = []
        self.broken = False
        self.statuses = 0
        self.keeps = False
        """If set, no reply is sent automatically."""

        self.leads_left = 0
        """How often `transfer_leadership` returns that it is still in progress."""

    @property
    def idle(self) -> bool:
        return self.effects == Effects()

    def membership_status(self, node: NodeId, incarnation: str, now: int) -> MembershipStatus:
        if incarnation in self.retired:
            return MembershipStatus.RETIRED
        if incarnation in self.starts.older:
            return MembershipStatus.OLDER
        return MembershipStatus.UNKNOWN if incarnation in self.unknown else MembershipStatus.MEMBER

    def on_raft(self, sender: NodeId, messages: list[Routed], now: int) -> None:
        self.events.append(f"raft {sender} {len(messages)}")

    def on_request(self, token: int, request: Request, now: int, wall: int) -> None:
        if self.broken:
            raise AssertionError("an invariant does not hold")
        self.events.append(f"request {type(request).__name__}")
        if self.effects.persist is None:
            self.batch += 1
            self.effects.persist = (self.batch, [])
        self.effects.persist[1].append(SetHard("meta", HardState(token)))
        self.waiting.setdefault(self.batch, []).append(token)

    def on_persisted(self, batch: int, now: int) -> None:
        self.events.append(f"persisted {batch}")
        if not self.keeps:
            self.answer(batch)

    def answer(self, batch: int) -> None:
        for number in [n for n in self.waiting if n <= batch]:
            self.effects.replies += [(token, Accepted(number)) for token in self.waiting.pop(number)]

    def on_job(self, number: int, result: JobResult, now: int) -> None:
        self.results.append(result)

    def on_reply(self, call: int, reply: Reply, now: int) -> None:
        self.events.append(f"reply {call} {reply.code if isinstance(reply, ErrorReply) else 'ok'}")

    def on_older_copy(self, why: str, now: int) -> None:
        self.own_membership.older_copy = why

    def on_retired(self, why: str, now: int) -> None:
        self.events.append(f"retired: {why}")

    def on_snapshots_expired(self, names: Collection[str], now: int) -> None:
        pass

    def on_disk(self, free: int, total: int, now: int) -> None:
        pass

    def tick(self, now: int, wall: int) -> None:
        pass

    def transfer_leadership(self, now: int) -> bool:
        self.events.append("hand over")
        self.leads_left -= 1
        return self.leads_left >= 0

    def deadline(self) -> int:
        return 1 << 60

    def take(self) -> Effects:
        effects, self.effects = self.effects, Effects()
        return effects

    def status_at(self, now: int, wall: int) -> NodeStatus:
        self.statuses += 1
        return NodeStatus("node1", "i", self.cluster.id, "c", "1", "active", wall, wall, 3, (), {})


def prepare(
    directory: Path,
    *,
    tls: bool = True,
    seeds: tuple[Seed, ...] = (),
    ports: tuple[int, int] = (0, 0),
) -> Path:
    """`ports`: for nodes and clients, and for health and metrics."""
    directory.mkdir(exist_ok=True)
    config = NodeConfig(
        "node1", "127.0.0.1", *ports, seeds, ClusterSettings("c"), tls=tls, segment_bytes=1 << 20
    )
    (directory / "node.yaml").write_text(dump_config(config))
    if tls:
        write_identity(directory / "tls", issue(authority("ours"), "node1", "node"), authority("ours").cert)
    return directory


class Running:
    """A running agent, with its host and its log lines."""

    def __init__(self, directory: Path) -> None:
        self.host = ScriptedHost()
        self.lines = StringIO()
        host: HostPort = self.host
        self.agent = Agent(directory, notes=EventLog(self.lines), make_host=lambda opened, now, wall: host)
        self.task: asyncio.Task[int]

    async def __aenter__(self) -> "Running":
        self.task = asyncio.ensure_future(self.agent.run())
        while "started" not in self.lines.getvalue() and not self.task.done():
            await asyncio.sleep(0.001)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.agent.stop()
        await self.task

    async def reach(self, role: str = "admin") -> Connection:
        hello = {
            "admin": admin_hello(),
            "reader": msgspec.structs.replace(admin_hello(), role="reader"),
            "node": node_hello("node2"),
        }[role]
        context = client_context(identity(hello.name, role))
        return await dial(Recorder(hello), "127.0.0.1", self.agent.listener.port, context=context)


def run(test: Coroutine[None, None, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


def test_requests_of_one_turn_share_a_batch_and_wait_for_its_sync(tmp_path: Path) -> None:
    """Replies follow the sync; many requests share few syncs; the log contains them after a restart."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            link = await running.reach()
            replies = await asyncio.gather(*(link.call(GetMeta(), 5) for _ in range(200)))
            assert all(isinstance(reply, Accepted) for reply in replies)
            assert running.host.batch < 50
            assert running.agent.counters()["log_syncs_total"] <= running.host.batch

    run(test())
    opened = open_directory(tmp_path)
    assert opened.groups["meta"][0].hard == HardState(200)
    opened.log.close()
    opened.home.unlock()


def test_roles_decide_which_requests_are_allowed(tmp_path: Path) -> None:
    """A reader may not change anything, an operator may not act as a node; both get a clear error."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            reader, admin = await running.reach("reader"), await running.reach()
            assert isinstance(await reader.call(GetStatus(), 5), NodeStatus)
            with pytest.raises(Forbidden, match="reader alice may not send PutSchema"):
                await reader.call(PutSchema(SCHEMA), 5)
            assert await admin.call(PutSchema(SCHEMA), 5) == Accepted(1)
            with pytest.raises(Forbidden, match="may not send Forward"):
                await admin.call(Forward(b""), 5)
            assert [e for e in running.host.events if "request" in e] == ["request PutSchema"]

    run(test())


def test_later_collections_skip_objects_from_the_start(tmp_path: Path) -> None:
    """A collection over the objects of all imported modules would stop every group of the node."""
    gc.unfreeze()

    async def test() -> None:
        async with Running(prepare(tmp_path)):
            assert gc.get_freeze_count() > len(gc.get_objects())

    run(test())


def test_status_contains_values_of_the_shell(tmp_path: Path) -> None:
    """Disk, log size and certificate are filled in."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            status = await (await running.reach()).call(GetStatus(), 5)
            assert isinstance(status, NodeStatus)
            assert status.disk_free_bytes > 0 and status.log_bytes > 0 and status.cert_expires_ms > 0

    run(test())


def test_events_are_retained_bounded_and_readable(tmp_path: Path) -> None:
    """A reader gets notable events and the audit log; floods and repetitions displace nothing."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            notes = running.agent.notes
            for i in range(1_000):
                notes.write("pull_again", {"attempt": i})
                notes.write("job_failed", {"group": "a.1", "why": "no space"})
            notes.write("role", {"group": "a.1", "role": "follower", "term": 4})
            notes.write("role", {"group": "a.1", "role": "leader", "term": 5})
            link = await running.reach("reader")
            reply = await link.call(GetEvents(0, 100), 5)
            assert isinstance(reply, EventsReply)
            told = [(e.event, e.group, e.message) for e in reply.events]
            assert told[0][0] == "started"
            assert told[-2:] == [("job_failed", "a.1", "why no space"), ("leader", "a.1", "term 5")]
            assert len(reply.audit) == 2 and reply.applied == 7
            for limit, count in ((1, 1), (0, 0), (-5, 0)):
                short = await link.call(GetEvents(0, limit), 5)
                assert isinstance(short, EventsReply)
                assert (len(short.events), len(short.audit)) == (count, count)
                assert not count or short.audit[0][0] == 2, "the newest events are retained"
            for i in range(3 * EVENTS_KEPT):
                notes.write("job_failed", {"group": "a.1", "why": f"{i}"})
            assert len(notes.recent) == EVENTS_KEPT

    run(test())


def test_raft_frames_reach_the_host_under_the_certificate_s_name(tmp_path: Path) -> None:
    """The certificate identifies the sender."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            link = await running.reach("node")
            link.send_raft([Routed("meta", Heartbeat(1, 0)), Routed("meta", Heartbeat(1, 0))])
            await link.call(GetMeta(), 5)
            assert "raft node2 2" in running.host.events

    run(test())


def test_a_copy_of_a_node_is_refused_while_the_node_is_accepted(tmp_path: Path) -> None:
    """If a copy of its directory is started, perhaps from a backup, the running node is not affected;
    messages of the copy over an existing connection are ignored too."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            copy, node = (
                msgspec.structs.replace(node_hello("node2"), start=number, nonces=("x", "y")[:number])
                for number in (1, 2)
            )
            context, port = client_context(identity("node2", "node")), running.agent.listener.port
            early = await dial(Recorder(copy), "127.0.0.1", port, context=context)
            link = await dial(Recorder(node), "127.0.0.1", port, context=context)
            assert isinstance(await link.call(GetMeta(), 5), Accepted)
            for _ in range(2):
                with pytest.raises(Forbidden, match="older copy"):
                    await dial(Recorder(copy), "127.0.0.1", port, context=context)
                link.send_raft([Routed("meta", Heartbeat(1, 0))])
                assert isinstance(await link.call(GetMeta(), 5), Accepted)
            assert running.host.events.count("raft node2 1") == 2
            with pytest.raises(NodeAgentError, match="older copy"):
                await early.call(GetMeta(), 5)
            assert not running.host.starts.older or await link.call(GetMeta(), 5)

    run(test())


def test_jobs_and_calls_come_back_as_events(tmp_path: Path) -> None:
    """The host gets the result of a job, and `unavailable` for a call to an unknown node."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            host = running.host
            host.effects.jobs.append((1, SaveCheckpoint("meta", b"state")))
            host.effects.calls.append((2, "node9", GetStatus()))
            host.effects.calls.append((3, ("127.0.0.1", 1), GetStatus()))
            await (await running.reach()).call(GetMeta(), 5)
            while not host.results or sum("reply" in e for e in host.events) < 2:
                await asyncio.sleep(0.001)
            assert running.agent.opened.storage.checkpoint("meta") == b"state"
            assert "reply 2 unavailable" in host.events and "reply 3 unavailable" in host.events

    run(test())


def test_missing_chunk_is_not_found(tmp_path: Path) -> None:
    """The shell serves chunks, with the errors of `storage`."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            link = await running.reach("node")
            with pytest.raises(Exception, match="there is no snapshot ab"):
                await link.call(FetchChunk("ab", "x", 0, 10), 5)

    run(test())


def test_an_agent_refuses_a_retired_incarnation(tmp_path: Path) -> None:
    """An incarnation that the meta state has retired cannot connect."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            hello = node_hello("node2", incarnation="old")
            context = client_context(identity("node2", "node"))
            with pytest.raises(Forbidden, match="was retired"):
                await dial(Recorder(hello), "127.0.0.1", running.agent.listener.port, context=context)

    run(test())


def test_broken_invariant_ends_the_agent_with_an_error(tmp_path: Path) -> None:
    """The agent answers nothing afterwards, and the exit code is not 0."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            link = await running.reach()
            running.host.broken = True
            with pytest.raises(OutcomeUnknown):
                await link.call(GetMeta(), 5)
            assert await running.task == 1
            assert "invariant_broken" in running.lines.getvalue()

    run(test())


def test_failed_sync_ends_the_agent_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent sends no reply for entries that may not be durable; the process ends."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            link = await running.reach()

            def fail() -> None:
                raise OSError(5, "Input/output error")

            monkeypatch.setattr(running.agent.opened.log, "sync", fail)
            with pytest.raises(OutcomeUnknown):
                await link.call(GetMeta(), 5)
            assert await running.task == 1
            assert "log_failed" in running.lines.getvalue()

    run(test())


def test_http_answers_health_ready_metrics(tmp_path: Path) -> None:
    """HTTP answers only these paths, and refuses POST."""

    async def ask(port: int, line: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{line}\r\nHost: x\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            port = running.agent.http_port
            assert b"200 OK" in await ask(port, "GET /health HTTP/1.1")
            assert b"active" in await ask(port, "GET /ready HTTP/1.1")
            metrics = await ask(port, "GET /metrics HTTP/1.1")
            assert b"nodeagent_log_syncs_total" in metrics and b"nodeagent_table_version 3.0" in metrics
            assert b" 404 " in await ask(port, "GET /secret HTTP/1.1")
            assert b" 405 " in await ask(port, "POST /health HTTP/1.1")
            assert b" 400 " in await ask(port, "nonsense")
            assert await ask(port, "GET /" + "x" * 20_000) == b""

    run(test())


def test_slow_http_sockets_block_no_probe_and_metrics_are_rendered_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that has been open longest without a request is aborted at once, without its timeout."""
    monkeypatch.setattr("nodeagent.runtime.http.REQUEST_TIMEOUT_S", 600.0)

    async def ask(port: int, path: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            port = running.agent.http_port
            slow = [
                await asyncio.open_connection("127.0.0.1", port) for _ in range(HTTP_CONNECTIONS_MAX + 10)
            ]
            assert b"200 OK" in await ask(port, "/health")
            async with asyncio.timeout(20):
                assert await slow[0][0].read() == b"", "the oldest was aborted"
            first, asked = await ask(port, "/metrics"), running.host.statuses
            assert [await ask(port, "/metrics") for _ in range(20)] == [first] * 20
            assert running.host.statuses == asked
            for _, writer in slow:
                writer.close()

    run(test())


def test_second_agent_on_a_directory_is_refused(tmp_path: Path) -> None:
    """The first agent continues; after it has stopped, the directory is free."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            with pytest.raises(Refused, match=f"in use by process {os.getpid()}"):
                Agent(tmp_path)
            assert await (await running.reach()).call(GetMeta(), 5) == Accepted(1)
        async with Running(tmp_path):
            pass

    run(test())


def test_missing_certificate_is_an_error_with_its_path(tmp_path: Path) -> None:
    """The error names the next step; the lock is free afterwards."""

    async def test() -> None:
        directory = prepare(tmp_path)
        (directory / "tls" / "node.pem").unlink()
        for _ in range(2):
            with pytest.raises(InvalidInput, match="cannot be read"):
                await Agent(directory, notes=EventLog(StringIO())).run()

    run(test())


@pytest.mark.parametrize(("polls", "complete"), [(3, "true"), (1 << 30, "false")])
def test_a_leaving_agent_transfers_leaderships_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, polls: int, complete: str
) -> None:
    """The agent stops once it leads nothing, or after `TRANSFER_S_MAX`, whichever is first."""
    monkeypatch.setattr("nodeagent.runtime.agent.TRANSFER_S_MAX", 0.2)

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            running.host.leads_left = polls
            running.agent.leave()
            assert await asyncio.wait_for(running.task, 5) == 0
            assert running.host.events.count("hand over") >= min(polls, 3)
            assert f'"complete":{complete}' in running.lines.getvalue()

    run(test())


@pytest.mark.real
def test_process_forms_a_cluster_of_one_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    """`nodeagent run DIR` as a process: ready, its directory locked, exit code 0."""
    directory = prepare(tmp_path, tls=False, seeds=(Seed("node1", "127.0.0.1", 1),))
    command = [sys.executable, "-m", "nodeagent"]
    process = subprocess.Popen([*command, "run", str(directory)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if '"event":"started"' in line:
                break
        busy = subprocess.run([*command, "log", "check", str(directory)], capture_output=True, text=True)
        assert busy.returncode == 5 and "in use by process" in busy.stderr
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, process.stderr.read()
    whole = subprocess.run([*command, "log", "check", str(directory)], capture_output=True, text=True)
    assert whole.returncode == 0 and "0 damaged" in whole.stdout


@pytest.mark.real
@pytest.mark.parametrize("which", [0, 1])
def test_an_agent_reports_an_address_in_use(tmp_path: Path, which: int) -> None:
    """The agent's log ends with the reason, which `cluster add-node` and `local up` show."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        directory = prepare(tmp_path, tls=False, ports=(port, 0) if which == 0 else (0, port))
        command = [sys.executable, "-m", "nodeagent", "run", str(directory)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 4 and "Traceback" not in ended.stderr, ended.stderr
    assert last.startswith("error: ") and str(port) in last and "address already in use" in last


def test_a_node_retired_while_connected_is_ignored(tmp_path: Path) -> None:
    """A process that was suspended resumes with its connections; its messages on them are ignored."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            link = await running.reach("node")
            link.send_raft([Routed("meta", Heartbeat(1, 0))])
            await link.call(GetMeta(), 5)
            assert link.peer is not None
            running.host.retired.add("i1")
            link.send_raft([Routed("meta", Heartbeat(1, 0))])
            with pytest.raises(NodeAgentError):
                await link.call(GetMeta(), 5)
            heard = [e for e in running.host.events if e.startswith(("raft", "request"))]
            assert heard == ["raft node2 1", "request GetMeta"]

    run(test())


def test_an_unknown_node_may_only_ask_for_admission_until_it_is_known(tmp_path: Path) -> None:
    """On one connection, an unknown node may send only `CheckStatus`, and everything once it is known. The
    refusal is not final, because this node may lag behind the others."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            running.host.unknown.add("i1")
            link = await running.reach("node")
            link.send_raft([Routed("meta", Heartbeat(1, 0))])
            with pytest.raises(Unavailable, match="does not know node.* as a member"):
                await link.call(GetMeta(), 5)
            with pytest.raises(Unavailable, match="does not know node.* as a member"):
                await link.call(FetchChunk("s", "n", 0, 1), 5)
            checked = CheckStatus("node2", "i1", "h", 1, 2, ClusterSettings("c"), (), True)
            await link.call(checked, 5)
            running.host.unknown.clear()
            link.send_raft([Routed("meta", Heartbeat(1, 0))])
            await link.call(GetMeta(), 5)
            heard = [e for e in running.host.events if e.startswith(("raft", "request"))]
            assert heard == ["request CheckStatus", "raft node2 1", "request GetMeta"]

    run(test())


def test_many_scans_of_a_reader_wait_for_each_other_but_not_an_operator_s(tmp_path: Path) -> None:
    """Every read ends, also the reads of a reader that has disconnected."""

    async def test() -> None:
        async with Running(prepare(tmp_path)) as running:
            running.host.keeps, driver = True, running.agent._driver
            reader, admin = await running.reach("reader"), await running.reach("admin")
            scan = ScanRows("g", "root", ScanSpec(SCHEMA))
            replies: list[Reply] = []
            for _ in range(50):
                reader.request(scan, 60, replies.append)
            while driver.reads_waiting < 50 - RUNNING_MAX["reader"]:
                await asyncio.sleep(0.01)
            assert running.host.events.count("request ScanRows") == RUNNING_MAX["reader"]
            admin.request(scan, 60, lambda _: None)
            while running.host.events.count("request ScanRows") == RUNNING_MAX["reader"]:
                await asyncio.sleep(0.01)
            running.host.keeps = False
            running.host.answer(running.host.batch)
            driver._wake()
            while len(replies) < 50:
                await asyncio.sleep(0.01)
            assert all(isinstance(r, Accepted) for r in replies) and not driver.reads_waiting

    run(test())

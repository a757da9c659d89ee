"""What a thousand nodes cost the leader of the meta group and a follower that relays to learners (heartbeats,
an entry), and `cluster status`.

The leader and one follower are the real `Host`, and every message is encoded and decoded as on the wire.
Their peers are simulated: they answer each Raft message at once, and `ARRIVE_TOGETHER` answers arrive in one
turn of the event loop. So sockets, TLS and the disk are not measured. Times are of the processor.
"""

import gc
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from iotctl.cli.views import status_tables
from iotctl.observe.collect import Facts
from iotctl.observe.status import build_status
from iotctl.output.table import Table
from iotctl.spec.cluster import load_cluster
from nodeagent.host.context import NodeRun
from nodeagent.host.host import Host
from nodeagent.host.opening import Held, open_host
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings, NodeConfig, RaftSettings, Seed
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.ids import META, NodeId
from nodeagent.model.jobs import Done
from nodeagent.model.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    RaftMessage,
    ReadRequest,
    RelayedAppend,
    RelayReport,
    Routed,
    VoteReply,
    VoteRequest,
)
from nodeagent.model.requests import (
    Drain,
    ErrorReply,
    GetMeta,
    GroupStatus,
    MetaView,
    NodeStatus,
    Reply,
    Request,
)
from nodeagent.raft.relay import share_of
from nodeagent.wire.codec import decode_raft, decode_reply, encode_raft, encode_reply
from nodeagent.wire.frames import Frame, FrameReader
from tests.bench.figures import Figure, Report, of
from tests.bench.images import NODES, SLOTS, large_image

VOTERS = 5
UNAVAILABLE = ErrorReply("unavailable", "this peer only answers Raft messages")
QUIET_S, ENTRIES = 10, 50
CONFIRM_EVERY_MS = 10_000
ARRIVE_TOGETHER = 64
"""While the leader sends an entry to a thousand nodes, hundreds of answers arrive."""

NEWS_MS = 2 * RaftSettings().commit_news_ms
BUSY_MAX, ENTRY_MS_MAX, STATUS_S_MAX = 20.0, 20.0, 3.0


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    cluster = ManyNodes()
    cluster.run_ms(5_000)
    gc.collect()
    gc.freeze()
    quiet = [cluster.measured(partial(cluster.run_ms, 1_000)) for _ in range(3 if quick else QUIET_S)]
    asked = []
    for n in range(5 if quick else ENTRIES):
        drain = Drain("node0001", n % 2 == 0, "bench")
        began = cluster.now
        spent = cluster.measured(partial(cluster.ask, drain))
        asked.append((spent, cluster.now - began))
    statuses = [_status_s(cluster) for _ in range(1 if quick else 3)]
    whole, changed = _views(cluster, 3 if quick else 10)
    figures = []
    for node, what in ((cluster.leader, "many"), (cluster.relay, "many: a relay")):
        busy = [spent[node] / 10 for spent in quiet]
        idle = sorted(busy)[len(busy) // 2] / 100
        entries = [spent[node] - ms * idle for spent, ms in asked]
        figures += [
            of(f"{what}: busy with heartbeats", busy, "%", ceiling=BUSY_MAX),
            of(f"{what}: one meta entry", entries, "ms", ceiling=ENTRY_MS_MAX),
        ]
    return Report(
        "many",
        f"{NODES} nodes, {SLOTS} slots, {VOTERS} voters of the meta group; processor time of its leader and "
        "of a follower that relays",
        (*figures, whole, changed, of("many: cluster status", statuses, "s", ceiling=STATUS_S_MAX)),
        time.monotonic() - started,
    )


def _views(cluster: "ManyNodes", times: int) -> tuple[Figure, Figure]:
    """Milliseconds of the leader for a view of the meta state, encoded: of all tables, and for a client that
    holds them."""
    view = cluster.ask(GetMeta(any_age=True))
    assert isinstance(view, MetaView)

    def figure(what: str, held: str) -> Figure:
        spent, size = [], 0
        for _ in range(times):
            asked = cluster.measured(partial(cluster.ask, GetMeta(any_age=True, held=held)))[cluster.leader]
            begun = time.process_time()
            size = len(bytes(encode_reply(1, cluster.replies[-1])))
            spent.append(asked + 1_000 * (time.process_time() - begun))
        return of(f"many: a view {what}", spent, "ms", details={"KiB": size / 1024})

    return figure("of all tables", ""), figure("for a client that holds the tables", view.schemas_digest)


def _status_s(cluster: "ManyNodes") -> float:
    """Seconds from `cluster.yaml` and the encoded answers of all nodes to the printed status."""
    encoded = [bytes(encode_reply(1, status)) for status in cluster.statuses()]
    view = bytes(encode_reply(1, cluster.ask(GetMeta(any_age=True))))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "cluster.yaml"
        path.write_text(_cluster_file(cluster.names))
        begun = time.process_time()
        source = load_cluster(path)
        answers = [decode_reply(_frame(answer)) for answer in encoded]
        statuses = {s.node: s for s in answers if isinstance(s, NodeStatus)}
        found = decode_reply(_frame(view))
        assert isinstance(found, MetaView)
        status = build_status(Facts(statuses, {}, found), source, now_ms=cluster.now)
        for part in status_tables(status):
            if isinstance(part, Table):
                part.render(wide=True)
        spent = time.process_time() - begun
    assert status.healthy and len(status.nodes) == NODES, status.problems[:3]
    return spent


def _cluster_file(names: list[NodeId]) -> str:
    nodes = "".join(f"  - {{name: {n}, host: 10.0.{i // 250}.{i % 250 + 1}}}\n" for i, n in enumerate(names))
    return (
        "apiVersion: iotctl/v1\nidentity: operator\n"
        f"cluster: {{name: c, slots: {SLOTS}, meta_voters: {VOTERS}}}\n"
        "defaults: {transport: ssh, port: 7000, http_port: 8000, data_dir: /d, install_dir: /i}\n"
        f"nodes:\n{nodes}"
    )


def _frame(encoded: bytes) -> Frame:
    (frame,) = FrameReader().feed(encoded)
    return frame


class RealNode:
    """A real host, and the processor time that it and the codec have spent (s)."""

    def __init__(self, node: NodeId, image: Image, members: Config, draw: random.Random) -> None:
        seeds = tuple(Seed(n, n, 1) for n in members.voters)
        settings = ClusterSettings("c", slots=SLOTS, meta_voters=VOTERS)
        config = NodeConfig(node, node, 1, 2, seeds, settings)
        saved = Saved(Base(1, 1, members), MetaState(image).encode())
        log = GroupLog(Base(1, 1, members), HardState(1), [])
        life = NodeRun(config, image.nodes[node].incarnation, draw, 0, 0, 0)
        self.host = open_host(life, Held({META: (log, msgspec.msgpack.encode(saved))}))
        self.node = node
        self.spent = 0.0
        self._readers = {n: FrameReader() for n in members.members}

    @contextmanager
    def timed(self) -> Iterator[Host]:
        begun = time.process_time()
        yield self.host
        self.spent += time.process_time() - begun

    def deliver(self, sender: NodeId, frame: bytes, now: int) -> None:
        with self.timed() as host:
            (received,) = self._readers[sender].feed(frame)
            host.on_raft(sender, decode_raft(received), now)


class Late(random.Random):
    """Of a node whose election timeout is the longest."""

    def random(self) -> float:
        return 0.99


class ManyNodes:
    """The leader of the meta group of a large cluster and a follower, at simulated times."""

    def __init__(self) -> None:
        self.image = image = large_image()
        self.names = names = list(image.nodes)
        self.leader, self.relay = names[:2]
        self.members = Config(tuple(names[:VOTERS]), tuple(names[VOTERS:]))
        self._real = {
            self.leader: RealNode(self.leader, image, self.members, random.Random(1)),
            self.relay: RealNode(self.relay, image, self.members, Late()),
        }
        self._shares = {n: share_of(n, self.leader, self.members) for n in names[2:VOTERS]}
        """The learners to which the simulated followers relay."""

        self._reported = dict.fromkeys(self._shares, 0)
        """When each of them last reported to the leader."""

        self.now = 0
        self._term = 0
        self._asked = 0
        self._arriving: deque[tuple[NodeId, NodeId, bytes]] = deque()
        """Frames with sender and receiver."""

        self.replies: list[Reply] = []

    def measured(self, work: Callable[[], object]) -> dict[NodeId, float]:
        """Milliseconds of processor time that each real node spends on `work`."""
        before = {n: real.spent for n, real in self._real.items()}
        work()
        return {n: (real.spent - before[n]) * 1000 for n, real in self._real.items()}

    def run_ms(self, ms: int) -> None:
        end = self.now + ms
        while self.now < end:
            due = min(real.host.deadline() for real in self._real.values())
            self.now = max(self.now + 1, min(end, due))
            self._ask_for_age()
            for real in self._real.values():
                with real.timed() as host:
                    host.tick(self.now, self.now)
            self._turns()

    def _ask_for_age(self) -> None:
        """Every node asks the leader how old its state is, one after the other."""
        due = self.now * NODES // CONFIRM_EVERY_MS
        for number in range(self._asked, due):
            node = self.names[number % NODES]
            if node not in self._real:
                self._send(node, self.leader, [ReadRequest(self._term, number)])
        self._asked = due

    def ask(self, request: Request) -> Reply:
        """Until the request is answered and every peer has what it led to; returns the reply."""
        count = len(self.replies)
        with self._real[self.leader].timed() as host:
            host.on_request(1, request, self.now, self.now)
        while len(self.replies) == count:
            self.run_ms(1)
        assert not isinstance(self.replies[-1], ErrorReply), self.replies[-1]
        self.run_ms(NEWS_MS)
        return self.replies[-1]

    def statuses(self) -> list[NodeStatus]:
        """What each node would answer: the leader itself, the others as healthy members of their groups."""
        own = self._real[self.leader].host.status.of_node(self.now, self.now)
        meta = next(g for g in own.groups if g.group == META)
        data = next(g for g in own.groups if g.group != META)
        groups: dict[NodeId, list[GroupStatus]] = {n: [replace(meta, role="follower")] for n in self.names}
        heard: dict[NodeId, dict[str, int]] = {n: {} for n in self.names}
        for record in self.image.groups.values():
            for member in record.members:
                role = "leader" if member == record.owner else "follower"
                seen = {"group": record.group, "leader": record.owner, "voters": record.members}
                groups[member].append(replace(data, role=role, lag={}, **seen))
                heard[member] |= dict.fromkeys(set(record.members) - {member}, 10)
        records = self.image.nodes
        others = [
            replace(
                own, node=n, groups=tuple(groups[n]), heard_ms=heard[n], incarnation=records[n].incarnation
            )
            for n in self.names[1:]
        ]
        groups_of_me = (meta, *groups[self.leader][1:])
        return [replace(own, groups=groups_of_me, heard_ms=own.heard_ms | heard[self.leader]), *others]

    def _turns(self) -> None:
        """Until the nodes have nothing more to do at this time."""
        while any([self._turn(real) for real in self._real.values()]) or self._arriving:
            for _ in range(min(ARRIVE_TOGETHER, len(self._arriving))):
                sender, to, frame = self._arriving.popleft()
                self._real[to].deliver(sender, frame, self.now)

    def _turn(self, real: RealNode) -> bool:
        """One turn of a node's event loop; returns whether it did anything."""
        with real.timed() as host:
            effects = host.take()
            frames = [(to, bytes(f)) for to, sent in effects.sends for f in encode_raft(sent)]
            if effects.persist is not None:
                host.on_persisted(effects.persist[0], self.now)
        for to, frame in frames:
            if to in self._real:
                self._arriving.append((real.node, to, frame))
            else:
                self._answer(to, real.node, frame)
        self.replies += [reply for _, reply in effects.replies]
        for number, _ in effects.jobs:
            host.on_job(number, Done(), self.now)
        for number, _, _ in effects.calls:
            host.on_reply(number, UNAVAILABLE, self.now)
        return bool(frames or effects.persist or effects.jobs or effects.calls)

    def _answer(self, peer: NodeId, node: NodeId, frame: bytes) -> None:
        """What a simulated peer replies to the node that sent it the frame."""
        messages = [r.message for r in decode_raft(_frame(frame)) if r.group == META]
        self._send(peer, node, [reply for message in messages for reply in self._replies(peer, message)])

    def _send(self, sender: NodeId, to: NodeId, messages: list[RaftMessage]) -> None:
        frames = encode_raft([Routed(META, m) for m in messages])
        self._arriving.extend((sender, to, bytes(frame)) for frame in frames)

    def _replies(self, peer: NodeId, message: RaftMessage) -> list[RaftMessage]:
        match message:
            case Heartbeat(term, commit, read, _):
                self._term = max(self._term, term)
                return [HeartbeatReply(term, read, self.now), *self._reports(peer, term, commit)]
            case AppendRequest() | RelayedAppend():
                end = message.prev_index + len(message.entries)
                read = message.read if isinstance(message, AppendRequest) else 0
                return [AppendReply(message.term, True, end, read=read, addition=message.addition)]
            case VoteRequest(term, _, _, pre):
                return [VoteReply(term, True, pre)]
            case _:
                return []

    def _reports(self, peer: NodeId, term: int, commit: int) -> list[RaftMessage]:
        """All learners of the follower's share keep up; it reports them once per heartbeat interval."""
        if peer not in self._shares or self.now - self._reported[peer] < RaftSettings().heartbeat_ms // 2:
            return []
        self._reported[peer] = self.now
        return [RelayReport(term, 1, dict.fromkeys(self._shares[peer], commit))]

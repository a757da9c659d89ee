"""What a thousand nodes cost the leader of the meta group (heartbeats, an entry), and `cluster status`.

The leader is the real `Host`, and every message is encoded and decoded as on the wire. Its peers are
simulated: they answer each Raft message at once, and `ARRIVE_TOGETHER` answers arrive in one turn of the
event loop. So sockets, TLS and the disk are not measured. Times are of the processor.
"""

import gc
import random
import tempfile
import time
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
from nodeagent.host.opening import Held, open_host
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
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
from nodeagent.wire.codec import decode_raft, decode_reply, encode_raft, encode_reply
from nodeagent.wire.frames import Frame, FrameReader
from tests.bench.figures import Report, of
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
    busy = [cluster.measured(partial(cluster.run_ms, 1_000)) / 10 for _ in range(3 if quick else QUIET_S)]
    idle = sorted(busy)[len(busy) // 2] / 100
    entries = []
    for n in range(5 if quick else ENTRIES):
        drain = Drain("node0001", n % 2 == 0, "bench")
        began = cluster.now
        spent = cluster.measured(partial(cluster.ask, drain))
        entries.append(spent - (cluster.now - began) * idle)
    statuses = [_status_s(cluster) for _ in range(1 if quick else 3)]
    return Report(
        "many",
        f"{NODES} nodes, {SLOTS} slots, {VOTERS} voters of the meta group; processor time of its leader",
        (
            of("many: busy with heartbeats", busy, "%", ceiling=BUSY_MAX),
            of("many: one meta entry", entries, "ms", ceiling=ENTRY_MS_MAX),
            of("many: cluster status", statuses, "s", ceiling=STATUS_S_MAX),
        ),
        time.monotonic() - started,
    )


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


class ManyNodes:
    """The leader of the meta group of a large cluster, at simulated times."""

    def __init__(self) -> None:
        image = large_image()
        self.image = image
        self.names = names = list(image.nodes)
        self.me = me = names[0]
        settings = ClusterSettings("c", slots=SLOTS, meta_voters=VOTERS)
        config = NodeConfig(me, me, 1, 2, tuple(Seed(n, n, 1) for n in names[:VOTERS]), settings)
        members = Config(tuple(names[:VOTERS]), tuple(names[VOTERS:]))
        saved = Saved(Base(1, 1, members), MetaState(image).encode())
        log = GroupLog(Base(1, 1, members), HardState(1), [])
        life = NodeRun(config, image.nodes[me].incarnation, random.Random(1), 0, 0, 0)
        self.host = open_host(life, Held({META: (log, msgspec.msgpack.encode(saved))}))
        self.now = 0
        self.spent = 0.0
        self._term = 0
        self._asked = 0
        self._arriving: list[tuple[NodeId, bytes]] = []
        self._readers = {n: FrameReader() for n in names}
        self.replies: list[Reply] = []

    def measured(self, work: Callable[[], object]) -> float:
        """Milliseconds of processor time that the host and the codec spend on `work`."""
        before = self.spent
        work()
        return (self.spent - before) * 1000

    def run_ms(self, ms: int) -> None:
        end = self.now + ms
        while self.now < end:
            self.now = max(self.now + 1, min(end, self.host.deadline()))
            self._ask_for_age()
            with self._timed():
                self.host.tick(self.now, self.now)
            self._turns()

    def _ask_for_age(self) -> None:
        """Every node asks the leader how old its state is, one after the other."""
        due = self.now * NODES // CONFIRM_EVERY_MS
        for number in range(self._asked, due):
            node = self.names[number % NODES]
            if node != self.me:
                frames = encode_raft([Routed(META, ReadRequest(self._term, number))])
                self._deliver([(node, bytes(f)) for f in frames])
        self._asked = due

    def ask(self, request: Request) -> Reply:
        """Until the request is answered and every peer has what it led to; returns the reply."""
        count = len(self.replies)
        with self._timed():
            self.host.on_request(1, request, self.now, self.now)
        while len(self.replies) == count:
            self.run_ms(1)
        assert not isinstance(self.replies[-1], ErrorReply), self.replies[-1]
        self.run_ms(NEWS_MS)
        return self.replies[-1]

    def statuses(self) -> list[NodeStatus]:
        """What each node would answer: the leader itself, the others as healthy members of their groups."""
        own = self.host.status.of_node(self.now, self.now)
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
        groups_of_me = (meta, *groups[self.me][1:])
        return [replace(own, groups=groups_of_me, heard_ms=own.heard_ms | heard[self.me]), *others]

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begun = time.process_time()
        yield
        self.spent += time.process_time() - begun

    def _turns(self) -> None:
        """Until the host has nothing more to do at this time."""
        while True:
            with self._timed():
                effects = self.host.take()
                frames = [(to, bytes(f)) for to, sent in effects.sends for f in encode_raft(sent)]
            answers = [(to, f) for to, frame in frames for f in self._answers(frame)]
            self.replies += [reply for _, reply in effects.replies]
            if effects.persist is not None:
                with self._timed():
                    self.host.on_persisted(effects.persist[0], self.now)
            for number, _ in effects.jobs:
                self.host.on_job(number, Done(), self.now)
            for number, _, _ in effects.calls:
                self.host.on_reply(number, UNAVAILABLE, self.now)
            self._arriving += answers
            arrived, self._arriving = self._arriving[:ARRIVE_TOGETHER], self._arriving[ARRIVE_TOGETHER:]
            self._deliver(arrived)
            if not (arrived or effects.persist or effects.jobs or effects.calls):
                return

    def _deliver(self, frames: list[tuple[NodeId, bytes]]) -> None:
        with self._timed():
            for sender, frame in frames:
                (received,) = self._readers[sender].feed(frame)
                self.host.on_raft(sender, decode_raft(received), self.now)

    def _answers(self, frame: bytes) -> list[bytes]:
        """What the peer that received the frame replies."""
        found = [(r.group, self._answer(r.message)) for r in decode_raft(_frame(frame))]
        return [bytes(f) for f in encode_raft([Routed(g, m) for g, m in found if m is not None])]

    def _answer(self, message: RaftMessage) -> RaftMessage | None:
        match message:
            case Heartbeat(term, _, read, _):
                self._term = max(self._term, term)
                return HeartbeatReply(term, read, self.now)
            case AppendRequest():
                end = message.prev_index + len(message.entries)
                return AppendReply(message.term, True, end, read=message.read, addition=message.addition)
            case VoteRequest(term, _, _, pre):
                return VoteReply(term, True, pre)
            case _:
                return None

"""Whatever a peer with a valid certificate sends, no node ends and no group stops."""

import random
from collections import Counter
from collections.abc import Callable
from typing import get_args

import msgspec
import pyarrow as pa

from nodeagent.meta import commands as meta
from nodeagent.model import requests as q
from nodeagent.model.errors import FrameError
from nodeagent.model.files import FileMeta, FileRef, ScanSpec
from nodeagent.model.ids import META, PartitionKey
from nodeagent.model.operation import CopyRecord, Options, SealResult
from nodeagent.model.raft_messages import RaftMessage, Routed
from nodeagent.model.requests import Reply, Request
from nodeagent.partition.hash import slot_of
from nodeagent.table import arrow
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT
from nodeagent.testing.workload import schema_of
from nodeagent.wire import codec
from nodeagent.wire.frames import NUMBERED_HEAD, Frame, FrameReader, Kind
from tests.extremes import Extremes

ROLES = ("node", "admin", "reader", "guest")
REQUESTS = 4_000


def frame_of(plain: object) -> Frame:
    body = msgspec.msgpack.encode(plain)
    head = NUMBERED_HEAD.pack(len(body) + 9, Kind.REQUEST, 1)
    (frame,) = FrameReader().feed(head + body)
    return frame


class Fuzz:
    def __init__(self, seed: int) -> None:
        self.scenario = Scenario(seed)
        self.scenario.form()
        self.scenario.schemas()
        self.scenario.sim.pause(1_500)
        self.rng = random.Random(seed)
        self.sim = self.scenario.sim
        self.nodes = [n for n in self.sim.nodes.values() if n.alive]
        self.groups = sorted({g for n in self.nodes for g in n.host.replicas.data})
        self.outcomes: Counter[str] = Counter()
        words = (
            *self.groups,
            META,
            "node1",
            "node2",
            self.scenario.newcomers[0],
            "root.g0",
            "t",
            "v",
            "op-9",
        )
        self.extremes = Extremes(self.rng, words)
        self.sessions = {g: self.open(g) for g in self.groups}

    def leader(self, group: str) -> SimNode:
        def leading() -> list[SimNode]:
            return [n for n in self.nodes if (r := n.host.replicas.of(group)) is not None and r.leads]

        assert self.sim.run(lambda: bool(leading()), 10_000), f"no node leads {group}"
        return leading()[0]

    def open(self, group: str) -> str:
        got: list[Reply] = []
        self.leader(group).serve(CLIENT, q.OpenSession(group), got.append)
        assert self.sim.run(lambda: bool(got), 5_000)
        assert isinstance(got[0], q.SessionOpened), got[0]
        return got[0].session

    def good(self) -> list[Request]:
        """At least one good request of every kind."""
        settings = self.nodes[0].host.cluster.meta.image.settings
        assert settings is not None
        schema = schema_of("root.g0")
        key = PartitionKey("root.g0", 0, 0)
        slot = slot_of(key.storage_group, key.time_partition, key.shard, settings)
        group = next(g for g in self.groups if slot in self.leader(g).host.replicas.data[g].state.slots.open)
        session = self.sessions[group]
        ipc = arrow.encode(pa.table({"time": [1, 2], "device": ["a", None], "v": [1, 2]}))
        operations = self.nodes[0].host.cluster.meta.image.operations
        op = operations[-1].id if operations else "op-9"
        file = FileMeta("f", slot, key, schema.table, (5,), 9, "0" * 32, 1, 0, 1, (1, 1, 1))
        evidence: tuple[meta.Command, ...] = (
            *(
                meta.MetaReady(1, op),
                meta.GroupReady(1, op, group),
                meta.ReportError(1, op, "no"),
            ),
            *(meta.UnsealedBy(1, op, group), meta.SourceReady(1, op, group, "node1")),
            *(meta.OpenedBy(1, op, group, 5), meta.FormedBy(1, op, group, 5, ("node1",))),
            meta.Copied(1, op, CopyRecord(group, "node1", "i", ((0, 1),), "d", 1, 1)),
            *(meta.AdoptedBy(1, op, group, 5), meta.ReleasedBy(1, op, group, 5)),
            meta.SealedBy(1, op, SealResult(group, 5, b"")),
            *(meta.JoinReady(1, op, group, "node1"), meta.RecoveryCompleted(1, group, op)),
        )
        plain = [msgspec.msgpack.encode(self.extremes.mutated(e, self.rng.choice((1, 2)))) for e in evidence]
        newcomer = self.scenario.newcomers[0]
        first = q.Write(group, slot, key, schema.table, 1, session, self.rng.randint(1, 99), 0, 1, ipc)
        delete = q.DeleteRows(group, slot, key, schema.table, session, 5, 0, (), 0, 9, 1)
        return [
            *(first, first, first, delete, delete, delete),
            q.CheckStatus("node1", "i", "h", 1, 2, settings, (), False),
            *(q.GetMeta(), q.GetMeta(True), q.GetRuns("r"), q.PutSchema(schema, 5), q.PutSchema(schema)),
            q.GetAudit(),
            q.BeginChange("add-node", newcomer, "x", Options(), None, "h", 1, 2, "i"),
            q.BeginChange("rebalance", "", "x", gains=(("node1", ((0, 2),)),)),
            *(
                q.ControlOperation(op, verb, "x")
                for verb in ("go", "pause", "lease", "set", "dead", "cancel")
            ),
            *(q.TakeLock("o", "w", "x", 1_000), q.DropLock(1, "x", "o"), q.SetFailpoints(())),
            *(q.RecordRun("r", "n", 0, b"e", 1, "x"), q.Drain("node2", True, "x")),
            q.SetZones({"node1": "a", "node2": "b"}, "x"),
            q.ForceRecover(("node2",), (q.RecoveryLeader(group, "node1", 9),), 1, "x"),
            *(q.Forward(p) for p in plain),
            *(q.ProbeGroup(group), q.ProbeGroup(META), q.OpenSession(group), q.Propose(group, (b"x",))),
            *(q.ScanRows(group, "root.g0", ScanSpec(schema), read) for read in ("strong", "weak")),
            *(q.ListPartitions(group), q.GetManifest(group), q.GetWriteRates(group), q.CloseAll(group)),
            *(q.CheckFiles(group), q.RepairFile(group, file, (FileRef("node1", "s", "f", 9, "0" * 32),))),
            *(q.ExportFiles(group, ((slot, slot + 1),)), q.OpenSource(op, group, ((slot, slot + 1),))),
            q.PullUnit(op, group, ((slot, slot + 1),)),
        ]

    def send(self, plain: object) -> None:
        """Send it to the leader of its group, as a peer of each role that may send it."""
        try:
            request = codec.decode_request(frame_of(plain))
        except FrameError:
            self.outcomes["refused at decode"] += 1
            return
        if isinstance(request, q.OfShell):
            return
        group = getattr(request, "group", META)
        node = self.leader(group if group in self.groups else META)
        for role in ROLES:
            if role in request.traits.by:
                node.serve("node1" if role == "node" else CLIENT, request, self._count(request))
                break

    def _count(self, request: Request) -> Callable[[Reply], None]:
        def answered(reply: Reply) -> None:
            kind = reply.code if isinstance(reply, q.ErrorReply) else "done"
            self.outcomes[kind] += 1
            codec.encode_reply(1, reply)
            if isinstance(request, q.SetFailpoints):  # no test would ever clear them
                for node in self.nodes:
                    node.host.operations.failpoints.set(())

        return answered

    def check_alive(self) -> None:
        """Check that every group commits, before and after all nodes restart from their disks."""
        for _ in range(2):
            for group in self.groups:
                self.scenario.until(lambda g=group: self._commits(g), f"{group} commits", 20_000)  # type: ignore[misc]
            self.scenario.until(lambda: self._commits(META), "the meta group commits", 20_000)
            for node in self.nodes:
                assert node.alive and not node.host.replicas.damaged
                node.stop(power=False)
            for node in self.nodes:
                node.start()

    def _commits(self, group: str) -> bool:
        got: list[Reply] = []
        request: Request = q.PutSchema(schema_of("root.g0")) if group == META else q.OpenSession(group)
        for node in self.nodes:
            replica = node.host.replicas.of(group)
            if replica is not None and replica.leads:
                node.serve(CLIENT, request, got.append)
        return self.sim.run(lambda: bool(got), 1_000) and isinstance(
            got[0], q.SchemaInForce | q.SessionOpened
        )


def test_no_request_stops_a_node_or_a_group() -> None:
    """Good requests of all kinds with extreme values in them, and messages of nothing but such values. Each
    is answered, those out of range by name; the simulator fails when one runs into an exception."""
    fuzz = Fuzz(1)
    kinds = get_args(Request)
    for number in range(REQUESTS):
        good = fuzz.rng.choice(fuzz.good()) if number % 3 else None
        if good is None:
            fuzz.send(fuzz.extremes.make(fuzz.rng.choice(kinds)))
        else:
            fuzz.send(fuzz.extremes.mutated(good, fuzz.rng.choice((0, 1, 1, 2))))
        if number % 20 == 0:
            fuzz.sim.pause(30)
    assert fuzz.outcomes["done"] > 200 and fuzz.outcomes["refused at decode"] > 200, fuzz.outcomes
    fuzz.check_alive()


def test_no_raft_message_out_of_range_is_decoded() -> None:
    """A term or an index that leaves no room for later ones is refused with its frame."""
    rng = random.Random(2)
    extremes = Extremes(rng, ("meta",))
    taken = 0
    for _ in range(3_000):
        body = msgspec.msgpack.encode([["meta", extremes.make(rng.choice(get_args(RaftMessage)))]])
        try:
            (routed,) = codec.decode_raft(Frame(Kind.RAFT, 0, memoryview(body)))
        except FrameError:
            continue
        taken += 1
        assert isinstance(routed, Routed) and 0 <= routed.message.term <= 1 << 48
        assert isinstance(msgspec.msgpack.encode(routed), bytes)
    assert taken > 100

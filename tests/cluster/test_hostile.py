"""Invalid input, wrong identities, lost majorities: each gets a clear error, and the nodes continue to
serve."""

import asyncio
import json
import os
import random
import signal
import socket
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import get_args

import msgspec
import pyarrow as pa
import pytest

from iotctl.change.lock import kept
from iotctl.demo.generate import EPOCH_MS, TABLE, TAG, storage_group_name
from nodeagent.client.identity import create_authority, identity_in, issue, read_authority, write_identity
from nodeagent.model.errors import Forbidden, NotFound, SchemaMismatch
from nodeagent.model.features import SPOKEN
from nodeagent.model.ids import PartitionKey
from nodeagent.model.limits import FRAME_BYTES_MAX
from nodeagent.model.operation import Stage
from nodeagent.model.requests import (
    BeginChange,
    DeleteRows,
    Drain,
    ErrorReply,
    ForceRecover,
    GetStatus,
    Hello,
    PutSchema,
    Reply,
    Request,
    SetFailpoints,
    Write,
)
from nodeagent.transport.endpoints import dial
from nodeagent.transport.tls import Identity, client_context
from nodeagent.wire.frames import HEAD, NUMBERED_HEAD, PROTOCOL, Kind
from tests.cluster.conftest import MakeWorld
from tests.cluster.world import World
from tests.extremes import Extremes
from tests.runtime.links import Recorder
from tests.waiting import until

pytestmark = pytest.mark.real

GROUP = storage_group_name(0)


@pytest.fixture(scope="module")
def world(make_world: MakeWorld) -> World:
    return make_world("hostile")


def _serves(world: World, name: str) -> None:
    """Check that the same process still answers and that its groups run."""
    pid, status = world.pid(name), world.statuses().get(name)
    assert status is not None and world.pid(name) == pid
    assert all(g.state == "running" for g in status.groups)


def _port(world: World, name: str) -> int:
    return next(n.port for n in world.fleet.nodes() if n.name == name)


def _pem(identity: Identity) -> Identity:
    return Identity(*(Path(getattr(identity, f)).read_text() for f in ("cert", "key", "ca")))


def _dial(world: World, hello: Hello, identity: Identity) -> None:
    """Connect to node1 with `hello`; raises the error that the node returns."""

    async def connect() -> None:
        context = client_context(identity)
        connection = await dial(Recorder(hello), "127.0.0.1", _port(world, "node1"), context=context)
        connection.close()

    asyncio.run(asyncio.wait_for(connect(), 20))


# --- input from the network --------------------------------------------------------------------------


def test_random_bytes_on_the_port_end_that_connection_only(world: World) -> None:
    """Neither plain random bytes nor random bytes inside TLS affect the node."""
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", _port(world, "node1")), timeout=10) as link:
            link.sendall(os.urandom(65_536))
            link.shutdown(socket.SHUT_WR)
            _drain(link)
    with _secure(world) as link:
        link.sendall(os.urandom(4_096))
        _drain(link)
    _serves(world, "node1")


def test_an_oversized_frame_is_refused_by_its_announced_length(world: World) -> None:
    """This holds before and after the hello: nothing is allocated, and the error names the limit."""
    with _secure(world) as link:
        link.sendall(HEAD.pack(FRAME_BYTES_MAX + 2, Kind.REQUEST))
        assert b"the peer announced a frame of" in _drain(link)
    with _secure(world) as link:
        hello = msgspec.msgpack.encode(Hello(PROTOCOL, "admin", _operator(world)))
        link.sendall(HEAD.pack(len(hello) + 1, Kind.HELLO) + hello)
        assert link.recv(4_096), "no hello was received"
        link.sendall(HEAD.pack(FRAME_BYTES_MAX + 2, Kind.REQUEST))
        assert b"the peer announced a frame of" in _drain(link)
    _serves(world, "node1")


def _operator(world: World) -> str:
    from nodeagent.client.identity import certificate_facts

    return certificate_facts((world.fleet.directory / "operator" / "node.pem").read_text()).name


def _secure(world: World) -> ssl.SSLSocket:
    """A TLS connection to node1 as the operator, without any hello."""
    plain = socket.create_connection(("127.0.0.1", _port(world, "node1")), timeout=10)
    identity = identity_in(world.fleet.directory / "operator")
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=identity.ca)
    context.check_hostname = False
    context.load_cert_chain(identity.cert, identity.key)
    return context.wrap_socket(plain)


def _drain(link: socket.socket) -> bytes:
    """Receive everything until the node closes the connection."""
    said = b""
    try:
        while chunk := link.recv(65_536):
            said += chunk
    except (ConnectionError, ssl.SSLError):
        pass
    return said


def test_a_certificate_of_another_authority_is_refused(world: World, tmp_path: Path) -> None:
    """Exit 4 with a message about the certificate, not about an unreachable node."""
    other = create_authority("elsewhere")
    write_identity(tmp_path / "other", issue(other, "mallory", "admin"), other.cert)
    said = world.iotctl(
        "data", "count", "--identity", str(tmp_path / "other"), "--timeout", "5s", "-o", "json"
    )
    assert said.code == 4, said.out + said.err
    error = json.loads(said.out)["error"]
    assert "certificate" in error["what"] + error["why"], error
    _serves(world, "node1")


def test_a_name_that_differs_from_the_certificate_is_refused(world: World) -> None:
    """The certificate determines the identity of a peer."""
    hello = Hello(PROTOCOL, "node", "node2", "i1", "")
    with pytest.raises(Forbidden, match="its certificate says admin"):
        _dial(world, hello, identity_in(world.fleet.directory / "operator"))
    _serves(world, "node1")


def test_another_cluster_s_id_is_refused(world: World) -> None:
    """The error names both clusters."""
    hello = Hello(PROTOCOL, "admin", _operator(world), "", "another-cluster")
    with pytest.raises(Forbidden, match="belongs to cluster another-cluster"):
        _dial(world, hello, identity_in(world.fleet.directory / "operator"))
    _serves(world, "node1")


@pytest.mark.parametrize("role", ["node", "admin", "reader"])
def test_no_request_with_extreme_values_ends_a_node(world: World, role: str) -> None:
    """Hundreds of requests on one connection each get a reply, and every node and group continues.

    The peer with the role `node` is not a member: few of its requests are allowed, but all are decoded.
    """
    rng = random.Random(role)
    groups = tuple(g.group for g in world.cluster.meta().groups)
    extremes = Extremes(rng, (*groups, "meta", "node1", GROUP, TABLE, TAG))
    key = PartitionKey(GROUP, 0, 0)
    write = Write(groups[0], 1, key, TABLE, 1, "s", 1, 0, 1, b"")
    delete = DeleteRows(groups[0], 1, key, TABLE, "s", 1, 0, (), 0, 1)
    refused = (ForceRecover, BeginChange, SetFailpoints, PutSchema, Drain)  # these affect the whole cluster
    kinds = [k for k in get_args(Request) if k not in refused]
    plain = [extremes.make(rng.choice(kinds)) for _ in range(150)]
    plain += [extremes.mutated(rng.choice((write, delete)), rng.choice((1, 2))) for _ in range(150)]

    async def ask(node: str) -> Counter[str]:
        identity = _issued(world, "eve", role)
        incarnation = "i" if role == "node" else ""
        hello = Hello(PROTOCOL, role, "eve", incarnation, newest_level=SPOKEN.newest)
        port = _port(world, node)
        link = await dial(Recorder(hello), "127.0.0.1", port, context=client_context(identity))
        replies: list[Reply] = []
        for message in plain:
            link.request(GetStatus(), 30, replies.append)
            body = msgspec.msgpack.encode(message)
            head = NUMBERED_HEAD.pack(9 + len(body), Kind.REQUEST, link._pending.next_number - 1)
            link._outbox._queue[-1] = head + body
            await asyncio.sleep(0)
        while len(replies) < len(plain):
            await asyncio.sleep(0.02)
        assert link.is_open, link._error
        link.close()
        return Counter(r.code if isinstance(r, ErrorReply) else "done" for r in replies)

    for node in ("node1", "node2"):
        codes = asyncio.run(asyncio.wait_for(ask(node), 60))
        assert codes["invalid_input"] > 50 and not codes["error"] and not codes["outcome_unknown"], codes
        _serves(world, node)
    world.wait_healthy()
    held, _ = kept(world.cluster)  # one of the requests may have taken the lock
    if held is not None:
        unlocked = world.iotctl("ops", "unlock", str(held.serial), "--yes")
        assert unlocked.code == 0, unlocked.err


def _issued(world: World, name: str, role: str) -> Identity:
    authority = read_authority(world.fleet.directory / "authority")
    pair = issue(authority, name, role, days=1)
    return Identity(pair.cert, pair.key, authority.cert)


# --- input from operators ----------------------------------------------------------------------------


def test_an_unknown_table_is_named(world: World) -> None:
    """The query is refused and names the table."""
    with pytest.raises(NotFound, match="nope"):
        world.cluster.scan(GROUP, "nope")
    said = world.iotctl("data", "query", "--storage-group", GROUP, "--table", "nope", "-o", "json")
    assert said.code == 5 and "nope" in said.json["error"]["what"]


def test_a_value_of_another_type_is_a_mismatch(world: World) -> None:
    """The error names the column and both types; no row of the batch is written."""
    before = world.rows()
    rows = pa.table({"time": [EPOCH_MS + 1], TAG: ["d-new"], "pressure": ["high"]})
    with pytest.raises(SchemaMismatch, match="pressure"):
        world.cluster.write(GROUP, TABLE, rows, tags=[TAG])
    assert world.rows() == before


def test_invalid_csv_rows_are_reported_by_line(world: World, tmp_path: Path) -> None:
    """Exit 3 with the line and no import; `--on-error skip` imports the other rows and warns of each skipped
    one."""
    file = tmp_path / "readings.csv"
    file.write_text("time,device,value\n1,a,1.5\nsoon,a,2.5\n3,a,much\n4,a,4.5\n")
    words = ("data", "import", str(file), "--storage-group", "root.csv", "--table", "t", "--tag", "device")
    typed = (*words, "--type", "value=DOUBLE")
    said = world.iotctl(*typed, "-o", "json")
    assert said.code == 3
    assert "readings.csv:3" in said.json["error"]["where"], said.json
    assert not [t for t in world.cluster.count("root.csv") if t["rows"]]
    skipped = world.iotctl(*typed, "--on-error", "skip", "-o", "json")
    assert skipped.code == 0, skipped.err
    assert "readings.csv:3" in skipped.err and "readings.csv:4" in skipped.err
    assert [t["rows"] for t in world.cluster.count("root.csv")] == [2]


# --- exit codes in real situations -------------------------------------------------------------------


def test_exit_codes_of_requests_that_change_nothing(world: World, tmp_path: Path) -> None:
    """2: usage; 3: no cluster file; 5: not confirmed, stale plan; 8: pending changes."""
    assert world.iotctl("cluster", "nonsense").code == 2
    assert world.iotctl("cluster", "status", "--cluster", str(tmp_path / "none.yaml")).code == 3
    refused = world.iotctl("cluster", "remove-node", "node1", "-o", "json")
    assert refused.code == 5 and "--yes" in refused.json["error"]["next"]
    plan = tmp_path / "plan.yaml"
    saved = world.iotctl("plan", "remove-node", "node1", "--out", str(plan), "--detailed-exitcode")
    assert saved.code == 8, saved.err
    version = world.cluster.meta().table_version
    plan.write_text(plan.read_text().replace(f"table_version: {version}", f"table_version: {version - 1}"))
    stale = world.iotctl("apply", str(plan), "--yes", "-o", "json")
    assert stale.code == 5 and "table" in stale.json["error"]["what"] + stale.json["error"]["why"]
    assert world.cluster.meta().table_version == version


def test_a_write_with_an_unknown_outcome_exits_with_9(world: World) -> None:
    """Its leader accepted it and lost contact with the other members; later it exists at most once."""
    group = world.group_of("node1")
    meta = world.manifest("node1", group)[0]
    leader = world.leader(group)
    others = [n for n in world.members()["node1"] if n != leader]
    device, at = "d-unknown", meta.time_min + 11
    words = ["data", "write", "pressure=1.0", "--storage-group", meta.partition.storage_group]
    words += [
        "--table",
        TABLE,
        "--time",
        str(at),
        "--tag",
        f"{TAG}={device}",
        "--timeout",
        "4s",
        "-o",
        "json",
    ]
    client = world.connect()
    before = pa.table({"time": [at - 1], TAG: [device], "pressure": [0.0]})
    client.write(meta.partition.storage_group, TABLE, before, tags=[TAG])  # opens the session
    with world.frozen(others):
        said = world.iotctl(*words, client=client)
    assert said.code == 9, said.out + said.err
    error = said.json["error"]
    assert error["outcome"] == "unknown" and error["next"]
    world.wait_healthy()
    found = world.cluster.scan(
        meta.partition.storage_group, TABLE, tags={TAG: device}, time_from=at, time_to=at
    )
    assert found.num_rows in (0, 1)


# --- outages ---------------------------------------------------------------------------------------


def test_sigterm_ends_agents_cleanly_and_a_restart_of_all_keeps_every_row(world: World) -> None:
    """This includes the last row, which exists only in the log."""
    at = EPOCH_MS + 13
    world.cluster.write(
        GROUP, TABLE, pa.table({"time": [at], TAG: ["d-last"], "pressure": [2.0]}), tags=[TAG]
    )
    rows = world.rows()
    pids = {n.name: world.pid(n.name) for n in world.fleet.nodes()}
    for pid in pids.values():
        os.kill(pid, signal.SIGTERM)
    for name, pid in pids.items():
        until(lambda p=pid: not _is_running(p), 20.0, lambda n=name: f"{n} ignores SIGTERM")  # type: ignore[misc]
        tail = world.fleet.log_tail(name, 1)
        assert '"event":"stopped"' in tail and '"exit_code":0' in tail, tail
    world.up()
    assert world.rows() == rows
    found = world.cluster.scan(GROUP, TABLE, tags={TAG: "d-last"}, time_from=at, time_to=at)
    assert found.column("pressure").to_pylist() == [2.0]


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_status_names_lost_groups_with_three_of_five_nodes_killed(world: World) -> None:
    """Within 5 s: exit 4, every group without quorum and every node to start; starting them restores the
    groups."""
    rows = world.rows()
    dead = ["node1", "node2", "node3"]
    for name in dead:
        assert world.fleet.kill(name)
    try:
        began = time.monotonic()
        said = world.iotctl("cluster", "status", "-o", "json")
        took = time.monotonic() - began
    finally:
        world.fleet.start()
    assert said.code == 4, said.err
    assert took <= 5.0
    status = said.json
    lost = {h for h, members in RING.items() if len(set(members) & set(dead)) >= 2}
    assert {g.partition(".")[0] for g in status["lost_groups"]} - {"meta"} == lost
    assert not status["quorum"] and not status["healthy"]
    assert sorted(status["start_nodes"]) == dead
    reachable = {n["id"]: n["reachable"] for n in status["nodes"]}
    assert reachable == {n: n not in dead for n in RING}
    assert any(p["code"] == "quorum_lost" and p["group"] == "meta" for p in status["problems"])
    world.up()
    assert world.rows() == rows


RING = {
    "node1": ("node1", "node2", "node3"),
    "node2": ("node2", "node3", "node4"),
    "node3": ("node3", "node4", "node5"),
    "node4": ("node4", "node5", "node1"),
    "node5": ("node5", "node1", "node2"),
}


def test_a_wait_timeout_exits_with_6_and_a_second_change_with_10(world: World) -> None:
    """The operation continues, the error of the second change names it, and it completes."""
    began = world.iotctl(
        "cluster", "add-node", "node6", "--yes", "--rate", "2KB/s", "--timeout", "2s", "-o", "json"
    )
    assert began.code == 6, began.out + began.err
    assert "iotctl cluster wait --for op=" in began.json["error"]["next"]
    operation = world.open_operation()
    second = world.iotctl("cluster", "add-node", "node7", "--yes", "-o", "json")
    assert second.code == 10, second.out + second.err
    assert operation.id in second.json["error"]["what"] + second.json["error"]["why"], second.json
    assert world.iotctl("ops", "set", operation.id, "--rate", "200MB/s").code == 0
    world.wait_stage(operation.id, Stage.DONE, 120.0)

"""`RecoverMeta` on one node: when it is refused, and what becomes durable at once."""

import msgspec
import pytest

from nodeagent.host.handlers.changes import SILENT_TIMEOUTS
from nodeagent.host.host import Host
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
from nodeagent.meta import commands
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Append, Base, Config, EntryKind, HardState, SetHard
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.ids import META
from nodeagent.model.raft_messages import Heartbeat
from nodeagent.model.requests import ErrorReply, NodeRecord, RecoverMeta
from tests.host.opened import opened
from tests.host.test_host import CONFIG, ME, run_out

LATE = SILENT_TIMEOUTS * CONFIG.raft.election_timeout_ms
ALL = Config(("a", "b", "c"), ("d",))
LOST = RecoverMeta(("b", "c"), 40, 5, 1, "ann")


def host_of(config: Config = ALL, level: int = Feature.META_RECOVERY) -> Host:
    nodes = {n: NodeRecord(n, n, 1, 2, f"i-{n}", i) for i, n in enumerate("abcd")}
    image = Image(cluster_id="c", applied=5, settings=CONFIG.cluster, nodes=nodes, level=level)
    saved = Saved(Base(5, 1, config), MetaState(image).encode(), group=META, owner=ME)
    log = GroupLog(Base(5, 1, config), HardState(1), [])
    return opened(CONFIG, {META: (log, msgspec.msgpack.encode(saved))})


def refused(host: Host, request: RecoverMeta, text: str, now: int = LATE) -> None:
    host.tick(now, now)
    run_out(host, now)
    host.on_request(1, request, now, 0)
    reply = run_out(host, now)[1]
    assert isinstance(reply, ErrorReply) and "was not recovered" in reply.what, reply
    assert text in f"{reply.what} {reply.next_step}", reply
    replica = host.cluster.meta_replica
    assert replica is not None and not replica.leads and replica.raft.log.last_index == 5


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"last": 4}, "ends at entry 5 of term 1 now"),
        ({"last_term": 2}, "ends at entry 5 of term 1 now"),
        ({"nodes": ("b",)}, "a majority without b"),
        ({"nodes": ("b", "x")}, "no node x"),
        ({"nodes": ()}, "no lost node is named"),
        ({"nodes": ("a", "b")}, "a is not lost: it answers"),
    ],
)
def test_what_the_caller_did_not_see_is_refused(change: dict[str, object], text: str) -> None:
    refused(host_of(), msgspec.structs.replace(LOST, **change), text)


def test_a_cluster_of_the_first_level_has_no_such_entry() -> None:
    refused(host_of(level=FIRST), LOST, f"feature level {Feature.META_RECOVERY}")


def test_a_node_that_was_heard_lately_is_not_lost() -> None:
    host = host_of()
    host.on_raft("c", [], LATE - 1)
    refused(host, LOST, "c is not lost: a heard from it 1 ms ago")


def test_a_node_that_hears_a_leader_does_not_take_its_place() -> None:
    host = host_of()
    replica = host.cluster.meta_replica
    assert replica is not None
    host.tick(LATE, LATE)
    replica.step("b", Heartbeat(50, 5))
    run_out(host, LATE)
    host.on_request(1, LOST, LATE, 0)
    reply = run_out(host, LATE)[1]
    assert isinstance(reply, ErrorReply) and "hears leader b" in reply.what


@pytest.mark.parametrize(
    ("me", "config", "expected"),
    [
        ("a voter", ALL, Config(("a",), ("d",))),
        ("an observer", Config(("b", "c"), ("a", "d")), Config(("a",), ("d",))),
        ("two voters", Config(("b", "c", "d", "a")), Config(("a", "d"))),
    ],
)
def test_config_and_retirement_are_durable_together(me: str, config: Config, expected: Config) -> None:
    host = host_of(config)
    host.tick(LATE, LATE)
    run_out(host, LATE)
    host.on_request(1, LOST, LATE, 7_000)
    persist = host.take().persist
    assert persist is not None, me
    ops = persist[1]
    hard = [op.hard for op in ops if isinstance(op, SetHard)]
    assert hard[-1].term >= 40 and hard[-1].vote == "a"
    entries = [e for op in ops if isinstance(op, Append) for e in op.entries]
    replica = host.cluster.meta_replica
    assert replica is not None and replica.raft.log.config == expected
    logged = [commands.decode(e.data) for e in entries if e.kind == EntryKind.COMMAND]
    assert logged == [commands.RecoverMeta(7_000, ("b", "c"), "a", "ann")]


def test_many_uncommitted_bytes_do_not_separate_the_config_from_the_retirement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nodeagent.raft.leader.UNCOMMITTED_BYTES_MAX", 0)
    host = host_of()
    host.tick(LATE, LATE)
    run_out(host, LATE)
    host.on_request(1, LOST, LATE, 7_000)
    persist = host.take().persist
    assert persist is not None
    entries = [e for op in persist[1] if isinstance(op, Append) for e in op.entries]
    assert [e.kind for e in entries][-2:] == [EntryKind.COMMAND, EntryKind.CONFIG]

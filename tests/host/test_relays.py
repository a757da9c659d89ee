"""When a node relays entries of the meta group, and what its leader learns from the reports of relays."""

import msgspec
import pytest

from nodeagent.host.host import Host
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.ids import META, Owner
from nodeagent.model.raft_messages import RelayReport, Routed
from nodeagent.raft import Raft
from nodeagent.testing.node import configs
from tests.host.opened import opened

CONFIG = configs(["a", "b", "c"], ClusterSettings("t", slots=10), 3)[0]
BASE = Base(5, 1, Config(("a", "b", "c")))


def host_at(level: int) -> tuple[Host, Raft]:
    """Node a of a cluster at this feature level, and its replica of the meta group."""
    state = MetaState(Image(cluster_id="c", applied=5, level=level)).encode()
    saved = Saved(BASE, state, group=META, owner=Owner("a", "i", 1))
    host = opened(CONFIG, {META: (GroupLog(BASE, HardState(1), []), msgspec.msgpack.encode(saved))}, start=3)
    assert host.cluster.meta_replica is not None
    return host, host.cluster.meta_replica.raft


@pytest.mark.parametrize("level,relays", [(FIRST, False), (Feature.RELAY, True)])
def test_the_feature_level_allows_relays(level: int, relays: bool) -> None:
    """An observer of the previous release does not know the message."""
    _, raft = host_at(level)
    assert raft.relays is relays


def test_a_node_that_a_relay_reports_counts_as_heard() -> None:
    """Otherwise the leader takes a living observer for silent, and lets an operator remove it as dead."""
    host, raft = host_at(Feature.RELAY)
    raft.force(Config(("a",)), 9, 0)

    def report(term: int, now: int) -> None:
        host.on_raft("b", [Routed(META, RelayReport(term, 0, {"c": 5, "unknown": 5}))], now)

    report(raft.term - 1, 50)
    assert "c" not in host.peers.heard, "an old report may be of a node that died since"
    report(raft.term, 100)
    assert host.peers.heard == {"b": 100, "c": 100}
    raft.abstain(100)
    report(raft.term, 200)
    assert host.peers.heard["c"] == 100, "relays report to the leader"

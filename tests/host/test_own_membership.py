"""A node that may have been removed while it was down."""

import msgspec

from nodeagent.host.own_membership import ASK_MS
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.ids import META
from nodeagent.model.raft_messages import Heartbeat, Routed
from nodeagent.model.requests import CheckStatus, ErrorReply, NodeRecord
from nodeagent.testing.node import configs
from tests.host.opened import opened

CONFIG = configs(["a", "b", "c"], ClusterSettings("t", slots=10), 3)[0]


def test_an_observer_without_a_leader_asks_its_peers_in_turn() -> None:
    """Nobody sends messages to a removed node, and an observer never stands for election. As long as it hears
    the leader, it asks nobody."""
    base = Base(1, 1, Config(("b", "c"), ("a",)))
    nodes = {n: NodeRecord(n, n, 1, 2, "i" if n == "a" else f"i{n}", 0, 1.0) for n in "abc"}
    state = MetaState(Image(applied=1, cluster_id="t", settings=CONFIG.cluster, nodes=nodes))
    saved = msgspec.msgpack.encode(Saved(base, state.encode()))
    host = opened(CONFIG, {META: (GroupLog(base, HardState(1), []), saved)})
    asked: list[object] = []

    def pass_ms(ms: int, *, is_led: bool = False) -> list[object]:
        """The peers that are asked in this time, in order."""
        asked.clear()
        for _ in range(0, ms, 50):
            now = host.effects.now + 50
            if is_led:
                host.on_raft("b", [Routed(META, Heartbeat(1, 1))], now)
            host.tick(now, now)
            for number, to, request in host.take().calls:
                if isinstance(request, CheckStatus):
                    asked.append(to)
                    host.on_reply(number, ErrorReply("forbidden", "it was retired"), now)
        return list(asked)

    assert pass_ms(ASK_MS * 4, is_led=True) == []
    without = pass_ms(ASK_MS * 4 + CONFIG.raft.election_timeout_ms)
    assert len(without) in (3, 4) and set(without) == {"b", "c"} and without[0] != without[1]
    assert pass_ms(ASK_MS * 2, is_led=True) == []

"""`BackUpMeta` on one node: what it makes, and when it is refused."""

import msgspec

from nodeagent.host.host import Host
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.ids import META
from nodeagent.model.requests import BackUpMeta, ErrorReply, NodeRecord, Reply, StateOffered
from tests.host.opened import opened
from tests.host.test_host import CONFIG, ME, run_out


def answered(level: int, voters: tuple[str, ...]) -> Reply | None:
    """The reply within two election timeouts; None if there is none yet."""
    nodes = {n: NodeRecord(n, n, 1, 2, f"i-{n}", i) for i, n in enumerate("abc")}
    image = Image(cluster_id="c", applied=5, settings=CONFIG.cluster, nodes=nodes, level=level)
    base = Base(5, 1, Config(voters, ()))
    saved = Saved(base, MetaState(image).encode(), group=META, owner=ME)
    host: Host = opened(CONFIG, {META: (GroupLog(base, HardState(1), []), msgspec.msgpack.encode(saved))})
    now = 2 * CONFIG.raft.election_timeout_ms
    replies: dict[int, Reply] = {}
    for at in (now, now + 1):
        host.tick(at, at)
        replies |= run_out(host, at)
    host.on_request(1, BackUpMeta(), now + 2, 0)
    replies |= run_out(host, now + 2)
    return replies.get(1)


def test_a_leader_offers_an_image() -> None:
    reply = answered(Feature.IMAGES, ("a",))
    assert isinstance(reply, StateOffered) and reply.index >= 5, reply


def test_a_level_without_images_is_refused() -> None:
    reply = answered(FIRST, ("a",))
    assert isinstance(reply, ErrorReply) and reply.code == "refused", reply
    assert f"feature level {Feature.IMAGES}" in reply.what and "finalize-upgrade" in reply.next_step


def test_without_a_majority_no_image_is_offered() -> None:
    """The state of this node may be old; it is not a backup of the cluster."""
    reply = answered(Feature.IMAGES, ("a", "b", "c"))
    assert reply is None or isinstance(reply, ErrorReply) and reply.code == "unavailable", reply

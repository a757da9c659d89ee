"""Zones are recorded from their feature level on: earlier releases do not know the entries."""

import pytest

from nodeagent.host.handlers.changes import Changes
from nodeagent.host.host import Host
from nodeagent.meta import commands as meta
from nodeagent.model.entries import Config
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.requests import Accepted, BeginChange, ErrorReply, SetZones
from nodeagent.partition.ring import initial_ring
from nodeagent.partition.table import initial_table
from tests.host.test_host import run_out
from tests.host.test_meta_recovery import host_of

LED_MS = 10_000


def leading(level: int) -> Host:
    """The only voter of a cluster of a, b, c and d, whose table has the first three."""
    host = host_of(Config(("a",)), level)
    host.cluster.meta.placement.put(5, initial_table(initial_ring("abc"), 12).to_wire())
    for now in range(0, LED_MS, 50):
        host.tick(now, now)
        run_out(host, now)
    assert host.cluster.is_led_here
    return host


@pytest.mark.parametrize(("level", "zone"), [(FIRST, ""), (Feature.ZONES, "hall-b")])
def test_a_newcomer_has_its_zone_in_the_record(level: int, zone: str) -> None:
    host = leading(level)
    changes = Changes(host.context, host.cluster, host.peers)
    request = BeginChange(
        "add-node", "e", "ann", host="e", port=1, http_port=2, incarnation="i-e", zone="hall-b"
    )
    begin = changes.begin(request)
    assert isinstance(begin, meta.Begin), begin
    assert (begin.node.node, begin.node.zone) == ("e", zone)


def test_zones_need_their_feature_level() -> None:
    for level, kind in ((FIRST, ErrorReply), (Feature.ZONES, Accepted)):
        host = leading(level)
        host.on_request(1, SetZones({"b": "hall-b"}, "ann"), LED_MS, 0)
        reply = run_out(host, LED_MS)[1]
        assert isinstance(reply, kind), reply
        assert (host.cluster.meta.image.nodes["b"].zone == "hall-b") == (kind is Accepted)
        if isinstance(reply, ErrorReply):
            assert reply.what.startswith("no zone was set") and "finalize-upgrade" in reply.next_step

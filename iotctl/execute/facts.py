"""What the planner needs to know, asked of the cluster."""

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from iotctl.errors import Unreachable
from iotctl.execute.cluster import Cluster
from iotctl.execute.status import Facts, collect, start_command
from iotctl.plan.facts import RATE_BYTES_PER_S, ClusterFacts, NodeFacts
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import (
    Accepted,
    CloseAll,
    GetManifest,
    GroupRecord,
    ManifestReply,
    MetaView,
)
from nodeagent.partition.ring import Ring, RingNode
from nodeagent.partition.table import PartitionTable

ASK_AT_ONCE = 8
FILES_TIMEOUT_S = 60.0
"""How long the planner waits for a group to make files of what it has in memory."""

POLL_S = 0.1


def spec_hash(source: ClusterSource) -> str:
    """A saved plan is refused once `cluster.yaml` says something else (comments count)."""
    return hashlib.sha256(source.text.encode()).hexdigest()[:32]


def table_of(view: MetaView) -> PartitionTable:
    """The partition table of a meta view."""
    by_name = {n.node: n for n in view.nodes}
    nodes = [RingNode(n, by_name[n].position, by_name[n].weight) for n in view.ring]
    ring = Ring(tuple(sorted(nodes, key=lambda n: n.position)))
    owners = np.zeros(view.settings.slots, np.uint16)
    for start, end, header in view.owners:
        owners[start:end] = ring.index(header)
    owners.setflags(write=False)
    return PartitionTable(view.table_version, ring, owners)


def plan_facts(cluster: Cluster, source: ClusterSource, *, rate: int = 0) -> tuple[ClusterFacts, MetaView]:
    """Facts for the planner and the meta view they belong to.

    Raises:
        Unreachable: nobody answers, or no member of some group tells its files.
    """
    facts = collect(cluster)
    if facts.view is None:
        names = list(source.node_names)
        raise Unreachable(
            "no agent tells the partition table",
            why="; ".join(f"{n}: {e}" for n, e in facts.errors.items()) or "no agent answers",
            next=start_command(source, names),
        )
    view = facts.view
    nodes = {
        n.node: NodeFacts(facts.statuses[n.node].disk_free_bytes, True)
        if n.node in facts.statuses
        else NodeFacts(None, False)
        for n in view.nodes
        if n.node in view.ring
    }
    planned = ClusterFacts(
        table=table_of(view),
        replicas=view.settings.replicas,
        slot_bytes=slot_bytes(cluster, facts, view),
        nodes=nodes,
        rate_bytes_per_s=rate or RATE_BYTES_PER_S,
        spec_hash=spec_hash(source),
        start=start_command(source, [n for n, facts_of in nodes.items() if not facts_of.live]),
    )
    return planned, view


def slot_bytes(cluster: Cluster, facts: Facts, view: MetaView) -> dict[int, int]:
    """One replica's file bytes of every slot that has any, from the most advanced member of each group.

    Rows in memory are closed into files first: a change does so anyway (a seal implies it), and only
    files have a size that can be planned with.
    """
    groups = [g for g in view.groups if not g.dissolving]
    total: dict[int, int] = {}
    with ThreadPoolExecutor(ASK_AT_ONCE) as pool:
        for manifest in pool.map(lambda g: _manifest(cluster, facts, g), groups):
            for file in manifest.files:
                total[file.slot] = total.get(file.slot, 0) + file.size
    return total


def _manifest(
    cluster: Cluster, facts: Facts, group: GroupRecord, clock: Callable[[], float] = time.monotonic
) -> ManifestReply:
    closed = _close(cluster, facts, group)
    at = {s.node: g.materialised for s in facts.statuses.values() for g in s.groups if g.group == group.group}
    reason = "no member answers"
    for member in sorted(group.members, key=lambda m: at.get(m, -1), reverse=True):
        if member not in at:
            continue
        try:
            deadline = clock() + FILES_TIMEOUT_S
            reply = cluster.call(member, GetManifest(group.group))
            assert isinstance(reply, ManifestReply)
            while reply.materialised < closed and clock() < deadline:
                time.sleep(POLL_S)
                reply = cluster.call(member, GetManifest(group.group))
                assert isinstance(reply, ManifestReply)
        except NodeAgentError as error:
            reason = f"{member}: {error.what}"
            continue
        return reply
    raise Unreachable(
        f"nobody tells the files of group {group.group}", why=reason, next="iotctl cluster status"
    )


def _close(cluster: Cluster, facts: Facts, group: GroupRecord) -> int:
    """The log index at which the group closed its memory; 0 when it has no leader that could."""
    for status in facts.statuses.values():
        if any(g.group == group.group and g.role == "leader" for g in status.groups):
            try:
                reply = cluster.call(status.node, CloseAll(group.group))
            except NodeAgentError:
                continue  # the plan then goes by the files there are; a change is refused elsewhere
            assert isinstance(reply, Accepted)
            return reply.index
    return 0

"""The planner's facts, collected from the cluster or from a saved document."""

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from iotctl.errors import InputProblem, Unreachable
from iotctl.observe.cluster import Cluster
from iotctl.observe.collect import Facts, collect
from iotctl.observe.layout import SlotsView, slot_write_rates, table_of
from iotctl.observe.status import start_command
from iotctl.plan.facts import RATE_BYTES_PER_S, ClusterFacts, NodeFacts
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import (
    Accepted,
    CloseAll,
    GroupRecord,
    ManifestReply,
    MetaView,
)
from nodeagent.partition.ranges import union
from nodeagent.partition.ring import RingNode
from nodeagent.partition.table import PartitionTable, TableWire

ASK_AT_ONCE = 8
FILES_TIMEOUT_S = 60.0
"""How long the planner waits for a group to write its rows in memory to files."""

POLL_S = 0.1


def spec_hash(source: ClusterSource) -> str:
    """Identifies the text of `cluster.yaml`, comments included: if it changes, saved plans are refused."""
    return hashlib.sha256(source.text.encode()).hexdigest()[:32]


def plan_facts(
    cluster: Cluster, source: ClusterSource, *, rate: int = 0, write_rates: bool = False
) -> tuple[ClusterFacts, MetaView]:
    """Facts for the planner and the meta view they belong to. Write rates are collected only on demand.

    Raises:
        Unreachable: no agent answers, or no member of some group lists its files.
    """
    facts = collect(cluster)
    if facts.view is None:
        names = list(source.node_names)
        raise Unreachable(
            "no agent returned the partition table",
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
        write_rates=slot_write_rates(cluster, facts.statuses, view) if write_rates else {},
        members={g.owner: g.members for g in view.groups if not g.dissolving},
        zones=source.zones,
        weights=source.weights,
        start=start_command(source, [n for n, facts_of in nodes.items() if not facts_of.live]),
    )
    return planned, view


def saved_facts(path: Path, source: ClusterSource, *, rate: int = 0) -> ClusterFacts:
    """The same facts from a document of `iotctl cluster slots -o json`: no node is asked, so free disk space
    is unknown.

    Raises:
        InputProblem: the file is not such a document, or the document lacks the answer of a group.
    """
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=SlotsView)
        nodes = tuple(RingNode(p.node, p.position, p.weight) for p in saved.ring)
        owned = tuple(
            union(*(((r.start, r.end),) for r in saved.ranges if n.node in (r.owner, r.header)))
            for n in nodes
        )
        table = PartitionTable.from_wire(TableWire(saved.table_version, saved.slots, nodes, owned))
    except (OSError, *UNDECODABLE, NodeAgentError) as error:
        raise InputProblem(
            f"{path} is not a saved status",
            why=str(error),
            next=f"iotctl cluster slots -o json > {path.name}",
            where=str(path),
        ) from error
    if saved.unread:
        raise InputProblem(
            "the saved status does not cover every group",
            why=f"no member answered for {', '.join(saved.unread)}",
            next=f"iotctl cluster slots -o json > {path.name}",
            where=str(path),
        )
    sizes: dict[int, int] = {}
    rates: dict[int, float] = {}
    for load in saved.loads:
        sizes[load.slot] = sizes.get(load.slot, 0) + load.bytes
        rates[load.slot] = rates.get(load.slot, 0.0) + load.write_bytes_per_s
    return ClusterFacts(
        table=table,
        replicas=saved.replicas,
        slot_bytes=sizes,
        rate_bytes_per_s=rate or RATE_BYTES_PER_S,
        spec_hash=spec_hash(source),
        write_rates=rates,
        zones=source.zones,
        weights=source.weights,
    )


def slot_bytes(cluster: Cluster, facts: Facts, view: MetaView) -> dict[int, int]:
    """File bytes of one replica for each non-empty slot, from the most advanced member of each group.

    Rows in memory are first written to files: a change does so anyway (a seal implies it), and the planner
    can only use the size of files.
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
            reply = cluster.manifest(member, group.group)
            while reply.materialised < closed and clock() < deadline:
                time.sleep(POLL_S)
                reply = cluster.manifest(member, group.group)
        except NodeAgentError as error:
            reason = f"{member}: {error.what}"
            continue
        return reply
    raise Unreachable(
        f"no member listed the files of group {group.group}", why=reason, next="iotctl cluster status"
    )


def _close(cluster: Cluster, facts: Facts, group: GroupRecord) -> int:
    """The log index at which the group closed its rows in memory; 0 if no leader could close them."""
    for status in facts.statuses.values():
        if any(g.group == group.group and g.role == "leader" for g in status.groups):
            try:
                reply = cluster.call(status.node, CloseAll(group.group))
            except NodeAgentError:
                continue  # the existing files then count; `check_quorums` refuses a group without a majority
            assert isinstance(reply, Accepted)
            return reply.index
    return 0

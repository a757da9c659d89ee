"""The nodes on the ring.

A node that is permanently lost is retired: from then on the other nodes ignore what runs under its
incarnation. A retired incarnation never returns, unless the change that fenced it is cancelled before
anything was decided without the node.
"""

from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.meta.runs import Runs
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import Accepted, ErrorReply, NodeRecord, Reply

DEAD = "dead"
"""State of a node that is permanently lost and still on the ring."""


class Kept(Protocol):
    """The fields of the image that this module changes."""

    nodes: dict[NodeId, NodeRecord]
    retired: list[str]


class Nodes:
    def __init__(self, kept: Kept, runs: Runs, audit: Audit) -> None:
        self._kept = kept
        self._runs = runs
        self._audit = audit

    def __contains__(self, node: NodeId) -> bool:
        return node in self._kept.nodes

    @property
    def dead(self) -> set[NodeId]:
        return {n for n, r in self._kept.nodes.items() if r.state == DEAD}

    @property
    def living(self) -> set[NodeId]:
        return {n for n, r in self._kept.nodes.items() if r.state != DEAD}

    def is_retired(self, incarnation: str) -> bool:
        return incarnation in self._kept.retired

    def begin(self, nodes: Iterable[NodeRecord]) -> None:
        """Set the nodes of a new cluster."""
        self._kept.nodes = {n.node: n for n in nodes}

    def drain(self, index: int, d: c.SetDraining) -> Reply:
        record = self._kept.nodes.get(d.node)
        if record is None:
            verb = "drain" if d.draining else "undrain"
            what = f"cannot {verb} {d.node}: the cluster has no node {d.node}"
            return ErrorReply("not_found", what, "iotctl cluster nodes")
        if (refusal := self._runs.fenced(d.lock)) is not None:
            return refusal
        is_ours = d.draining and d.for_restart and (record.for_restart or not record.draining)
        self._kept.nodes[d.node] = replace(record, draining=d.draining, for_restart=is_ours)
        if record.draining != d.draining:
            self._audit.note(d.now, d.by, f"{'drain' if d.draining else 'undrain'} {d.node}")
        return Accepted(index)

    def set_zones(self, index: int, s: c.SetZones) -> Reply:
        if (refusal := self._runs.fenced(s.lock)) is not None:
            return refusal
        unknown = next((n for n in sorted(s.zones) if n not in self._kept.nodes), None)
        if unknown is not None:
            what = f"no zone was set: the cluster has no node {unknown}"
            return ErrorReply("not_found", what, "iotctl cluster nodes")
        changed = {n: zone for n, zone in sorted(s.zones.items()) if self._kept.nodes[n].zone != zone}
        for node, zone in changed.items():
            self._kept.nodes[node] = replace(self._kept.nodes[node], zone=zone)
        if changed:
            zones = ", ".join(f"{n} in {zone or 'no zone'}" for n, zone in changed.items())
            self._audit.note(s.now, s.by, f"set zones: {zones}")
        return Accepted(index)

    def join(self, record: NodeRecord) -> None:
        self._kept.nodes[record.node] = replace(record, state="joining")

    def set_state(self, node: NodeId, state: str) -> None:
        self._kept.nodes[node] = replace(self._kept.nodes[node], state=state)

    def retire(self, node: NodeId) -> None:
        self.set_state(node, DEAD)
        self._kept.retired.append(self._kept.nodes[node].incarnation)

    def revive(self, node: NodeId) -> None:
        """Revoke the retirement: nothing was decided without the node yet."""
        self._kept.retired.remove(self._kept.nodes[node].incarnation)
        self.set_state(node, "active")

    def leave(self, node: NodeId) -> None:
        """Remove a node that is off the ring; it never returns under this incarnation."""
        record = self._kept.nodes.pop(node)
        if record.incarnation not in self._kept.retired:
            self._kept.retired.append(record.incarnation)

    def forget(self, node: NodeId) -> None:
        """Remove a node that was never on the ring."""
        self._kept.nodes.pop(node)

"""The meta group as its nodes see it: roles, journals, images, ages."""

import msgspec

from iotctl.observe.collect import Facts, current_of, freshest, has_quorum, replicas_of, voting
from nodeagent.model.ids import META
from nodeagent.model.requests import NodeStatus


class MetaNodeRow(msgspec.Struct, frozen=True):
    """One node. `first`, `last` and `applied` are journal ids; `image` and `fallback` are those of the two
    newest validated images. None means unknown: the node did not answer, or runs an earlier release."""

    node: str
    voter: bool
    role: str | None = None
    since_ms: int | None = None
    """Milliseconds since the role last changed."""

    why: str = ""
    first: int | None = None
    last: int | None = None
    applied: int | None = None
    age_ms: int | None = None
    """The state holds everything acknowledged longer ago than this; None if no leader has confirmed it."""

    image: int | None = None
    fallback: int | None = None
    pinned_by: str = ""
    """Why the journal is not purged further."""

    term: int | None = None
    error: str = ""


class MetaGroupView(msgspec.Struct, frozen=True):
    """`leader` is None if no node that answered leads; `quorum` tells whether a majority of the voters
    answered."""

    leader: str | None
    term: int | None
    quorum: bool
    voters: list[str]
    nodes: list[MetaNodeRow]


def meta_group(facts: Facts) -> MetaGroupView:
    replicas = replicas_of(facts, META)
    leader, group = current_of(replicas)
    newest = group or freshest(replicas)
    voters = list(newest.voters) if newest is not None else []
    names = {n.node for n in facts.view.nodes} if facts.view is not None else set()
    rows = [_row(n, facts.statuses.get(n), voters, facts) for n in sorted(names | {*facts.statuses, *voters})]
    quorum = has_quorum(voters, voting(facts, META))
    return MetaGroupView(leader, newest.term if newest is not None else None, quorum, voters, rows)


def _row(node: str, status: NodeStatus | None, voters: list[str], facts: Facts) -> MetaNodeRow:
    meta = status.meta if status is not None else None
    if status is None or meta is None:
        error = facts.errors.get(node, "it did not answer") if status is None else f"it runs {status.version}"
        return MetaNodeRow(node, node in voters, error=error)
    replica = next((g for g in status.groups if g.group == META), None)
    return MetaNodeRow(
        node=node,
        voter=node in voters,
        role=meta.role,
        since_ms=meta.since_ms,
        why=meta.why,
        first=meta.first,
        last=meta.last,
        applied=meta.applied,
        age_ms=meta.age_ms if meta.age_ms >= 0 else None,
        image=meta.image or None,
        fallback=meta.fallback or None,
        pinned_by=str(meta.pin) if meta.pin is not None else "",
        term=replica.term if replica is not None else None,
        error=replica.error if replica is not None else "",
    )

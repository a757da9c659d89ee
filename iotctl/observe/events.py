"""Events: the meta group's audit log merged with the events that each agent recorded since its start.

Every agent is asked directly, in parallel; no leader is needed. The audit log comes from the node that has
applied most. Times are those of each node's own clock.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from iotctl.errors import Unreachable
from iotctl.observe.cluster import STATUS_TIMEOUT_S, Cluster
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import META
from nodeagent.model.limits import EVENTS_REPLY_MAX
from nodeagent.model.requests import EventsReply, GetEvents, NodeStatus

ASKED_AT_ONCE = 32


class EventRow(msgspec.Struct, frozen=True):
    """`event` is `audit` for a decision of the meta group (`by` then names who requested it), else the name
    that the node gave the event. `node` and `group` are "" if the event concerns none in particular."""

    time_ms: int
    node: str
    group: str
    event: str
    by: str
    message: str


class Silent(msgspec.Struct, frozen=True):
    node: str
    why: str


class Events(msgspec.Struct, frozen=True):
    """Newest last. `source` is the node that the audit log comes from; `unread` nodes did not answer."""

    as_of_ms: int
    since_ms: int
    source: str
    events: list[EventRow]
    unread: list[Silent]


def events_of(cluster: Cluster, *, since_ms: int, limit: int, now_ms: int) -> Events:
    """The newest `limit` events since `since_ms`.

    Raises:
        Unreachable: no agent answers.
    """
    answers = _ask(cluster, GetEvents(since_ms, min(limit, EVENTS_REPLY_MAX)))
    return merge(answers, since_ms=since_ms, limit=limit, now_ms=now_ms)


def audit_of(cluster: Cluster) -> list[tuple[int, str, str]]:
    """The meta group's audit log as (ms, who, what), oldest first; [] if no agent answers."""
    replies = [
        a for a in _ask(cluster, GetEvents(0, EVENTS_REPLY_MAX)).values() if isinstance(a, EventsReply)
    ]
    return list(_most_advanced(replies).audit) if replies else []


def _ask(cluster: Cluster, request: GetEvents) -> dict[str, EventsReply | NodeAgentError]:
    statuses = cluster.statuses(STATUS_TIMEOUT_S)

    def ask(node: str) -> EventsReply | NodeAgentError:
        try:
            reply = cluster.call(node, request, timeout_s=STATUS_TIMEOUT_S)
        except NodeAgentError as error:
            return error
        assert isinstance(reply, EventsReply), reply
        return reply

    up = [n for n, s in statuses.items() if isinstance(s, NodeStatus)]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        answers: dict[str, EventsReply | NodeAgentError] = dict(zip(up, pool.map(ask, up), strict=True))
    return answers | {n: s for n, s in statuses.items() if isinstance(s, NodeAgentError)}


def _most_advanced(replies: Sequence[EventsReply]) -> EventsReply:
    return max(replies, key=lambda a: (a.applied, a.node))


def merge(
    answers: Mapping[str, EventsReply | NodeAgentError], *, since_ms: int, limit: int, now_ms: int
) -> Events:
    """Merge all answers into one list. Pure.

    Raises:
        Unreachable: no agent answered.
    """
    replies = [a for a in answers.values() if isinstance(a, EventsReply)]
    unread = [Silent(n, a.what) for n, a in sorted(answers.items()) if isinstance(a, NodeAgentError)]
    if not replies:
        raise Unreachable(
            "no agent returned its events",
            why="; ".join(f"{s.node}: {s.why}" for s in unread),
            next="iotctl cluster status",
        )
    source = _most_advanced(replies)
    rows = [EventRow(ms, "", META, "audit", who, what) for ms, who, what in source.audit]
    rows += [EventRow(e.time_ms, a.node, e.group, e.event, "", e.message) for a in replies for e in a.events]
    rows.sort(key=lambda r: (r.time_ms, r.node, r.event))
    return Events(now_ms, since_ms, source.node, rows[-limit:], unread)

"""The statuses of all agents, asked directly and in parallel with a timeout of two seconds.

The meta view comes from the most advanced agent that answers; no leader is needed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from iotctl.observe.cluster import STATUS_TIMEOUT_S, Cluster
from nodeagent.model.config import RaftSettings
from nodeagent.model.errors import NodeAgentError, OutcomeUnknown
from nodeagent.model.ids import META
from nodeagent.model.requests import GetMeta, GroupStatus, MetaView, NodeStatus

HEARD_MS_MAX = RaftSettings().election_timeout_ms
"""A voter that its leader has not heard from for longer than this does not count: it may just have restarted
and not be connected yet. A leader hears from each follower several times within this period."""


SILENT_MAX = 2
"""How many nodes may time out before the search for a meta view ends."""


@dataclass(frozen=True)
class Facts:
    """What the agents answered. `errors` says why a node did not answer."""

    statuses: dict[str, NodeStatus]
    errors: dict[str, str]
    view: MetaView | None

    @cached_property
    def replicas(self) -> dict[str, dict[str, GroupStatus]]:
        """Group -> node -> the replica there."""
        found: dict[str, dict[str, GroupStatus]] = {}
        for status in self.statuses.values():
            for replica in status.groups:
                found.setdefault(replica.group, {})[status.node] = replica
        return found

    @cached_property
    def heard_ms(self) -> dict[str, int]:
        """Milliseconds since any other node last heard from a node."""
        found: dict[str, int] = {}
        for status in self.statuses.values():
            for node, ms in status.heard_ms.items():
                if node != status.node and ms < found.get(node, ms + 1):
                    found[node] = ms
        return found

    @property
    def heard(self) -> dict[str, NodeStatus | NodeAgentError]:
        return dict(self.statuses)


def collect(cluster: Cluster, timeout_s: float = STATUS_TIMEOUT_S) -> Facts:
    """Ask every agent. A node that is down is not an error; the call takes a few timeouts at most."""
    answers = cluster.statuses(timeout_s)
    statuses = {n: s for n, s in answers.items() if isinstance(s, NodeStatus)}
    errors = {n: s.what for n, s in answers.items() if isinstance(s, NodeAgentError)}
    freshest = sorted(statuses.values(), key=lambda s: (s.table_version, _meta_applied(s)), reverse=True)
    silent = 0
    for status in freshest:
        if silent == SILENT_MAX:
            break
        try:
            reply = cluster.call(status.node, GetMeta(any_age=True), timeout_s=timeout_s)
        except NodeAgentError as error:
            silent += isinstance(error, OutcomeUnknown)
            continue
        assert isinstance(reply, MetaView)
        return Facts(statuses, errors, reply)
    return Facts(statuses, errors, None)


def _meta_applied(status: NodeStatus) -> int:
    return next((g.applied for g in status.groups if g.group == META), 0)


def replicas_of(facts: Facts, group: str) -> dict[str, GroupStatus]:
    return facts.replicas.get(group, {})


def voting(facts: Facts, group: str) -> set[str]:
    """Nodes whose replica can vote; a replica that stopped at an entry still votes."""
    return {n for n, g in replicas_of(facts, group).items() if g.state in ("running", "stopped")}


def has_quorum(voters: Iterable[str], serving: set[str]) -> bool:
    members = list(voters)
    return len([v for v in members if v in serving]) > len(members) // 2


def current_of(replicas: Mapping[str, GroupStatus]) -> tuple[str | None, GroupStatus | None]:
    """The leading replica with the highest term (an isolated old leader may still report that it leads)."""
    leading = [(g.term, n, g) for n, g in replicas.items() if g.role == "leader"]
    if not leading:
        return None, None
    _, node, group = max(leading, key=lambda t: (t[0], t[1]))
    return node, group


def heard_recently(facts: Facts, leader: str, voter: str) -> bool:
    """Whether `leader` heard from `voter` recently, and after `voter` started. Both must have answered us."""
    if voter == leader:
        return True
    ms, own = facts.statuses[leader].heard_ms.get(voter), facts.statuses[voter]
    return ms is not None and ms <= min(HEARD_MS_MAX, own.now_ms - own.started_ms)


def freshest(replicas: Mapping[str, GroupStatus]) -> GroupStatus | None:
    return max(replicas.values(), key=lambda g: (g.term, g.commit), default=None)

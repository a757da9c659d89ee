"""Progress reports of this node to the meta group."""

from functools import partial

import msgspec

from nodeagent.host.cluster import Cluster
from nodeagent.host.failpoints import Failpoints
from nodeagent.meta import commands as meta
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import ErrorReply, Forward, Reply
from nodeagent.scaling import failpoints

REPORT_AGAIN_MS = 500
REFUSED_AGAIN_MS = 100
"""After a leader refused a report."""

REPORTED_MAX = 4096
"""Reports that are remembered; if there are more, all are resent."""


class Reports:
    """Remembers when each report was last sent, and to which leader. Losing this memory only costs time."""

    def __init__(self, cluster: Cluster, failpoints: Failpoints) -> None:
        self._effects = cluster.effects
        self._cluster = cluster
        self._failpoints = failpoints
        self._reported: dict[str, tuple[int, NodeId, int]] = {}
        """report -> (when it was last sent, to which leader, of which term)"""

    def report(self, command: meta.Command) -> None:
        """Send a progress report to the meta leader; call again until the operation's record shows it.

        A new leader gets it at once, because its predecessor may have lost it and slots are closed until it
        is recorded; the same leader gets it every `REPORT_AGAIN_MS`.
        """
        op = self._cluster.meta.operations.open()
        if op is not None and failpoints.is_kept_back(op, command, self._failpoints.points):
            return
        replica = self._cluster.meta_replica
        if replica is None or replica.raft.leader is None:
            return
        leader, term = replica.raft.leader, replica.raft.term
        key = _key(command)
        when, *last = self._reported.get(key, (0, "", 0))
        if last == [leader, term] and self._effects.now - when < REPORT_AGAIN_MS:
            return
        if len(self._reported) > REPORTED_MAX:
            self._reported.clear()
        self._reported[key] = (self._effects.now, leader, term)
        if replica.leads:
            replica.propose([meta.encode(command)])
        else:
            self._effects.call(leader, Forward(meta.encode(command)), partial(self._on_handed, key))

    def _on_handed(self, key: str, reply: Reply) -> None:
        """If the leader lags behind its predecessor, or cannot be reached yet, retry a moment later."""
        if isinstance(reply, ErrorReply) and key in self._reported:
            _, leader, term = self._reported[key]
            self._reported[key] = (self._effects.now + REFUSED_AGAIN_MS - REPORT_AGAIN_MS, leader, term)


def _key(command: meta.Command) -> str:
    """Equal for repetitions of a report, which differ only in the time."""
    copy = msgspec.structs.replace(command, now=0)
    return f"{type(copy).__name__}:{msgspec.msgpack.encode(copy).hex()[:512]}"

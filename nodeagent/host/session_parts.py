"""Brings the sessions of sealed slots into the log of a gaining group that is led here.

A part comes from this node's own replica of the sealed group if it has one, else from one member of that
group after the other; any that applied the seal will do. What does not have the recorded digest is
asked for again elsewhere.
"""

from collections.abc import Callable

from nodeagent.data import commands as data
from nodeagent.data.handover import digest, part_of
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.desk import Desk
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import ErrorReply, GetSealedSessions, Reply, SealedSessions
from nodeagent.scaling.groups import TakePart

RETRY_MS = 200
"""Until the next member is asked. Slots stand closed meanwhile."""

Key = tuple[GroupId, GroupId, int]
"""(gaining group, sealed group, number)"""


def sealed_part(replica: DataReplica, operation: str, number: int) -> bytes:
    """One part of the table that this member made when it applied the seal; empty when there is none."""
    sealed = replica.state.slots.sealed.get(operation)
    return part_of(sealed.sessions, number) if sealed is not None and number >= 0 else b""


class SessionParts:
    """`propose` logs entries in a group and remembers that the next step waits for them."""

    def __init__(
        self,
        node: NodeId,
        desk: Desk,
        replicas: dict[GroupId, DataReplica],
        propose: Callable[[DataReplica, list[bytes]], None],
    ) -> None:
        self._node = node
        self._desk = desk
        self._replicas = replicas
        self._propose = propose
        self._asked: set[Key] = set()
        self._attempts: dict[Key, int] = {}

    def take(self, replica: DataReplica, action: TakePart) -> None:
        key = (replica.group, action.source, action.number)
        if key in self._asked:
            return None
        own = self._replicas.get(action.source)
        part = sealed_part(own, action.operation, action.number) if own is not None else b""
        if digest(part) == action.digest:
            return self._log(replica, action, part)
        holders = [n for n in action.members if n != self._node]
        if not holders:
            return None
        attempt = self._attempts[key] = self._attempts.get(key, -1) + 1
        holder = holders[attempt % len(holders)]
        self._asked.add(key)
        request = GetSealedSessions(action.operation, action.source, action.number)
        return self._desk.call(holder, request, lambda reply: self._on_reply(key, action, holder, reply))

    def _on_reply(self, key: Key, action: TakePart, holder: NodeId, reply: Reply) -> None:
        replica = self._replicas.get(key[0])
        if replica is None or not replica.leads:
            self._forget(key)
        elif isinstance(reply, SealedSessions) and digest(reply.data) == action.digest:
            self._forget(key)
            self._log(replica, action, reply.data)
        else:
            why = reply.what if isinstance(reply, ErrorReply) else "its digest is not the recorded one"
            self._desk.note("sessions_later", group=key[0], source=action.source, node=holder, why=why)
            self._desk.later(RETRY_MS, lambda: self._asked.discard(key))

    def _forget(self, key: Key) -> None:
        self._asked.discard(key)
        self._attempts.pop(key, None)

    def _log(self, replica: DataReplica, action: TakePart, part: bytes) -> None:
        entry = data.OpenSessions(action.operation, action.source, action.number, part)
        self._propose(replica, [data.encode(entry)])

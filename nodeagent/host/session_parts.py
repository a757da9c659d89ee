"""Brings the sessions of sealed slots into the log of a gaining group that is led here.

A part comes from this node's own replica of the sealed group if there is one, else from that group's members
in turn; every member that applied the seal has it. A part without the recorded digest is requested from
another member.

Writers wait during this. So the first part of each table is requested before the slots are sealed and sent as
soon as they are (`SealWaits`), and the parts go into the log together with the `Open`.
"""

from collections.abc import Callable
from functools import partial

from nodeagent.data import commands as data
from nodeagent.data.slot_migration import digest, part_of
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import ErrorReply, GetSealedSessions, Reply, SealedSessions
from nodeagent.scaling.groups import Part, PrefetchParts, TakeParts

RETRY_MS = 200
"""The wait before the next member is asked; the slots are closed meanwhile."""

SEAL_WAIT_MS = 1_000
SEAL_WAITS_MAX = 1_024
"""Requests that may wait for a seal here; any further request is answered at once."""

Key = tuple[GroupId, GroupId, int]
"""(gaining group, sealed group, number)"""


def sealed_part(replica: DataReplica, operation: str, number: int) -> bytes:
    """One part of the session table that this member made when it applied the seal; empty if there is
    none."""
    sealed = replica.state.slots.sealed.get(operation)
    return part_of(sealed.sessions, number) if sealed is not None and number >= 0 else b""


class SealWaits:
    """Requests for the sessions of a seal that is not applied here yet."""

    def __init__(self, effects: EffectQueue) -> None:
        self._effects = effects
        self._waiting: list[tuple[DataReplica, str, int, Callable[[], None]]] = []
        """(replica, operation, deadline in ms, call that answers)"""

    def add(self, replica: DataReplica, operation: str, answer: Callable[[], None]) -> None:
        """Run `answer` when the replica has applied the seal, or after `SEAL_WAIT_MS` without it."""
        if len(self._waiting) >= SEAL_WAITS_MAX:
            return answer()
        self._waiting.append((replica, operation, self._effects.now + SEAL_WAIT_MS, answer))
        self._effects.later(SEAL_WAIT_MS, self.check)
        return self.check()

    def check(self) -> None:
        """Answer the requests whose seal is applied; called when entries were applied."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for wait in waiting:
                replica, operation, until, answer = wait
                slots = replica.state.slots
                if operation in slots.sealed or operation in slots.ended or until <= self._effects.now:
                    answer()
                else:
                    self._waiting.append(wait)


class SessionParts:
    """
    Args:
        propose: logs entries in a group, whose next step then waits for them; returns False if refused.
    """

    def __init__(
        self,
        node: NodeId,
        effects: EffectQueue,
        replicas: dict[GroupId, DataReplica],
        propose: Callable[[DataReplica, list[bytes]], bool],
    ) -> None:
        self._node = node
        self._effects = effects
        self._replicas = replicas
        self._propose = propose
        self._operation = ""
        self._came = False
        self._asked: set[Key] = set()
        self._prefetching: set[Key] = set()
        self._attempts: dict[Key, int] = {}
        self._had: dict[Key, bytes] = {}
        """Parts that came and are not logged yet; few, because few are requested at a time."""

    def begin(self, operation: str) -> None:
        """Set the operation that needs sessions now, "" for none. Parts for another operation are dropped."""
        if operation != self._operation:
            self._operation = operation
            self._asked.clear()
            self._prefetching.clear()
            self._attempts.clear()
            self._had.clear()

    def have_come(self) -> bool:
        """Whether a part came since the last call, so that `take` may continue."""
        came, self._came = self._came, False
        return came

    def prefetch(self, replica: DataReplica, action: PrefetchParts) -> None:
        """Prefetch each part once, except those of sealed groups that are led here."""
        for part in action.parts:
            key = (replica.group, part.source, part.number)
            own = self._replicas.get(part.source)
            holders = [n for n in part.members if n != self._node]
            if key not in self._prefetching and holders and not (own is not None and own.leads):
                self._prefetching.add(key)
                self._attempts[key] = 0  # if this member does not answer, another is asked next
                request = GetSealedSessions(action.operation, part.source, part.number, wait=True)
                self._effects.call(holders[0], request, partial(self._on_prefetched, action.operation, key))

    def _on_prefetched(self, operation: str, key: Key, reply: Reply) -> None:
        if isinstance(reply, SealedSessions) and operation == self._operation:
            self._had.setdefault(key, reply.data)
            self._came = True

    def take(self, replica: DataReplica, action: TakeParts) -> None:
        """Log the parts once all are here; until then request the missing parts."""
        parts = [self._part(replica.group, action, part) for part in action.parts]
        have = [part for part in parts if part is not None]
        if len(have) < len(parts):
            return
        entries: list[data.Command] = [
            data.OpenSessions(action.operation, part.source, part.number, bytes_)
            for part, bytes_ in zip(action.parts, have, strict=True)
        ]
        if action.then is not None:
            entries.append(action.then)
        if self._propose(replica, [data.encode(entry) for entry in entries]):
            for part in action.parts:
                self._had.pop((replica.group, part.source, part.number), None)

    def _part(self, group: GroupId, action: TakeParts, part: Part) -> bytes | None:
        """The data of a part; None while it is requested."""
        key = (group, part.source, part.number)
        own = self._replicas.get(part.source)
        sealed = sealed_part(own, action.operation, part.number) if own is not None else b""
        for found in (sealed, self._had.get(key, b"")):
            if digest(found) == part.digest:
                return found
        if key not in self._asked:
            self._ask(key, action, part)
        return None

    def _ask(self, key: Key, action: TakeParts, part: Part) -> None:
        holders = [n for n in part.members if n != self._node]
        if not holders:
            return
        attempt = self._attempts[key] = self._attempts.get(key, -1) + 1
        holder = holders[attempt % len(holders)]
        self._asked.add(key)
        request = GetSealedSessions(action.operation, part.source, part.number)
        self._effects.call(holder, request, lambda reply: self._on_reply(key, action, part, holder, reply))

    def _on_reply(self, key: Key, action: TakeParts, part: Part, holder: NodeId, reply: Reply) -> None:
        if action.operation != self._operation:
            return
        replica = self._replicas.get(key[0])
        if replica is None or not replica.leads:
            self._forget(key)
        elif isinstance(reply, SealedSessions) and digest(reply.data) == part.digest:
            self._forget(key)
            self._had[key] = reply.data
            self._came = True
        else:
            why = reply.what if isinstance(reply, ErrorReply) else "its digest is not the recorded one"
            self._effects.note("sessions_later", group=key[0], source=part.source, node=holder, why=why)
            self._effects.later(RETRY_MS, lambda: self._asked.discard(key))

    def _forget(self, key: Key) -> None:
        self._asked.discard(key)
        self._attempts.pop(key, None)

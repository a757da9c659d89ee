"""Which writes and deletes of the log count.

One counts when its slot is open by the log before it and its session is known there and has not sent it
before; a write also needs its table to be in use at its version. Writes that do not count are remembered as
long as the log keeps them (`refused`): after a restart they must not count either.
"""

from nodeagent.data import commands
from nodeagent.data.files import Files
from nodeagent.data.rates import WriteRates
from nodeagent.data.rows import Rows
from nodeagent.data.sessions import Sessions
from nodeagent.data.slots import Slots
from nodeagent.model import limits
from nodeagent.model.files import Tombstone
from nodeagent.model.ids import GroupId
from nodeagent.model.requests import Accepted, ErrorReply, Reply, SessionOpened, Written
from nodeagent.model.schema import Schemas, TableSchema

TIME_MIN = -(1 << 63)


class Writes:
    """Checks what clients send by the state before it, and lets in what counts."""

    def __init__(
        self, group: GroupId, slots: Slots, sessions: Sessions, schemas: Schemas, rows: Rows, files: Files
    ) -> None:
        self.refused: set[int] = set()
        """Writes in the kept log that had no effect."""

        self.rates = WriteRates()
        """Of this process alone: neither in the log nor in a checkpoint."""

        self._group = group
        self._slots = slots
        self._sessions = sessions
        self._schemas = schemas
        self._rows = rows
        self._files = files

    def check_slot(self, slot: int) -> ErrorReply | None:
        """Why a write to `slot` has no effect by the state as it is, if so."""
        if slot in self._slots.open:
            return None
        waiting = self._slots.sealed_by(slot) is not None
        return ErrorReply(
            "moved",
            f"slot {slot} is not open in group {self._group}",
            details={"slot": slot, "wait": waiting},
        )

    def write(self, index: int, w: commands.WriteRows, now: int) -> Reply:
        refusal = self.check_slot(w.slot) or self._check_session(w.session, w.slot, w.sequence, w.settled)
        if refusal is None:
            schema = self._schemas.get((w.partition.storage_group, w.table))
            if schema is None or schema.version < w.schema_version:
                refusal = ErrorReply("schema_mismatch", f"table {w.table} is not in use at this version")
        if refusal is not None:
            self.refused.add(index)
            return refusal
        if not self._sessions.take(w.session, w.slot, w.sequence, w.settled):
            self.refused.add(index)
            return Written(0, duplicate=True)
        self._rows.add(index, w, now)
        self.rates.add(w.slot, len(w.ipc), now)
        return Written(index)

    def delete(self, index: int, d: commands.DeleteRange) -> Reply:
        refusal = self.check_slot(d.slot) or self._check_session(d.session, d.slot, d.sequence, d.settled)
        if refusal is not None:
            return refusal
        if not self._sessions.take(d.session, d.slot, d.sequence, d.settled):
            return Written(0, duplicate=True)
        self._files.delete(Tombstone((index,), d.partition, d.table, d.tags, d.time_from, d.time_to))
        return Written(index)

    def expire(self, index: int, e: commands.Expire) -> Reply:
        if e.passed and e.before > e.passed:
            return ErrorReply("refused", f"the cut-off {e.before} lies after {e.passed}: in the future")
        if self.check_slot(e.slot) is None:
            cut = Tombstone((index,), e.partition, e.table, (), TIME_MIN, e.before - 1, expiry=True)
            self._files.expire(cut)
        return Accepted(index)

    def open_session(self, index: int, term: int) -> Reply:
        # The term too: after a recovery (`Raft.force`) indexes that the lost nodes gave out come again.
        session = f"{self._group}:{index}.{term}"
        if not self._sessions.open(session):
            return ErrorReply(
                "overloaded", f"group {self._group} has {limits.SESSIONS_PER_GROUP_MAX} sessions"
            )
        return SessionOpened(session)

    def use_schema(self, schema: TableSchema) -> None:
        key = (schema.storage_group, schema.table)
        known = self._schemas.get(key)
        if known is None or schema.version > known.version:
            self._schemas[key] = schema

    def forget_refused(self, base: int) -> None:
        """The log is not needed up to `base`: nothing of it comes again."""
        self.refused = {i for i in self.refused if i > base}

    def _check_session(self, session: str, slot: int, sequence: int, settled: int) -> ErrorReply | None:
        if not self._sessions.knows(session, slot):
            return ErrorReply("session_expired", f"session {session} is not known to group {self._group}")
        floor = max(self._sessions.floor(session, slot), settled)
        if sequence > floor + limits.SESSION_WINDOW:
            return ErrorReply(
                "overloaded", f"sequence {sequence} is more than {limits.SESSION_WINDOW} past {floor}"
            )
        return None

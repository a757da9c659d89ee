"""Which writes and deletes of the log take effect.

A write or delete takes effect if, in the state before it, its slot is open, its session is known, and its
sequence is new and within `SESSION_WINDOW`; a write also needs its table to be in use at its version or a
later one. Writes without effect are remembered as long as the log retains them (`refused`): after a restart
they must not take effect either.
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
    """Checks each write and delete against the state before it, and applies those that take effect."""

    def __init__(
        self, group: GroupId, slots: Slots, sessions: Sessions, schemas: Schemas, rows: Rows, files: Files
    ) -> None:
        self.refused: set[int] = set()
        """Log indexes of the writes in the retained log that had no effect."""

        self.rates = WriteRates()
        """Counted by this process alone: neither in the log nor in a checkpoint."""

        self._group = group
        self._slots = slots
        self._sessions = sessions
        self._schemas = schemas
        self._rows = rows
        self._files = files

    def check_slot(self, slot: int) -> ErrorReply | None:
        """Why no write to `slot` can have an effect now; None if the slot is open."""
        if slot in self._slots.open:
            return None
        waiting = self._slots.sealed_by(slot) is not None
        return ErrorReply(
            "moved",
            f"group {self._group} takes no writes for slot {slot}: the slot is not open there",
            "wait for the slot migration to end, then retry"
            if waiting
            else "read the partition table again and retry at the slot's owner",
            details={"slot": slot, "wait": waiting},
        )

    def write(self, index: int, w: commands.WriteRows, now: int) -> Reply:
        refusal = self.check_slot(w.slot) or self._check_session(
            w.session, w.slot, w.sequence, w.acknowledged_through
        )
        if refusal is None:
            schema = self._schemas.get((w.partition.storage_group, w.table))
            if schema is None or schema.version < w.schema_version:
                in_use = f"version {schema.version}" if schema is not None else "no version"
                refusal = ErrorReply(
                    "schema_mismatch",
                    f"group {self._group} uses {in_use} of table {w.table}, "
                    f"the rows need version {w.schema_version}",
                    "retry the write",
                )
        if refusal is not None:
            self.refused.add(index)
            return refusal
        if not self._sessions.record(w.session, w.slot, w.sequence, w.acknowledged_through):
            self.refused.add(index)
            return Written(0, duplicate=True)
        self._rows.add(index, w, now)
        self.rates.add(w.slot, len(w.ipc), now)
        return Written(index)

    def delete(self, index: int, d: commands.DeleteRange) -> Reply:
        refusal = self.check_slot(d.slot) or self._check_session(
            d.session, d.slot, d.sequence, d.acknowledged_through
        )
        if refusal is not None:
            return refusal
        if not self._sessions.record(d.session, d.slot, d.sequence, d.acknowledged_through):
            return Written(0, duplicate=True)
        self._files.delete(Tombstone((index,), d.partition, d.table, d.tags, d.time_from, d.time_to))
        return Written(index)

    def expire(self, index: int, e: commands.Expire) -> Reply:
        if e.passed and e.before > e.passed:
            return ErrorReply(
                "refused",
                f"no rows of table {e.table} expired: the cut-off {e.before} ms is later than {e.passed} ms, "
                "the time that a majority of the clocks had passed",
                "compare the clocks of the nodes",
            )
        if self.check_slot(e.slot) is None:
            cut = Tombstone((index,), e.partition, e.table, (), TIME_MIN, e.before - 1, expiry=True)
            self._files.expire(cut)
        return Accepted(index)

    def open_session(self, index: int, term: int) -> Reply:
        # The id has the term because a force recovery (`Raft.force`) reuses log indexes of the lost nodes.
        session = f"{self._group}:{index}.{term}"
        if not self._sessions.open(session):
            return ErrorReply(
                "overloaded",
                f"group {self._group} opened no session: it has {limits.SESSIONS_PER_GROUP_MAX}, the limit",
                "end clients that are not needed and retry after `session_ttl_ms`",
            )
        return SessionOpened(session)

    def use_schema(self, schema: TableSchema) -> None:
        key = (schema.storage_group, schema.table)
        known = self._schemas.get(key)
        if known is None or schema.version > known.version:
            self._schemas[key] = schema

    def forget_refused(self, base: int) -> None:
        """Forget refused writes up to log index `base`: the log is not needed up to there."""
        self.refused = {i for i in self.refused if i > base}

    def _check_session(
        self, session: str, slot: int, sequence: int, acknowledged_through: int
    ) -> ErrorReply | None:
        if not self._sessions.knows(session, slot):
            return ErrorReply(
                "session_expired",
                f"group {self._group} does not know session {session} for slot {slot}: it expired because it "
                "was not used, or it did not move here with the slot",
                "open a new session",
            )
        floor = max(self._sessions.floor(session, slot), acknowledged_through)
        if sequence > floor + limits.SESSION_WINDOW:
            return ErrorReply(
                "overloaded",
                f"session {session} has too many unanswered writes to slot {slot}: "
                f"sequence {sequence} is more than {limits.SESSION_WINDOW} past {floor}",
                "wait for answers, then retry",
            )
        return None

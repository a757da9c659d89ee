"""The error tree.

    NodeAgentError
    ├── Definite              it did not happen and will not
    │   ├── InvalidInput      bad bytes, names, types, rows
    │   │   ├── InvalidName
    │   │   ├── SchemaMismatch
    │   │   └── FrameError    the peer does not speak our protocol
    │   ├── NotFound
    │   ├── NotLeader         carries the leader, when known
    │   ├── Moved             the slot is in another group, sealed or not open yet
    │   ├── SessionExpired
    │   ├── Overloaded        a named limit was reached; retry later
    │   ├── Refused           a precondition does not hold; nothing changed
    │   ├── Busy              another change is open
    │   └── Forbidden         identity, role, cluster or incarnation
    ├── Unavailable           no quorum or no contact; a read, or a command that was not sent
    ├── OutcomeUnknown        it may or may not have happened
    └── Damaged               stored bytes do not match their checksum
        ├── LogCorrupt
        └── FileCorrupt

A definite error is never used if the outcome may differ (law 10).
"""

from collections.abc import Sequence
from typing import Any


class NodeAgentError(Exception):
    """Base of all errors of this project.

    Args:
        what: what did or did not happen, and where.
        next_step: the command or action that helps.
        details: facts for programs (a leader's name, a group id).
    """

    code = "error"
    connected = True
    """False if a client has no connection to the node, or if either of the two refused the other's hello."""

    def __init__(self, what: str, *, next_step: str = "", **details: Any) -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step
        self.details = details


class Definite(NodeAgentError):
    """It did not happen and will not."""

    code = "definite"


class InvalidInput(Definite):
    code = "invalid_input"


class InvalidName(InvalidInput):
    code = "invalid_name"


class SchemaMismatch(InvalidInput):
    code = "schema_mismatch"


class FrameError(InvalidInput):
    code = "frame_error"


class InvariantBroken(Exception):
    """State may be half changed: the process must end and restart from what is durable.

    This is no `NodeAgentError`, so that code which isolates the failure of one request does not catch it.
    """


class NotFound(Definite):
    code = "not_found"


class NotLeader(Definite):
    """`details["leader"]` is the leader's name, if it is known."""

    code = "not_leader"


class Moved(Definite):
    """`details`: `slot`, `header` (group owner by the node's table), `table_version` of that table, `wait`
    (true if the slot is sealed and not open elsewhere yet). Empty if sealed slots were requested."""

    code = "moved"


class SessionExpired(Definite):
    code = "session_expired"


class Overloaded(Definite):
    """`details["at_work"]` is true if the node is making room; releases before 0.2.0 do not set it."""

    code = "overloaded"


class Refused(Definite):
    code = "refused"


class Busy(Definite):
    code = "busy"


class Forbidden(Definite):
    code = "forbidden"


class EntryFailed(Exception):
    """A committed entry that this release cannot apply. It stops its group on this node; no client gets it.

    Args:
        index: log index of the entry. The state may have applied a part of it and must not be saved.
        why: the error, in words for an operator.
        replies: (log index, reply) of the entries before it that were applied in the same turn.
    """

    def __init__(self, index: int, why: str, replies: Sequence[tuple[int, Any]] = ()) -> None:
        super().__init__(f"entry {index}: {why}")
        self.index = index
        self.why = why
        self.replies = list(replies)

    @classmethod
    def of(cls, index: int, error: Exception, replies: Sequence[tuple[int, Any]] = ()) -> "EntryFailed":
        from msgspec import MsgspecError  # a command that only prints help imports this module too

        if isinstance(error, MsgspecError):
            return cls(index, f"this release does not know the command ({error})", replies)
        if isinstance(error, NodeAgentError):
            return cls(index, error.what, replies)
        return cls(index, f"{type(error).__name__}: {error}", replies)


def retired_sentence(incarnation: str, node: str) -> str:
    """Why other nodes ignore `node` under this incarnation, and why it does not serve."""
    return f"incarnation {incarnation} of {node} was retired from this cluster"


class Unavailable(NodeAgentError):
    code = "unavailable"


class OutcomeUnknown(NodeAgentError):
    code = "outcome_unknown"


class Damaged(NodeAgentError):
    code = "damaged"


class LogCorrupt(Damaged):
    """The log, checkpoint or state of a group is damaged on the answering node; other members may serve."""

    code = "log_corrupt"


class FileCorrupt(Damaged):
    """`details`, each only if known: `file`, and the hashes `expected` and `found` (or "unreadable")."""

    code = "file_corrupt"


def _tree(cls: type[NodeAgentError]) -> list[type[NodeAgentError]]:
    return [cls, *(s for c in cls.__subclasses__() for s in _tree(c))]


BY_CODE: dict[str, type[NodeAgentError]] = {c.code: c for c in _tree(NodeAgentError)}

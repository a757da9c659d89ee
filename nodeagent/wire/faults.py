"""Errors as replies and back, so that a caller sees the error the node raised."""

from nodeagent.model.errors import BY_CODE, NodeAgentError
from nodeagent.model.requests import ErrorReply

_Plain = str | int | bool | None


def to_reply(error: NodeAgentError) -> ErrorReply:
    """Details that are not plain values travel as text."""
    return ErrorReply(
        code=error.code,
        what=error.what,
        next_step=error.next_step,
        details={name: _plain(value) for name, value in error.details.items()},
    )


def to_error(reply: ErrorReply) -> NodeAgentError:
    """An unknown code (a newer peer) is the base error: it says neither definite nor unknown."""
    kind = BY_CODE.get(reply.code, NodeAgentError)
    details = {name: value for name, value in reply.details.items() if name not in ("what", "next_step")}
    return kind(reply.what, next_step=reply.next_step, **details)


def _plain(value: object) -> _Plain:
    return value if isinstance(value, str | int | bool | None) else str(value)

"""Converts errors to replies and back, so that a caller gets the error the node raised."""

from nodeagent.model.errors import BY_CODE, NodeAgentError
from nodeagent.model.requests import ErrorReply

_Plain = str | int | bool | None


def to_reply(error: NodeAgentError) -> ErrorReply:
    """The reply for an error. Details that are not plain values are sent as text."""
    return ErrorReply(
        code=error.code,
        what=error.what,
        next_step=error.next_step,
        details={name: _plain(value) for name, value in error.details.items()},
    )


def to_error(reply: ErrorReply) -> NodeAgentError:
    """The error of a reply. An unknown code (from a newer peer) becomes the base error, which is neither
    definite nor unknown."""
    kind = BY_CODE.get(reply.code, NodeAgentError)
    details = {name: value for name, value in reply.details.items() if name not in ("what", "next_step")}
    return kind(reply.what, next_step=reply.next_step, **details)


def _plain(value: object) -> _Plain:
    return value if isinstance(value, str | int | bool | None) else str(value)

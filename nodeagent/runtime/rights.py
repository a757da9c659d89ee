"""Which role may send which request, by the traits of the request (`model.requests.base.Traits`)."""

from nodeagent.model.errors import Forbidden, Unavailable
from nodeagent.model.requests import Request
from nodeagent.model.requests.base import GUEST, READER


def check_right(role: str, name: str, request: Request) -> None:
    """Raises `Forbidden`; for a guest `Unavailable`, because a guest may be a member not known here yet."""
    if role in request.traits.by:
        return
    if role == GUEST:
        raise Unavailable(
            f"this node does not know {name} as a member; it did not execute {type(request).__name__}",
            next_step="retry shortly if the node was just added; else iotctl cluster add-node",
        )
    raise Forbidden(
        f"{role} {name} may not send {type(request).__name__}",
        next_step="use an identity with the role admin" if role == READER else "",
    )

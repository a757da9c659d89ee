"""Which role may ask for what, as the requests themselves say (`model.requests.base.Traits`)."""

from nodeagent.model.errors import Forbidden, Unavailable
from nodeagent.model.requests import Request
from nodeagent.model.requests.base import GUEST, READER


def check_right(role: str, name: str, request: Request) -> None:
    """Raises `Forbidden`; for a guest `Unavailable`: it may be a member that this node does not know yet."""
    if role in request.traits.by:
        return
    if role == GUEST:
        raise Unavailable(
            f"{name} is not a member that this node knows; {type(request).__name__} was not done",
            next_step="retry shortly if it was just added; else iotctl cluster add-node",
        )
    raise Forbidden(
        f"{role} {name} may not ask for {type(request).__name__}",
        next_step="use an identity with the role admin" if role == READER else "",
    )

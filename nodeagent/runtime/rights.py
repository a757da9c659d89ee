"""Which role may ask for what."""

from nodeagent.model.errors import Forbidden
from nodeagent.model.requests import (
    CheckFiles,
    Forward,
    GetEvents,
    GetManifest,
    GetMeta,
    GetStatus,
    GetWriteRates,
    ListPartitions,
    Request,
    ScanRows,
)

_READER = (
    GetStatus,
    GetEvents,
    GetMeta,
    ScanRows,
    ListPartitions,
    GetManifest,
    GetWriteRates,
    CheckFiles,
)
_NODE_ONLY = (Forward,)


def check_right(role: str, name: str, request: Request) -> None:
    """Raises `Forbidden`. Roles: `node` speaks for a node, `admin` may all a person may, `reader` reads."""
    if role == "node":
        return
    if role == "admin" and not isinstance(request, _NODE_ONLY):
        return
    if role == "reader" and isinstance(request, _READER):
        return
    raise Forbidden(
        f"{role} {name} may not ask for {type(request).__name__}",
        next_step="use an identity with the role admin" if role == "reader" else "",
    )

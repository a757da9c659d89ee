"""Which role may ask for what: `node` speaks for a member of the cluster, `guest` for a node that is none (or
not known yet), `admin` for a person, `reader` only reads.
"""

from nodeagent.model.errors import Forbidden, Unavailable
from nodeagent.model.requests import (
    CheckFiles,
    CheckStatus,
    DropLock,
    DropTable,
    Forward,
    GetEvents,
    GetManifest,
    GetMeta,
    GetOperation,
    GetRuns,
    GetSealedSessions,
    GetStatus,
    GetWriteRates,
    GiveUp,
    ListPartitions,
    ProbeGroup,
    RaiseLevel,
    RecordRun,
    RepairFile,
    Request,
    ScanRows,
    TakeLock,
)

_READS = (
    *(GetStatus, GetEvents, GetMeta, GetRuns, GetOperation, GetWriteRates, ProbeGroup),
    *(ScanRows, ListPartitions, GetManifest, CheckFiles),
)
_NODES_ONLY = (Forward, CheckStatus, GetSealedSessions)
_GUESTS = (CheckStatus,)
_ADMINS_ONLY = (DropTable, RepairFile, GiveUp, RaiseLevel, TakeLock, DropLock, RecordRun)


def may_ask(role: str, kind: type) -> bool:
    """Whether `role` may ask for requests of `kind`: the one place where roles differ."""
    match role:
        case "node":
            return kind not in _ADMINS_ONLY
        case "admin":
            return kind not in _NODES_ONLY
        case "reader":
            return kind in _READS
        case "guest":
            return kind in _GUESTS
        case _:
            return False


def check_right(role: str, name: str, request: Request) -> None:
    """Raises `Forbidden`; for a guest `Unavailable`: it may be a member that this node does not know yet."""
    if may_ask(role, type(request)):
        return
    if role == "guest":
        raise Unavailable(
            f"{name} is not a member that this node knows; {type(request).__name__} was not done",
            next_step="retry shortly if it was just added; else iotctl cluster add-node",
        )
    raise Forbidden(
        f"{role} {name} may not ask for {type(request).__name__}",
        next_step="use an identity with the role admin" if role == "reader" else "",
    )

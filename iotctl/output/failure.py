"""A failure as three lines or one JSON document, and its exit code."""

import msgspec

from iotctl.errors import Exit, IotctlError
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.text import printable

EXIT_OF: dict[str, Exit] = {
    "error": Exit.BUG,
    "definite": Exit.REFUSED,
    "invalid_input": Exit.INPUT,
    "invalid_name": Exit.INPUT,
    "schema_mismatch": Exit.INPUT,
    "frame_error": Exit.UNREACHABLE,
    "not_found": Exit.REFUSED,
    "not_leader": Exit.UNREACHABLE,
    "moved": Exit.UNREACHABLE,
    "session_expired": Exit.UNREACHABLE,
    "overloaded": Exit.BUSY,
    "refused": Exit.REFUSED,
    "busy": Exit.BUSY,
    "forbidden": Exit.UNREACHABLE,
    "unavailable": Exit.UNREACHABLE,
    "outcome_unknown": Exit.UNKNOWN,
    "damaged": Exit.VERIFICATION,
    "log_corrupt": Exit.VERIFICATION,
    "file_corrupt": Exit.VERIFICATION,
}
"""Every code of the node's error tree has an exit code (checked by a test)."""

NEXT_OF: dict[Exit, str] = {
    Exit.UNREACHABLE: "iotctl cluster status",
    Exit.UNKNOWN: "check the outcome with iotctl data query or iotctl ops list; writing rows again is safe",
}
"""The next step for errors that name none."""


class Failure(msgspec.Struct, frozen=True):
    """The body of `{"error": …}`; `code` is the exit code."""

    code: int
    kind: str
    outcome: str
    what: str
    why: str
    next: str
    where: str


def describe(error: BaseException) -> Failure:
    """The failure that reports `error`; an unexpected error is a bug of iotctl (exit 1)."""
    if isinstance(error, IotctlError):
        return Failure(
            code=error.exit,
            kind=error.kind,
            outcome=error.outcome,
            what=error.what,
            why=error.why,
            next=error.next,
            where=error.where,
        )
    if isinstance(error, NodeAgentError):
        code = EXIT_OF.get(error.code, Exit.BUG)
        outcome = "unknown" if code is Exit.UNKNOWN else "not_done"
        why = "; ".join(f"{k}={v}" for k, v in error.details.items())
        following = error.next_step or NEXT_OF.get(code, "")
        return Failure(code, error.code, outcome, error.what, why, following, "")
    return Failure(Exit.BUG, "bug", "unknown", f"{type(error).__name__}: {error}", "", "", "")


def to_lines(failure: Failure) -> str:
    """Lines with what failed, why, and the next command; empty parts are omitted."""
    place = f"{failure.where}: " if failure.where else ""
    lines = [f"error: {place}{failure.what}"]
    if failure.why:
        lines.append(f"  why: {failure.why}")
    if failure.next:
        lines.append(f"  next: {failure.next}")
    return "".join(printable(line, keep="\n") + "\n" for line in lines)

"""The errors that iotctl reports to the operator, with their exit codes.

    IotctlError
    ├── UsageProblem         2  the command line itself
    ├── InputProblem         3  cluster.yaml, plan or data file; `where` is file:line:col
    ├── Unreachable          4  host, certificate or quorum
    ├── RefusedProblem       5  nothing was changed
    ├── Partly               6  a part is done, or the wait timed out; `next` continues
    ├── VerificationFailed   7
    ├── Unknown              9  the outcome is unknown; `next` shows how to check it
    └── BusyProblem         10  another program holds a lock, or a change is open

Each error says what is wrong and, if known, why and what to do next, on one line each.
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes are stable: scripts and playbooks branch on them."""

    DONE = 0
    BUG = 1
    USAGE = 2
    INPUT = 3
    UNREACHABLE = 4
    REFUSED = 5
    PARTLY = 6
    VERIFICATION = 7
    PENDING = 8
    UNKNOWN = 9
    BUSY = 10
    INTERRUPTED = 130
    TERMINATED = 143


class IotctlError(Exception):
    """Base of the errors that are reported to the operator.

    Args:
        what: what is wrong, or what was not done.
        why: the reason, if it is known.
        next: the command or action that helps.
        where: `file:line:col`, a node or a group.
    """

    exit = Exit.BUG
    kind = "error"
    outcome = "not_done"

    def __init__(self, what: str, *, why: str = "", next: str = "", where: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.next = next
        self.where = where


class UsageProblem(IotctlError):
    exit = Exit.USAGE
    kind = "usage"


class InputProblem(IotctlError):
    exit = Exit.INPUT
    kind = "input"


class Unreachable(IotctlError):
    exit = Exit.UNREACHABLE
    kind = "unreachable"


class RefusedProblem(IotctlError):
    exit = Exit.REFUSED
    kind = "refused"


class Partly(IotctlError):
    exit = Exit.PARTLY
    kind = "partly"
    outcome = "partial"


class VerificationFailed(IotctlError):
    exit = Exit.VERIFICATION
    kind = "verification"


class Unknown(IotctlError):
    exit = Exit.UNKNOWN
    kind = "unknown"
    outcome = "unknown"


class BusyProblem(IotctlError):
    exit = Exit.BUSY
    kind = "busy"

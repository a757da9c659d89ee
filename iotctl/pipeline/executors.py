"""Checks where Spark's tasks run: whether a master answers, executors exist, and what they lack.

Spark itself waits a minute for a master and without limit for executors, and reports neither.
"""

import re
import socket
from typing import TYPE_CHECKING

from nodeagent.model.errors import Unavailable

if TYPE_CHECKING:
    from pyspark import SparkContext

DIAL_TIMEOUT_S = 5.0
EXECUTOR_WAIT_S = 60.0
"""How long a master may provide no executor. Longer than a worker takes to start or replace an executor; if
the cluster is busy for longer, the operator repeats the command."""

POLL_S = 0.25

NO_EXECUTOR = (
    "it has no worker, no worker with a free core and 1 GiB, or its workers cannot reach this machine, "
    "or their executors exit at once"
)
NO_ENVIRONMENT = (
    "give each worker iotctl's Python packages in the versions of this machine; "
    "PYSPARK_PYTHON names the interpreter there"
)


def is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")


def check_master(master: str, timeout_s: float = DIAL_TIMEOUT_S) -> None:
    """Check that one master of a standalone cluster accepts connections; Spark checks masters of other kinds.

    Raises:
        Unavailable: no master accepts one; names each master with the reason.
    """
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout_s).close()
        except ValueError:  # from the port, or from a host name that cannot be encoded
            reasons.append(f"{address}: not HOST:PORT")
        except (OSError, OverflowError) as error:  # a port may be too large
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            reasons.append(f"{address}: {reason}")
        else:
            return
    raise Unavailable(
        f"no Spark master accepts connections: {'; '.join(reasons)}",
        next_step="start the master, name another with --master, or omit --master to run Spark locally",
    )


def executors(context: "SparkContext") -> int:
    """How many processes can run tasks now; 1 for a local master, whose driver runs them."""
    if is_local(str(context.master)):
        return 1
    tracker = context._jsc.sc().statusTracker()  # the Python tracker lacks this number
    return len(tracker.getExecutorInfos()) - 1  # without the driver


class Patience:
    """Measures for how long there has been no executor."""

    def __init__(self, limit_s: float, now: float) -> None:
        self._limit_s = limit_s
        self._seen = now

    def waits(self, count: int, now: float) -> bool:
        """Record how many executors there are now; returns whether there is none."""
        if count:
            self._seen = now
        return not count

    def over(self, now: float) -> bool:
        return now - self._seen >= self._limit_s


def starved(master: str, limit_s: float) -> str:
    return f"Spark master {master} provided no executor for {limit_s:.0f} s: {NO_EXECUTOR}"


def waiting(limit_s: float) -> str:
    """The progress note while there is no executor."""
    return f"no executor yet; waiting up to {limit_s:.0f} s"


def first_line(error: Exception) -> str:
    """What ended a job, in one line: the Python exception if Spark's text contains one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lacking = _lacking(lines)
    if lacking:
        return f"a Spark worker cannot run iotctl: {lacking[:200]}; {NO_ENVIRONMENT}"
    named = [line for line in lines if "Error" in line and not line.startswith(("at ", "File ", "An error"))]
    return (named or lines or [type(error).__name__])[-1 if named else 0][:300]


def _lacking(lines: list[str]) -> str:
    """The error line of a worker that lacks Python or our packages or has another Python version; else ""."""
    for line in lines:
        found = re.search(
            r"Cannot run program .*|(?:ModuleNotFound|Import)Error: .*|\[PYTHON_VERSION_MISMATCH\].*", line
        )
        if found:
            return found[0]
    return ""

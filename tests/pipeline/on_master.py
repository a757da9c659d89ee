"""Jobs on a Spark master, for `test_executors`: a line for each phase of progress and each result.

Without `started` it only opens a session. With it, it also runs three jobs: one that works, one whose workers
lack the requested Python, and one that reports that it runs and does not end by itself.
"""

import sys
import time
from pathlib import Path

from iotctl.pipeline.jobs import run_tasks
from iotctl.pipeline.session import spark_session
from nodeagent.model.errors import NodeAgentError

WAIT_S = 3.0


class Lines:
    """Progress that prints each phase with its note once."""

    def __init__(self) -> None:
        self._last = ""

    def update(self, phase: str, done: int = 0, total: int = 0, *, unit: str = "", note: str = "") -> None:
        line = f"{phase} ({note})"
        if line != self._last:
            print(line, flush=True)
        self._last = line


def main(master: str, started: Path | None) -> None:
    def stay(unit: bytes) -> bytes:
        assert started is not None
        started.touch()
        time.sleep(120)
        return unit

    wait_s = WAIT_S if started is None else 120.0
    try:
        with spark_session("on a master", master, Lines(), wait_s) as session:
            if started is None:
                return
            print("works:", run_tasks(session, [b"a", b"b"], bytes.upper, Lines(), "working"), flush=True)
            python = session.sparkContext.pythonExec
            session.sparkContext.pythonExec = "/no/such/python"
            print("lacks:", run_tasks(session, [b""], bytes.upper, Lines(), "lacking"), flush=True)
            session.sparkContext.pythonExec = python
            print("loses:", run_tasks(session, [b""], stay, Lines(), "losing", WAIT_S), flush=True)
    except NodeAgentError as error:
        print(f"{error.code}: {error.what}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]) if sys.argv[2:] else None)

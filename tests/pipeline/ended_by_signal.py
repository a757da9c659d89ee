"""A program with a Spark job that never ends, for `test_session`: prints a line once a task runs."""

import sys
import time
from pathlib import Path

from iotctl.cli.main import Terminated, on_sigterm
from iotctl.pipeline.jobs import run_tasks
from iotctl.pipeline.report import Silent
from iotctl.pipeline.session import spark_session


def main(started: Path) -> int:
    def task(unit: bytes) -> bytes:
        started.touch()
        time.sleep(120)
        return unit

    try:
        with on_sigterm(), spark_session("ended by a signal", "local[1]") as session:
            run_tasks(session, [b""], task, Silent(), "waiting")
    except KeyboardInterrupt:
        return 130
    except Terminated:
        return 143
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

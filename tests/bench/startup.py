"""How long `iotctl --help` takes in a new process."""

import subprocess
import sys
import time

from tests.bench.figures import Report, of
from tests.bench.raw import timed

RUNS = 7
CEILING_MS = 200.0


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    bare = [1e3 * timed(lambda: _call("-c", "pass")) for _ in range(RUNS)]
    times = [1e3 * timed(lambda: _call("-m", "iotctl", "--help")) for _ in range(RUNS)]
    figures = (
        of(
            "iotctl --help",
            times,
            "ms",
            ceiling=CEILING_MS,
            limit=f"python -c pass {sorted(bare)[RUNS // 2]:.0f} ms",
        ),
    )
    return Report(
        "help", f"`iotctl --help` in a new process, median of {RUNS}", figures, time.monotonic() - started
    )


def _call(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)

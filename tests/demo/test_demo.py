"""`iotctl demo`, exactly as a user runs it: it passes and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iotctl.fleet.local import LocalFleet

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.spark]

DEMO_LIMIT_S = 480
READY_LIMIT_S = 60


def _processes_of(directory: Path) -> list[str]:
    """Command lines of running processes that name `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(directory) in line and "-m pytest" not in line:
                found.append(line)
    return found


def test_the_demo_passes_and_its_summary_says_what_moved(tmp_path: Path) -> None:
    """Exit 0; the bound is met, enough non-empty slots moved, rows and series are the same afterwards."""
    home = tmp_path / "fleet"
    done = subprocess.run(
        [sys.executable, "-m", "iotctl", "demo", "-o", "json", "--dir", str(home)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEMO_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["failures"] == []
    assert report["rows_before"] == report["rows_after"] > 400_000
    for change in report["changes"]:
        assert change["slots"] == change["lower_bound"]
        assert change["nonempty"] >= 200
        assert sum(change["received_bytes"].values()) > 0
    assert report["strong_reads"] > 0 and report["acknowledged"] > 0
    assert not home.exists()
    assert _processes_of(home) == []


def test_an_interrupted_demo_leaves_nothing_running(tmp_path: Path) -> None:
    """Ctrl-C in the middle: exit 130, no agent is left."""
    home = tmp_path / "fleet"
    demo = subprocess.Popen(
        [sys.executable, "-m", "iotctl", "demo", "--dir", str(home)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # A suite that was started in the background of a script ignores SIGINT, and so would the demo.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + READY_LIMIT_S
        while len(_processes_of(home / "node5")) == 0 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert _processes_of(home / "node5"), "no agent was started"
        demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
    finally:
        demo.kill()
        demo.wait()
        left = _processes_of(home)
        fleet = LocalFleet(home)
        if fleet.exists:
            fleet.destroy()
    assert left == []
    assert _processes_of(home) == []

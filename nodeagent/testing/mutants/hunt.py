"""Plant a bug in a copy of the package and let the simulator look for it."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nodeagent
from nodeagent.testing.mutants.mutant import Mutant

SEED_TIMEOUT_S = 120
RUNS = ("nodeagent.testing", "nodeagent.testing.cluster_swarm")
"""One after the other, for so many seeds each."""


def plant(mutant: Mutant, into: Path) -> Path:
    """A copy of the package with the bug in it; returns the directory to import it from."""
    package = into / "nodeagent"
    shutil.copytree(Path(nodeagent.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    target = package / mutant.file
    source = target.read_text()
    assert source.count(mutant.old) == 1, f"{mutant.name}: {source.count(mutant.old)} places in {mutant.file}"
    target.write_text(source.replace(mutant.old, mutant.new))
    return into


def hunt(mutant: Mutant, seeds: int, first: int = 1) -> tuple[int, str]:
    """Seeds until it was found (0: it survived), and by what."""
    with tempfile.TemporaryDirectory() as directory:
        where = plant(mutant, Path(directory))
        for runs in RUNS:
            needed, by = _hunt(where, runs, seeds, first)
            if needed:
                return needed, by
    return 0, ""


def hunt_one(job: tuple[Mutant, int]) -> tuple[int, str]:
    """As `hunt`, of a mutant and a number of seeds, for `parallel.results`."""
    return hunt(*job)


def _hunt(where: Path, runs: str, seeds: int, first: int) -> tuple[int, str]:
    command = [sys.executable, "-m", runs, str(first), str(seeds)]
    environment = {**os.environ, "PYTHONPATH": str(where)}
    try:
        run = subprocess.run(
            command,
            cwd=where,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SEED_TIMEOUT_S * seeds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return seeds, "it never ends"
    if run.returncode == 0:
        return 0, ""
    by = [line for line in run.stderr.splitlines() if line.startswith("AssertionError: seed")]
    return run.stdout.count("\n") + 1, by[-1][:120] if by else run.stderr[-200:]

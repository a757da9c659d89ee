"""Plant a bug in a copy of the package and look for it with each of three nets that covers the bug's package.

- `seeds`: a number of seeds of the simulator (`testing.seeds`).
- `scopes`: every order of a few events (`testing.exhaustive`).
- `tests`: only the directed tests of the packages that must find it.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

import nodeagent
from nodeagent.testing.mutants.mutant import Mutant
from nodeagent.testing.parallel import results
from nodeagent.testing.seeds import WORLDS

CONTROL_TIMEOUT_S = 1800
USUAL_S = 100.0
"""Assumed duration of a net that was not measured."""

NO_TESTS = 5
"""Exit code of pytest if it collects no tests. Other codes above 1 mean that the bug prevents the tests from starting."""

SLOWER = 5
EXTRA_S = 240
"""A run counts as endless after `SLOWER` times the duration without a bug, plus `EXTRA_S`. One extra minute was too
little for a run of 11 s on a machine with three test processes."""

TEST_S = 60
"""A directed test that takes longer counts as endless; the longest takes 14 s beside two other processes."""

NETS = ("tests", "scopes", "seeds")
ROOMS = {
    "data": ("data", "partition", "table", "host"),
    "meta": ("meta", "scaling", "host"),
    "scaling": ("scaling", "host"),
    "runtime": ("runtime", "log/test_disk.py"),
    "client": ("client", "runtime/test_identity.py"),
}
"""Directories and files of a package's directed tests, if they differ from the directory with its name."""

SCOPES = {"raft": "raft", "meta": "slots", "scaling": "slots", "data": "slots"}
"""The scopes that can find bugs of a package."""

NOT_SIMULATED = ("runtime",)
"""Packages that the simulator replaces."""

LIKELY = {
    "raft": ("groups", "walks"),
    "log": ("log",),
    "host": ("groups", "client", "cluster_swarm"),
    "data": ("walks", "client", "cluster_swarm"),
    "meta": ("walks", "scenario", "client"),
    "scaling": ("walks",),
    "storage": ("files",),
    "client": ("client",),
}
"""The simulator's worlds that are searched first for bugs of a package."""

SEEN = Path(__file__).with_name("seen.json")
"""By package and name of a bug: the world and the first seed known to find it."""


class Found(msgspec.Struct, frozen=True):
    """The result of one net for one bug."""

    net: str
    by: str = ""
    """The first failure; "" if nothing failed."""

    seeds: int = 0
    """The seed that failed; 0 if none did, or if the net runs no seeds."""

    world: str = ""
    """World in which the seed failed."""


def plant(mutant: Mutant, into: Path) -> Path:
    """Copy the package with the bug into `into`; returns the directory to import it from."""
    target = _copy(into) / "nodeagent" / mutant.file
    source = target.read_text()
    assert source.count(mutant.old) == 1, (
        f"{mutant.name}: `old` occurs {source.count(mutant.old)} times in {mutant.file}, not once"
    )
    target.write_text(source.replace(mutant.old, mutant.new))
    return into


def _copy(into: Path) -> Path:
    package = Path(nodeagent.__file__).parent
    shutil.copytree(package, into / "nodeagent", ignore=shutil.ignore_patterns("__pycache__"))
    return into


def control(rooms: Iterable[str], nets: Sequence[str] = NETS) -> dict[str, float]:
    """Run the nets on the package without a bug; returns the duration of each in seconds (for seeds, of one seed).

    Raises:
        RuntimeError: a net fails without a bug.
    """
    jobs = {what: (net, room) for room in rooms for net in nets if (what := _what(net, room))}
    took: dict[str, float] = {}
    for what, (found, seconds) in zip(jobs, results(_look_at_none, list(jobs.values())), strict=True):
        if found.by:
            raise RuntimeError(f"{what}: fails on the package without a planted bug: {found.by}")
        took[what] = seconds
    return took


def _look_at_none(job: tuple[str, str]) -> tuple[Found, float]:
    """What a net finds in the package without a bug, and its duration in seconds."""
    net, room = job
    with tempfile.TemporaryDirectory() as directory:
        where = _copy(Path(directory))
        start = time.monotonic()
        if net == "seeds":
            return _by_some_seeds(where, 1, 1, "", CONTROL_TIMEOUT_S), time.monotonic() - start
        return _look(net, where, room, "", CONTROL_TIMEOUT_S), time.monotonic() - start


def hunt(
    mutant: Mutant,
    seeds: int,
    nets: Sequence[str] = NETS,
    took: Mapping[str, float] | None = None,
    world: str = "",
) -> list[Found]:
    """Look for the bug with each net that covers its package; returns what each found.

    Args:
        seeds: number of seeds; 0 for only the recorded seed, if there is one.
        took: durations returned by `control`.
        world: run the seeds only in this world.

    Raises:
        RuntimeError: the directed tests cannot be run.
    """
    # Processes that the bug left running may still write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        where = plant(mutant, Path(directory))
        found: list[Found] = []
        for net in nets:
            what = _what(net, mutant.room)
            if what:
                usual = (took or {}).get(what, USUAL_S) * (max(1, seeds) if net == "seeds" else 1)
                limit = EXTRA_S + SLOWER * usual
                if net == "seeds":
                    found.append(_by_seeds(where, mutant, seeds, world, limit))
                else:
                    found.append(_look(net, where, mutant.room, mutant.file, limit))
        return found


def hunt_one(job: tuple[Mutant, int, Sequence[str], Mapping[str, float], str]) -> list[Found]:
    """`hunt` with one argument, for `parallel.results`."""
    return hunt(*job)


def _what(net: str, room: str) -> str:
    """Name of what the net runs for bugs of a package; "" if it does not cover the package."""
    if net == "tests":
        return f"tests of {' '.join(ROOMS.get(room, (room,)))}"
    if net == "scopes":
        return f"scopes of {SCOPES[room]}" if room in SCOPES else ""
    return "" if room in NOT_SIMULATED else "seeds"


def _look(net: str, where: Path, room: str, file: str, timeout_s: float) -> Found:
    """Look for a bug of this package with the tests or scopes; `file` is where it is planted, if it is known."""
    if net == "tests":
        return _by_tests(where, room, file, timeout_s)
    return _by_scopes(where, SCOPES[room], timeout_s)


def _by_tests(where: Path, room: str, file: str, timeout_s: float) -> Found:
    project = Path(nodeagent.__file__).parent.parent
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("tests", "iotctl"):  # the tests import `tests` and `iotctl` from beside the package
        shutil.copytree(project / name, where / name, ignore=skip, dirs_exist_ok=True)
    shutil.copy(project / "pyproject.toml", where)
    rooms = [f"tests/{name}" for name in ROOMS.get(room, (room,))]
    assert all((where / name).exists() for name in rooms), rooms  # a missing path would look like a found bug
    own = f"tests/{room}/test_{file.rpartition('/')[2]}"
    first = [own] if (where / own).is_file() else []  # these find most bugs
    # A separate base directory, because pytest deletes those of other runs in the shared one before it ends.
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--basetemp={where / 'written'}", f"--timeout={TEST_S}"]
    code, out, err = run_in(where, ["-m", "pytest", *options, *first, *rooms], timeout_s)
    if code == 0:
        return Found("tests")
    if code == NO_TESTS:
        raise RuntimeError(f"{rooms}: pytest found no test: {out[-500:]}{err[-500:]}")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", out, re.MULTILINE)
    return Found("tests", failed[0] if failed else err)


def _by_scopes(where: Path, world: str, timeout_s: float) -> Found:
    code, _, err = run_in(where, ["-m", "nodeagent.testing.exhaustive", world], timeout_s)
    broken = re.findall(r"^\S*(?:Broken|Error): (.+)", err, re.MULTILINE)
    return Found("scopes", "" if code == 0 else broken[-1] if broken else err)


def _by_seeds(where: Path, mutant: Mutant, seeds: int, world: str, timeout_s: float) -> Found:
    """Run the recorded seed first; then seeds in `world`, or in the likely worlds and finally in all."""
    found = Found("seeds")
    if mutant.unseen:
        return found
    seen_in, seed = seen_by().get(key_of(mutant), ("", 0))
    if seed and (seed <= seeds or not seeds):
        found = _by_some_seeds(where, seed, 1, seen_in, timeout_s)
    for among in [world] if world else [*LIKELY.get(mutant.room, ()), ""]:
        if seeds and not found.by:
            found = _by_some_seeds(where, 1, seeds, among, timeout_s)
    return found


def key_of(mutant: Mutant) -> str:
    return f"{mutant.room}: {mutant.name}"


def seen_by() -> dict[str, tuple[str, int]]:
    """World and seed by `key_of`."""
    return msgspec.json.decode(SEEN.read_bytes(), type=dict[str, tuple[str, int]])


def record(found: Mapping[str, Found]) -> None:
    """Record the seeds that found these bugs, by `key_of`; the records of other bugs stay."""
    seen = seen_by() | {key: (f.world, f.seeds) for key, f in found.items() if f.world}
    whole = SEEN.with_suffix(".new")  # other processes may read the file
    whole.write_text(msgspec.json.format(msgspec.json.encode(dict(sorted(seen.items()))).decode()) + "\n")
    whole.replace(SEEN)


def _by_some_seeds(where: Path, first: int, count: int, world: str, timeout_s: float) -> Found:
    words = ["-m", "nodeagent.testing", str(first), str(count), *(["--world", world] if world else [])]
    code, out, err = run_in(where, words, timeout_s)
    if code == 0:
        return Found("seeds")
    module = re.findall(r"^replay: python -m nodeagent\.testing\.(\w+)", err, re.MULTILINE)
    by = re.findall(r"^AssertionError: (seed.+)", err, re.MULTILINE)
    seed = first + out.count("\n")
    return Found("seeds", " ".join([*module[-1:], *by[-1:]]) or err, seed, _world_of(module[-1:], world))


def _world_of(module: Sequence[str], world: str) -> str:
    """The name of the world that a module runs."""
    names = {run.__module__.rpartition(".")[2]: name for name, (run, _) in WORLDS.items()}
    return names.get(module[0], world) if module else world


def run_in(where: Path, words: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """Run Python in `where`; returns its exit code, output and errors. All processes that it started are killed."""
    run = subprocess.Popen(
        [sys.executable, *words],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(where), "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = run.communicate(timeout=timeout_s)
        return run.returncode, out, err or f"exit code {run.returncode}"
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGABRT)  # makes Python print its stack
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(5)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    out, err = run.communicate()
    return 1, out, f"the run did not end: {_innermost(err)}"


def _innermost(dump: str) -> str:
    """The innermost frame of the stack that an aborted process printed; "" if it printed none."""
    frames = re.findall(r"most recent call first\):\n\s+(.+)", dump)
    return frames[0] if frames else ""

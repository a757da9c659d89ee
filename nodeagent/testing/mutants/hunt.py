"""Plant a bug in a copy of the package and look for it with one of three nets.

- `seeds`: the simulator (`testing.seeds`), so many seeds.
- `scopes`: every order of a few events (`testing.exhaustive`).
- `tests`: the directed tests of the rooms that have to see it, and no others.
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
"""Where nobody looked what a net takes."""

NO_TESTS = 5
"""Exit code of pytest. Others above 1 are tests that could not begin, which they can without the bug."""

SLOWER = 5
EXTRA_S = 240
"""A run that takes so many times what the package without a bug takes, and so much more, never ends. With a minute
more a run of 11 s was ended on a machine that tested in three processes at a time."""

TEST_S = 60
"""A directed test that takes longer never ends; the longest takes 14 s beside two other processes."""

NETS = ("tests", "scopes", "seeds")
ROOMS = {
    "data": ("data", "partition", "table", "host"),
    "meta": ("meta", "scaling", "host"),
    "scaling": ("scaling", "host"),
    "runtime": ("runtime", "log/test_disk.py"),
    "client": ("client", "runtime/test_identity.py"),
}
"""Where the directed tests of a room are, if not in the directory of its name alone."""

SCOPES = {"raft": "raft", "meta": "slots", "scaling": "slots", "data": "slots"}
"""The scopes in which a bug of a room may be seen."""

NOT_SIMULATED = ("runtime",)
"""The simulator has its own."""

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
"""The worlds of the simulator in which a bug of a room is looked for before all others are run."""

SEEN = Path(__file__).with_name("seen.json")
"""By room and name of a bug: the first seed that was found to see it, and in which world."""


class Found(msgspec.Struct, frozen=True):
    """What one net saw of a bug."""

    net: str
    by: str = ""
    """What failed first; "" when nothing did."""

    seeds: int = 0
    """How many it took."""

    world: str = ""
    """The world of the last of them."""


def plant(mutant: Mutant, into: Path) -> Path:
    """A copy of the package with the bug in it; returns the directory to import it from."""
    target = _copy(into) / "nodeagent" / mutant.file
    source = target.read_text()
    assert source.count(mutant.old) == 1, f"{mutant.name}: {source.count(mutant.old)} places in {mutant.file}"
    target.write_text(source.replace(mutant.old, mutant.new))
    return into


def _copy(into: Path) -> Path:
    package = Path(nodeagent.__file__).parent
    shutil.copytree(package, into / "nodeagent", ignore=shutil.ignore_patterns("__pycache__"))
    return into


def control(rooms: Iterable[str], nets: Sequence[str] = NETS) -> dict[str, float]:
    """What these nets take for a package without a bug, which each must let pass: by what is run, in seconds
    (of seeds, for one).

    Raises:
        RuntimeError: one of them fails by itself.
    """
    jobs = {what: (net, room) for room in rooms for net in nets if (what := _what(net, room))}
    took: dict[str, float] = {}
    for what, (found, seconds) in zip(jobs, results(_look_at_none, list(jobs.values())), strict=True):
        if found.by:
            raise RuntimeError(f"{what}: fails on the package as it is: {found.by}")
        took[what] = seconds
    return took


def _look_at_none(job: tuple[str, str]) -> tuple[Found, float]:
    """What a net sees of a package without a bug, and how long it takes."""
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
    """What each of these nets sees, whatever the others saw; nothing of a net that has nothing for the room.

    Args:
        seeds: as many; 0 for the one alone that saw it before, if one did.
        took: as `control` told, if it was asked.
        world: of the seeds, these alone.

    Raises:
        RuntimeError: the directed tests could not be run.
    """
    # What a bug leaves running may still write there.
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
    """As `hunt`, for `parallel.results`."""
    return hunt(*job)


def _what(net: str, room: str) -> str:
    """What is run for bugs of a room; "" when the net has nothing for it."""
    if net == "tests":
        return f"tests of {' '.join(ROOMS.get(room, (room,)))}"
    if net == "scopes":
        return f"scopes of {SCOPES[room]}" if room in SCOPES else ""
    return "" if room in NOT_SIMULATED else "seeds"


def _look(net: str, where: Path, room: str, file: str, timeout_s: float) -> Found:
    """By what there is for a bug of this room, in this file if one is named."""
    if net == "tests":
        return _by_tests(where, room, file, timeout_s)
    return _by_scopes(where, SCOPES[room], timeout_s)


def _by_tests(where: Path, room: str, file: str, timeout_s: float) -> Found:
    project = Path(nodeagent.__file__).parent.parent
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("tests", "iotctl"):  # tests import their own package, from beside the one they test
        shutil.copytree(project / name, where / name, ignore=skip, dirs_exist_ok=True)
    shutil.copy(project / "pyproject.toml", where)
    rooms = [f"tests/{name}" for name in ROOMS.get(room, (room,))]
    assert all((where / name).exists() for name in rooms), rooms  # pytest would fail, as if a bug were found
    own = f"tests/{room}/test_{file.rpartition('/')[2]}"
    first = [own] if (where / own).is_file() else []  # most bugs fail there
    # A directory of its own for what they write: in the shared one pytest clears up after other runs before it ends.
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
    """By the seed that saw it before; else in one world, or where it is likely to be seen, then in all."""
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
    """What seeds saw of these bugs, by `key_of`; of others it stays as it is."""
    seen = seen_by() | {key: (f.world, f.seeds) for key, f in found.items() if f.world}
    whole = SEEN.with_suffix(".new")  # others read it meanwhile
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
    """Exit code, output and errors. Whatever it started ends with it."""
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
        run.send_signal(signal.SIGABRT)  # Python says where it stands
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(5)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    out, err = run.communicate()
    return 1, out, f"it never ends: {_stands(err)}"


def _stands(dump: str) -> str:
    """The innermost line of what a process wrote when it was aborted; "" when it wrote nothing."""
    frames = re.findall(r"most recent call first\):\n\s+(.+)", dump)
    return frames[0] if frames else ""

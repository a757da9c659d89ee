"""Real agents under faults, with a check of everything that clients see: `make torture MINUTES=60`.

    python -m tests.torture.torture MINUTES [--seed N] [--skew-s SECONDS] [--only FAULT]

Each fault is drawn by the seed, lasts some seconds and is healed; then the cluster must be healthy and every
lane of writers must continue. The faults: kill -9 of any number of agents, SIGSTOP beyond the election
timeout, full disks (each agent's directory is a small tmpfs; needs root), one wrong wall clock (needs a C
compiler), and a lost log directory (the agent must refuse to start and delete nothing; then the node is
replaced). While disks are full or a clock is wrong, an agent is killed half of the time. At the end every row
is read, `iotctl verify --depth content` passes, and `nodeagent files check --strict` finds no leftover files.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from iotctl.change.execute import SILENT_MS
from iotctl.fleet.local import LocalFleet, agent_command
from iotctl.observe.cluster import cluster_spec
from nodeagent.model.config import ClusterSettings
from tests.cluster.random_ops import check_files
from tests.cluster.world import World
from tests.torture.history import History, make_lanes, schemas
from tests.waiting import until

NODES = 5
DISK_MIB = 192
"""Size of each agent's tmpfs."""

SETTINGS: dict[str, object] = {
    "segment_bytes": 4 << 20,
    "memtable_bytes_max": 4 << 20,
    "partition_bytes_max": 1 << 20,
    "log_bytes_max": 24 << 20,
    "idle_close_ms": 3_000,
    "snapshot_ttl_ms": 5_000,
    "expire_every_ms": 1_000,
}
SKEW_S = 60 * 86_400
REST_S, GO_ON_S, COMMAND_S, REFUSES_S = 90.0, 45.0, 180.0, 15.0


@dataclass
class Plant:
    """A fleet whose agents can be given full disks and wrong clocks."""

    root: Path
    rng: random.Random
    skew_s: int
    world: World
    disks: dict[str, Path] = field(default_factory=dict)
    """Node -> where its tmpfs is mounted."""

    shim: Path | None = None
    """The library that makes clocks wrong; None if there is no compiler."""
    replaced: int = 0

    def members(self) -> list[str]:
        return list(self.world.cluster.meta().ring)

    def some(self) -> list[str]:
        """Mostly one node, otherwise several, rarely all."""
        members = self.members()
        count = self.rng.choices((1, 2, len(members)), (6, 3, 1))[0]
        return self.rng.sample(members, count)

    # --- faults: each injects its fault, waits, heals, and returns its description -----------------

    def kill(self) -> str:
        names = self.some()
        for name in names:
            self.world.fleet.kill(name)
        time.sleep(self.rng.uniform(0, 5))
        self.world.fleet.start(names)
        return f"kill -9 {' '.join(names)}"

    def pause(self) -> str:
        names, seconds = self.some(), self.rng.uniform(2, 8)
        with self.world.frozen(names):
            time.sleep(seconds)
        return f"SIGSTOP {' '.join(names)} for {seconds:.1f} s"

    def fill(self) -> str:
        """Sometimes kill an agent during the fault; its start waits for disk space, as `iotctl local up`
        does."""
        names, seconds = self.some(), self.rng.uniform(6, 15)
        with contextlib.ExitStack() as full:
            for name in names:
                full.enter_context(ballast(self.disks[name]))
            time.sleep(seconds / 2)
            killed = self.rng.sample(names, self.rng.choice((0, 1)))
            for name in killed:
                self.world.fleet.kill(name)
            time.sleep(seconds / 2)
        self.world.fleet.start(killed)
        said = f", kill -9 {killed[0]} meanwhile" if killed else ""
        return f"no space on {' '.join(names)} for {seconds:.0f} s{said}"

    def skew(self) -> str:
        name, seconds = self.rng.choice(self.members()), self.rng.uniform(5, 12)
        by_s = self.skew_s * self.rng.choice((-1, 1))
        self._set_clock(name, by_s)
        time.sleep(seconds / 2)
        said = ""
        if self.rng.random() < 0.5:
            victim = self.rng.choice(self.members())
            self.world.restart(victim)
            said = f", kill -9 {victim} meanwhile"
        time.sleep(seconds / 2)
        self._set_clock(name, 0)
        return f"clock of {name} {by_s:+} s for {seconds:.0f} s{said}"

    def lose_log(self) -> str:
        """The agent refuses to start and keeps every file; another node takes its place."""
        self.world.wait_healthy(REST_S)
        name = self.rng.choice(self.members())
        home = self.world.fleet.directory / name
        assert self.world.fleet.kill(name), f"{name} was not running"
        shutil.rmtree(home / "log")
        files = tsfiles(home)
        self.world.fleet.start([name])
        until(lambda: self.world.fleet.down([name]), REFUSES_S, lambda: f"{name} runs without its log")
        said = self.world.fleet.log_tail(name, 20)
        assert "replace-node" in said, f"{name} does not name the next command: {said}"
        assert tsfiles(home) == files, f"{name} deleted files: {len(files)} were {len(tsfiles(home))}"
        time.sleep(SILENT_MS / 1000 + 0.5)
        self.replaced += 1
        new = f"node{NODES + self.replaced}"
        self.make_disk(new)
        words = ("replace-node", name, new, "--dead", "--confirm", "plant")
        process = self.world.process("cluster", *words)
        try:
            code = process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            code = -1
        assert code == 0, f"{' '.join(words)}: {code}, {self.world.said_by(process)[-800:]}"
        self.world.reconnect()
        self.world.restart(new)  # with a clock that can be set
        self.free_disk(name)
        return f"rm -rf log of {name}, replaced by {new}"

    def faults(self) -> dict[str, Callable[[], str]]:
        found: dict[str, Callable[[], str]] = {"kill": self.kill, "pause": self.pause}
        if self.disks:
            found["fill"] = self.fill
        if self.shim is not None:
            found["skew"] = self.skew
        found["lose_log"] = self.lose_log
        return found

    # --- disks and clocks --------------------------------------------------------------------------

    def make_disk(self, name: str) -> None:
        """Put the node's directory on a small disk of its own. The directory is a link, because a mount point
        cannot be moved when the node is removed."""
        if os.geteuid() != 0:
            return
        mount = self.root / "disks" / name
        mount.mkdir(parents=True)
        options = ["-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(mount)]
        if subprocess.run(["mount", *options], capture_output=True).returncode:
            mount.rmdir()
            return  # not allowed here
        self.disks[name] = mount
        (mount / "node").mkdir()
        self.world.fleet.directory.mkdir(exist_ok=True)
        (self.world.fleet.directory / name).symlink_to(mount / "node")

    def free_disk(self, name: str) -> None:
        mount = self.disks.pop(name, None)
        if mount is not None:
            subprocess.run(["umount", "-l", str(mount)], check=True)

    def clock_file(self, name: str) -> Path:
        return self.root / f"clock-{name}"

    def _set_clock(self, name: str, seconds: int) -> None:
        with self.clock_file(name).open("r+b") as file:
            file.write(struct.pack("=q", seconds * 1_000_000_000))

    def command(self, home: Path) -> Sequence[str]:
        """`nodeagent run`, below the library that makes its clock wrong."""
        if self.shim is None:
            return agent_command(home)
        file = self.clock_file(home.name)
        file.write_bytes(struct.pack("=q", 0))
        return ("env", f"LD_PRELOAD={self.shim}", f"CLOCK_SKEW_FILE={file}", *agent_command(home))

    def close(self) -> None:
        self.world.close()
        for name in list(self.disks):
            self.free_disk(name)


def tsfiles(home: Path) -> set[str]:
    return {str(p.relative_to(home)) for p in home.glob("data/groups/*/slots/*/*")}


@contextmanager
def ballast(mount: Path) -> Iterator[None]:
    """Use all free space of a disk until the block ends."""
    path = mount / "ballast"
    with path.open("wb") as file:
        for step in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
    try:
        yield
    finally:
        path.unlink()


def build_shim(root: Path) -> Path | None:
    """Compile the library that makes clocks wrong; None if there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    shim = root / "skew.so"
    source = Path(__file__).with_name("skew.c")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", shim, source], check=True)
    return shim


def make_plant(root: Path, seed: int, skew_s: int) -> Plant:
    """A healthy cluster without rows."""
    plant = Plant(root, random.Random(seed), skew_s, World(LocalFleet(root / "fleet")))
    plant.shim = build_shim(root)
    plant.world.fleet = LocalFleet(root / "fleet", plant.command)
    plant.world.fleet.directory.mkdir()
    try:
        for number in range(NODES):
            plant.make_disk(f"node{number + 1}")
        _create(plant.world.fleet)
        plant.world.up()
    except BaseException:
        plant.close()
        raise
    return plant


def _create(fleet: LocalFleet) -> None:
    links = {p.name: p.readlink() for p in fleet.directory.iterdir()}
    for name in links:
        (fleet.directory / name).unlink()  # the directory must be empty
    fleet.check_free()
    (fleet.directory / ".iotctl-fleet").write_text("plant\n")
    for name, target in links.items():
        (fleet.directory / name).symlink_to(target)
    fleet.create(ClusterSettings(name="plant", slots=1000), NODES, node_settings=SETTINGS)


def torture(plant: Plant, seconds: float, seed: int, only: str = "") -> str:
    """Inject faults for this long, and each kind once.

    Raises:
        AssertionError: with a wrong read, or with what did not heal.
    """
    world = plant.world
    lanes = make_lanes(6, 4, int(time.time() * 1000))
    for schema, ttl_ms in schemas(lanes):
        world.cluster.put_schema(schema, ttl_ms)
    spec = cluster_spec(world.fleet.source(), world.fleet.directory / "operator", {})
    history = History(spec, lanes, seed)
    history.start()
    faults = plant.faults()
    # Each once before any a second time: a short run has them all, also on a slow machine.
    order = [only] if only else plant.rng.sample(sorted(faults), len(faults))
    began, number = time.monotonic(), 0
    try:
        while time.monotonic() - began < seconds or number < len(order):
            name = (
                order[number]
                if number < len(order)
                else plant.rng.choice(sorted(faults) if not only else [only])
            )
            number += 1
            at = time.monotonic()
            said = faults[name]()
            harmed = time.monotonic()
            settle(world, history)
            print(
                f"{at - began:6.0f} s  {said}; healed {time.monotonic() - harmed:.1f} s later;"
                f" {history.writes} writes, {history.reads} reads",
                flush=True,
            )
    finally:
        history.stop()
    history.check_all(cluster_spec(world.fleet.source(), world.fleet.directory / "operator", {}))
    world.wait_healthy(REST_S)
    check_files(world)
    return f"{number} faults; {history.summary()}"


def settle(world: World, history: History) -> None:
    """Check that the cluster is healthy, that no read was wrong, and that every lane writes."""
    assert not history.wrong, history.wrong[:5]
    world.wait_healthy(REST_S)
    before = history.marks()
    until(
        lambda: not history.still(before),
        GO_ON_S,
        lambda: f"no acknowledged write to {history.still(before)}",
    )
    assert not history.wrong, history.wrong[:5]


def main() -> int:
    parser = argparse.ArgumentParser(prog="torture")
    parser.add_argument("minutes", type=float, nargs="?", default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skew-s", type=int, default=SKEW_S, help="how far a clock is set wrong")
    parser.add_argument("--only", default="", help="one kind of fault: kill, pause, fill, skew, lose_log")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the fleet is ended
    root = Path(tempfile.mkdtemp(prefix="torture-"))
    plant = make_plant(root, given.seed, given.skew_s)
    for fault in ("fill", "skew"):
        if fault not in plant.faults():
            print(f"left out: {fault} ({'needs root' if fault == 'fill' else 'needs cc'})", flush=True)
    print(f"in {root}", flush=True)
    try:
        said = torture(plant, given.minutes * 60, given.seed, given.only)
    except AssertionError as error:
        kept = root / "kept"
        # The links to the disks of replaced nodes are dangling.
        shutil.copytree(plant.world.fleet.directory, kept, ignore_dangling_symlinks=True)
        print(f"FAILED: {error}\nkept: {kept}", flush=True)
        return 1
    finally:
        plant.close()
    shutil.rmtree(root)
    print(f"passed: {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Three real agents, each on its own tmpfs; writers fill all three at once.

`python -m tests.cluster.full_disk [SECONDS]` keeps the disks full for that time (default 600). `make test`
has a short run. Mounting a tmpfs requires root.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from iotctl.demo.generate import EPOCH_MS, TABLE, TAG, storage_group_name
from iotctl.fleet.local import LocalFleet
from iotctl.observe.cluster import cluster_spec
from nodeagent.client.blocking import BlockingCluster
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import NodeAgentError, Overloaded
from tests.cluster.world import World
from tests.waiting import until

SIZE_MB, MORE_MB = 64, 64
RESUME_S = 30.0
FILL_S = 180.0
ROWS = 2_000
FIELDS = 5
WRITERS = 3
PLACES = 24
ATTEMPT_S = 3.0


@dataclass
class Filler:
    """Writes incompressible rows; records acknowledged rows and the reasons of rejected writes."""

    number: int
    acked: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """storage group -> (first time, rows) of every acknowledged write."""

    refused: list[str] = field(default_factory=list)
    """Reasons."""

    other: list[str] = field(default_factory=list)
    last_ack: float = 0.0

    def run(self, cluster: BlockingCluster, stop: threading.Event) -> None:
        random = np.random.default_rng(self.number)
        batch = 0
        while not stop.is_set():
            batch += 1
            place = storage_group_name(batch % PLACES)
            first = EPOCH_MS + (batch // PLACES) * ROWS
            columns: dict[str, object] = {"time": np.arange(first, first + ROWS), TAG: [self.device] * ROWS}
            columns |= {f"f{i}": random.standard_normal(ROWS) for i in range(FIELDS)}
            try:
                cluster.write(place, TABLE, pa.table(columns), tags=[TAG])
            except Overloaded as error:
                self.refused.append(error.what)
            except NodeAgentError as error:
                self.other.append(f"{error.code}: {error.what}")
            else:
                self.acked.setdefault(place, []).append((first, ROWS))
                self.last_ack = time.monotonic()

    @property
    def device(self) -> str:
        return f"filler{self.number}"

    @property
    def rows(self) -> int:
        return sum(count for writes in self.acked.values() for _, count in writes)


@dataclass
class Plant:
    """A fleet of three nodes on small disks."""

    world: World
    fillers: list[Filler]
    stop: threading.Event
    threads: list[threading.Thread]

    def homes(self) -> list[Path]:
        return [Path(n.directory) for n in self.world.fleet.nodes()]

    def free(self) -> list[int]:
        return [shutil.disk_usage(home).free for home in self.homes()]

    def is_refused(self) -> bool:
        """Return whether every writer is being rejected with a reason and has made no progress for a
        while."""
        quiet_s = time.monotonic() - max(f.last_ack for f in self.fillers)
        return quiet_s > 2 * ATTEMPT_S and all(f.refused for f in self.fillers)

    def fill(self) -> None:
        until(
            self.is_refused, FILL_S, lambda: f"writes are not rejected: free {self.free()}, {self.replies()}"
        )
        assert all("left" in f.refused[-1] or "space" in f.refused[-1] for f in self.fillers), self.replies()

    def stay_full(self, seconds: float) -> None:
        """Check that all agents run, lead and reject writes; log purges free space, which is filled again.

        One agent is killed and restarted.
        """
        began, pids = time.monotonic(), self.pids()
        while time.monotonic() < began + seconds:
            assert self.pids() == pids, "an agent exited"
            time.sleep(0.5)
        self.world.restart("node2")
        until(self.all_led, 60.0, lambda: f"groups without a leader: {self.world.status().problems}")
        self.fill()

    def pids(self) -> dict[str, int | None]:
        return {n.name: n.pid for n in self.world.fleet.nodes()}

    def all_led(self) -> bool:
        status = self.world.status()
        groups = [g for g in status.groups if g.quorum and g.leader]
        return bool(status.meta.leader) and len(groups) == 3 and all(n.reachable for n in status.nodes)

    def give_room(self) -> float:
        """Add 64 MB to each disk; return the seconds until every writer made progress."""
        for home in self.homes():
            mount("-o", f"remount,size={SIZE_MB + MORE_MB}m", str(home))
        began = time.monotonic()
        until(
            lambda: all(f.last_ack > began for f in self.fillers),
            RESUME_S,
            lambda: f"no writes within {RESUME_S} s: free {self.free()}, {self.replies()}",
        )
        return time.monotonic() - began

    def replies(self) -> str:
        return "; ".join(f"{f.rows} rows, {f.refused[-1:]}, {f.other[-2:]}" for f in self.fillers)

    def check(self) -> int:
        """Stop the writers, check that every acknowledged row is read, and return the number of rows."""
        self.end()
        for filler in self.fillers:
            for place, writes in filler.acked.items():
                found = self.world.cluster.scan(place, TABLE, fields=["f0"], tags={TAG: filler.device})
                times = np.asarray(found.column("time"))
                wanted = np.concatenate([np.arange(first, first + count) for first, count in writes])
                missing = np.setdiff1d(wanted, times)
                assert not len(missing), (
                    f"{place}: {len(missing)} of {len(wanted)} acknowledged rows are missing"
                )
        return sum(f.rows for f in self.fillers)

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


def why_not() -> str:
    """Return why no tmpfs can be mounted; "" if one can."""
    if os.geteuid() != 0:
        return "mounting a tmpfs requires root"
    with tempfile.TemporaryDirectory() as place:
        try:
            mount("-t", "tmpfs", "-o", "size=1m", "none", place)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"cannot mount a tmpfs: {error}"
        subprocess.run(["umount", place], check=True)
    return ""


@contextmanager
def plant(directory: Path) -> Iterator[Plant]:
    """Run a fleet with each node's directory on its own disk, with writers."""
    fleet = LocalFleet(directory)
    fleet.create(ClusterSettings(name="small", slots=64, shards=2), 3, node_settings={})
    homes = [Path(n.directory) for n in fleet.nodes()]
    world = World(fleet)
    made: Plant | None = None
    clients: list[BlockingCluster] = []
    try:
        for home in homes:
            made_before = home.with_suffix(".made")
            home.rename(made_before)
            home.mkdir()
            mount("-t", "tmpfs", "-o", f"size={SIZE_MB}m", "none", str(home))
            shutil.copytree(made_before, home, dirs_exist_ok=True)
            shutil.rmtree(made_before)
        world.up()
        spec = cluster_spec(fleet.source(), fleet.directory / "operator", {}, timeout_s=ATTEMPT_S)
        clients += [BlockingCluster.connect(spec) for _ in range(WRITERS)]
        stop, fillers = threading.Event(), [Filler(n) for n in range(WRITERS)]
        threads = [
            threading.Thread(target=f.run, args=(c, stop), daemon=True)
            for f, c in zip(fillers, clients, strict=True)
        ]
        made = Plant(world, fillers, stop, threads)
        for thread in threads:
            thread.start()
        yield made
    finally:
        if made is not None:
            made.end()
        for client in clients:
            client.close()
        world.close()
        for home in homes:
            subprocess.run(["umount", "-l", str(home)], check=False, capture_output=True)


def run(directory: Path, seconds: float) -> str:
    with plant(directory) as small:
        small.fill()
        filled = small.free()
        small.stay_full(seconds)
        took_s = small.give_room()
        rows = small.check()
    return (
        f"{rows} rows; {[n // 1024 for n in filled]} KiB free when full; writers resumed after {took_s:.1f} s"
    )


def main(words: list[str]) -> None:
    seconds = float(words[0]) if words else 600.0
    why = why_not()
    if why:
        sys.exit(why)
    with tempfile.TemporaryDirectory() as place:
        print(run(Path(place) / "fleet", seconds))


if __name__ == "__main__":
    main(sys.argv[1:])

"""The hardware of a simulated machine: its disk, its clocks, and whether it runs."""

import errno
from typing import Any

from nodeagent.log.identity import LOG_DIR
from nodeagent.log.replay import list_segments, path_of
from nodeagent.model.ids import NodeId
from nodeagent.storage import layout
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.sim import Sim, WallClock
from nodeagent.testing.volume import Fault

BALLAST = "ballast"


class Hardware:
    """A disk and clocks that survive the processes of a machine."""

    def __init__(self, sim: Sim[Any], node: NodeId) -> None:
        self.sim = sim
        self.node = node
        self.disk = SimDisk(now_ms=lambda: self.wall)
        self.alive = False
        self.gone = False
        """Whether the machine was permanently lost or has left; it does not start while this is set."""

        self.lossy = False
        """Whether parts of the data directory were lost or changed, so that its groups may be damaged."""

        self.clock = WallClock()
        self.pace = 1.0
        """Rate of its monotonic clock relative to simulated time."""

        self.asleep_until = 0
        """Until then the process is suspended, and its messages wait."""

    @property
    def now(self) -> int:
        """The machine's monotonic clock in milliseconds."""
        return self.sim.now if self.pace == 1.0 else int(self.sim.now * self.pace)

    @property
    def wall(self) -> int:
        return self.clock.at(self.sim.now)

    def segments(self) -> list[str]:
        """Paths of the log segments, oldest first."""
        return [path_of(LOG_DIR, number) for number in list_segments(self.disk, LOG_DIR)]

    def lose(self, *paths: str) -> None:
        """Delete files or directories while the node is down, as an operator or a file system repair may."""
        assert not self.alive
        self.lossy = True
        for path in paths:
            if self.disk.exists(path):
                self.disk.rmtree(path) if self.disk.stat(path).is_dir else self.disk.unlink(path)
        self.sim.note(f"{self.node} loses {paths}")

    def put_back(self, older: SimDisk) -> None:
        """Replace the whole data directory with an older copy of it."""
        assert not self.alive
        self.lossy = True
        self.disk = older
        older.restart()
        self.sim.note(f"{self.node} is put back from an older copy")

    def cut_power_soon(self) -> None:
        """Cut the power during one of the next 40 disk changes."""
        self.disk.cut_power_at = self.disk.operations + self.sim.rng.randint(1, 40)

    def fill_disk(self) -> None:
        """Fail some of the next writes of TsFiles for lack of disk space."""
        self.disk.faults.append(
            Fault("write", errno.ENOSPC, f"{layout.TMP}/", times=self.sim.rng.randint(1, 6))
        )

    def take_room(self, leave: int) -> None:
        """Leave `leave` bytes free: resize a foreign file, or delete it if fewer are free without it."""
        cut, self.disk.cut_power_at = self.disk.cut_power_at, None  # a power cut must hit a write of the node
        if self.disk.exists(BALLAST):
            self.disk.unlink(BALLAST)
        size = self.disk.free_bytes() - leave
        if size > 0:
            with self.disk.create(BALLAST) as file:
                file.pwrite(0, bytes(size))
                file.sync()
        self.disk.sync_dir("")
        self.disk.cut_power_at = cut

    def sleep(self, ms: int) -> None:
        """Suspend the process, as SIGSTOP does; messages wait in its sockets until it continues."""
        self.asleep_until = max(self.asleep_until, self.sim.now + ms)
        self.sim.note(f"{self.node} sleeps {ms} ms")

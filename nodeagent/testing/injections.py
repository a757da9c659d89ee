"""Faults that are injected into simulated machines. Each is complete in itself, so that the faults drawn for
a seed can be written down and replayed with some left out or added.

As text an injection is one line: its time, its kind, and its fields as `name=value`.

     1204 down node=m1 power=true back_ms=220
     1377 part pairs=["m2>m1","m2>m3"] heal_ms=900
"""

import errno
import json
from typing import Any, get_args

import msgspec

from nodeagent.model.errors import InvalidInput, NodeAgentError
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.testing.machine import Machine
from nodeagent.testing.sim import Sim, WallClock
from nodeagent.testing.volume import Fault


class _Injection(msgspec.Struct, frozen=True, tag_field="kind", tag=str.lower, forbid_unknown_fields=True):
    def inject(self, sim: Sim[Any]) -> None:
        """Inject the fault now, if possible, and schedule its end."""
        raise NotImplementedError


class _OfOne(_Injection, frozen=True):
    """A fault of one running machine."""

    node: NodeId

    def inject(self, sim: Sim[Any]) -> None:
        machine = sim.nodes.get(self.node)
        if machine is not None and machine.alive:
            self.hit(sim, machine)

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        raise NotImplementedError


class Down(_OfOne, frozen=True):
    """Kill the process or cut the machine's power; it restarts after `back_ms`."""

    power: bool
    back_ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        machine.stop(power=self.power)
        start_later(sim, machine, self.back_ms)


class Torn(_OfOne, frozen=True):
    """Cut the power during a disk change: the one with number `changes` from now on."""

    changes: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        machine.disk.cut_power_at = machine.disk.operations + self.changes


class Sleep(_OfOne, frozen=True):
    ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        machine.sleep(self.ms)


class Part(_Injection, frozen=True):
    """Cut these links, each `FROM>TO`, for `heal_ms`."""

    pairs: tuple[str, ...]
    heal_ms: int

    def inject(self, sim: Sim[Any]) -> None:
        cut = {(a, b) for a, _, b in (p.partition(">") for p in self.pairs)}
        sim.faults.cut |= cut

        def heal() -> None:
            sim.faults.cut -= cut

        sim.at(self.heal_ms, heal)


class Network(_Injection, frozen=True):
    """Set loss, duplication and delay of messages from now on."""

    drop: float
    duplicate: float
    delay_ms: tuple[int, int]

    def inject(self, sim: Sim[Any]) -> None:
        faults = sim.faults
        faults.drop, faults.duplicate, faults.delay_ms = self.drop, self.duplicate, self.delay_ms


class Disks(_Injection, frozen=True):
    """Set the duration of syncs and jobs from now on."""

    sync_ms: tuple[int, int]
    job_ms: tuple[int, int]

    def inject(self, sim: Sim[Any]) -> None:
        sim.faults.sync_ms, sim.faults.job_ms = self.sync_ms, self.job_ms


class Stragglers(_Injection, frozen=True):
    """Make some messages, syncs and jobs take up to `ms` longer from now on."""

    chance: float
    ms: int

    def inject(self, sim: Sim[Any]) -> None:
        sim.faults.straggler, sim.faults.straggler_ms = self.chance, self.ms


class Stall(_OfOne, frozen=True):
    """Let no sync complete for `ms`."""

    ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        sim.faults.stalled.add(self.node)
        sim.at(self.ms, lambda: sim.faults.stalled.discard(self.node))


class DiskError(_OfOne, frozen=True):
    """Make `times` disk operations of one kind below `place` fail, after `skip` successful ones."""

    operation: str
    error: str
    """Name of the error in `errno`."""

    place: str
    skip: int = 0
    times: int = 1

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        number = getattr(errno, self.error)
        machine.disk.faults.append(Fault(self.operation, number, self.place, self.skip, self.times))


class Unreadable(_OfOne, frozen=True):
    """Make sectors of the log unreadable; the next start finds the log damaged."""

    skip: int
    back_ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        machine.lossy = True
        machine.stop(power=False)
        start_later(sim, machine, self.back_ms)
        machine.disk.faults.append(Fault("read", errno.EIO, "log/0", skip=self.skip, times=1000))


class Full(_OfOne, frozen=True):
    """Fill the disk with a foreign file except for `leave` bytes, for `ms`."""

    leave: int
    ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        machine.take_room(self.leave)
        sim.at(self.ms, lambda: machine.take_room(machine.disk.capacity_bytes))


class Flip(_OfOne, frozen=True):
    """Flip a bit of a file; it is noticed only when the file is read."""

    path: str
    byte: int
    bit: int
    power: bool
    back_ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        if machine.disk.exists(self.path) and machine.disk.stat(self.path).size > self.byte:
            machine.lossy = True
            machine.disk.flip(self.path, self.byte, self.bit)
            machine.stop(power=self.power)
            start_later(sim, machine, self.back_ms)


class Stray(_OfOne, frozen=True):
    """Write sectors of one file over a place of another; noticed only when that place is read."""

    source: str
    at: int
    path: str
    to: int
    length: int
    power: bool
    back_ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        ends = {self.source: self.at, self.path: self.to}
        if all(
            machine.disk.exists(p) and machine.disk.stat(p).size >= e + self.length for p, e in ends.items()
        ):
            machine.lossy = True
            machine.disk.misdirect(self.source, self.at, self.path, self.to, self.length)
            machine.stop(power=self.power)
            start_later(sim, machine, self.back_ms)


class Lose(_OfOne, frozen=True):
    """Delete a file or a directory while the process is down."""

    path: str
    back_ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        machine.stop(power=False)
        machine.lose(self.path)
        start_later(sim, machine, self.back_ms)


class Transfer(_OfOne, frozen=True):
    """Let the leader of a group transfer its leadership."""

    group: GroupId
    to: NodeId

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        replica = machine.replica(self.group)
        if replica is None or not replica.leads:
            return
        try:
            replica.raft.transfer(self.to, machine.now)
        except NodeAgentError:
            return
        machine.wake()


class Ambush(_Injection, frozen=True):
    """Take down the next machine that begins a job of one kind, `after_ms` later."""

    job: str
    after_ms: int
    power: bool
    back_ms: int

    def inject(self, sim: Sim[Any]) -> None:
        def strike(machine: Machine) -> None:
            life = machine.life

            def down() -> None:
                if machine.alive and machine.life == life:
                    Down(machine.node, self.power, self.back_ms).inject(sim)

            sim.at(self.after_ms, down)

        sim.ambushes[self.job] = strike


class Jump(_OfOne, frozen=True):
    """Set a wall clock wrong by `ahead_ms`, for `ms`."""

    ahead_ms: int
    ms: int

    def hit(self, sim: Sim[Any], machine: Machine) -> None:
        machine.clock = WallClock(self.ahead_ms, sim.now)

        def right() -> None:
            machine.clock = WallClock()

        sim.at(self.ms, right)


Injection = (
    Down | Torn | Sleep | Part | Network | Disks | Stall | DiskError | Unreadable | Full | Flip | Lose
) | (Stray | Stragglers | Transfer | Ambush | Jump)

SPOILING = (Unreadable, Flip, Stray, Lose)
"""Faults that lose data permanently."""

Timed = tuple[int, Injection]
"""(time in ms, fault)"""


def start_later(sim: Sim[Any], machine: Machine, ms: int) -> None:
    sim.at(ms, lambda: None if machine.alive else machine.start())


def to_line(timed: Timed) -> str:
    at, injection = timed
    fields: dict[str, object] = msgspec.to_builtins(injection)
    kind = fields.pop("kind")
    words = [
        f"{k}={v if isinstance(v, str) else json.dumps(v, separators=(',', ':'))}" for k, v in fields.items()
    ]
    return " ".join([f"{at:>8} {kind}", *words])


def from_line(line: str) -> Timed:
    """Raises `InvalidInput`."""
    try:
        at, kind, *words = line.split()
        fields = {k: _value(v) for k, _, v in (w.partition("=") for w in words)}
        return int(at), msgspec.convert({"kind": kind, **fields}, Injection, strict=True)
    except (ValueError, msgspec.ValidationError) as error:
        kinds = ", ".join(sorted(k.__name__.lower() for k in get_args(Injection)))
        raise InvalidInput(
            f"not an injection: {line.strip()!r}: {error}",
            next_step=f"write TIME KIND NAME=VALUE...; kinds: {kinds}",
        ) from error


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text

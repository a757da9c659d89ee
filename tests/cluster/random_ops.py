"""Ten random operations on real agents: `python -m tests.cluster.random_ops [RUNS] [--seed N] [--weeks N]`.

Each run has its own fleet, a writer and a reader that reach every slot with rows, one tenth of them during
each operation, and operations chosen by its seed: nodes are added, removed and replaced (some of them dead),
slots move, and agents are killed and restarted, some of them during a change. At the end every acknowledged
row is read, `iotctl verify --depth content` passes, and `nodeagent files check --strict` finds on every
node's disk what the node's checkpoints name and nothing else. A failing run ends the program and leaves its
directory.
"""

import argparse
import dataclasses
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from iotctl.change.execute import SILENT_MS
from iotctl.demo.generate import EPOCH_MS, TABLE, TAG, WEEK_MS, generate, storage_group_name
from iotctl.demo.generate import Fleet as Devices
from iotctl.demo.load import DEVICE, FIELD, Load
from iotctl.fleet.local import LocalFleet
from iotctl.observe.layout import table_of
from nodeagent.model.config import ClusterSettings
from nodeagent.model.operation import Stage
from nodeagent.model.requests import BeginChange, NodeStatus
from nodeagent.partition.hash import shard_of, slot_of, time_partition
from nodeagent.partition.ranges import from_slots, to_slots
from nodeagent.storage.leftovers import KINDS
from tests.cluster.world import DATA, NONEMPTY_MIN, WRITE_PAUSE_S, World, copy_of
from tests.waiting import POLL_S, until

OPERATIONS = 10
NODES_MIN, NODES_MAX = 4, 6
SNAPSHOT_TTL_MS = 5_000
PASSING = ("snapshots", "staging")
"""Directories of a node that become empty some time after the last change."""

COMMAND_S, VERIFY_S, REST_S, AROUND_S = 120.0, 300.0, 60.0, 10.0
QUIET_S = 5.0
"""A leader looks for files to merge every two seconds, and saves checkpoints more often."""

PROBE_MS = 1_800_000
"""The offset of the writer's row in its week: between rows of the generated data."""

Place = tuple[str, int]


@dataclass
class Run:
    world: World
    rng: random.Random
    done: list[str] = field(default_factory=list)
    acked: dict[Place, float] = field(default_factory=dict)
    """(storage group, time) -> the last acknowledged value, for places where it is known."""

    places: list[Place] = field(default_factory=list)
    failed_writes: int = 0
    deaths: int = 0
    last_name: int = 5
    free: list[str] = field(default_factory=list)
    """Names of removed nodes; they are reused for new machines."""

    def members(self) -> list[str]:
        return list(self.world.cluster.meta().ring)

    def next_name(self) -> str:
        if self.free and self.rng.random() < 0.5:
            return self.free.pop(self.rng.randrange(len(self.free)))
        self.last_name += 1
        return f"node{self.last_name}"

    # --- operations --------------------------------------------------------------------------------

    def add(self) -> str:
        name = self.next_name()
        return f"add {name}{self.change('add-node', name, '--yes')}"

    def remove(self) -> str:
        name = self.rng.choice(self.members())
        said = self.change("remove-node", name, "--yes")
        self.free.append(name)
        return f"remove {name}{said}"

    def replace(self) -> str:
        old, new = self.rng.choice(self.members()), self.next_name()
        said = self.change("replace-node", old, new, "--yes")
        self.free.append(old)
        return f"replace {old} {new}{said}"

    def remove_dead(self) -> str:
        name = self.die()
        self.change("remove-node", name, "--dead", "--confirm", "plant", disturb=False)
        return f"remove {name} --dead"

    def replace_dead(self) -> str:
        name, new = self.die(), self.next_name()
        self.change("replace-node", name, new, "--dead", "--confirm", "plant", disturb=False)
        return f"replace {name} {new} --dead"

    def move(self) -> str:
        """Move random slots to another group; then rebalance."""
        table = table_of(self.world.cluster.meta())
        giver, taker = self.rng.sample(list(table.ring.names), 2)
        slots = self.rng.sample(list(to_slots(table.slots_of(giver))), self.rng.randint(50, 500))
        gains = ((taker, from_slots(slots)),)
        begun = self.world.cluster.begin_change(BeginChange("rebalance", "", "tester", gains=gains))
        self.world.wait_stage(begun.id, Stage.DONE, COMMAND_S)
        planned = self.world.iotctl("plan", "rebalance", "--out", "plan.yaml", "--detailed-exitcode")
        assert planned.code in (0, 8), planned.err
        if planned.code == 8:
            applied = self.world.iotctl("apply", "plan.yaml", "--yes")
            assert applied.code == 0, applied.err
        return f"move {len(slots)} slots {giver}>{taker}, back to even"

    def kill(self) -> str:
        name = self.rng.choice(self.members())
        assert self.world.fleet.kill(name), f"{name} was not running"
        time.sleep(self.rng.uniform(0.0, 3.0))
        self.world.fleet.start([name])
        return f"kill -9 {name}"

    def restart(self) -> str:
        name = self.rng.choice(self.members())
        self.world.fleet.stop([name])
        self.world.fleet.start([name])
        return f"restart {name}"

    def die(self) -> str:
        self.deaths += 1
        name = self.rng.choice(self.members())
        assert self.world.fleet.kill(name), f"{name} was not running"
        time.sleep(SILENT_MS / 1000 + 0.5)
        return name

    def change(self, *words: str, disturb: bool = True) -> str:
        """Run `iotctl cluster WORDS`; in half of the runs kill an agent meanwhile. Returns a note about the
        kill."""
        process = self.world.process("cluster", *words)
        said = ""
        if disturb and self.rng.random() < 0.5:
            until(
                lambda: self.world.operation_is_open() or process.poll() is not None,
                COMMAND_S,
                lambda: f"{words} starts no change: {self.world.said_by(process)}",
            )
            time.sleep(self.rng.uniform(0.0, 1.0))
            victim = self.rng.choice(self.members())
            if self.world.fleet.kill(victim):
                said = f", kill -9 {victim}"
                time.sleep(self.rng.uniform(0.0, 2.0))
                if any(n.name == victim for n in self.world.fleet.nodes()):  # otherwise it was just removed
                    self.world.fleet.start([victim])
        try:
            code = process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            code = -1
        assert code == 0, (
            f"iotctl cluster {' '.join(words)}{said}: {code}, {self.world.said_by(process)[-800:]}"
        )
        self.world.reconnect()
        return said

    def operate(self) -> None:
        self.world.wait_healthy(REST_S)
        count = len(self.members())
        choices: list[Callable[[], str]] = [self.move, self.kill, self.restart, self.replace]
        if count < NODES_MAX:
            choices += [self.add, self.add]
        if count > NODES_MIN:
            choices += [self.remove, self.remove]
        if not self.deaths:
            choices += [self.remove_dead] if count > NODES_MIN else [self.replace_dead]
        load, began = self.load(), time.monotonic()
        try:
            did = self.rng.choice(choices)()
            self.get_around(load)
        finally:
            self.take(load)
        self.done.append(did)
        print(f"       {time.monotonic() - began:4.0f} s  {did}", flush=True)

    # --- the writer --------------------------------------------------------------------------------

    def load(self) -> Load:
        """A writer and a reader over the next tenth of the slots with generated rows."""
        meta = self.world.cluster.meta()
        table = table_of(meta)
        if not self.places:
            data = self.world.data
            weeks = [EPOCH_MS + i * WEEK_MS + PROBE_MS for i in range(data.weeks)]
            self.places = [(storage_group_name(n), at) for n in range(data.storage_groups) for at in weeks]
            self.rng.shuffle(self.places)
        places: dict[Place, str] = {}
        for group, at in self.places[len(self.done) :: OPERATIONS]:
            week = time_partition(at, meta.settings.time_partition_interval_ms)
            slot = slot_of(group, week, shard_of([DEVICE], meta.settings.shards), meta.settings)
            places[group, at] = table.route(slot)
        load = Load(self.world.connect, TABLE, TAG, places, WRITE_PAUSE_S)
        load.start()
        return load

    def get_around(self, load: Load) -> None:
        """Wait until the writer has tried every place, with a timeout, because some places may fail."""
        deadline = time.monotonic() + AROUND_S
        while len(load.seen.acked) < len(self.places) // OPERATIONS and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def take(self, load: Load) -> None:
        """Stop the load and add its acknowledged values to the expected ones."""
        seen = load.stop()
        assert not seen.missing, seen.missing[:3]
        unsure = {said.partition(":")[0] for said in seen.failed}
        self.acked = {p: v for p, v in self.acked.items() if f"{p[0]}@{p[1]}" not in unsure} | seen.acked
        self.failed_writes += len(seen.failed)

    # --- the end -----------------------------------------------------------------------------------

    def check(self) -> None:
        world = self.world
        world.wait_healthy(REST_S)
        assert all(o.ended for o in world.cluster.meta().operations)
        self.check_rows()
        check_files(world)

    def check_rows(self) -> None:
        """Check every acknowledged row and the initial rows."""
        found: dict[Place, float] = {}
        data = self.world.data
        for number in range(data.storage_groups):
            group = storage_group_name(number)
            rows = self.world.cluster.scan(group, TABLE, fields=[FIELD], tags={TAG: DEVICE})
            times, values = rows.column("time").to_pylist(), rows.column(FIELD).to_pylist()
            found |= {(group, at): value for at, value in zip(times, values, strict=True)}
        wrong = [(p, v, found.get(p)) for p, v in self.acked.items() if found.get(p) != v]
        assert not wrong, f"{len(wrong)} of {len(self.acked)} acknowledged rows: {wrong[:3]}"
        assert len(self.acked) >= nonempty_min(data), f"the writer reached only {len(self.acked)} slots"
        assert self.world.rows() == data.rows + len(found), (self.world.rows(), len(found))


def check_files(world: World) -> None:
    """`iotctl verify --depth content` passes, and once the fleet is at rest and stopped, `nodeagent files
    check --strict` finds no leftover file."""
    world.close_memtables()
    verify = world.process("verify", "--depth", "content")
    code = verify.wait(VERIFY_S)
    assert code == 0, f"verify: {code}, {world.said_by(verify)[-1500:]}"
    homes = {n: world.fleet.directory / n for n in world.cluster.meta().ring}
    until(
        lambda: not any(any((h / "data" / d).iterdir()) for h in homes.values() for d in PASSING),
        REST_S,
        lambda: "unused snapshots or staged files remain",
    )
    stop_at_rest(world)
    left = [f"{n}: {line}" for n, home in homes.items() for line in leftovers_of(home)]
    assert not left, f"{len(left)} left: {left[:5]}"


def stop_at_rest(world: World) -> None:
    """Stop the fleet once no group has merged, made or removed a file for a while. Merges go on after all
    rows are in files, and a merged file is removed only when the next checkpoint no longer names it."""
    seen: list[tuple[str, str, int, int]] = []
    since = time.monotonic()

    def is_at_rest() -> bool:
        nonlocal seen, since
        statuses = world.cluster.statuses().values()
        now = [
            (s.node, g.group, g.files, g.compacting)
            for s in statuses
            if isinstance(s, NodeStatus)
            for g in s.groups
        ]
        if sorted(now) != seen or any(merging for *_, merging in now):
            seen, since = sorted(now), time.monotonic()
        return time.monotonic() - since > QUIET_S

    until(is_at_rest, REST_S, lambda: f"files still change: {seen}")
    world.fleet.stop()


def leftovers_of(home: Path) -> list[str]:
    """The findings of `nodeagent files check --strict`."""
    words = [sys.executable, "-m", "nodeagent", "files", "check", str(home), "--strict"]
    said = subprocess.run(words, capture_output=True, text=True)
    lines = [msgspec.json.decode(line) for line in said.stdout.splitlines()]
    bad = [f"{n['group']} {n['name']} {n['found']}" for n in lines if not n["valid"] or n["found"] in KINDS]
    assert bool(bad) == bool(said.returncode) and lines, said.stderr
    return bad


def nonempty_min(data: Devices) -> int:
    """Minimum number of non-empty slots: 1 500 for a year of data."""
    return NONEMPTY_MIN * data.weeks // DATA.weeks


def make_template(directory: Path, data: Devices) -> LocalFleet:
    """Five stopped nodes with rows in many slots."""
    fleet = LocalFleet(directory)
    fleet.create(ClusterSettings(name="plant"), 5, node_settings={"snapshot_ttl_ms": SNAPSHOT_TTL_MS})
    world = World(fleet, data)
    try:
        world.up()
        assert world.cluster.write_many(generate(data), tags=[TAG]).rows == data.rows
        world.close_memtables()
        assert world.nonempty_slots() >= nonempty_min(data)
        fleet.stop()
    finally:
        world.close()
    return fleet


def run_once(template: LocalFleet, directory: Path, seed: int, data: Devices) -> tuple[Run, str]:
    """One run in `directory`, with its failure or ""."""
    run = Run(World(copy_of(template, directory / "fleet"), data), random.Random(seed))
    try:
        run.world.up()
        for _ in range(OPERATIONS):
            run.operate()
        run.check()
    except AssertionError as error:
        return run, str(error) or repr(error)
    finally:
        run.world.close()
    return run, ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="random_ops")
    parser.add_argument("runs", type=int, nargs="?", default=20)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run; each run adds 1")
    parser.add_argument(
        "--weeks", type=int, default=DATA.weeks, help="weeks of data; a year takes 4 min per run"
    )
    given = parser.parse_args()
    data = dataclasses.replace(DATA, weeks=given.weeks)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the fleet is stopped
    root = Path(tempfile.mkdtemp(prefix="random-ops-"))
    print(f"loading the template in {root}", flush=True)
    template = make_template(root / "template", data)
    for seed in range(given.seed, given.seed + given.runs):
        began = time.monotonic()
        directory = root / f"run-{seed}"
        directory.mkdir()
        run, why = run_once(template, directory, seed, data)
        print(
            f"{seed:4} {'FAILED' if why else 'passed'} in {time.monotonic() - began:.0f} s:"
            f" {len(run.done)} operations, {len(run.acked)} places written,"
            f" {run.failed_writes} writes failed",
            flush=True,
        )
        if why:
            print(f"     {why}\n     kept: {directory}", flush=True)
            return 1
        shutil.rmtree(directory)
    shutil.rmtree(root)
    print(f"{given.runs} runs of {OPERATIONS} operations passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

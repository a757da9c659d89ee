"""The files of two nodes under a swarm of faults: the real `storage` through many restarts, without groups.

In each life a node runs some jobs, one after the other: files are flushed, merged, recorded in checkpoints,
deleted, linked into snapshots, pulled by the other node, adopted, repaired and removed. A life ends with a
kill or with a power cut during a disk change. Disk calls fail, chunks of copies are lost or altered, and bits
of closed files flip. Everything that a completed job made durable must exist undamaged; after an interrupted
job either the old or the new state must exist; and a checkpoint never names a missing file (S11, S15, S16).

`python -m nodeagent.testing.files_swarm FIRST [COUNT]` prints one line per seed.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec
import pyarrow as pa

from nodeagent.model.errors import Damaged, NotFound, Unavailable
from nodeagent.model.files import CloseSpec, FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import (
    AdoptFiles,
    Adoption,
    CheckpointSaved,
    CloseFiles,
    CloseUnit,
    CompactFiles,
    CompactUnit,
    DeleteFiles,
    DropSnapshot,
    DropStaging,
    Failed,
    FileChanges,
    FilesClosed,
    Installed,
    InstallSnapshot,
    MakeSnapshot,
    MemBatch,
    RemoveGroup,
    SaveCheckpoint,
    install_area,
)
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage.checkpoint import with_files
from nodeagent.table.arrow import encode
from nodeagent.testing.files_known import GROUPS, NOTHING, Known, Node, Saved, Snapshot, path_of, payload_of
from nodeagent.testing.files_world import TTL_MS, FilesWorld
from nodeagent.testing.nemesis import bounded
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.volume import PowerCut

SLOTS = 3
LIVES = 60
CHECKED = 0.1
"""Probability of a full check after a job; there is always one at the end of a life."""

SCHEMA = TableSchema("sg", "t", 1, (Column("dev", "STRING", True), Column("v", "INT64", False)))


class Report(msgspec.Struct):
    """Results of one run."""

    seed: int
    trace: int
    events: int
    """Number of jobs and starts."""

    jobs: dict[str, int]
    odd: dict[str, int]


class FilesSwarm(FilesWorld):
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        actions: list[tuple[Callable[[Node], None], list[int]]] = [
            (self._close, [4, 8]),
            (self._compact, [0, 1, 3]),
            (self._save, [4, 8]),
            (self._save_beside, [0, 1]),
            (self._delete, [1, 3]),
            (self._make_snapshot, [1, 3]),
            (self._drop_snapshot, [0, 1]),
            (self._expire, [0, 1, 4]),
            (self._install, [1, 3]),
            (self._stage, [1, 4]),
            (self._adopt, [1, 4]),
            (self._drop_staging, [0, 1]),
            (self._remove_group, [0, 1]),
            (self._rot, [0, 1]),
        ]
        self.actions = [action for action, _ in actions]
        self.weights = [self.rng.choice(weights) for _, weights in actions]

    def run(self) -> Report:
        with bounded(self.limits):
            for life in range(LIVES):
                node = self.rng.choice(self.nodes)
                self.sim.note(f"life {life} of {node.name}")
                for other in self.nodes:
                    self._start(other)
                self._live(node)
        return Report(
            self.seed,
            self.sim.trace,
            self.events,
            dict(sorted(self.jobs.items())),
            dict(sorted(self.odd.items())),
        )

    # --- a life ------------------------------------------------------------------------------------

    def _live(self, node: Node) -> None:
        rng = self.rng
        if rng.random() < self.cut:
            node.disk.cut_power_at = node.disk.operations + rng.randint(1, 8 * self.jobs_max)
        try:
            for _ in range(rng.randint(1, self.jobs_max)):
                rng.choices(self.actions, self.weights)[0](node)
                if rng.random() < CHECKED:
                    node.check()
            node.check()
        except PowerCut:
            node.disk.crash(rng)
        else:
            node.disk.cut_power_at = None
            node.disk.restart()

    def _unit(self) -> CloseUnit:
        rng, name = self.rng, self._name()
        count = rng.choice([1, 3, 200])
        rows = pa.table(
            {
                "time": pa.array(range(count), pa.int64()),
                "dev": pa.array(["d"] * count),
                "v": pa.array([rng.getrandbits(60) for _ in range(count)], pa.int64()),
            }
        )
        spec = CloseSpec(name, rng.randrange(SLOTS), PartitionKey("sg", 7, 0), (self.number,), SCHEMA)
        return CloseUnit(spec, (MemBatch((self.number,), encode(rows)),))

    # --- a group's files ---------------------------------------------------------------------------

    def _close(self, node: Node) -> None:
        group = self.rng.choice(GROUPS)
        units = tuple(self._unit() for _ in range(self.rng.randint(1, 3)))
        known = node.groups[group]
        made = self._run(node, CloseFiles(group, units))
        assert isinstance(made, FilesClosed)
        self._are_there(known, made.files)

    def _are_there(self, known: Known, metas: Iterable[FileMeta | None]) -> None:
        files = {meta.name: meta for meta in metas if meta is not None}
        self.metas |= files
        known.files |= files

    def _compact(self, node: Node) -> None:
        group = self.rng.choice(GROUPS)
        known = node.groups[group]
        of_slot: dict[int, list[FileMeta]] = {}
        for meta in known.files.values():
            of_slot.setdefault(meta.slot, []).append(meta)
        runs = [metas for metas in of_slot.values() if len(metas) > 1]
        if not runs:
            return
        inputs = sorted(self.rng.choice(runs), key=lambda m: m.order)[:3]
        name = self._name()
        spec = CloseSpec(name, inputs[0].slot, inputs[0].partition, inputs[-1].order, SCHEMA)
        made = self._run(node, CompactFiles(group, CompactUnit(spec, (0,), tuple(inputs))))
        assert isinstance(made, FilesClosed)
        self._are_there(known, made.files)

    def _save(self, node: Node) -> None:
        rng = self.rng
        group = rng.choice(GROUPS)
        known = node.groups[group]
        self.number += 1
        names = frozenset(name for name in known.files if rng.random() < 0.9)
        saved = Saved(self.number, names)
        is_delta = bool(known.base) and rng.random() < 0.7
        came = names - known.whole if is_delta else names
        gone = tuple(sorted(known.whole - names)) if is_delta else ()
        base, known.base = known.base, ""
        files = tuple(known.files[name] for name in sorted(came))
        known.saved.append(saved)
        changes = FileChanges(base if is_delta else "", files, gone)
        done = self._run(node, SaveCheckpoint(group, payload_of(saved.number), changes))
        assert isinstance(done, CheckpointSaved)
        known.saved, known.base = [saved], done.base
        if not is_delta:
            known.whole = names
        assert node.checkpoint(group) == saved, f"S16: {node.checkpoint(group)} was saved as {saved}"

    def _save_beside(self, node: Node) -> None:
        """Try to save a delta of a checkpoint other than the current one."""
        group = self.rng.choice(GROUPS)
        known = node.groups[group]
        if known.saved == [NOTHING]:
            return
        changes = FileChanges(f"{self.rng.getrandbits(128):032x}", ())
        done = self._run(node, SaveCheckpoint(group, payload_of(0), changes), may_fail=(NotFound.code,))
        assert isinstance(done, Failed), f"S16: a delta of another checkpoint was saved in {group}"

    def _delete(self, node: Node) -> None:
        group = self.rng.choice(GROUPS)
        known = node.groups[group]
        free = [m for name, m in known.files.items() if name not in known.named and self.rng.random() < 0.5]
        for meta in free:
            del known.files[meta.name]
        self._run(node, DeleteFiles(group, tuple(free)))
        for meta in free:
            found = node.content(path_of(group, meta))
            assert found == "missing", f"L4: {node.name} {group}: {meta.name} was deleted and still exists"

    def _remove_group(self, node: Node) -> None:
        group = self.rng.choice(GROUPS)
        known = node.groups[group]
        known.saved.append(NOTHING)
        known.files.clear()
        known.base = ""
        self._run(node, RemoveGroup(group))
        node.groups[group] = Known()
        assert group not in node.storage.groups(), (
            f"L4: {group} was removed from {node.name} and still exists"
        )

    # --- snapshots ---------------------------------------------------------------------------------

    def _make_snapshot(self, node: Node) -> None:
        rng = self.rng
        group = rng.choice(GROUPS)
        known = node.groups[group]
        files = tuple(meta for meta in known.files.values() if rng.random() < 0.8)
        self.number += 1
        saved = Saved(self.number, frozenset(meta.name for meta in files))
        name, payload = f"{rng.getrandbits(128):032x}", payload_of(self.number)
        self._run(node, MakeSnapshot(name, group, files, payload, is_state=True))
        node.snapshots[name] = Snapshot(group, files, with_files(payload, files), saved)
        node.check_snapshot(name, node.snapshots[name])

    def _drop_snapshot(self, node: Node) -> None:
        if not node.snapshots:
            return
        name = self.rng.choice(sorted(node.snapshots))
        del node.snapshots[name]
        self._run(node, DropSnapshot(name))
        assert name not in node.storage.snapshots.ids(), f"L4: snapshot {name} was dropped and still exists"

    def _expire(self, node: Node) -> None:
        """Expire old snapshots of either node; those that were read since its last expiry must stay."""
        node = self.rng.choice([node, self._other(node)])
        self.now += self.rng.choice([TTL_MS // 2, 2 * TTL_MS])
        held, known = node.read_lately, node.snapshots
        node.read_lately, node.snapshots = set(), {n: s for n, s in known.items() if n in held}
        gone = set(node.storage.expire_snapshots(self.now, TTL_MS))
        assert gone.isdisjoint(node.snapshots), (
            f"L4: {gone & node.snapshots.keys()} expired while they were read"
        )
        node.snapshots = {name: snapshot for name, snapshot in known.items() if name not in gone}

    # --- pulls from the other node ----------------------------------------------------------------

    def _offered(self, node: Node) -> tuple[str, Snapshot] | None:
        snapshots = self._other(node).snapshots
        if not snapshots:
            return None
        name = self.rng.choice(sorted(snapshots))
        return name, snapshots[name]

    def _install(self, node: Node) -> None:
        offered = self._offered(node)
        if offered is None:
            return
        name, snapshot = offered
        known = node.groups[snapshot.group]
        known.saved.append(snapshot.saved)
        known.base = ""
        job = InstallSnapshot(snapshot.group, self._other(node).name, name)
        codes = (NotFound.code, Unavailable.code, Damaged.code)
        done = self._run(node, job, may_fail=codes if self.losing else ())
        if isinstance(done, Installed):
            assert done.payload == snapshot.payload, (
                f"S16: a different state of {snapshot.group} was installed"
            )
            self._are_there(known, snapshot.files)
            known.saved = [snapshot.saved]
            assert node.checkpoint(snapshot.group) == snapshot.saved, "S16: the installed state is not saved"
            self._run(node, DropStaging(install_area(name)))

    def _stage(self, node: Node) -> None:
        offered = self._offered(node)
        if offered is None or not offered[1].files:
            return
        name, snapshot = offered
        operation, group = f"op-{self.rng.randint(1, 2)}", self.rng.choice(GROUPS)
        self._pull(node, operation, group, name, snapshot.files)

    def _adopt(self, node: Node) -> None:
        areas = [
            (o, g) for o, files in node.staged.items() for g in {g for g, _ in files} if o.startswith("op-")
        ]
        if not areas:
            return
        operation, group = self.rng.choice(sorted(areas))
        metas = [meta for (g, _), meta in node.staged[operation].items() if g == group]
        adopted = [
            Adoption(meta.name, msgspec.structs.replace(meta, name=self._name())) for meta in metas[:4]
        ]
        known = node.groups[group]
        self._run(node, AdoptFiles(operation, group, tuple(adopted)))
        self._are_there(known, [a.meta for a in adopted])

    def _drop_staging(self, node: Node) -> None:
        operations = node.storage.staging.operations()
        if operations:
            operation = self.rng.choice(operations)
            node.staged.pop(operation, None)
            self._run(node, DropStaging(operation))
            node.unsure.discard(operation)
            assert operation not in node.storage.staging.operations(), (
                f"L4: the staging area {operation} was dropped and still exists"
            )

    # --- corruption and repair ---------------------------------------------------------------------

    def _rot(self, node: Node) -> None:
        """Flip a bit of a file that the other node has in a snapshot and that has a single name here; the
        file must not be used for copies, and must be repaired."""
        offered = self._offered(node)
        if offered is None:
            return
        snapshot, content = offered
        linked = {f.xxh3 for s in node.snapshots.values() for f in s.files}
        linked |= {f.xxh3 for files in node.staged.values() for f in files.values()}
        held = Counter(f.xxh3 for known in node.groups.values() for f in known.files.values())
        found = [
            (group, meta)
            for group, known in node.groups.items()
            for meta in content.files
            if known.files.get(meta.name) == meta and held[meta.xxh3] == 1 and meta.xxh3 not in linked
        ]
        if not found:
            return
        group, meta = self.rng.choice(found)
        node.disk.flip(path_of(group, meta), self.rng.randrange(meta.size), self.rng.randrange(8))
        self.odd["rotten"] += 1
        node.rotten = (group, meta, snapshot)
        self._repair(node)


def run(seed: int) -> Report:
    swarm = FilesSwarm(seed)
    command = f"nodeagent.testing.files_swarm {seed}"
    with replayable(seed, command, swarm.sim, lambda: ""):
        return swarm.run()


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

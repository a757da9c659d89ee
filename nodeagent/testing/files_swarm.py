"""The files of two nodes under a swarm of faults: the real `storage` through many restarts, without groups.

In each life a node runs some jobs, one after the other: files are flushed, merged, recorded in checkpoints,
deleted, linked into snapshots, pulled by the other node, adopted, repaired and removed. A life ends with a
kill or with a power cut during a disk change. Disk calls fail, copies arrive truncated or altered, and bits
of closed files flip. Everything that a completed job made durable must exist undamaged; after an interrupted
job either the old or the new state must exist; and a checkpoint never names a missing file (S11, S15, S16).

`python -m nodeagent.testing.files_swarm FIRST [COUNT]` prints one line per seed.
"""

import errno
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pyarrow as pa

from nodeagent.model.errors import Damaged, NotFound, Unavailable
from nodeagent.model.files import CloseSpec, FileMeta, FileRef
from nodeagent.model.ids import GroupId, NodeId, PartitionKey
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
    FileReplaced,
    FilesClosed,
    FilesHashed,
    FilesStaged,
    HashFiles,
    Installed,
    InstallSnapshot,
    Job,
    JobResult,
    MakeSnapshot,
    MemBatch,
    RemoveGroup,
    ReplaceFile,
    SaveCheckpoint,
    StagedFile,
    StageFiles,
    install_area,
    repair_area,
)
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage import layout
from nodeagent.storage.arrow_format import ArrowFormat
from nodeagent.storage.checkpoint import with_files
from nodeagent.storage.engine import InlineEngine
from nodeagent.storage.executor import Storage
from nodeagent.table.arrow import encode
from nodeagent.testing.disk import Fault, PowerCut, SimDisk
from nodeagent.testing.files_known import GROUPS, NOTHING, Known, Node, Saved, Snapshot, path_of, payload_of
from nodeagent.testing.nemesis import FILE_OPERATIONS, bounded
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.sim import Sim

NODES = ("a", "b")
SLOTS = 3
LIVES = 60
TTL_MS = 1_000
CHECKED = 0.1
"""Probability of a full check after a job; there is always one at the end of a life."""

STARTS_MAX = 5
"""Number of starts that may be interrupted before one is left undisturbed."""

PULLS_MAX = 100
"""Number of attempts within which a pull must succeed."""

SCHEMA = TableSchema("sg", "t", 1, (Column("dev", "STRING", True), Column("v", "INT64", False)))


class Report(msgspec.Struct):
    """Results of one run."""

    seed: int
    trace: int
    events: int
    """Number of jobs and starts."""

    jobs: dict[str, int]
    odd: dict[str, int]


class FilesSwarm:
    """One seeded run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.sim: Sim[Any] = Sim(seed)
        rng = self.rng = self.sim.rng
        self.nodes = [Node(name) for name in NODES]
        self.metas: dict[str, FileMeta] = {}
        self.number = 0
        self.now = 0
        self.events = 0
        self.jobs: Counter[str] = Counter()
        self.odd: Counter[str] = Counter()
        self.jobs_max = rng.choice([5, 20, 60])
        """Maximum number of jobs in a life."""

        self.links = rng.random() < 0.7
        """Whether the disks support hard links."""

        self.failing = rng.choice([0.0, 0.05, 0.3] if self.links else [0.05, 0.3])
        """Probability that a disk call fails within a job."""

        self.losing = rng.choice([0.0, 0.02, 0.2])
        """Probability that a chunk does not arrive, or arrives altered."""

        self.cut = rng.choice([0.3, 0.9])
        """Probability that a life ends with a power cut."""

        self.limits = {
            f"nodeagent.storage.{place}.CHUNK_BYTES": size
            for size in [rng.choice([400, 1 << 20])]
            for place in ("pull", "snapshot")
        }
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
        self.weights = [rng.choice(weights) for _, weights in actions]

    def run(self) -> Report:
        with bounded(self.limits):
            for life in range(LIVES):
                node = self.rng.choice(self.nodes)
                self.sim.tell(f"life {life} of {node.name}")
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

    # --- a start -----------------------------------------------------------------------------------

    def _start(self, node: Node) -> None:
        disk = node.disk
        for tried in range(STARTS_MAX + 1):
            self._only_lasting(disk)
            disk.cut_power_at = None
            if tried < STARTS_MAX and self.rng.random() < 0.2:
                disk.cut_power_at = disk.operations + self.rng.randint(1, 10)
            try:
                self._open(node)
                break
            except PowerCut:
                self.odd["power cut at a start"] += 1
                disk.crash(self.rng)
        disk.cut_power_at = None
        self.events += 1
        if node.rotten is not None:
            self._repair(node)
        node.check()

    def _only_lasting(self, disk: SimDisk) -> None:
        """Clear all faults except the missing support for hard links."""
        disk.faults = [] if self.links else [Fault("link", errno.EXDEV, times=sys.maxsize)]

    def _open(self, node: Node) -> None:
        storage = node.storage = Storage(node.disk, InlineEngine(node.disk, ArrowFormat()))
        storage.prepare()
        node.unsure = set(storage.staging.operations())
        assert not node.disk.listdir(layout.TMP), (
            f"L4: {node.name} starts with temporary files {node.disk.listdir(layout.TMP)}"
        )
        for operation in [o for o in node.staged if o.startswith("repair-")]:
            del node.staged[operation]
        for group, known in node.groups.items():
            found = node.checkpoint(group)
            assert found in known.saved, (
                f"S16: {node.name} {group}: the checkpoint is {found}, expected one of {known.saved}"
            )
            known.saved, known.base = [found], ""
            if found == NOTHING:
                if group in storage.groups():
                    storage.files.remove_group(group)
                known.files.clear()
                continue
            slots: dict[int, set[str]] = {}
            for name in sorted(found.files):
                slots.setdefault(self.metas[name].slot, set()).add(name)
            known.files = {name: self.metas[name] for name in sorted(found.files)}
            storage.sweep({group: slots})
            left = {name for names in storage.files.names(group).values() for name in names}
            assert left == found.files, (
                f"L4, S11: {node.name} {group}: {left ^ found.files} differ after a sweep"
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

    def _run(self, node: Node, job: Job, *, may_fail: Iterable[str] = ()) -> JobResult:
        """Run a job during which the disk may fail. A failed job is repeated and must then succeed, unless it
        fails with one of the codes `may_fail`."""
        rng, disk = self.rng, node.disk
        self.events += 1
        self.jobs[type(job).__name__] += 1
        if rng.random() < self.failing:
            error = rng.choice([errno.EIO, errno.ENOSPC])
            operations = FILE_OPERATIONS if self.links else ("sync", "sync", "write")  # during a copy
            disk.faults.append(Fault(rng.choice(operations), error, skip=rng.choice([0, rng.randint(0, 3)])))
            node.unsure |= set(node.storage.staging.operations())
        result = self._once(node, job)
        self._only_lasting(disk)
        self.sim.tell(f"{node.name} {type(job).__name__}: {type(result).__name__}")
        if isinstance(result, Failed) and result.code not in may_fail:
            self.odd["failed job"] += 1
            left = [n for n in disk.listdir(layout.TMP) if n.startswith(("close-", "compact-"))]
            assert not left, f"L4: {type(job).__name__} failed and left {left}"
            result = self._once(node, job)
        assert not isinstance(result, Failed) or result.code in may_fail, (
            f"L7: the repeated job {job} failed: {result}"
        )
        return result

    def _once(self, node: Node, job: Job) -> JobResult:
        if isinstance(job, InstallSnapshot | StageFiles):
            return node.storage.run_pull(job, self._fetch)
        return node.storage.run(job)

    def _fetch(self, source: NodeId, snapshot: str, name: str, offset: int, length: int) -> bytes:
        node = next(n for n in self.nodes if n.name == source)
        node.read_lately.add(snapshot)
        chunk = node.storage.read_chunk(snapshot, name, offset, length)
        if self.rng.random() < self.losing:
            if self.rng.random() < 0.5 or not chunk:
                raise Unavailable(f"{source} is not there")
            self.odd["other bytes"] += 1
            at = self.rng.randrange(len(chunk))
            chunk = chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :]
        return chunk

    def _name(self) -> str:
        self.number += 1
        return f"f{self.number}"

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
        """Expire the snapshots of either node that were not read since the last time."""
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

    def _other(self, node: Node) -> Node:
        return next(n for n in self.nodes if n is not node)

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

    def _pull(
        self, node: Node, operation: str, group: GroupId, snapshot: str, files: Iterable[FileMeta]
    ) -> FilesStaged:
        other = self._other(node).name
        wanted = []
        for meta in files:
            own = [g for g in GROUPS if meta.name in node.groups[g].files]
            local = own[0] if own and not operation.startswith("repair-") else None
            ref = FileRef(other, snapshot, meta.name, meta.size, meta.xxh3)
            wanted.append(StagedFile(meta, (ref,), local))
        job = StageFiles(operation, group, tuple(wanted))
        before = self.odd["other bytes"]
        done = self._run(node, job)
        assert isinstance(done, FilesStaged)
        if self.odd["other bytes"] > before:
            node.unsure.add(operation)
        if operation not in node.unsure:
            assert not done.refetched, f"L7: {done} although all chunks arrived unaltered"
        staged = node.staged.setdefault(operation, {})
        for want in wanted:
            if want.meta.name in done.names:
                staged[group, want.meta.name] = want.meta
        return done

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

    def _repair(self, node: Node) -> None:
        """Repair the corrupted file; a repair that a power cut interrupts continues at the next start."""
        assert node.rotten is not None
        group, meta, snapshot = node.rotten
        known = node.groups[group]
        if known.files.get(meta.name) != meta or node.content(path_of(group, meta)) == meta.xxh3:
            node.rotten = None  # a start deletes files that no checkpoint names
            return
        hashed = self._run(node, HashFiles(group, (meta,)))
        assert isinstance(hashed, FilesHashed) and hashed.found[0][1] != meta.xxh3, (
            f"S15: the corruption of {meta.name} was not detected: {hashed}"
        )
        self._pull(node, "op-3", group, snapshot, [meta])
        node.check()
        del node.staged["op-3"]
        self._run(node, DropStaging("op-3"))
        pulls = (self._pull(node, repair_area(group), group, snapshot, [meta]) for _ in range(PULLS_MAX))
        assert any(meta.name in pulled.names for pulled in pulls), (
            f"L7: {meta.name} was not pulled in {PULLS_MAX} attempts"
        )
        del node.staged[repair_area(group)]
        done = self._run(node, ReplaceFile(group, meta))
        assert isinstance(done, FileReplaced) and (not done.quarantined or node.disk.exists(done.quarantined))
        node.rotten = None


def run(seed: int) -> Report:
    swarm = FilesSwarm(seed)
    command = f"nodeagent.testing.files_swarm {seed}"
    with replayable(seed, command, swarm.sim, lambda: ""):
        return swarm.run()


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

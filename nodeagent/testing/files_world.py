"""The two nodes of `files_swarm`: they start, run jobs under faults, and repair files."""

import errno
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

from nodeagent.model.errors import Unavailable
from nodeagent.model.files import FileMeta, FileRef
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import (
    DropStaging,
    Failed,
    FileReplaced,
    FilesHashed,
    FilesStaged,
    HashFiles,
    InstallSnapshot,
    Job,
    JobResult,
    ReplaceFile,
    StagedFile,
    StageFiles,
    repair_area,
)
from nodeagent.storage import layout
from nodeagent.storage.arrow_format import ArrowFormat
from nodeagent.storage.engine import InlineEngine
from nodeagent.storage.executor import Storage
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.files_known import GROUPS, NOTHING, Node, path_of
from nodeagent.testing.injector import FILE_OPERATIONS
from nodeagent.testing.sim import Sim
from nodeagent.testing.volume import Fault, PowerCut

NODES = ("a", "b")

TTL_MS = 1_000


STARTS_MAX = 5
"""Number of starts that may be interrupted before one is left undisturbed."""

PULLS_MAX = 100
"""Number of attempts within which a pull must succeed."""


class FilesWorld:
    """Two nodes, and the faults that a seed draws for them."""

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
        """Probability that a power cut is scheduled in a life; the life may end before it."""

        self.limits = {
            f"nodeagent.storage.{place}.CHUNK_BYTES": size
            for size in [rng.choice([400, 1 << 20])]
            for place in ("pull", "snapshot")
        }

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
        self.sim.note(f"{node.name} {type(job).__name__}: {type(result).__name__}")
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

    def _other(self, node: Node) -> Node:
        return next(n for n in self.nodes if n is not node)

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

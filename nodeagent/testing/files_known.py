"""What the disks of `files_swarm` must contain: groups with their files and checkpoints, snapshots, and
staged files."""

from dataclasses import dataclass, field

import msgspec
import xxhash

from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.storage import layout
from nodeagent.storage.executor import Storage
from nodeagent.testing.disk import SimDisk

GROUPS = ("a.1", "b.1")

_encode = msgspec.msgpack.Encoder().encode


class Payload(msgspec.Struct):
    """The payload of a checkpoint as the storage sees it."""

    state: bytes


class State(msgspec.Struct):
    files: list[FileMeta]
    number: int = 0


def path_of(group: GroupId, meta: FileMeta) -> str:
    return layout.file_path(group, meta.slot, meta.name)


def payload_of(number: int) -> bytes:
    return _encode(Payload(_encode(State([], number))))


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint: the number of its state, and its files."""

    number: int
    files: frozenset[str]


NOTHING = Saved(0, frozenset())
"""There is no checkpoint."""


@dataclass(slots=True)
class Known:
    """The expected state of a group on a node."""

    files: dict[str, FileMeta] = field(default_factory=dict)
    """Files that must exist. Files that an unfinished job creates or deletes may exist too."""

    saved: list[Saved] = field(default_factory=lambda: [NOTHING])
    """The checkpoint is one of these."""

    base: str = ""
    """Identifier of the full checkpoint; "" if the next checkpoint must be full."""

    whole: frozenset[str] = frozenset()
    """Files of the full checkpoint."""

    @property
    def named(self) -> set[str]:
        """Files that some possible checkpoint names."""
        return {name for saved in self.saved for name in saved.files}


@dataclass(frozen=True, slots=True)
class Snapshot:
    group: GroupId
    files: tuple[FileMeta, ...]
    payload: bytes
    saved: Saved


class Node:
    """A node's disk, and its expected content."""

    def __init__(self, name: NodeId) -> None:
        self.name = name
        self.disk = SimDisk()
        self.storage: Storage
        self.groups = {group: Known() for group in GROUPS}
        self.snapshots: dict[str, Snapshot] = {}
        self.read_lately: set[str] = set()
        self.rotten: tuple[GroupId, FileMeta, str] | None = None
        """A corrupted file, and a snapshot of the other node that contains it."""

        self.unsure: set[str] = set()
        """Staging areas that may contain wrong parts of files."""

        self.staged: dict[str, dict[tuple[GroupId, str], FileMeta]] = {}
        """Staged files by area."""

    def content(self, path: str) -> str:
        return xxhash.xxh3_128_hexdigest(self.disk.read(path)) if self.disk.exists(path) else "missing"

    def check(self) -> None:
        """Check that the disk contains everything it must."""
        rotten = self.rotten[:2] if self.rotten is not None else None
        for group, known in self.groups.items():
            for meta in known.files.values():
                if (group, meta) == rotten:
                    continue
                found = self.content(path_of(group, meta))
                assert found == meta.xxh3, f"S11: {self.name} {group}: {meta.name} is {found}"
        for name, snapshot in self.snapshots.items():
            self.check_snapshot(name, snapshot)
        for operation, files in self.staged.items():
            for (group, _), meta in files.items():
                found = self.content(layout.staged_path(operation, group, meta.slot, meta.name))
                assert found == meta.xxh3, f"S15: {self.name} {operation}: {meta.name} is {found}"

    def check_snapshot(self, name: str, snapshot: Snapshot) -> None:
        index = self.storage.snapshots.index(name)
        assert index.group == snapshot.group and index.files == snapshot.files, (
            f"S16: snapshot {name} is {index}"
        )
        assert self.disk.read(layout.snapshot_path(name, layout.PAYLOAD)) == snapshot.payload, f"S16: {name}"
        for meta in snapshot.files:
            found = self.content(layout.snapshot_path(name, meta.name))
            assert found == meta.xxh3, f"S16: in snapshot {name} of {self.name} {meta.name} is {found}"

    def checkpoint(self, group: GroupId) -> Saved:
        """The group's checkpoint on disk; `NOTHING` if there is none."""
        payload = self.storage.checkpoint(group)
        if payload is None:
            return NOTHING
        state = msgspec.msgpack.decode(msgspec.msgpack.decode(payload, type=Payload).state, type=State)
        return Saved(state.number, frozenset(f.name for f in state.files))

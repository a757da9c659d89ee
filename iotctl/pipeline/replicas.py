"""Depth `manifest`: what the manifests of replicas list, compared. No Spark.

Each group is compared at a *cut*: its leader closes the rows in memory, and all replicas are compared at the
log index of that close. Later writes make newer files, which are left out.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from iotctl.pipeline.link import Cluster, expect
from iotctl.pipeline.report import MISSING, NO_MAJORITY, NOT_THERE, Mismatch, Progress, Unread
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import (
    Accepted,
    CloseAll,
    DamagedFile,
    GroupRecord,
    ManifestReply,
)
from nodeagent.partition import ranges

ASKS_MAX = 16
"""How many requests the driver sends in parallel."""

SETTLE_S = 30.0
"""How long to wait for a replica that is not at work on files and makes no progress towards the cut. Without
a cut this is the total wait, since new writes never end."""

AT_WORK_S = 600.0
"""How long to wait for a replica that is at work but finishes no file: on a busy machine closes are late, and
merges, which have a lower priority, are later still."""

DAMAGED_SETTLE_S = 3.0
"""How long to wait for a replica that is blocked by a damaged file."""

SETTLE_POLL_S = 0.2

QUIET_S = 15.0
"""How often the close is repeated on the leader, which suspends merges for 30 s after each close: a replica
that lags would lack the merged files."""

RECHECKS = 3
RECHECK_DELAY_S = 1.0

T = TypeVar("T")
V = TypeVar("V")


@dataclass(slots=True)
class Replica:
    """The files of one group on one node up to the cut, by name."""

    node: NodeId
    group: GroupId
    files: dict[str, FileMeta] = field(default_factory=dict)
    damaged: tuple[DamagedFile, ...] = ()

    @property
    def owed(self) -> frozenset[str]:
        """Outputs of compactions that cannot run here because an input is damaged."""
        return frozenset(d.output for d in self.damaged if d.output)

    @property
    def superseded(self) -> frozenset[str]:
        """The inputs that the owed outputs replace."""
        return frozenset(name for d in self.damaged for name in d.inputs)


@dataclass(slots=True)
class GroupView:
    """One group at its cut. With `cut` None, the group could not close its rows in memory, and all listed
    files are compared. `replicas` are those of the `members` that answered."""

    group: GroupId
    cut: int | None
    members: tuple[NodeId, ...] = ()
    replicas: list[Replica] = field(default_factory=list)

    @property
    def slot_bytes(self) -> dict[int, int]:
        """Bytes of one replica per non-empty slot: the largest value of any replica."""
        most: dict[int, int] = {}
        for replica in self.replicas:
            own: Counter[int] = Counter()
            for meta in replica.files.values():
                own[meta.slot] += meta.size
            for slot, size in own.items():
                most[slot] = max(most.get(slot, 0), size)
        return most


@dataclass(frozen=True, slots=True)
class FileSelection:
    """Selects files; empty means all."""

    slots: Ranges = ()
    storage_groups: tuple[str, ...] = ()

    def __contains__(self, meta: FileMeta) -> bool:
        return (not self.slots or ranges.contains(self.slots, meta.slot)) and (
            not self.storage_groups or meta.partition.storage_group in self.storage_groups
        )


def at_once(
    work: Callable[[T], V], items: Sequence[T], on_done: Callable[[int], None] = lambda done: None
) -> list[V]:
    """Like `map`, with up to `ASKS_MAX` threads. `on_done` is called with the number of completed items."""
    found: list[V] = []
    with ThreadPoolExecutor(ASKS_MAX) as pool:  # it starts no more threads than there are items
        for one in pool.map(work, items):
            found.append(one)
            on_done(len(found))
    return found


def view_groups(
    cluster: Cluster, groups: Sequence[GroupRecord], chosen: FileSelection, progress: Progress
) -> tuple[list[GroupView], list[Unread]]:
    """The manifests of all replicas at their group's cut, and the replicas without an answer."""
    progress.update("closing rows in memory", 0, len(groups))
    cuts = at_once(lambda g: _cut(cluster, g.group, chosen.slots), groups)
    views = [GroupView(g.group, cut, g.members) for g, cut in zip(groups, cuts, strict=True)]
    pairs = [(view, node) for view, g in zip(views, groups, strict=True) for node in g.members]
    progress.update("reading manifests", 0, len(pairs))
    found = at_once(
        lambda p: _manifest(cluster, p[0], p[1], chosen),
        pairs,
        lambda done: progress.update("reading manifests", done, len(pairs)),
    )
    unread: list[Unread] = []
    for (view, _), one in zip(pairs, found, strict=True):
        if isinstance(one, Unread):
            unread.append(one)
        else:
            view.replicas.append(one)
    return views, unread


def _cut(cluster: Cluster, group: GroupId, slots: Ranges) -> int | None:
    """Close the group's rows in memory. Returns the log index of the close; None if it was refused or failed
    (a reader may not close; a group without a quorum cannot)."""
    try:
        return expect(cluster.call_group(group, CloseAll(group, slots)), Accepted).index
    except NodeAgentError:
        return None


def _manifest(cluster: Cluster, view: GroupView, node: NodeId, chosen: FileSelection) -> Replica | Unread:
    """The replica's files, once it has made all files up to the cut."""
    started = moved = busy = closed_at = time.monotonic()
    made, seen = -1, set[str]()
    while True:
        try:
            reply = cluster.manifest(node, view.group, chosen.slots)
        except NodeAgentError as error:
            return Unread(node, view.group, None, error.what)
        now = time.monotonic()
        listed = {f.name: f for f in reply.files if _before(f, view.cut)}
        if view.cut is not None and (reply.materialised > made or not listed.keys() <= seen):
            made, moved = max(made, reply.materialised), now
            seen |= listed.keys()
        if view.cut is not None and reply.at_work:
            busy = now
        waited_s = now - started
        # A damaged file that blocks others is a finding, and waiting does not help.
        is_stuck = waited_s > DAMAGED_SETTLE_S and any(d.output for d in reply.damaged)
        if _settled(reply, view.cut) or is_stuck:
            files = {name: f for name, f in listed.items() if f in chosen}
            return Replica(node, view.group, files, _damaged(reply, files, chosen))
        if now - max(busy, moved) > SETTLE_S or now - moved > AT_WORK_S:
            reason = (
                f"lags: files made up to index {reply.materialised} of {view.cut or reply.applied},"
                f" {reply.pending} pending{' and in progress' if reply.at_work else ''}"
            )
            return Unread(node, view.group, None, reason)
        if view.cut is not None and now - closed_at > QUIET_S:
            closed_at = now
            _cut(cluster, view.group, chosen.slots)
        time.sleep(SETTLE_POLL_S)


def _damaged(
    reply: ManifestReply, files: Mapping[str, FileMeta], chosen: FileSelection
) -> tuple[DamagedFile, ...]:
    """Damage to the chosen files. If all files are chosen, also damage to retained files of slots that left
    the group; the nodes that copied these files reported it."""
    listed = {f.name for f in reply.files}
    every = not chosen.slots and not chosen.storage_groups
    return tuple(d for d in reply.damaged if d.file in files or (every and d.file not in listed))


def _settled(reply: ManifestReply, cut: int | None) -> bool:
    if cut is None:
        return reply.pending == 0
    return reply.materialised >= cut or (reply.applied >= cut and reply.pending == 0)


def _before(meta: FileMeta, cut: int | None) -> bool:
    return cut is None or meta.order[0] <= cut


def compare_manifests(
    cluster: Cluster, views: Sequence[GroupView], chosen: FileSelection, progress: Progress
) -> tuple[list[Mismatch], list[Unread]]:
    """Files that a replica lacks, or whose recorded size, hash or sums differ between the replicas of a
    group; also returns the replicas without an answer.

    If a file is missing, the manifests are read again, since replicas adopt and release a file at different
    moments.
    """
    mismatches: list[Mismatch] = []
    unread: list[Unread] = []
    for done, view in enumerate(views):
        progress.update("comparing manifests", done, len(views))
        found = manifest_mismatches(view)
        for _ in range(RECHECKS):
            if not any(m.found == MISSING or m.expected == NOT_THERE for m in found):
                break
            time.sleep(RECHECK_DELAY_S)
            unread += list_again(cluster, view, chosen)
            found = manifest_mismatches(view)
        mismatches += found
    return mismatches, unread


def list_again(cluster: Cluster, view: GroupView, chosen: FileSelection) -> list[Unread]:
    """Update the view's replicas at a new cut: the leader may have merged files since the last cut that the
    others still have to merge. Replicas without an answer are removed from the view and returned."""
    if view.cut is not None:
        view.cut = _cut(cluster, view.group, chosen.slots) or view.cut
    fresh = [_manifest(cluster, view, r.node, chosen) for r in view.replicas]
    view.replicas = [f for f in fresh if isinstance(f, Replica)]
    return [f for f in fresh if isinstance(f, Unread)]


def damage_found(views: Sequence[GroupView]) -> list[Mismatch]:
    """Damage that the replicas themselves detected when they read or merged files."""
    return [
        Mismatch(r.node, d.slot, d.file, "", None, d.expected, d.found)
        for view in views
        for r in view.replicas
        for d in r.damaged
    ]


def manifest_mismatches(view: GroupView) -> list[Mismatch]:
    """Manifest entries that are not equal on all replicas of the group."""
    first, *others = [r.files for r in view.replicas] or [{}]
    if all(files == first for files in others):
        return []
    names = sorted({name for r in view.replicas for name in r.files})
    return [m for name in names for m in _entry_mismatches(view.replicas, name)]


def _entry_mismatches(replicas: Sequence[Replica], name: str) -> Iterable[Mismatch]:
    entries = [r.files.get(name) for r in replicas]
    if all(e == entries[0] for e in entries):
        return
    expected, votes = Counter(entries).most_common(1)[0]
    decided = 2 * votes > len(entries)
    slot = next(e.slot for e in entries if e is not None)
    for replica, entry in zip(replicas, entries, strict=True):
        if decided and entry == expected:
            continue
        wanted = _entry_text(expected, NOT_THERE) if decided else _other_text(entries, entry)
        yield Mismatch(replica.node, slot, name, "", None, wanted, _entry_text(entry, MISSING))


def _entry_text(meta: FileMeta | None, absent: str) -> str:
    """The entry's hash, with the other values that may differ."""
    if meta is None:
        return absent
    values, one, two = meta.logical
    return f"{meta.xxh3} ({meta.size} bytes, {meta.rows} rows, {values} values, sums {one:016x} {two:016x})"


def _other_text(entries: Sequence[FileMeta | None], own: FileMeta | None) -> str:
    others = {_entry_text(e, NOT_THERE) for e in entries if e != own}
    return others.pop() if len(others) == 1 else NO_MAJORITY

"""Depths `manifest` and `hash`: what replicas say they hold, and what their bytes hash to. No Spark.

Each group is pinned to a *cut*: its leader closes what is in memory, and the log index at which that was
done is where all replicas are compared. Writes that go on make newer files, which are left out.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    CheckFiles,
    CloseAll,
    DamagedFile,
    FilesChecked,
    GroupRecord,
    ManifestReply,
)
from nodeagent.partition import ranges

ASKS_MAX = 16
"""Requests on their way from the driver at a time."""

SETTLE_S = 30.0
"""How long a replica is waited for that is not at work on files and makes none up to the cut meanwhile.
Without a cut it is waited for as long in all, since there is no end to what is written."""

AT_WORK_S = 600.0
"""How long one that is at work is waited for without a file: on a busy machine closes are late, and merges,
which get what time is left over, later."""

DAMAGED_SETTLE_S = 3.0
"""How long one is waited for that is held up by a damaged file."""

SETTLE_POLL_S = 0.2

QUIET_S = 15.0
"""How often the leader is told that its group is still compared: it merges no files for 30 s after it heard
so, for the replica that is waited for would not have the merged ones."""

RECHECKS = 3
RECHECK_DELAY_S = 1.0

HASH_BYTES = 256 * 1024 * 1024
"""Bytes one `CheckFiles` request makes a node read."""

HASH_TIMEOUT_S = 120.0

T = TypeVar("T")
V = TypeVar("V")


@dataclass(slots=True)
class Replica:
    """One node's files of one group up to the cut; by name."""

    node: NodeId
    group: GroupId
    files: dict[str, FileMeta] = field(default_factory=dict)
    damaged: tuple[DamagedFile, ...] = ()

    @property
    def owed(self) -> frozenset[str]:
        """What compactions were to make here of files of which one is damaged."""
        return frozenset(d.output for d in self.damaged if d.output)

    @property
    def superseded(self) -> frozenset[str]:
        """The files that go with what is owed."""
        return frozenset(name for d in self.damaged for name in d.inputs)


@dataclass(slots=True)
class GroupView:
    """`cut` None: the group could not be asked to close its memory; everything listed is compared.
    `replicas` are those of the `members` that answered."""

    group: GroupId
    cut: int | None
    members: tuple[NodeId, ...] = ()
    replicas: list[Replica] = field(default_factory=list)

    @property
    def slot_bytes(self) -> dict[int, int]:
        """Bytes of one replica per slot that holds files, the largest that any replica lists."""
        most: dict[int, int] = {}
        for replica in self.replicas:
            own: Counter[int] = Counter()
            for meta in replica.files.values():
                own[meta.slot] += meta.size
            for slot, size in own.items():
                most[slot] = max(most.get(slot, 0), size)
        return most


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which files are wanted; empty means all."""

    slots: Ranges = ()
    storage_groups: tuple[str, ...] = ()

    def __contains__(self, meta: FileMeta) -> bool:
        return (not self.slots or ranges.contains(self.slots, meta.slot)) and (
            not self.storage_groups or meta.partition.storage_group in self.storage_groups
        )


def at_once(
    work: Callable[[T], V], items: Sequence[T], told: Callable[[int], None] = lambda done: None
) -> list[V]:
    """Like `map`, with up to `ASKS_MAX` threads. `told` gets how many of the first ones are done."""
    if len(items) < 2:
        return [work(item) for item in items]
    found: list[V] = []
    with ThreadPoolExecutor(min(ASKS_MAX, len(items))) as pool:
        for one in pool.map(work, items):
            found.append(one)
            told(len(found))
    return found


def view_groups(
    cluster: Cluster, groups: Sequence[GroupRecord], chosen: Chosen, progress: Progress
) -> tuple[list[GroupView], list[Unread]]:
    """Manifests of every replica at its group's cut, and the replicas that gave none."""
    progress.update("closing files in memory", 0, len(groups))
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
    """Close the group's memory and return the log index of that; None where that was refused or failed
    (a reader may not close; a group without quorum cannot)."""
    try:
        return expect(cluster.call_group(group, CloseAll(group, slots)), Accepted).index
    except NodeAgentError:
        return None


def _manifest(cluster: Cluster, view: GroupView, node: NodeId, chosen: Chosen) -> Replica | Unread:
    """The replica's files once it has made all files up to the cut."""
    started = moved = busy = told = time.monotonic()
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
        # What a damaged file keeps from being made is a finding, and no waiting helps.
        is_stuck = waited_s > DAMAGED_SETTLE_S and any(d.output for d in reply.damaged)
        if _settled(reply, view.cut) or is_stuck:
            files = {name: f for name, f in listed.items() if f in chosen}
            return Replica(node, view.group, files, _damaged(reply, files, chosen))
        if now - max(busy, moved) > SETTLE_S or now - moved > AT_WORK_S:
            reason = (
                f"behind: files made up to index {reply.materialised}, wanted {view.cut or reply.applied},"
                f" {reply.pending} pending{', being made' if reply.at_work else ''}"
            )
            return Unread(node, view.group, None, reason)
        if view.cut is not None and now - told > QUIET_S:
            told = now
            _cut(cluster, view.group, chosen.slots)
        time.sleep(SETTLE_POLL_S)


def _damaged(reply: ManifestReply, files: Mapping[str, FileMeta], chosen: Chosen) -> tuple[DamagedFile, ...]:
    """Of the chosen files, and of slots that left the group and that it keeps: who copies those found it."""
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
    cluster: Cluster, views: Sequence[GroupView], chosen: Chosen, progress: Progress
) -> tuple[list[Mismatch], list[Unread]]:
    """Files whose recorded size, hash or sums differ between the replicas of a group.

    Differences are asked for again: a file may just be adopted or released.
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
            unread += _list_again(cluster, view, chosen)
            found = manifest_mismatches(view)
        mismatches += found
    return mismatches, unread


def _list_again(cluster: Cluster, view: GroupView, chosen: Chosen) -> list[Unread]:
    """Bring the view's replicas up to date, at a new cut: what the leader merged since the last one, the
    others may still have to merge. Those that gave nothing leave the view."""
    if view.cut is not None:
        view.cut = _cut(cluster, view.group, chosen.slots) or view.cut
    fresh = [_manifest(cluster, view, r.node, chosen) for r in view.replicas]
    view.replicas = [f for f in fresh if isinstance(f, Replica)]
    return [f for f in fresh if isinstance(f, Unread)]


def damage_found(views: Sequence[GroupView]) -> list[Mismatch]:
    """What the replicas themselves found damaged when they read or merged files."""
    return [
        Mismatch(r.node, d.slot, d.file, "", None, d.expected, d.found)
        for view in views
        for r in view.replicas
        for d in r.damaged
    ]


def manifest_mismatches(view: GroupView) -> list[Mismatch]:
    """Entries that are not the same on every replica of the group."""
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
    """The hash, with what else may differ."""
    if meta is None:
        return absent
    values, one, two = meta.logical
    return f"{meta.xxh3} ({meta.size} bytes, {meta.rows} rows, {values} values, sums {one:016x} {two:016x})"


def _other_text(entries: Sequence[FileMeta | None], own: FileMeta | None) -> str:
    others = {_entry_text(e, NOT_THERE) for e in entries if e != own}
    return others.pop() if len(others) == 1 else NO_MAJORITY


@dataclass(slots=True)
class Hashed:
    """What reading bytes again found; `files` and `bytes` are those that were read."""

    mismatches: list[Mismatch] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


def check_hashes(cluster: Cluster, views: Sequence[GroupView], chosen: Chosen, progress: Progress) -> Hashed:
    """Have every replica re-read its bytes.

    A file that is gone when its turn comes was merged with others into a new one, or its slot has moved:
    what the replicas hold of its slot now is listed, compared and read instead.
    """
    total = Hashed()
    gone = _hash_once(cluster, views, total, progress)
    for _ in range(RECHECKS):
        if not gone:
            break
        time.sleep(RECHECK_DELAY_S)
        views = [_again(cluster, view, gone, chosen, total, progress) for view in views]
        gone = _hash_once(cluster, views, total, progress)
    total.unread += gone
    return total


def _again(
    cluster: Cluster,
    view: GroupView,
    gone: Sequence[Unread],
    chosen: Chosen,
    total: Hashed,
    progress: Progress,
) -> GroupView:
    """The view of those slots alone of which a file is gone, as they are now."""
    slots = {u.slot for u in gone if u.group == view.group and u.slot is not None}
    fresh = GroupView(view.group, view.cut, view.members, view.replicas if slots else [])
    if slots:
        wanted = Chosen(ranges.from_slots(slots), chosen.storage_groups)
        total.unread += _list_again(cluster, fresh, wanted)
        mismatches, unread = compare_manifests(cluster, [fresh], wanted, progress)
        total.mismatches += mismatches
        total.unread += unread
        moved = slots - {f.slot for r in fresh.replicas for f in r.files.values()}
        total.unread += [u for u in gone if u.group == view.group and u.slot in moved]
    return fresh


def _hash_once(
    cluster: Cluster, views: Sequence[GroupView], total: Hashed, progress: Progress
) -> list[Unread]:
    """Add to `total` what the replicas find, except in slots of which a file is gone: those are returned."""
    gone: list[Unread] = []
    read: list[tuple[NodeId, FileMeta, str]] = []
    for replica, part, reply in hash_files(cluster, views, progress):
        if isinstance(reply, Unread):
            total.unread.append(reply)
            continue
        found = dict(reply.found)
        for meta in part:
            if meta.name in found:
                read.append((replica.node, meta, found[meta.name]))
            else:
                reason = f"{meta.name} was released while it was checked"
                gone.append(Unread(replica.node, replica.group, meta.slot, reason))
    slots = {u.slot for u in gone}
    for node, meta, xxh3 in read:
        if meta.slot in slots:
            continue
        total.files, total.bytes = total.files + 1, total.bytes + meta.size
        if xxh3 != meta.xxh3:
            total.mismatches.append(Mismatch(node, meta.slot, meta.name, "", None, meta.xxh3, xxh3))
    return gone


def hash_files(
    cluster: Cluster, views: Sequence[GroupView], progress: Progress
) -> Iterator[tuple[Replica, list[FileMeta], FilesChecked | Unread]]:
    """What every replica finds when it reads its files of the views again, in portions."""
    asks = [(r, part) for view in views for r in view.replicas for part in _portions(r)]
    progress.update("hashing files", 0, len(asks))
    for start in range(0, len(asks), ASKS_MAX):
        some = asks[start : start + ASKS_MAX]
        replies = at_once(lambda a: _check(cluster, a[0], a[1]), some)
        for (replica, part), reply in zip(some, replies, strict=True):
            yield replica, part, reply
        progress.update("hashing files", min(start + ASKS_MAX, len(asks)), len(asks))


def _portions(replica: Replica) -> Iterable[list[FileMeta]]:
    """The replica's files in slot order, whole slots together, in portions of about `HASH_BYTES`."""
    portion: list[FileMeta] = []
    held = 0
    for meta in sorted(replica.files.values(), key=lambda m: (m.slot, m.name)):
        if held >= HASH_BYTES and meta.slot != portion[-1].slot:
            yield portion
            portion, held = [], 0
        portion.append(meta)
        held += meta.size
    if portion:
        yield portion


def _check(cluster: Cluster, replica: Replica, part: Sequence[FileMeta]) -> FilesChecked | Unread:
    request = CheckFiles(replica.group, ranges.from_slots(m.slot for m in part))
    try:
        return expect(cluster.call(replica.node, request, HASH_TIMEOUT_S), FilesChecked)
    except NodeAgentError as error:
        return Unread(replica.node, replica.group, None, error.what)

"""Depth `hash`: every replica re-reads its files and hashes their bytes. No Spark."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from iotctl.pipeline.link import Cluster, expect
from iotctl.pipeline.replicas import (
    ASKS_MAX,
    RECHECK_DELAY_S,
    RECHECKS,
    FileSelection,
    GroupView,
    Replica,
    at_once,
    compare_manifests,
    list_again,
)
from iotctl.pipeline.report import Mismatch, Progress, Unread
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import CheckFiles, FilesChecked
from nodeagent.partition import ranges

HASH_BYTES = 256 * 1024 * 1024
"""About how many bytes a node reads for one `CheckFiles` request."""

HASH_TIMEOUT_S = 120.0


@dataclass(slots=True)
class Hashed:
    """The result of hashing files again; `files` and `bytes` count what was read."""

    mismatches: list[Mismatch] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


def check_hashes(
    cluster: Cluster, views: Sequence[GroupView], chosen: FileSelection, progress: Progress
) -> Hashed:
    """Have every replica re-read its bytes.

    A file that no longer exists when its turn comes was merged into a new file, or its slot has moved. The
    present files of its slot are then listed, compared and read instead.
    """
    total = Hashed()
    released = _hash_once(cluster, views, total, progress)
    for _ in range(RECHECKS):
        if not released:
            break
        time.sleep(RECHECK_DELAY_S)
        views = [_present_view(cluster, view, released, chosen, total, progress) for view in views]
        released = _hash_once(cluster, views, total, progress)
    total.unread += released
    return total


def _present_view(
    cluster: Cluster,
    view: GroupView,
    released: Sequence[Unread],
    chosen: FileSelection,
    total: Hashed,
    progress: Progress,
) -> GroupView:
    """The present view, limited to the slots of released files."""
    slots = {u.slot for u in released if u.group == view.group and u.slot is not None}
    fresh = GroupView(view.group, view.cut, view.members, view.replicas if slots else [])
    if slots:
        wanted = FileSelection(ranges.from_slots(slots), chosen.storage_groups)
        total.unread += list_again(cluster, fresh, wanted)
        mismatches, unread = compare_manifests(cluster, [fresh], wanted, progress)
        total.mismatches += mismatches
        total.unread += unread
        moved = slots - {f.slot for r in fresh.replicas for f in r.files.values()}
        total.unread += [u for u in released if u.group == view.group and u.slot in moved]
    return fresh


def _hash_once(
    cluster: Cluster, views: Sequence[GroupView], total: Hashed, progress: Progress
) -> list[Unread]:
    """Add the replicas' results to `total`, except for slots of released files; returns these files."""
    released: list[Unread] = []
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
                reason = f"{meta.name} was released during the check"
                released.append(Unread(replica.node, replica.group, meta.slot, reason))
    slots = {u.slot for u in released}
    for node, meta, xxh3 in read:
        if meta.slot in slots:
            continue
        total.files, total.bytes = total.files + 1, total.bytes + meta.size
        if xxh3 != meta.xxh3:
            total.mismatches.append(Mismatch(node, meta.slot, meta.name, "", None, meta.xxh3, xxh3))
    return released


def hash_files(
    cluster: Cluster, views: Sequence[GroupView], progress: Progress
) -> Iterator[tuple[Replica, list[FileMeta], FilesChecked | Unread]]:
    """The hashes that every replica computes of its files in the views, in portions."""
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

"""Repairs the mismatches of a verification: decides which file of which replica to replace, and replaces it.

A file is *whole* on a replica if its bytes have the hash that the replica's manifest records. If a majority
of all members of the group hold a file whole with the same manifest row at one log index, the other replicas
get that file. Replicas that did not answer count against the majority. Without a majority nothing is changed,
with one exception: files of a signed-off slot migration are taken from previous holders that still retain
them.

- `hash`: repairs damaged or missing bytes if the manifest row is that of the majority;
- `content`: also repairs a manifest row that differs in size, hash, rows, times or sums.

If a compaction fails on one replica because of a damaged input that the others have already merged, the
replica gets the compaction's output, which replaces the inputs. A file that only some manifests list, or that
differs in slot, partition, table or order, is a difference of histories that copying a file cannot repair.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from iotctl.pipeline.hashes import hash_files
from iotctl.pipeline.link import Cluster, expect
from iotctl.pipeline.replicas import GroupView, Replica
from iotctl.pipeline.report import Mismatch, Progress, Repair, Unread
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.files import FileMeta, FileRef, Order
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.limits import REPAIR_SOURCES_MAX
from nodeagent.model.requests import ExportFiles, FileRepaired, OpenSource, RepairFile, SourceOpened
from nodeagent.partition import ranges

SOURCES = 2
"""Current replicas offered per repair; the second is a fallback. Previous holders are offered, too."""

EXPORT_TIMEOUT_S = 60.0
REPAIR_TIMEOUT_S = 600.0
"""Timeout for a node to pull, install and record one file. The node continues after a timeout, and the
request may be repeated."""

Place = tuple[NodeId, int]
"""(node, slot) of a mismatch: the unit that is verified again after a repair."""

Hashes = Mapping[tuple[NodeId, str], str]
"""Hash of the bytes of (node, file name); no key if unknown."""

SignedOff = Mapping[tuple[int, Order, str], tuple[FileRef, ...]]
"""By slot, order and hash: the copies that previous holders of the slot retain. The order is the file's order
there, that is the adopted file's order without its first number."""


@dataclass(frozen=True, slots=True)
class RepairAction:
    """A repair action: `node` gets the file `wanted`, which `holders` have whole. `kept` are copies of
    previous holders, used if no majority holds the file."""

    node: NodeId
    group: GroupId
    wanted: FileMeta
    holders: tuple[NodeId, ...]
    kept: tuple[FileRef, ...] = ()

    @property
    def place(self) -> Place:
        return self.node, self.wanted.slot


@dataclass(frozen=True, slots=True)
class Unrepairable:
    """An unrepairable file of a replica."""

    node: NodeId
    slot: int
    file: str
    reason: str


def decide(
    view: GroupView, hashes: Hashes, depth: str, signed_off: SignedOff = MappingProxyType({})
) -> tuple[list[RepairAction], list[Unrepairable]]:
    """Repair actions and unrepairable files for every file of the view that is not equal and whole on all
    replicas."""
    cures: list[RepairAction] = []
    hopeless: list[Unrepairable] = []
    slots = {name: meta.slot for r in view.replicas for name, meta in r.files.items()}
    for name in sorted(slots):
        wanted, holders = _majority(view, hashes, name)
        kept: tuple[FileRef, ...] = ()
        if wanted is None:
            wanted, holders, kept = _signed_off(view, hashes, name, signed_off)
        if wanted is None and any(name in r.superseded for r in view.replicas):
            continue
        for replica in view.replicas:
            if replica.node in holders:
                continue
            own = replica.files.get(name)
            reason = _why_not(view, hashes, depth, name, own, replica, wanted)
            if reason:
                hopeless.append(Unrepairable(replica.node, slots[name], name, reason))
            elif wanted is not None:
                elsewhere = tuple(ref for ref in kept if ref.node != replica.node)
                cures.append(RepairAction(replica.node, view.group, wanted, holders, elsewhere))
    return cures, hopeless


def _majority(view: GroupView, hashes: Hashes, name: str) -> tuple[FileMeta | None, tuple[NodeId, ...]]:
    """The manifest row with which more than half of the members hold the file whole, and these members."""
    whole = _whole(view, hashes, name)
    for row, votes in Counter(whole.values()).most_common(1):
        if 2 * votes > len(view.members):
            return row, tuple(node for node, own in whole.items() if own == row)
    return None, ()


def _whole(view: GroupView, hashes: Hashes, name: str) -> dict[NodeId, FileMeta]:
    """The manifest rows of the replicas that hold the file whole."""
    return {
        r.node: r.files[name]
        for r in view.replicas
        if name in r.files and hashes.get((r.node, name)) == r.files[name].xxh3
    }


def _signed_off(
    view: GroupView, hashes: Hashes, name: str, signed_off: SignedOff
) -> tuple[FileMeta | None, tuple[NodeId, ...], tuple[FileRef, ...]]:
    """The only manifest row whose bytes previous holders retain, the replicas that hold it whole, and the
    copies of the previous holders."""
    rows = {r.files[name] for r in view.replicas if name in r.files}
    kept = {row: refs for row in rows if (refs := signed_off.get((row.slot, row.order[1:], row.xxh3)))}
    if len(kept) != 1:
        return None, (), ()
    ((row, refs),) = kept.items()
    return row, tuple(node for node, own in _whole(view, hashes, name).items() if own == row), refs


def _why_not(
    view: GroupView,
    hashes: Hashes,
    depth: str,
    name: str,
    own: FileMeta | None,
    replica: Replica,
    wanted: FileMeta | None,
) -> str:
    """Why the file may not be replaced; "" if it may."""
    if view.cut is None:
        return "the group could not close its rows in memory, so its replicas could not be compared"
    if wanted is None:
        return (
            f"no majority of the {len(view.members)} replicas holds the same whole version of the file,"
            " and no previous holder retains a signed-off version"
        )
    if own is None and name in replica.owed:
        return ""
    if own is None:
        return "this replica's manifest does not list the file"
    if (replica.node, name) not in hashes:
        return "this replica could not read the file again"
    if _fixed(own) != _fixed(wanted):
        return "the file has another slot, partition, table or order in this replica's manifest"
    if own != wanted and depth != "content":
        return "the file's manifest row differs too: repair with --depth content"
    return ""


def _fixed(meta: FileMeta) -> tuple[object, ...]:
    """The values of a manifest row that a repair never changes."""
    return meta.slot, meta.partition, meta.table, meta.order


class Repairer:
    """Decides on repairs and makes them. `repairs`: the replaced files; `reasons`: why others were not."""

    def __init__(self, cluster: Cluster, depth: str, progress: Progress) -> None:
        self._cluster = cluster
        self._depth = depth
        self._progress = progress
        self._offers: dict[tuple[NodeId, GroupId, int], SourceOpened] = {}
        self.repairs: list[Repair] = []
        self.reasons: dict[tuple[NodeId, int, str], str] = {}

    def run(self, views: Sequence[GroupView], mismatches: Sequence[Mismatch]) -> None:
        """Repair the slots and nodes of the mismatches; nothing else is changed."""
        asked = {(m.node, m.slot) for m in mismatches}
        parts = [_narrowed(view, {slot for _, slot in asked}) for view in views]
        parts = [part for part in parts if any(r.files for r in part.replicas)]
        hashes = self._hashes(parts)
        cures: list[RepairAction] = []
        for part in parts:
            some, hopeless = decide(part, hashes, self._depth)
            if hopeless and (signed_off := self._signed_off(part)):
                some, hopeless = decide(part, hashes, self._depth, signed_off)
            cures += [c for c in some if c.place in asked]
            self.reasons |= {(h.node, h.slot, h.file): h.reason for h in hopeless}
        for done, cure in enumerate(cures):
            self._progress.update("repairing files", done, len(cures), note=f"{cure.node} {cure.wanted.name}")
            self._cure(cure)
        if cures:
            self._progress.update("repairing files", len(cures), len(cures))

    def reason(self, mismatch: Mismatch) -> str:
        """Why the mismatch was not repaired; "" if no reason is known."""
        place = (mismatch.node, mismatch.slot)
        own = self.reasons.get((*place, mismatch.file), "")
        if own or not mismatch.series:
            return own
        return next((f"{f}: {why}" for (n, s, f), why in self.reasons.items() if (n, s) == place), "")

    def _hashes(self, parts: Sequence[GroupView]) -> dict[tuple[NodeId, str], str]:
        hashes: dict[tuple[NodeId, str], str] = {}
        for replica, part, reply in hash_files(self._cluster, parts, self._progress):
            if not isinstance(reply, Unread):
                wanted = {meta.name for meta in part}
                hashes |= {(replica.node, name): found for name, found in reply.found if name in wanted}
        return hashes

    def _signed_off(self, part: GroupView) -> SignedOff:
        """The copies that previous holders retain of these slots, for signed-off operations that are open."""
        slots = ranges.from_slots({meta.slot for r in part.replicas for meta in r.files.values()})
        operations = [o for o in self._cluster.meta().operations if o.signed_off and not o.ended]
        moves = [(o, m) for o in operations for m in o.moves if m.target == part.group]
        found: defaultdict[tuple[int, Order, str], list[FileRef]] = defaultdict(list)
        for operation, move in moves:
            wanted = ranges.intersect(move.slots, slots)
            for node in move.source_members if wanted else ():
                request = OpenSource(operation.id, move.source, wanted)
                try:
                    offer = expect(self._cluster.call(node, request, EXPORT_TIMEOUT_S), SourceOpened)
                except NodeAgentError:
                    continue
                for pulled in offer.slots:
                    for meta in pulled.files:
                        ref = FileRef(node, offer.snapshot, meta.name, meta.size, meta.xxh3)
                        found[pulled.slot, meta.order, meta.xxh3].append(ref)
        return {key: tuple(refs) for key, refs in found.items()}

    def _cure(self, cure: RepairAction) -> None:
        try:
            sources = self._sources(cure)
            request = RepairFile(cure.group, cure.wanted, tuple(sources))
            reply = expect(self._cluster.call(cure.node, request, REPAIR_TIMEOUT_S), FileRepaired)
        except NodeAgentError as error:
            self.reasons[cure.node, cure.wanted.slot, cure.wanted.name] = error.what
            return
        self.repairs.append(
            Repair(
                cure.node,
                cure.group,
                cure.wanted.slot,
                cure.wanted.name,
                [s.node for s in sources],
                reply.quarantined,
            )
        )

    def _sources(self, cure: RepairAction) -> list[FileRef]:
        """Snapshots with the wanted file: first those of whole replicas, then previous holders' copies.

        Raises:
            NodeAgentError: there is none; the error of the last holder.
        """
        sources: list[FileRef] = []
        last = NodeAgentError(f"no replica offers {cure.wanted.name} any longer")
        for node in cure.holders:
            try:
                offer = self._offer(node, cure.group, cure.wanted.slot)
            except NodeAgentError as error:
                last = error
                continue
            if any(cure.wanted in slot.files for slot in offer.slots):
                meta = cure.wanted
                sources.append(FileRef(node, offer.snapshot, meta.name, meta.size, meta.xxh3))
            if len(sources) == SOURCES:
                break
        sources = [*sources, *cure.kept][:REPAIR_SOURCES_MAX]
        if not sources:
            raise last
        return sources

    def _offer(self, node: NodeId, group: GroupId, slot: int) -> SourceOpened:
        key = (node, group, slot)
        if key not in self._offers:
            request = ExportFiles(group, ((slot, slot + 1),))
            self._offers[key] = expect(self._cluster.call(node, request, EXPORT_TIMEOUT_S), SourceOpened)
        return self._offers[key]


def _narrowed(view: GroupView, slots: set[int]) -> GroupView:
    """The view limited to these slots."""
    replicas = [
        replace(r, files={n: meta for n, meta in r.files.items() if meta.slot in slots})
        for r in view.replicas
    ]
    return replace(view, replicas=replicas)


def settle(
    mismatches: Iterable[Mismatch],
    repairer: Repairer,
    again: Sequence[Mismatch],
    unread: Sequence[Unread],
) -> list[Mismatch]:
    """The mismatches with the outcome of their repair.

    Args:
        again, unread: the results of a second verification of the repaired slots.
    """
    repaired = {(r.node, r.slot): r.group for r in repairer.repairs}
    blind = {(u.node, u.group): u.reason for u in unread}
    differing = {(m.node, m.slot) for m in again} | {(m.node, m.slot, m.file) for m in again}

    def why_not(m: Mismatch) -> str:
        place = (m.node, m.slot)
        # A cell may come from any file of the slot; a file is judged on its own.
        reason = repairer.reason(m)
        if reason:
            return reason
        if place not in repaired:
            return "no file of the slot is damaged on this replica, but the slot's content differs"
        if (place if m.series else (*place, m.file)) in differing:
            return "the file was replaced but still differs"
        silent = blind.get((m.node, repaired[place]))
        return f"the file was replaced but could not be read again: {silent}" if silent else ""

    settled = []
    for mismatch in mismatches:
        reason = why_not(mismatch)
        settled.append(msgspec.structs.replace(mismatch, repaired=not reason, reason=reason))
    return settled

"""Repair what a verification found: which file of which replica, from whom, and doing it.

A file is *whole* on a replica when its bytes hash to what that replica's manifest records. What a majority of
all members of the group hold whole under one manifest row, at one cut, is what the others are given. Replicas
that did not answer count against it. Without such a majority nothing is touched, but for files that a change
brought here and that its previous holders still keep, signed off: then those are what is given.

- `hash`: the bytes are damaged or missing, the manifest row is the majority's;
- `content`: also a row that differs from the majority's in size, hash, rows, times or sums.

What a compaction was to make on one replica, and cannot for a damaged file that the others merged already, is
given too: then its inputs go. A file that only some manifests name, or that lies elsewhere in time or place,
is a difference of histories and nothing that copying a file could mend.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import msgspec

from iotctl.pipeline.link import Cluster, expect
from iotctl.pipeline.replicas import GroupView, Replica, hash_files
from iotctl.pipeline.report import Mismatch, Progress, Repair, Unread
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.files import FileMeta, FileRef, Order
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.limits import REPAIR_SOURCES_MAX
from nodeagent.model.requests import ExportFiles, FileRepaired, OpenSource, RepairFile, SourceOpened
from nodeagent.partition import ranges

SOURCES = 2
"""Copies offered per repair: the second one for when the first goes away."""

EXPORT_TIMEOUT_S = 60.0
REPAIR_TIMEOUT_S = 600.0
"""One file pulled, put in place and recorded; the node goes on if nobody waits, and asking again is free."""

Place = tuple[NodeId, int]
"""A replica's slot: what a mismatch is about, and what is verified again."""

Hashes = Mapping[tuple[NodeId, str], str]
"""What the bytes of (node, file name) hash to; no key where that is not known."""

SignedOff = Mapping[tuple[int, Order, str], tuple[FileRef, ...]]
"""By slot, order and hash: copies of a file that previous holders of its slot keep. The order is the one it
had with them, which is the adopted file's without its first number."""


@dataclass(frozen=True, slots=True)
class Cure:
    """`node` is to hold `wanted`, which `holders` have whole; `kept` are copies of previous holders, used
    where a majority does not hold it."""

    node: NodeId
    group: GroupId
    wanted: FileMeta
    holders: tuple[NodeId, ...]
    kept: tuple[FileRef, ...] = ()

    @property
    def place(self) -> Place:
        return self.node, self.wanted.slot


@dataclass(frozen=True, slots=True)
class Hopeless:
    """A file of a replica that is not what it should be and cannot be repaired."""

    node: NodeId
    slot: int
    file: str
    reason: str


def decide(
    view: GroupView, hashes: Hashes, depth: str, signed_off: SignedOff = MappingProxyType({})
) -> tuple[list[Cure], list[Hopeless]]:
    """What to do about every file of the view that is not the same and whole everywhere."""
    cures: list[Cure] = []
    hopeless: list[Hopeless] = []
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
                hopeless.append(Hopeless(replica.node, slots[name], name, reason))
            elif wanted is not None:
                elsewhere = tuple(ref for ref in kept if ref.node != replica.node)
                cures.append(Cure(replica.node, view.group, wanted, holders, elsewhere))
    return cures, hopeless


def _majority(view: GroupView, hashes: Hashes, name: str) -> tuple[FileMeta | None, tuple[NodeId, ...]]:
    """The row under which more than half of the members hold the file whole, and which those are."""
    whole = _whole(view, hashes, name)
    for row, votes in Counter(whole.values()).most_common(1):
        if 2 * votes > len(view.members):
            return row, tuple(node for node, own in whole.items() if own == row)
    return None, ()


def _whole(view: GroupView, hashes: Hashes, name: str) -> dict[NodeId, FileMeta]:
    """The rows of the replicas that hold the file whole."""
    return {
        r.node: r.files[name]
        for r in view.replicas
        if name in r.files and hashes.get((r.node, name)) == r.files[name].xxh3
    }


def _signed_off(
    view: GroupView, hashes: Hashes, name: str, signed_off: SignedOff
) -> tuple[FileMeta | None, tuple[NodeId, ...], tuple[FileRef, ...]]:
    """The only row of the file whose bytes previous holders keep, who holds it whole, and those copies."""
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
    """Why the file may not be replaced; empty when it may."""
    if view.cut is None:
        return "the group could not be asked for one index at which to compare its replicas"
    if wanted is None:
        return (
            f"no majority of the {len(view.members)} replicas holds one whole version of it,"
            " and no previous holder keeps a signed-off one"
        )
    if own is None and name in replica.owed:
        return ""
    if own is None:
        return "this replica's manifest does not name it"
    if (replica.node, name) not in hashes:
        return "this replica could not read it again"
    if _fixed(own) != _fixed(wanted):
        return "it has another slot, partition, table or order in this replica's manifest"
    if own != wanted and depth != "content":
        return "its manifest row differs too: repair with --depth content"
    return ""


def _fixed(meta: FileMeta) -> tuple[object, ...]:
    """What a repair never changes."""
    return meta.slot, meta.partition, meta.table, meta.order


class Repairer:
    """Decides and carries out; then `repairs` is what was replaced, `reasons` why others were not."""

    def __init__(self, cluster: Cluster, depth: str, progress: Progress) -> None:
        self._cluster = cluster
        self._depth = depth
        self._progress = progress
        self._offers: dict[tuple[NodeId, GroupId, int], SourceOpened] = {}
        self.repairs: list[Repair] = []
        self.reasons: dict[tuple[NodeId, int, str], str] = {}

    def run(self, views: Sequence[GroupView], mismatches: Sequence[Mismatch]) -> None:
        """Repair what the mismatches are about; nothing else is touched."""
        asked = {(m.node, m.slot) for m in mismatches}
        parts = [_narrowed(view, {slot for _, slot in asked}) for view in views]
        parts = [part for part in parts if any(r.files for r in part.replicas)]
        hashes = self._hashes(parts)
        cures: list[Cure] = []
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
        """Why it was not repaired; "" where nothing speaks against it."""
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
        """What previous holders keep of these slots, by a change that was signed off and is held."""
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

    def _cure(self, cure: Cure) -> None:
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

    def _sources(self, cure: Cure) -> list[FileRef]:
        """Snapshots that have the wanted file, of who was seen to hold it whole first. Raises the last
        holder's error when there is none."""
        sources: list[FileRef] = []
        last = NodeAgentError(f"no replica offers {cure.wanted.name} any more")
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
    """The view of these slots alone."""
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
    """The mismatches with what became of them.

    Args:
        again, unread: what a second verification of the repaired slots found.
    """
    repaired = {(r.node, r.slot): r.group for r in repairer.repairs}
    blind = {(u.node, u.group): u.reason for u in unread}
    differing = {(m.node, m.slot) for m in again} | {(m.node, m.slot, m.file) for m in again}

    def why_not(m: Mismatch) -> str:
        place = (m.node, m.slot)
        # A cell is the work of any file of the slot; a file is judged by itself.
        reason = repairer.reason(m)
        if reason:
            return reason
        if place not in repaired:
            return "no file of this replica's slot is damaged, and it differs all the same"
        if (place if m.series else (*place, m.file)) in differing:
            return "it was replaced and still differs"
        silent = blind.get((m.node, repaired[place]))
        return f"it was replaced and could not be read again: {silent}" if silent else ""

    settled = []
    for mismatch in mismatches:
        reason = why_not(mismatch)
        settled.append(msgspec.structs.replace(mismatch, repaired=not reason, reason=reason))
    return settled

"""Verifies a slot migration: previous holders against new holders, slot by slot.

Previous holders offer the slots as they were sealed, new holders the files they adopted. An adopted file
keeps its bytes, and its order is the index of the `Open` followed by its previous order. So a file can be
matched on both sides whatever its name, and writes after the `Open` do not disturb the comparison.
"""

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from iotctl.pipeline.content import AWAY_DELAYS_S, SOURCE_TIMEOUT_S, compare_units
from iotctl.pipeline.hashes import HASH_TIMEOUT_S
from iotctl.pipeline.holding import FileKey, Scope
from iotctl.pipeline.link import Cluster, Spec, expect
from iotctl.pipeline.replicas import at_once
from iotctl.pipeline.report import MISSING, NOT_THERE, Mismatch, Progress, Unread, VerifyReport
from iotctl.pipeline.units import CompareUnit, Side, cut_slots
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import NodeId
from nodeagent.model.operation import Operation, Ranges, SlotMove
from nodeagent.model.requests import (
    CheckFiles,
    FilesChecked,
    MetaView,
    OpenSource,
    SourceOpened,
)
from nodeagent.partition import ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Held = dict[FileKey, FileMeta]

GONE = ("dead", "retired")
"""States of nodes that are no longer asked for anything."""


def verify_migration(
    session: "SparkSession",
    cluster: Cluster,
    spec: Spec,
    meta: MetaView,
    operation: Operation,
    depth: str,
    against: str,
    progress: Progress,
) -> VerifyReport:
    """Compare at `depth` (`verify.DEPTHS`).

    `against` is `previous-holders`, or `replicas` if the previous holders have released their copies and only
    the new holders can be compared with each other.
    """
    report = VerifyReport(depth)
    gone = _left_nodes(meta)
    asks = [(m, s) for m in operation.moves for s in move_sides(operation, m, against, gone)]
    held = _list_all(cluster, asks, progress)
    by_move: dict[int, list[tuple[Side, Held]]] = {}
    for (move, side), found in zip(asks, held, strict=True):
        if isinstance(found, Unread):
            report.unread.append(found)
        else:
            by_move.setdefault(operation.moves.index(move), []).append((side, found))
    report.replicas_compared = sum(len(sides) for sides in by_move.values())
    if depth == "content":
        cores = session.sparkContext.defaultParallelism
        units = [u for i, sides in by_move.items() for u in _units(sides, cores)]
        compare_units(session, spec, units, meta.schemas, progress, report)
        return report
    for sides in by_move.values():
        _compare_recorded(sides, report)
    if depth == "hash":
        _compare_bytes(cluster, operation, gone, report, progress)
    return report


def move_sides(
    operation: Operation, move: SlotMove, against: str, gone: frozenset[NodeId] = frozenset()
) -> list[Side]:
    """The holders to compare: new holders, and for `previous-holders` also previous holders (trusted)."""
    new = [Side(n, move.target, adopted=True) for n in move.target_members if n not in gone]
    if against != "previous-holders":
        return new
    old = [
        Side(n, move.source, operation=operation.id, trusted=True)
        for n in move.source_members
        if n not in gone
    ]
    return old + new


def _left_nodes(meta: MetaView) -> frozenset[NodeId]:
    """Dead and retired nodes: they are no longer asked for anything."""
    return frozenset(n.node for n in meta.nodes if n.state in GONE)


def _list_all(
    cluster: Cluster, asks: Sequence[tuple[SlotMove, Side]], progress: Progress
) -> list[Held | Unread]:
    """The files of every side; a side that does not answer is retried, since it may be starting."""
    progress.update("listing both holders' files", 0, len(asks))
    held = at_once(lambda a: _list(cluster, a[1], a[0].slots), asks)
    for delay in AWAY_DELAYS_S:
        silent = [i for i, found in enumerate(held) if isinstance(found, Unread)]
        if not silent:
            break
        names = sorted({asks[i][1].node for i in silent})
        progress.update("waiting for holders that did not answer", note=", ".join(names))
        time.sleep(delay)
        fresh = at_once(lambda i: _list(cluster, asks[i][1], asks[i][0].slots), silent)
        for i, found in zip(silent, fresh, strict=True):
            held[i] = found
    return held


def _list(cluster: Cluster, side: Side, slots: Ranges) -> Held | Unread:
    """The files of one side by age; their bytes are not read."""
    scope = Scope(side.cut, side.adopted)
    files: Iterable[FileMeta]
    try:
        if side.operation:
            request = OpenSource(side.operation, side.group, slots)
            opened = expect(cluster.call(side.node, request, SOURCE_TIMEOUT_S), SourceOpened)
            files = [f for pulled in opened.slots for f in pulled.files]
        else:
            files = cluster.manifest(side.node, side.group, slots).files
    except NodeAgentError as error:
        return Unread(side.node, side.group, None, error.what)
    wanted = [f for f in files if ranges.contains(slots, f.slot)]
    aged = [(scope.order(f.order), f) for f in wanted]
    return {(f.partition, f.table, order): f for order, f in aged if order is not None}


def _units(sides: Sequence[tuple[Side, Held]], cores: int) -> list[CompareUnit]:
    sizes: dict[int, int] = {}
    for _, held in sides:
        own: dict[int, int] = {}
        for meta in held.values():
            own[meta.slot] = own.get(meta.slot, 0) + meta.size
        for slot, size in own.items():
            sizes[slot] = max(size, sizes.get(slot, 0))
    return [CompareUnit(piece, tuple(s for s, _ in sides)) for piece in cut_slots(sizes, cores)]


def _compare_recorded(sides: Sequence[tuple[Side, Held]], report: VerifyReport) -> None:
    """Compare recorded hashes by age; those of previous holders are expected if there are any."""
    expected: Held = {}
    for _, held in sorted(sides, key=lambda s: s[0].trusted):
        expected |= held
    report.rows += sum(f.rows for f in expected.values())
    trusted = {key for side, held in sides if side.trusted for key in held}
    for side, held in sides:
        report.files += len(held)
        report.bytes += sum(f.size for f in held.values())
        for key, meta in expected.items():
            own = held.get(key)
            if own is None and (not trusted or key in trusted):
                report.add_mismatches([_file(side, meta, meta.xxh3, MISSING)])
            elif own is not None and trusted and key not in trusted:
                report.add_mismatches([_file(side, own, NOT_THERE, own.xxh3)])
            elif own is not None and own.xxh3 != meta.xxh3:
                report.add_mismatches([_file(side, own, meta.xxh3, own.xxh3)])


def _file(side: Side, meta: FileMeta, expected: str, found: str) -> Mismatch:
    return Mismatch(side.node, meta.slot, meta.name, "", None, expected, found)


def _compare_bytes(
    cluster: Cluster,
    operation: Operation,
    gone: frozenset[NodeId],
    report: VerifyReport,
    progress: Progress,
) -> None:
    """New holders re-read their bytes. (The bytes that previous holders sent were hashed in transit.)"""
    sides = [(m, s) for m in operation.moves for s in move_sides(operation, m, "replicas", gone)]
    progress.update("hashing files", 0, len(sides))
    replies = at_once(lambda a: _check(cluster, a[1], a[0].slots), sides)
    for (_, side), reply in zip(sides, replies, strict=True):
        if isinstance(reply, Unread):
            report.unread.append(reply)
            continue
        found = dict(reply.found)
        wrong = [f for f in reply.files if found.get(f.name) != f.xxh3]
        report.add_mismatches([_file(side, f, f.xxh3, found.get(f.name, MISSING)) for f in wrong])


def _check(cluster: Cluster, side: Side, slots: Ranges) -> FilesChecked | Unread:
    try:
        request = CheckFiles(side.group, slots)
        return expect(cluster.call(side.node, request, HASH_TIMEOUT_S), FilesChecked)
    except NodeAgentError as error:
        return Unread(side.node, side.group, None, error.what)

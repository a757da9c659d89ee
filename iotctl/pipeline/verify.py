"""Verifies that all replicas have the same content, at one of three depths; each includes the previous one.

- `manifest`: the recorded sizes, hashes and sums of all replicas of a group agree;
- `hash`: every replica re-reads its bytes, and they have the recorded hash;
- `content`: Spark reads the rows of every replica and compares them. Only this depth finds a value that was
  changed together with hash, manifest entry and footer; it names the cell.

A replica that cannot be read is listed in `unread`; such a report never passes.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from iotctl.pipeline.content import compare_units
from iotctl.pipeline.hashes import check_hashes
from iotctl.pipeline.link import Cluster, Spec, connect
from iotctl.pipeline.repair import Repairer, settle
from iotctl.pipeline.replicas import (
    FileSelection,
    GroupView,
    compare_manifests,
    damage_found,
    view_groups,
)
from iotctl.pipeline.report import Mismatch, Progress, Silent, Unread, VerifyReport
from iotctl.pipeline.session import DEFAULT_MASTER, spark_session
from iotctl.pipeline.units import CompareUnit, Side, cut_slots
from nodeagent.model.errors import Refused
from nodeagent.model.ids import NodeId
from nodeagent.model.operation import ENDED, Operation, Ranges, Stage
from nodeagent.model.requests import GroupRecord, MetaView
from nodeagent.partition import ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEPTHS = ("manifest", "hash", "content")


class Filters(msgspec.Struct, frozen=True):
    """What to verify; empty means all. `nodes`: the groups that these nodes are members of."""

    slots: Ranges = ()
    nodes: tuple[NodeId, ...] = ()
    storage_groups: tuple[str, ...] = ()


def run(
    spec: Spec,
    depth: str = "content",
    master: str = DEFAULT_MASTER,
    filters: Filters | None = None,
    progress: Progress | None = None,
    session: "SparkSession | None" = None,
    repair: bool = False,
) -> VerifyReport:
    """Compare the replicas of every group (see the module docstring).

    Args:
        session: a running Spark session to use instead of a new session on `master`.
        repair: replace damaged files by the majority's (`pipeline.repair`), and verify the result.

    Raises:
        Refused: a filter names something that the cluster does not have, or matches no file.
        NodeAgentError: the meta group cannot be read, or Spark does not start.
    """
    assert depth in DEPTHS, f"unknown depth {depth!r}"
    filters, progress = filters or Filters(), progress or Silent()
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        cluster = connect(spec)
        stack.callback(cluster.close)
        meta = cluster.meta(strong=True)
        check_filters(meta, filters)
        comparison = _Comparison(
            spec, cluster, depth, meta, progress, _Spark(stack, master, session, progress)
        )
        report, views = comparison.run(_groups(meta, filters), filters.slots, filters.storage_groups)
        report.unread = _in_migration(meta) + report.unread
        if filters != Filters() and not report.files and not report.unread:
            raise Refused(
                "nothing to verify: no file matches the filters",
                next_step="`iotctl data count` and `iotctl cluster slots` list storage groups and slots",
            )
        if repair and report.mismatches:
            _repair(comparison, report, views, filters)
    report.seconds = time.monotonic() - started
    return report


def check_filters(meta: MetaView, filters: Filters) -> None:
    """Refuse unknown names in filters: a misspelt filter selects nothing, so no difference is found.

    Raises:
        Refused: a filter names something that the cluster does not have.
    """
    slots = meta.settings.slots
    groups = sorted({s.storage_group for s in meta.schemas})
    nodes = [n.node for n in meta.nodes]
    unknown = [f"storage group {g}" for g in filters.storage_groups if g not in groups]
    unknown += [f"node {n}" for n in filters.nodes if n not in nodes]
    unknown += [f"slot {b - 1}" for a, b in filters.slots if not 0 <= a < b <= slots]
    if unknown:
        raise Refused(
            f"the cluster has no {', no '.join(unknown)}",
            next_step=f"its storage groups: {', '.join(groups) or 'none'}; nodes: {', '.join(nodes)}; "
            f"slots: 0 to {slots - 1}",
        )


class _Spark:
    """Provides a session on demand: the running session, or a new session that ends with `stack`."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        master: str,
        session: "SparkSession | None",
        progress: Progress,
    ) -> None:
        self._stack = stack
        self._master = master
        self._session = session
        self._progress = progress

    def session(self) -> "SparkSession":
        if self._session is None:
            own = spark_session("iotctl verify", self._master, self._progress)
            self._session = self._stack.enter_context(own)
        return self._session


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Compares groups; used again after a repair for the repaired groups and slots."""

    spec: Spec
    cluster: Cluster
    depth: str
    meta: MetaView
    progress: Progress
    spark: _Spark

    def run(
        self, groups: Sequence[GroupRecord], slots: Ranges, storage_groups: tuple[str, ...]
    ) -> tuple[VerifyReport, list[GroupView]]:
        """The report, and the views of the groups that it is based on."""
        report = VerifyReport(self.depth)
        chosen = FileSelection(slots, storage_groups)
        views, unread = view_groups(self.cluster, groups, chosen, self.progress)
        report.unread += unread
        recorded, unread = compare_manifests(self.cluster, views, chosen, self.progress)
        report.unread += unread
        _record(report, views)
        if self.depth == "hash":
            self._hashes(views, chosen, report)
        elif self.depth == "content":
            self._content(views, storage_groups, report)
        damaged = self._still_damaged(views, report)
        report.add_mismatches(_unexplained(damaged, report.mismatches))
        report.add_mismatches(_unexplained(recorded, report.mismatches))
        return report, views

    def _still_damaged(self, views: Sequence[GroupView], report: VerifyReport) -> Sequence[Mismatch]:
        """Damage that replicas reported. At depth `hash`, the files that this run hashed on a node without
        unread files do not count: they may be whole again."""
        found = damage_found(views)
        if self.depth != "hash":
            return found
        unread = {u.node for u in report.unread}
        hashed = {(r.node, name) for view in views for r in view.replicas for name in r.files}
        return [m for m in found if m.node in unread or (m.node, m.file) not in hashed]

    def _hashes(self, views: Sequence[GroupView], chosen: FileSelection, report: VerifyReport) -> None:
        found = check_hashes(self.cluster, views, chosen, self.progress)
        report.files, report.bytes = found.files, found.bytes
        report.add_mismatches(found.mismatches)
        report.unread += found.unread

    def _content(
        self, views: Sequence[GroupView], storage_groups: tuple[str, ...], report: VerifyReport
    ) -> None:
        if not report.files:
            return  # there is nothing to compare, so Spark is not needed
        report.files = report.bytes = report.rows = 0
        session = self.spark.session()
        units = content_units(views, storage_groups, session.sparkContext.defaultParallelism)
        compare_units(session, self.spec, units, self.meta.schemas, self.progress, report)


def _repair(
    comparison: _Comparison, report: VerifyReport, views: Sequence[GroupView], filters: Filters
) -> None:
    """Repair the mismatches of the report, verify again, and record the outcome of each in the report."""
    repairer = Repairer(comparison.cluster, comparison.depth, comparison.progress)
    repairer.run(views, report.mismatches)
    again = VerifyReport(comparison.depth)
    if repairer.repairs:
        groups = {r.group for r in repairer.repairs}
        chosen = [g for g in comparison.meta.groups if g.group in groups]
        slots = ranges.from_slots({r.slot for r in repairer.repairs})
        again, _ = comparison.run(chosen, slots, filters.storage_groups)
    report.repairs = repairer.repairs
    report.mismatches = settle(report.mismatches, repairer, again.mismatches, again.unread)
    known = {(m.node, m.slot) for m in report.mismatches}
    report.add_mismatches([m for m in again.mismatches if (m.node, m.slot) not in known])


def _groups(meta: MetaView, filters: Filters) -> list[GroupRecord]:
    """Groups that serve slots; a dissolving group has given its slots to other groups."""
    return [
        g
        for g in meta.groups
        if not g.dissolving and (not filters.nodes or set(filters.nodes) & set(g.members))
    ]


def _in_migration(meta: MetaView) -> list[Unread]:
    """Slots in migration: neither the losing nor the gaining group's manifest has all of their files."""
    return [
        Unread("", group, None, f"slots of {operation.id} are still migrating to this group")
        for operation in meta.operations
        if _moving(operation)
        for group in operation.gaining
        if group not in operation.adopted
    ]


def _moving(operation: Operation) -> bool:
    return operation.stage not in (*ENDED, Stage.PLANNED, Stage.CLEANUP)


def _record(report: VerifyReport, views: Sequence[GroupView]) -> None:
    """Add the numbers in the manifests to the report."""
    for view in views:
        report.replicas_compared += len(view.replicas)
        listed = [f for r in view.replicas for f in r.files.values()]
        report.files += len(listed)
        report.bytes += sum(f.size for f in listed)
        by_name = {f.name: f.rows for f in listed}
        report.rows += sum(by_name.values())


def content_units(
    views: Sequence[GroupView], storage_groups: tuple[str, ...], cores: int
) -> list[CompareUnit]:
    """All slots for which any replica lists files, split into pieces for tasks."""
    units: list[CompareUnit] = []
    for view in views:
        sides = tuple(Side(r.node, r.group, cut=view.cut) for r in view.replicas)
        pieces = cut_slots(view.slot_bytes, max(1, cores // max(1, len(views))))
        units += [CompareUnit(piece, sides, storage_groups) for piece in pieces]
    return units


def _unexplained(recorded: Sequence[Mismatch], found: Sequence[Mismatch]) -> list[Mismatch]:
    """Recorded mismatches without those already found for the same node, slot and file."""
    explained = {(m.node, m.slot, m.file) for m in found}
    return [m for m in recorded if (m.node, m.slot, m.file) not in explained]

"""Depth `content`: Spark tasks read the rows of every holder and compare them.

Each task takes the slots of one unit, requests a snapshot of them from every holder, and compares slot by
slot. It returns counts and differences, never rows.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from iotctl.pipeline.compare import Schemas, SlotOutcome, compare_slot, series_count
from iotctl.pipeline.fetch import content_hash, fetch_files
from iotctl.pipeline.holding import HeldFile, Holding, Scope, agree, holding_of
from iotctl.pipeline.jobs import run_tasks
from iotctl.pipeline.link import Cluster, Spec, connect_cached, expect
from iotctl.pipeline.report import Progress, Unread, VerifyReport
from iotctl.pipeline.units import CompareUnit, Side
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import ExportFiles, OpenSource, SourceOpened
from nodeagent.model.schema import TableSchema
from nodeagent.partition import ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_BYTES = 32 * 1024 * 1024
"""How many bytes of small slots a task holds together; a larger slot is held alone."""

RECHECKS = 3
RECHECK_DELAY_S = 1.0
"""Holders may differ briefly while files are adopted or released: repeat the request before reporting."""

AWAY_DELAYS_S = (2.0, 5.0, 10.0)
"""Delays before unread slots are read again: a node that restarts is unavailable for seconds."""

SOURCE_TIMEOUT_S = 60.0


class UnitOutcome(msgspec.Struct):
    """The result of one task."""

    slots: list[SlotOutcome] = []
    unread: list[Unread] = []

    @property
    def complete(self) -> bool:
        return not (self.unread or any(s.unread for s in self.slots))


def compare_units(
    session: "SparkSession",
    spec: Spec,
    units: Sequence[CompareUnit],
    schemas: Iterable[TableSchema],
    progress: Progress,
    report: VerifyReport,
) -> None:
    """Run the units and add their results to `report`; units that were not read completely are repeated.

    If one task fails, all units of its Spark job count as unread for all of their holders.
    """
    tables = {(s.storage_group, s.table): s for s in schemas}
    outcomes = _run_units(session, spec, units, tables, progress)
    for delay in AWAY_DELAYS_S:
        again = [i for i, outcome in enumerate(outcomes) if not outcome.complete]
        if not again:
            break
        progress.update("waiting for replicas that did not answer", note=f"{len(again)} units")
        time.sleep(delay)
        fresh = _run_units(session, spec, [units[i] for i in again], tables, progress)
        for i, outcome in zip(again, fresh, strict=True):
            outcomes[i] = outcome
    slots = [slot for outcome in outcomes for slot in outcome.slots]
    for outcome in outcomes:
        report.unread += outcome.unread
    for slot in slots:
        report.files += slot.files
        report.bytes += slot.bytes
        report.rows += slot.rows
        report.unread += slot.unread
        report.add_mismatches(slot.mismatches, slot.mismatches_total)
    report.series += series_count(slots)


def _run_units(
    session: "SparkSession", spec: Spec, units: Sequence[CompareUnit], tables: Schemas, progress: Progress
) -> list[UnitOutcome]:
    def task(unit: bytes) -> bytes:
        outcome = run_unit(spec, msgspec.msgpack.decode(unit, type=CompareUnit), tables)
        return msgspec.msgpack.encode(outcome)

    encoded = [msgspec.msgpack.encode(unit) for unit in units]
    results, error = run_tasks(session, encoded, task, progress, "comparing rows")
    if error is not None:
        return [UnitOutcome(unread=[Unread(s.node, s.group, None, error) for s in u.sides]) for u in units]
    return [msgspec.msgpack.decode(r, type=UnitOutcome) for r in results]


def run_unit(spec: Spec, unit: CompareUnit, schemas: Schemas) -> UnitOutcome:
    """Compare the unit's slots; runs in a Spark task."""
    cluster = connect_cached(spec)
    outcome = UnitOutcome()
    opened = _open_settled(cluster, unit, outcome)
    for slots in _windows(opened):
        content = _fetch(cluster, [h for slot in slots for h in slot])
        for holdings in slots:
            outcome.slots.append(compare_slot(holdings, _Lookup(content), schemas))
    return outcome


def _open_settled(cluster: Cluster, unit: CompareUnit, outcome: UnitOutcome) -> list[list[Holding]]:
    """The unit's holdings per slot; requested repeatedly while the holders disagree about their files."""
    for attempt in range(RECHECKS + 1):
        outcome.unread = []
        slots = _open_sides(cluster, unit, outcome)
        if outcome.unread or all(agree(holdings) for holdings in slots):
            break
        if attempt < RECHECKS:
            time.sleep(RECHECK_DELAY_S)
    return slots


def _open_sides(cluster: Cluster, unit: CompareUnit, outcome: UnitOutcome) -> list[list[Holding]]:
    """Per slot of the unit, the holding of each holder that answered, possibly without files."""
    slots = ranges.to_slots(unit.slots)
    holdings: dict[int, list[Holding]] = {slot: [] for slot in slots}
    for side in unit.sides:
        try:
            opened = _open_side(cluster, side, unit)
        except NodeAgentError as error:
            outcome.unread.append(Unread(side.node, side.group, None, error.what))
            continue
        scope = Scope(side.cut, side.adopted, unit.storage_groups, side.trusted)
        listed = {p.slot: p for p in opened.slots}
        for slot in slots:
            if slot in listed:
                found = holding_of(side.node, side.group, opened.snapshot, listed[slot], scope)
            else:
                found = Holding(side.node, side.group, opened.snapshot, slot, (), (), side.trusted)
            holdings[slot].append(found)
    return [h for h in holdings.values() if h]


def _open_side(cluster: Cluster, side: Side, unit: CompareUnit) -> SourceOpened:
    request: OpenSource | ExportFiles
    if side.operation:
        request = OpenSource(side.operation, side.group, unit.slots)
    else:
        request = ExportFiles(side.group, unit.slots)
    return expect(cluster.call(side.node, request, SOURCE_TIMEOUT_S), SourceOpened)


def _windows(slots: Sequence[list[Holding]]) -> Iterator[list[list[Holding]]]:
    window: list[list[Holding]] = []
    held = 0
    for holdings in slots:
        size = sum(f.meta.size for h in holdings for f in h.files)
        if window and held + size > WINDOW_BYTES:
            yield window
            window, held = [], 0
        window.append(holdings)
        held += size
    if window:
        yield window


ContentKey = tuple[str, str, str]


def _fetch(cluster: Cluster, holdings: Sequence[Holding]) -> dict[ContentKey, bytes | NodeAgentError]:
    """Fetch all files, large slots holder by holder: most holders have the same bytes, which are kept
    once."""
    size = sum(f.meta.size for h in holdings for f in h.files)
    groups = [[h] for h in holdings] if size > WINDOW_BYTES else [list(holdings)]
    found: dict[ContentKey, bytes | NodeAgentError] = {}
    kept: dict[str, bytes] = {}
    for group in groups:
        requests = [(h.node, h.snapshot, f.meta.name, f.meta.size) for h in group for f in h.files]
        for request, got in zip(requests, fetch_files(cluster, requests), strict=True):
            found[request[:3]] = kept.setdefault(content_hash(got), got) if isinstance(got, bytes) else got
    return found


class _Lookup:
    """Looks up bytes that were fetched before."""

    def __init__(self, content: Mapping[ContentKey, bytes | NodeAgentError]) -> None:
        self._content = content

    def __call__(self, holding: Holding, held: HeldFile) -> bytes | NodeAgentError:
        return self._content[holding.node, holding.snapshot, held.meta.name]

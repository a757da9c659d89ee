"""The runs that the cluster and this machine have recorded, and how an unfinished one is abandoned."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from iotctl.errors import InputProblem, UsageProblem
from iotctl.playbook.journal import RUN_ID, ClusterRecord, FileJournal, Summary, bring, summary
from iotctl.playbook.model import Entry
from nodeagent.model.runs import Run

BY_CHARS = 100
"""Characters of the operator's name in the entry that abandons a run: this entry must always fit."""


class RunRow(msgspec.Struct, frozen=True):
    """`in_cluster` is None if the cluster did not respond; `here` is whether this machine has a record."""

    run_id: str
    playbook: str
    ended: bool
    by: str
    began_ms: int
    in_cluster: bool | None
    here: bool


class RecordedRuns(msgspec.Struct, frozen=True):
    """Oldest first."""

    runs: list[RunRow]


def recorded(in_cluster: Sequence[Run] | None, directory: Path) -> RecordedRuns:
    """The runs of the cluster (None if it did not respond), and the unfinished runs of this machine."""
    rows = {run.id: row_of(run.id, run, directory) for run in in_cluster or ()}
    for path in directory.glob("*.jsonl"):
        here = _summary(directory, path.stem)
        if path.stem not in rows and here is not None and not here.ended:
            known = None if in_cluster is None else False
            rows[path.stem] = msgspec.structs.replace(row_of(path.stem, None, directory), in_cluster=known)
    return RecordedRuns(sorted(rows.values(), key=lambda row: (row.began_ms, row.run_id)))


def row_of(run_id: str, run: Run | None, directory: Path) -> RunRow:
    """The run, with the cluster's record of it. A run whose end is recorded in one place has ended.

    Raises:
        UsageProblem: neither the cluster nor this machine has a record of it.
    """
    here = _summary(directory, run_id)
    is_here = here is not None
    if run is not None:
        ended = run.ended or (here is not None and here.ended)
        return RunRow(run_id, run.name, ended, run.by, run.began_ms, in_cluster=True, here=is_here)
    if here is None:
        why = f"neither the cluster nor {directory} has a record of it"
        raise UsageProblem(f"no run {run_id}", why=why, next="iotctl playbook runs")
    return RunRow(run_id, here.playbook, here.ended, here.by, here.began_ms, in_cluster=False, here=is_here)


def end(run_id: str, run: Run | None, directory: Path, by: str, record: ClusterRecord) -> None:
    """Complete the records of a run: first that of the cluster, then that of this machine. If neither has an
    end, `by` abandons the run.

    Args:
        run: the cluster's record with its entries; None if it has none.
        record: writes to the cluster's records, under its lock.

    Raises:
        BusyProblem: another process on this machine is executing the run.
        NodeAgentError: the cluster did not record the end.
    """
    here = _summary(directory, run_id)
    entry = Entry("ended", time.time_ns() // 1_000_000, by=by[:BY_CHARS])
    if run is not None:
        entries = list(run.entries)
        if not run.ended:
            line = here.end if here is not None and here.ended else msgspec.json.encode(entry)
            record.record(run_id, run.name, len(entries), line, ended=True)
            entries.append(line)
        if here is not None and not here.ended:
            bring(directory, run_id, entries)
    elif here is not None and not here.ended:
        _end_here(directory / f"{run_id}.jsonl", entry)


def _end_here(path: Path, entry: Entry) -> None:
    """Append the entry to the journal; a damaged journal is moved aside instead."""
    try:
        with closing(FileJournal(path)) as journal:
            journal.append(entry)
    except InputProblem:
        path.replace(path.with_suffix(".lost"))


def _summary(directory: Path, run_id: str) -> Summary | None:
    """What the journal on this machine says; None if there is none."""
    if not RUN_ID.fullmatch(run_id):
        return None  # no journal has such a name, and the id may lead to another directory
    path = directory / f"{run_id}.jsonl"
    return summary(path) if path.is_file() else None

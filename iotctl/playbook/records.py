"""The runs that the cluster and this machine have recorded, and how an unfinished one is abandoned."""

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import msgspec

from iotctl.errors import RefusedProblem, UsageProblem
from iotctl.playbook.journal import ClusterRecord, FileJournal, bring, summary
from iotctl.playbook.model import Entry
from nodeagent.model.runs import Run


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
    rows = {run.id: _row_of_cluster(run, directory) for run in in_cluster or ()}
    for path in directory.glob("*.jsonl"):
        if path.stem not in rows and not (found := summary(path)).ended:
            known = None if in_cluster is None else False
            rows[path.stem] = RunRow(
                path.stem, found.playbook, False, found.by, found.began_ms, known, here=True
            )
    return RecordedRuns(sorted(rows.values(), key=lambda row: (row.began_ms, row.run_id)))


def _row_of_cluster(run: Run, directory: Path) -> RunRow:
    here = _path(directory, run.id).is_file()
    return RunRow(run.id, run.name, run.ended, run.by, run.began_ms, in_cluster=True, here=here)


def unfinished(run_id: str, in_cluster: Iterable[Run], directory: Path) -> Run | None:
    """The cluster's record of the run, None if only this machine has one.

    Raises:
        UsageProblem: there is no such run.
        RefusedProblem: the run has ended.
    """
    run = next((r for r in in_cluster if r.id == run_id), None)
    path = _path(directory, run_id)
    if run is None and not path.is_file():
        where = f"neither the cluster nor {directory} has a record of it"
        raise UsageProblem(f"no run {run_id}", why=where, next="iotctl playbook runs")
    if run.ended if run is not None else summary(path).ended:
        raise RefusedProblem(f"run {run_id} has ended", next="iotctl playbook runs")
    return run


def abandon(run_id: str, run: Run | None, directory: Path, by: str, record: ClusterRecord) -> None:
    """End the records of an unfinished run, that of the cluster first.

    Args:
        run: the cluster's record with its entries; None if there is none.
        record: writes to the cluster's records, under its lock.

    Raises:
        BusyProblem: another process on this machine is executing the run.
        InputProblem: the journal on this machine is damaged.
        NodeAgentError: the cluster did not record the end.
    """
    path = _path(directory, run_id)
    entry = Entry("ended", time.time_ns() // 1_000_000, by=by)
    line = msgspec.json.encode(entry)
    with closing(FileJournal(path)) as journal:  # opening it locks the file and creates none
        entries = [] if run is None else list(run.entries)
        if run is not None:
            record.record(run.id, run.name, len(entries), line, ended=True)
        if path.is_file() and (run is None or list(journal.lines()) == entries):
            journal.append(entry)
        elif path.is_file() and run is not None:  # the cluster's record counts
            bring(directory, run.id, [*entries, line])


def _path(directory: Path, run_id: str) -> Path:
    return directory / f"{Path(run_id).name}.jsonl"  # an id may not lead to another directory

"""The report of an import: rows written and skipped, and notes for the operator."""

import msgspec

from iotctl.humanize import time_text
from iotctl.rows.import_job import Import
from iotctl.rows.survey import KEYS_MAX, SERIES_MAX, DuplicateRows, Survey

SHOWN_MAX = 10


class SkippedRow(msgspec.Struct, frozen=True):
    """`where` is file:line, or file and row number for a binary file."""

    where: str
    reason: str


class ImportReport(msgspec.Struct, frozen=True):
    """`rows` were acknowledged (dry run: would be written); `skipped_rows` were left out, the first of them
    listed.

    `series` is None if there are too many to count. `naive_times` had no zone and were read in `time_zone`.
    `expired_rows` are older than the table's TTL. `notes` and `warnings` say this and more in sentences.
    """

    storage_group: str
    table: str
    rows: int
    skipped_rows: int
    skipped: list[SkippedRow]
    seconds: float
    series: int | None = None
    time_min_ms: int | None = None
    time_max_ms: int | None = None
    time_zone: str = "UTC"
    naive_times: int = 0
    expired_rows: int = 0
    notes: list[str] = []

    @property
    def warnings(self) -> list[str]:
        if not self.expired_rows:
            return []
        return [f"{self.expired_rows} rows are older than the table's TTL and are deleted at once"]


def notes_on(job: Import, survey: Survey, sharing: DuplicateRows) -> list[str]:
    """Notes on the file for the operator, one line each."""
    schema, times = job.schema, job.request.times
    table = f"{schema.storage_group}.{schema.table}"
    have = {c.name for c in job.known.columns} if job.known else set()
    columns = [f"{c.name} {c.type}{' tag' if c.tag else ''}" for c in schema.columns if c.name not in have]
    if not survey.rows:
        return ["the file has no rows; nothing is written and no table is created"]
    notes = []
    if job.known is None:
        notes.append(f"{table} is a new table: {', '.join(columns)}")
    elif columns:
        notes.append(f"{table} gets columns: {', '.join(columns)}")
    notes.append(_series_note(job, survey))
    if survey.seen.naive:
        notes.append(f"{survey.seen.naive} times have no zone and are read in {times.zone} (--time-zone)")
    notes += [
        f"{n} is a STRING because it has leading zeros (--type {n}=INT64 drops them)" for n in job.coded
    ]
    absent = [t for t in schema.tags if t not in job.tags]
    notes += [f"the file has no column for tag {t}: the tag is empty in every row" for t in absent]
    if times.zone != "UTC" and any(kind == "TIMESTAMP" for kind in job.types.values()):
        notes.append(
            "--time-zone applies to the time column; other timestamps without a zone are read in UTC"
        )
    if survey.broken:
        notes.append(f"{survey.broken} rows have a line break within quotes")
    if sharing.unseen:
        notes.append(f"{sharing.unseen} keys (time and tags) occur more than once and were not compared")
    if sharing.equal:
        notes.append(f"{sharing.equal} rows share time and tags with another row without contradicting it")
    if sharing.differ:
        notes.append(
            f"{sharing.differ} rows share time and tags with another row but have different values;"
            " the last is kept"
        )
    if not survey.is_complete:
        notes.append(f"only the first {KEYS_MAX} rows were checked for rows that overwrite each other")
    return notes


def _series_note(job: Import, survey: Survey) -> str:
    count = f"{len(survey.series)}" if len(survey.series) <= SERIES_MAX else f"more than {SERIES_MAX}"
    why = "" if job.tags else ", because no column is a tag (--tag)"
    span = f" from {time_text(survey.first)} to {time_text(survey.last)}" if survey.rows else ""
    return f"{survey.rows} rows in {count} series{why}{span}"


def samples(survey: Survey) -> list[str]:
    """The first rows, one line each."""
    rows = [", ".join(f"{k}={v}" for k, v in row.items() if v is not None) for row in survey.sample]
    return [f"such as {row}" for row in rows]

"""The audit log of the cluster: read it, append it to a file, and check such a file.

A file has one JSON line for each line of the log: its number, what happened, and its digest, which covers the
digest before it (`nodeagent.model.audit_chain`). Only the digest of the first line in a file is taken on
trust.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from iotctl.errors import InputProblem, RefusedProblem, VerificationFailed
from iotctl.observe.cluster import Cluster
from nodeagent.model.audit_chain import chained, digests
from nodeagent.model.features import Feature
from nodeagent.model.requests import AuditReply, GetAudit

TAIL_BYTES = 64 * 1024
"""More than the longest line."""


_Number = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]


class AuditRow(msgspec.Struct, frozen=True):
    """Line `number` of the log, counted from 0. `previous` is the digest before it, "" before the first."""

    number: _Number
    time_ms: _Number
    by: str
    what: str
    previous: str
    digest: str


class AuditLog(msgspec.Struct, frozen=True):
    """`kept_from` is the number of the oldest line that the cluster retains."""

    kept_from: int
    lines: list[AuditRow]


class Exported(msgspec.Struct, frozen=True):
    """`lines` lines, numbers `first` to `last` (None if there are none), were appended to `file`."""

    file: str
    lines: int
    first: int | None
    last: int | None


class Checked(msgspec.Struct, frozen=True):
    """The file has `lines` lines, numbers `first` to `last`, and nothing is missing or changed."""

    file: str
    lines: int
    first: int | None
    last: int | None


def audit_log(cluster: Cluster, since_ms: int) -> AuditLog:
    """The lines that the cluster retains, from the first one at `since_ms` (wall clock) or later on.

    The leaders' clocks may differ: lines after that one are included, whatever their time.
    """
    reply = cluster.call_meta(GetAudit())
    assert isinstance(reply, AuditReply), reply
    rows: list[AuditRow] = []
    previous = reply.base
    for number, (line, digest) in enumerate(
        zip(reply.lines, digests(reply.base, reply.lines), strict=True), reply.first
    ):
        if rows or line[0] >= since_ms:
            rows.append(AuditRow(number, *line, previous, digest))
        previous = digest
    return AuditLog(reply.first, rows)


def export(cluster: Cluster, since_ms: int, path: Path) -> Exported:
    """Append the lines that the file lacks, and sync it. `since_ms` counts only for a new file.

    Raises:
        InputProblem: the end of the file is not a line of an audit log.
        RefusedProblem: the cluster's feature level has no numbers; or it no longer retains lines between the
            file and its own log; or the file is not a part of its log. Nothing was written.
    """
    level = cluster.meta(strong=True).level
    if level < Feature.AUDIT_CHAIN:
        raise RefusedProblem(
            f"the cluster is at feature level {level}, at which the lines of the audit log have no numbers",
            next="iotctl cluster finalize-upgrade",
        )
    if path.exists() and not path.is_file():
        raise InputProblem(f"{path} is not a file")
    try:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # two exports would append the same lines
            last = _last_of(file, path)
            log = audit_log(cluster, since_ms if last is None else 0)
            rows = log.lines if last is None else _following(log, last, path)
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputProblem(
            f"{path} cannot be written: {error.strerror}", next=f"iotctl audit check {path}"
        ) from error
    return Exported(str(path), len(rows), rows[0].number if rows else None, rows[-1].number if rows else None)


def _following(log: AuditLog, last: AuditRow, path: Path) -> list[AuditRow]:
    if last.number + 1 < log.kept_from:
        raise RefusedProblem(
            f"{path} ends with line {last.number}, but the cluster retains lines from {log.kept_from} on",
            why=f"lines {last.number + 1} to {log.kept_from - 1} were not exported in time",
            next="export to a new file, and more often",
        )
    after = [row for row in log.lines if row.number > last.number]
    same = next((row.digest for row in log.lines if row.number == last.number), None)
    known = same if same is not None else after[0].previous if after else None
    if known is not None and known != last.digest or known is None and log.lines:
        raise RefusedProblem(
            f"line {last.number} of {path} is not line {last.number} of this cluster's audit log",
            why="the file belongs to another cluster, `meta recover` lost lines, or a log was changed",
            next=f"iotctl audit check {path}; then export to a new file",
        )
    return after


def _last_of(file: BinaryIO, path: Path) -> AuditRow | None:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL_BYTES))
    tail = file.read()
    if not tail:
        return None
    if not tail.endswith(b"\n"):
        raise InputProblem(
            f"{path} ends with an incomplete line",
            why="the machine stopped during an export, or the file is not an audit log",
            next="remove the last, incomplete line",
        )
    return _row(tail[:-1].rpartition(b"\n")[2], f"the last line of {path}")


def _row(line: bytes, where: str) -> AuditRow:
    try:
        return msgspec.json.decode(line, type=AuditRow)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputProblem(f"{where} is not a line of an audit log: {error}") from error


def check(path: Path) -> Checked:
    """Check every line of a file.

    Raises:
        InputProblem: the file cannot be read, or a line does not belong to an audit log.
        VerificationFailed: a line is missing, changed or inserted.
    """
    first: AuditRow | None = None
    last: AuditRow | None = None
    try:
        with path.open("rb") as file:
            for row, where in _rows(file, path):
                _check_row(row, last, where)
                first, last = first or row, row
    except OSError as error:
        raise InputProblem(f"{path} cannot be read: {error.strerror}") from error
    if first is None or last is None:
        return Checked(str(path), 0, None, None)
    return Checked(str(path), last.number - first.number + 1, first.number, last.number)


def _rows(file: BinaryIO, path: Path) -> Iterator[tuple[AuditRow, str]]:
    for number, line in enumerate(file, 1):
        where = f"{path}:{number}"
        if not line.endswith(b"\n"):
            raise VerificationFailed("the last line is incomplete", where=where)
        yield _row(line, where), where


def _check_row(row: AuditRow, last: AuditRow | None, where: str) -> None:
    if last is not None and row.number != last.number + 1:
        what = f"line {row.number} follows line {last.number}: lines are missing or were inserted"
        raise VerificationFailed(what, where=where)
    if last is not None and row.previous != last.digest:
        raise VerificationFailed(f"line {last.number} or {row.number} is not the original one", where=where)
    if chained(row.previous, (row.time_ms, row.by, row.what)) != row.digest:
        raise VerificationFailed(f"line {row.number} was changed", where=where)

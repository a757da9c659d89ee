"""The record of a run in a file: one JSON line an entry, on disk before the next thing happens."""

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from iotctl.errors import InputProblem, UsageProblem
from iotctl.playbook.model import Entry


class NoJournal:
    """Of a check, which records nothing."""

    run_id = ""

    def append(self, entry: Entry) -> None:
        pass

    def entries(self) -> Sequence[Entry]:
        return ()


class FileJournal:
    """Entries after a torn last line are none; a damaged line before that is an error."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: list[Entry] = []
        if path.exists():
            self._read()

    @property
    def run_id(self) -> str:
        return self._path.stem

    def append(self, entry: Entry) -> None:
        if not self._entries:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(handle, msgspec.json.encode(entry) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        if not self._entries:  # its name must be durable too
            _sync_directory(self._path.parent)
        self._entries.append(entry)

    def entries(self) -> Sequence[Entry]:
        return self._entries

    def _read(self) -> None:
        content = self._path.read_bytes()
        whole = content.rpartition(b"\n")[0]
        if whole != content[:-1]:  # the machine stopped while it was written
            with self._path.open("r+b") as file:
                file.truncate(len(whole) + 1 if whole else 0)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._entries.append(msgspec.json.decode(line, type=Entry))
            except msgspec.MsgspecError as error:
                raise InputProblem(
                    "the record of the run is damaged",
                    why=str(error),
                    next="begin a new run: what is done already is not done again",
                    where=f"{self._path}:{number}:1",
                ) from None


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def new_run_id(now: float | None = None) -> str:
    """Sorts by time; no two are equal."""
    moment = time.gmtime(time.time() if now is None else now)
    return f"{time.strftime('%Y%m%dT%H%M%S', moment)}-{secrets.token_hex(3)}"


def find_run(directory: Path, run_id: str, playbook: str) -> FileJournal:
    """The named run, or with "" the last one of the playbook of this name that did not end.

    Raises:
        UsageProblem: there is none.
    """
    if run_id:
        path = directory / f"{run_id}.jsonl"
        if not path.is_file():
            raise UsageProblem(f"no run {run_id}", why=f"looked in {directory}", next="leave --resume out")
        return FileJournal(path)
    for path in sorted(directory.glob("*.jsonl"), reverse=True):
        found = FileJournal(path)
        events = [e.event for e in found.entries()]
        if "ended" not in events and any(e.playbook == playbook for e in found.entries()):
            return found
    raise UsageProblem(
        "no run of this playbook was left unfinished", why=f"looked in {directory}", next="leave --resume out"
    )

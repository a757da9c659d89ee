"""The record of a run: one JSON line an entry, in a file and in the cluster before the next thing happens.

The file is there before the cluster is, and while it does not answer; from the cluster any machine goes on.
"""

import contextlib
import fcntl
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from iotctl.errors import BusyProblem, InputProblem, RefusedProblem, UsageProblem
from iotctl.playbook.model import Entry
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.errors import NodeAgentError

RUN_ID = re.compile(r"\d{8}T\d{6}-[0-9a-f]{6}")
RETRY_S = 10.0
"""How long a cluster that did not answer is not asked again."""


class NoJournal:
    """Of a check, which records nothing."""

    run_id = ""

    def append(self, entry: Entry) -> None:
        pass

    def entries(self) -> Sequence[Entry]:
        return ()


class FileJournal:
    """Entries after a torn last line are none; a damaged line before that is an error.

    Locked while it is open: of two processes that go on with one run, each would do its steps.
    """

    def __init__(self, path: Path) -> None:
        """Raises `BusyProblem` when the run is going on, `InputProblem` for a damaged record."""
        self._path = path
        self._entries: list[Entry] = []
        self._lines: list[bytes] = []
        self._file: BinaryIO | None = None
        if path.exists():
            self._open()
            self._read()

    @property
    def run_id(self) -> str:
        return self._path.stem

    def append(self, entry: Entry) -> None:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._open()
            _sync_directory(self._path.parent)  # its name must be durable too
        assert self._file is not None
        line = msgspec.json.encode(entry)
        self._file.write(line + b"\n")
        os.fsync(self._file.fileno())
        self._entries.append(entry)
        self._lines.append(line)

    def entries(self) -> Sequence[Entry]:
        return self._entries

    def lines(self) -> Sequence[bytes]:
        """The entries as they are written: whoever wrote them, nobody writes them differently."""
        return self._lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(handle, "a+b", buffering=0)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise BusyProblem(
                f"run {self.run_id} is going on in another process",
                next="wait for its end, or stop it first",
            ) from None

    def _read(self) -> None:
        content = self._path.read_bytes()
        whole = content.rpartition(b"\n")[0]
        if whole != content[:-1]:  # the machine stopped while it was written
            assert self._file is not None
            self._file.truncate(len(whole) + 1 if whole else 0)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._entries.append(msgspec.json.decode(line, type=Entry))
                self._lines.append(line)
            except UNDECODABLE as error:
                raise InputProblem(
                    "the record of the run is damaged",
                    why=str(error),
                    next="begin a new run: what is done already is not done again",
                    where=f"{self._path}:{number}:1",
                ) from None


class Keeper(Protocol):
    """Keeps records in the cluster, under its lock."""

    def record(self, run: str, name: str, number: int, entry: bytes, *, ended: bool) -> None:
        """May be asked twice. Raises `NodeAgentError`; its detail `lost`: another process took over."""


class RunJournal:
    """`keeper` gives the cluster once it answers, None before; it raises `BusyProblem` when another holds
    its lock, and then nothing is written."""

    def __init__(
        self,
        file: FileJournal,
        name: str,
        keeper: Callable[[], Keeper | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._name = name
        self._find = keeper
        self._clock = clock
        self._keeper: Keeper | None = None
        self._told = 0
        self._ask_at = 0.0

    @property
    def run_id(self) -> str:
        return self._file.run_id

    def entries(self) -> Sequence[Entry]:
        return self._file.entries()

    def append(self, entry: Entry) -> None:
        """Raises `BusyProblem` or `RefusedProblem`: another process is at work; do nothing more.

        What is done already is written before anybody is asked: it must be known here whatever they say.
        """
        done = entry.event in ("outcome", "ended")
        if done:
            self._file.append(entry)
        asked = self._clock() >= self._ask_at
        if asked and self._keeper is None:
            self._keeper = self._find()
        if not done:
            self._file.append(entry)
        if asked and not self._tell():
            self._ask_at = self._clock() + RETRY_S

    def finish(self) -> bool:
        """Nothing more is appended: whether the cluster has the whole record. Raises `RefusedProblem`."""
        try:
            self._keeper = self._keeper or self._find()
        except BusyProblem:
            return False
        return self._tell()

    def _tell(self) -> bool:
        """The cluster everything it has not heard; whether it has heard all now. Raises as `append`."""
        if self._keeper is None:
            return False
        lines = self._file.lines()
        try:
            for number in range(self._told, len(lines)):
                ended = self.entries()[number].event == "ended"
                self._keeper.record(self.run_id, self._name, number, lines[number], ended=ended)
                self._told = number + 1
        except NodeAgentError as error:
            if error.details.get("lost"):
                raise RefusedProblem(
                    "the run was stopped", why=error.what, next=error.next_step or "iotctl cluster events"
                ) from None
            return False
        return True


def bring(directory: Path, run_id: str, entries: Sequence[bytes]) -> None:
    """Write the cluster's record of a run into its file here, unless that one only knows more. One that
    differs is put aside: its process went on after it had lost the run to another."""
    if not RUN_ID.fullmatch(run_id):
        return  # what others wrote names no file of ours
    path = directory / f"{run_id}.jsonl"
    if path.exists():
        if path.read_bytes().splitlines()[: len(entries)] == list(entries):
            return
        path.replace(path.with_suffix(".lost"))
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=directory)
    with os.fdopen(handle, "wb") as file:
        file.write(b"".join(entry + b"\n" for entry in entries))
        os.fsync(file.fileno())
    Path(temporary).replace(path)
    _sync_directory(directory)


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
        BusyProblem: it is going on.
    """
    if run_id:
        path = directory / f"{run_id}.jsonl"
        if not path.is_file():
            raise UsageProblem(f"no run {run_id}", why=f"looked in {directory}", next="leave --resume out")
        return FileJournal(path)
    for path in sorted(directory.glob("*.jsonl"), reverse=True):
        name, ended = _told(path)
        if name == playbook and ended:
            break  # what an older one left behind was done anew since
        if name == playbook:
            return FileJournal(path)
    raise UsageProblem(
        "no run of this playbook was left unfinished", why=f"looked in {directory}", next="leave --resume out"
    )


def _told(path: Path) -> tuple[str, bool]:
    """Whose run it is and whether it ended, also of one that is going on or damaged."""
    entries = []
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(*UNDECODABLE):
            entries.append(msgspec.json.decode(line, type=Entry))
    name = next((e.playbook for e in entries if e.playbook), "")
    return name, any(e.event == "ended" for e in entries)

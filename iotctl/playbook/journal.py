"""The journal of a run: one JSON line per entry, in a file and in the cluster.

An entry is durable before the run continues. The file is written even if the cluster does not exist yet or
does not answer. With the cluster's record, any machine can resume the run.
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
from iotctl.files import sync_directory
from iotctl.playbook.model import Entry
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.errors import NodeAgentError, Refused

RUN_ID = re.compile(r"\d{8}T\d{6}(\d{3})?-[0-9a-f]{6}")
"""The ids of `new_run_id`, and those of 0.1.0, which have no milliseconds."""

RETRY_S = 10.0
"""How long the journal waits before it retries a cluster that did not answer."""


class NoJournal:
    """The journal of a check, which records nothing."""

    run_id = ""

    def append(self, entry: Entry) -> None:
        pass

    def entries(self) -> Sequence[Entry]:
        return ()


class FileJournal:
    """The journal in a file. An incomplete last line is cut off; a damaged line before it is an error.

    The file is locked while it is open, so that two processes cannot resume the same run.
    """

    def __init__(self, path: Path) -> None:
        """Raises `BusyProblem` if another process has it open, `InputProblem` if the journal is damaged."""
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
            sync_directory(self._path.parent)  # the name of the file must be durable, too
        assert self._file is not None
        line = msgspec.json.encode(entry)
        _write(self._file.fileno(), line + b"\n")
        self._entries.append(entry)
        self._lines.append(line)

    def entries(self) -> Sequence[Entry]:
        return self._entries

    def lines(self) -> Sequence[bytes]:
        """The entries as the bytes that were written."""
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
                f"another process is running {self.run_id}",
                next="wait until it ends, or stop that process first",
            ) from None

    def _read(self) -> None:
        content = self._path.read_bytes()
        whole = content.rpartition(b"\n")[0]
        if content and not content.endswith(b"\n"):  # the machine stopped during the write
            assert self._file is not None
            self._file.truncate(len(whole) + 1 if whole else 0)
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self._entries.append(msgspec.json.decode(line, type=Entry))
                self._lines.append(line)
            except UNDECODABLE as error:
                raise InputProblem(
                    "the journal of the run is damaged",
                    why=str(error),
                    next="start a new run: steps that are already done change nothing",
                    where=f"{self._path}:{number}:1",
                ) from None


def _write(handle: int, line: bytes) -> None:
    """Append the line; it is durable on return. After an `OSError` a partly written line is cut off, if the
    disk allows it, so that the next line does not continue it."""
    end = os.fstat(handle).st_size
    try:
        left = memoryview(line)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, end)
        raise


class ClusterRecord(Protocol):
    """Stores records in the cluster, under its lock."""

    def record(self, run: str, name: str, number: int, entry: bytes, *, ended: bool) -> None:
        """Store an entry; idempotent. Raises `NodeAgentError`; detail `lost`: another process took over."""


class RunJournal:
    """A journal in a file and in the cluster.

    `keeper` returns the cluster's record once the cluster answers, None before; it raises `BusyProblem` if
    another program holds the lock, and then only outcomes are written, to the file.
    """

    def __init__(
        self,
        file: FileJournal,
        name: str,
        keeper: Callable[[], ClusterRecord | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._name = name
        self._keeper_of = keeper
        self._clock = clock
        self._keeper: ClusterRecord | None = None
        self._sent = 0
        self._ask_at = 0.0
        self._is_cut = False
        """The cluster's record has the end of the run, but not all entries before it."""

        self.refusal = ""
        """Why the cluster stored no further entry; "" if it stored all that were sent."""

    @property
    def run_id(self) -> str:
        return self._file.run_id

    def entries(self) -> Sequence[Entry]:
        return self._file.entries()

    def append(self, entry: Entry) -> None:
        """Append an entry. Raises `BusyProblem` or `RefusedProblem` if another process has taken over.

        An outcome is written to the file before the cluster is asked, so that this machine never loses it.
        """
        done = entry.event in ("outcome", "ended")
        if done:
            self._file.append(entry)
        asked = self._clock() >= self._ask_at
        if asked and self._keeper is None:
            self._keeper = self._keeper_of()
        if not done:
            self._file.append(entry)
        if asked and not self._send():
            self._ask_at = self._clock() + RETRY_S

    def finish(self) -> bool:
        """Send what the cluster lacks; returns whether it has the whole record. Raises `RefusedProblem`."""
        try:
            self._keeper = self._keeper or self._keeper_of()
        except BusyProblem:
            return False
        return self._send()

    def _send(self) -> bool:
        """Send the missing entries to the cluster; returns whether it has all of them. Raises as `append`."""
        if self._keeper is None or self._is_cut:
            return False
        lines = self._file.lines()
        try:
            for number in range(self._sent, len(lines)):
                ended = self.entries()[number].event == "ended"
                self._keeper.record(self.run_id, self._name, number, lines[number], ended=ended)
                self._sent = number + 1
            self.refusal = ""
        except NodeAgentError as error:
            self.refusal = error.what
            if error.details.get("lost"):
                raise RefusedProblem(
                    "the run was stopped", why=error.what, next=error.next_step or "iotctl cluster events"
                ) from None
            if isinstance(error, Refused) and self._sent and self.entries()[-1].event == "ended":
                with contextlib.suppress(NodeAgentError):  # the record is full, but the run ends there, too
                    self._keeper.record(self.run_id, self._name, self._sent, lines[-1], ended=True)
                    self._is_cut = True
            return False
        return True


def bring(directory: Path, run_id: str, entries: Sequence[bytes]) -> None:
    """Write the cluster's record of a run into its local file, unless the file begins with this record.

    A file with other entries is moved aside: another process took over the run.
    """
    if not RUN_ID.fullmatch(run_id):
        return  # ignore an id that another program wrote in another form
    path = directory / f"{run_id}.jsonl"
    if path.exists():
        here = path.read_bytes().splitlines()
        if here[: len(entries)] == list(entries):
            return
        if here != list(entries[: len(here)]):
            path.replace(path.with_suffix(".lost"))
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=directory)
    with os.fdopen(handle, "wb") as file:
        file.write(b"".join(entry + b"\n" for entry in entries))
        os.fsync(file.fileno())
    Path(temporary).replace(path)
    sync_directory(directory)


def new_run_id(now: float | None = None) -> str:
    """A unique id; ids sort by time, to the millisecond."""
    seconds = time.time() if now is None else now
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))
    return f"{moment}{int(seconds % 1 * 1000):03d}-{secrets.token_hex(3)}"


class Summary(msgspec.Struct, frozen=True):
    """What the journal in a file says about its run. `end` is the line that ends it, empty if there is none;
    `abandoned_by` is "" unless an operator abandoned the run."""

    playbook: str
    by: str
    began_ms: int
    end: bytes
    abandoned_by: str

    @property
    def ended(self) -> bool:
        return bool(self.end)


def find_run(directory: Path, run_id: str, playbook: str) -> FileJournal:
    """The run `run_id`, or with "" the last run of this playbook, if it did not end.

    Raises:
        UsageProblem: there is no such run, or it was abandoned.
        BusyProblem: another process is executing it.
        InputProblem: the journal of the run is damaged.
    """
    if run_id:
        path = directory / f"{run_id}.jsonl"
        if not path.is_file():
            raise UsageProblem(f"no run {run_id}", why=f"looked in {directory}", next="omit --resume")
        if by := summary(path).abandoned_by:
            raise UsageProblem(f"{by} abandoned run {run_id}", next="omit --resume to start a new run")
        return FileJournal(path)
    for path in sorted(directory.glob("*.jsonl"), reverse=True):
        found = summary(path)
        if found.playbook != playbook or found.abandoned_by:
            continue
        if found.ended:
            break  # a later run completed what older runs left
        return FileJournal(path)
    raise UsageProblem(
        "this playbook has no unfinished run", why=f"looked in {directory}", next="omit --resume"
    )


def summary(path: Path) -> Summary:
    """Works for active and damaged journals, too."""
    entries: list[Entry] = []
    end, abandoned_by = b"", ""
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(*UNDECODABLE):
            entries.append(msgspec.json.decode(line, type=Entry))
            if entries[-1].event == "ended":  # the last one counts: 0.1.0 resumes a run that was abandoned
                end, abandoned_by = line, entries[-1].by
    first = entries[0] if entries else Entry("begun", 0)
    name = next((e.playbook for e in entries if e.playbook), "")
    return Summary(name, first.by, first.time_ms, end, abandoned_by)

"""Twenty million rows of one device in one week, on three agents: every way to read them, and what it takes.

Not a figure to compare, but bounds: no process of the fleet, nor the reader, is ever above `MEMORY_MAX`, and
a light query beside the export is answered in `LIGHT_P99_MS`.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nodeagent.client.blocking import BlockingCluster
from nodeagent.model.limits import MIB
from nodeagent.model.schema import Column, TableSchema
from tests.bench.agents import Agents, fleet_of
from tests.bench.agents import family as family_of
from tests.bench.figures import Report, of

ROWS = 20_000_000
QUICK_ROWS = 2_000_000
BATCH_ROWS = 50_000
WEEK_MS = 7 * 86_400_000
START_MS = 2_800 * WEEK_MS
MEMORY_MAX = 1024 * MIB
LIGHT_P99_MS = 300.0
LOOK_S = 0.2

SCHEMA = TableSchema(
    "root.plant",
    "m",
    1,
    (
        Column("device", "STRING", True),
        Column("temperature", "DOUBLE", False),
        Column("pressure", "DOUBLE", False),
        Column("n", "INT64", False),
    ),
)
WHERE = ("--storage-group", SCHEMA.storage_group, "--table", SCHEMA.table)


def run(*, quick: bool) -> Report:
    rows = QUICK_ROWS if quick else ROWS
    with fleet_of(3, tls=True) as agents, agents.connect() as cluster, _watched(agents) as peaks:
        agents.wait_ready(cluster, 3)
        cluster.put_schema(SCHEMA)
        seconds = {"load": _timed(lambda: _load(cluster, rows))}
        reader = _Reader(agents, peaks)
        for name, words in (
            ("count", ("data", "count")),
            ("first rows", ("data", "query", *WHERE, "--limit", "10")),
            ("an hour", ("data", "query", *WHERE, *_hour(rows))),
        ):
            found, seconds[name] = reader.json(*words)
            _check(name, found, rows)
        target = agents.fleet.directory / "out.parquet"
        with _light_queries(cluster, rows) as taken:
            done, seconds["export"] = reader.json("data", "export", *WHERE, "--to", str(target))
        assert done["rows"] == rows, done
        assert _is_each_once(target, rows)
        for depth in ("hash", "content"):
            report, seconds[f"verify {depth}"] = reader.json("verify", "--depth", depth)
            assert not report["mismatches_total"] and not report["unread"], report
    worst = max(peaks.values())
    p99 = float(np.percentile(taken, 99)) * 1000
    print(
        {k: v // MIB for k, v in sorted(peaks.items(), key=lambda item: -item[1])}, seconds, file=sys.stderr
    )
    return of(
        f"large read, {rows} rows of one device, 3 agents",
        [rows / seconds["export"]],
        "rows/s",
        floor=0.0,
        limit=f"light query p99 {p99:.0f} ms, largest process {worst / MIB:.0f} MiB",
        details={**seconds, "light_p99_ms": p99, "largest_process_MiB": worst / MIB},
    )


def _load(cluster: BlockingCluster, rows: int) -> None:
    cluster.write_many(((SCHEMA.storage_group, SCHEMA.table, b) for b in _batches(rows)), tags=["device"])


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    rng = np.random.default_rng(1)
    step = WEEK_MS // rows
    for first in range(0, rows, BATCH_ROWS):
        n = np.arange(first, min(rows, first + BATCH_ROWS))
        yield pa.record_batch(
            {
                "time": START_MS + n * step,
                "device": pa.DictionaryArray.from_arrays(pa.array(np.zeros(n.size, np.int32)), ["d1"]).cast(
                    pa.string()
                ),
                "temperature": rng.normal(20, 5, n.size).round(2),
                "pressure": rng.normal(1000, 9, n.size).round(1),
                "n": n,
            }
        )


def _hour(rows: int) -> tuple[str, ...]:
    first = START_MS + WEEK_MS // 2
    return "--from", str(first), "--to", str(first + 3_600_000 - 1), "--limit", "1000000"


def _check(name: str, found: dict, rows: int) -> None:  # type: ignore[type-arg]
    if name == "count":
        assert [t["rows"] for t in found["tables"]] == [rows], found
    elif name == "first rows":
        assert [r["n"] for r in found["rows"]] == list(range(10)), found
    else:
        assert len(found["rows"]) == -(-3_600_000 // (WEEK_MS // rows)), len(found["rows"])


def _is_each_once(path: Path, rows: int) -> bool:
    seen = np.zeros(rows, np.bool_)
    total = 0
    for batch in pq.ParquetFile(path).iter_batches(columns=["n"]):
        seen[batch.column(0).to_numpy()] = True
        total += batch.num_rows
    return bool(seen.all()) and total == rows


def _timed(call) -> float:  # type: ignore[no-untyped-def]
    started = time.monotonic()
    call()
    return time.monotonic() - started


class _Reader:
    """Command lines, each a process of its own whose memory is looked at."""

    def __init__(self, agents: Agents, peaks: dict[str, int]) -> None:
        self._agents = agents
        self._peaks = peaks

    def json(self, *words: str) -> tuple[dict, float]:  # type: ignore[type-arg]
        started = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "iotctl", *words, "-o", "json"],
            cwd=self._agents.fleet.directory.parent,
            env={**os.environ, "IOTCTL_CLUSTER": str(self._agents.fleet.directory)},
            stdout=subprocess.PIPE,
        )
        watch = threading.Thread(target=_watch, args=(process, " ".join(words[:2]), self._peaks))
        watch.start()
        out, _ = process.communicate()
        watch.join()
        assert process.returncode == 0, (words, process.returncode)
        return json.loads(out), time.monotonic() - started


def _watch(process: "subprocess.Popen[bytes]", name: str, peaks: dict[str, int]) -> None:
    while process.poll() is None:
        _note(peaks, name, family_of(process.pid))
        time.sleep(LOOK_S)


@contextmanager
def _watched(agents: Agents) -> Iterator[dict[str, int]]:
    """The largest memory of each process of the fleet so far, by name."""
    peaks: dict[str, int] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            for node in agents.fleet.nodes():
                _note(peaks, node.name, family_of(node.pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def _note(peaks: dict[str, int], name: str, pids: list[int]) -> None:
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        what = (
            "java" if b"java" in words[0] else (words[-2].decode(errors="replace") if len(words) > 1 else "")
        )
        line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "")
        if line:
            key = f"{name} {what} {pid}"
            peaks[key] = max(peaks.get(key, 0), int(line.split()[1]) * 1024)


@contextmanager
def _light_queries(cluster: BlockingCluster, rows: int) -> Iterator[list[float]]:
    """Seconds that a query of ten seconds' rows takes, again and again."""
    taken: list[float] = []
    over = threading.Event()

    def ask() -> None:
        rng = np.random.default_rng(2)
        while not over.wait(0.05):
            first = START_MS + int(rng.integers(0, rows * (WEEK_MS // rows) - 60_000))
            started = time.monotonic()
            found = cluster.scan(SCHEMA.storage_group, SCHEMA.table, time_from=first, time_to=first + 9_999)
            taken.append(time.monotonic() - started)
            assert found.num_rows

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()

"""Twenty million rows of one device in one week, on three agents: every way to read them, and its cost.

These are bars, not figures to compare: every command succeeds, `verify` finds equal replicas, no process of
ours exceeds `MEMORY_MAX`, and a light query during the export is answered in `LIGHT_P99_MS`. The largest Java
process is reported too; its memory is what Spark is configured to use.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nodeagent.client.blocking import BlockingCluster
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.limits import MIB
from nodeagent.model.schema import Column, TableSchema
from tests.bench.agents import Agents, fleet_of
from tests.bench.agents import family as family_of
from tests.bench.figures import Figure, Report, of, percentile

ROWS = 20_000_000
QUICK_ROWS = 2_000_000
BATCH_ROWS = 50_000
WEEK_MS = 7 * 86_400_000
START_MS = 2_800 * WEEK_MS
MEMORY_MAX = 1024 * MIB
LIGHT_P99_MS = 300.0
LOOK_S = 0.2
CONTENT = "verify content"
JAVA = "java"

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
    started = time.monotonic()
    rows = QUICK_ROWS if quick else ROWS
    taken: list[float] = []
    with fleet_of(3, tls=True) as agents, agents.connect() as cluster, _watched(agents) as peaks:
        agents.wait_ready(cluster, 3)
        cluster.put_schema(SCHEMA)
        seconds = {"load": _timed(lambda: _load(cluster, rows))}
        reader = _Reader(agents, peaks)
        target = agents.fleet.directory / "out.parquet"
        failed: dict[str, str] = {}
        for name, words in _commands(rows, target).items():
            beside = _light_queries(cluster, rows, taken) if name == "export" else nullcontext()
            before = time.monotonic()
            try:
                with beside:
                    found = reader.json(*words)
                seconds[name] = time.monotonic() - before
                _check(name, found, rows, target)
            except Exception as error:  # the other bars are measured all the same
                failed[name] = f"{name}: {error!r}"[:500]
    return Report(
        "large",
        f"{rows} rows of one device in one week, 3 agents, TLS on, R=3",
        _figures(rows, seconds, failed, taken, peaks),
        time.monotonic() - started,
    )


def _commands(rows: int, target: Path) -> dict[str, tuple[str, ...]]:
    return {
        "count": ("data", "count"),
        "first rows": ("data", "query", *WHERE, "--limit", "10"),
        "an hour": ("data", "query", *WHERE, *_hour(rows)),
        "export": ("data", "export", *WHERE, "--to", str(target)),
        "verify hash": ("verify", "--depth", "hash"),
        CONTENT: ("verify", "--depth", "content"),
    }


def _figures(
    rows: int, seconds: dict[str, float], failed: dict[str, str], taken: list[float], peaks: dict[str, int]
) -> tuple[Figure, ...]:
    ours = {k: v / MIB for k, v in peaks.items() if JAVA not in k}
    java = {k: v / MIB for k, v in peaks.items() if JAVA in k}
    (most, most_mib), (jvm, jvm_mib) = _largest(ours), _largest(java)
    return (
        of("loaded", [rows / seconds["load"]], "rows/s", details=seconds),
        of("exported", [rows / seconds["export"] if "export" in seconds else 0.0], "rows/s"),
        of("memory of the largest process of ours", [most_mib], "MiB", ceiling=MEMORY_MAX / MIB, limit=most),
        of("memory of the largest Java process", [jvm_mib], "MiB", limit=jvm),
        of(
            "light query beside the export, p99",
            [1000 * percentile(taken, 0.99) if taken else float("inf")],
            "ms",
            ceiling=LIGHT_P99_MS,
            limit=f"{len(taken)} queries",
            details={"p50_ms": 1000 * percentile(taken, 0.5), "slowest_ms": 1000 * max(taken)}
            if taken
            else {},
        ),
        of(f"failed: {CONTENT}", [float(CONTENT in failed)], "", ceiling=0.5, limit=failed.pop(CONTENT, "")),
        of("failed: other commands", [float(len(failed))], "", ceiling=0.5, limit="; ".join(failed.values())),
        *(of(f"memory of {name}", [size], "MiB") for name, size in _worst(ours, 8)),
    )


def _largest(sizes: dict[str, float]) -> tuple[str, float]:
    return max(sizes.items(), key=lambda item: item[1], default=("none ran", 0.0))


def _worst(sizes: dict[str, float], count: int) -> list[tuple[str, float]]:
    return sorted(sizes.items(), key=lambda item: -item[1])[:count]


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


def _check(name: str, found: dict[str, Any], rows: int, target: Path) -> None:
    if name.startswith("verify"):
        assert not found["mismatches_total"] and not found["unread"], found
    elif name == "export":
        assert found["rows"] == rows, found
        assert _is_each_once(target, rows), "a row is missing or duplicated"
    elif name == "count":
        assert [t["rows"] for t in found["tables"]] == [rows], found
    elif name == "first rows":
        assert [r["n"] for r in found["rows"]] == list(range(10)), found
    elif name == "an hour":
        assert len(found["rows"]) == -(-3_600_000 // (WEEK_MS // rows)), len(found["rows"])


def _is_each_once(path: Path, rows: int) -> bool:
    seen = np.zeros(rows, np.bool_)
    total = 0
    for batch in pq.ParquetFile(path).iter_batches(columns=["n"]):
        seen[batch.column(0).to_numpy()] = True
        total += batch.num_rows
    return bool(seen.all()) and total == rows


def _timed(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


class _Reader:
    """Runs command lines, each in a process whose memory is observed."""

    def __init__(self, agents: Agents, peaks: dict[str, int]) -> None:
        self._agents = agents
        self._peaks = peaks

    def json(self, *words: str) -> dict[str, Any]:
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
        assert process.returncode == 0, (process.returncode, out[-300:])
        found: dict[str, Any] = json.loads(out)
        return found


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
        what = JAVA if b"java" in words[0] else (words[-2].decode(errors="replace") if len(words) > 1 else "")
        line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "")
        if line:
            key = f"{name} {what} {pid}"
            peaks[key] = max(peaks.get(key, 0), int(line.split()[1]) * 1024)


@contextmanager
def _light_queries(cluster: BlockingCluster, rows: int, taken: list[float]) -> Iterator[None]:
    """Query the rows of ten seconds repeatedly, and note the duration of each query."""
    over = threading.Event()

    def ask() -> None:
        rng = np.random.default_rng(2)
        while not over.wait(0.05):
            first = START_MS + int(rng.integers(0, rows * (WEEK_MS // rows) - 60_000))
            started = time.monotonic()
            try:
                found = cluster.scan(
                    SCHEMA.storage_group, SCHEMA.table, time_from=first, time_to=first + 9_999
                )
                taken.append(time.monotonic() - started if found.num_rows else float("inf"))
            except NodeAgentError:
                taken.append(float("inf"))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

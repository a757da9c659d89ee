"""A turn of the loop that is too long is counted and logged."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nodeagent.host.effect_queue import Effects
from nodeagent.model.jobs import DropSnapshot
from nodeagent.model.limits import TURN_MS_MAX
from nodeagent.runtime.turns import OWN_SAMPLE_S, SCHEDSTAT, ThreadUse, Turns, thread_use


def test_a_slow_turn_is_counted_and_logged_with_its_work() -> None:
    """A turn lasts from the first event to the end of the effects; a pause between turns does not count. The
    thread's processor use shows whether the agent or its machine is slow."""
    now, used = [0.0], [ThreadUse(0.0, 0.0)]
    said: list[tuple[str, dict[str, object]]] = []
    turns = Turns(lambda *note: said.append(note), lambda: now[0], lambda: used[0])
    turns.event()
    now[0] += TURN_MS_MAX / 1000
    turns.end(Effects())
    assert (turns.count, turns.slow, said) == (1, 0, [])
    now[0] += 60
    used[0] = ThreadUse(1.0, 2.0)
    turns.event()
    now[0] += 0.08
    turns.event()
    now[0] += 0.04
    used[0] = ThreadUse(1.005, 2.1)
    turns.end(Effects(jobs=[(1, DropSnapshot("s"))], applied=7, applied_bytes=900))
    assert (turns.count, turns.slow) == (2, 1) and round(turns.longest_s, 3) == 0.12
    ((event, fields),) = said
    assert event == "slow_turn" and fields["ms"] == 120 and fields["events"] == 2
    assert (fields["own_ms"], fields["waited_ms"]) == (5, 100)
    assert (fields["applied"], fields["applied_bytes"], fields["kinds"]) == (7, 900, "DropSnapshot")


def test_the_thread_s_time_is_sampled_seldom() -> None:
    """Short turns follow each other closely: a system call for each would add to their cost."""
    now, used, reads = [100.0], [0.0], [0]

    def read() -> ThreadUse:
        reads[0] += 1
        return ThreadUse(used[0], 0.0)

    said: list[dict[str, object]] = []
    turns = Turns(lambda _, fields: said.append(fields), lambda: now[0], read)
    for _ in range(1000):
        turns.event()
        now[0] += 0.001
        used[0] += 0.001
        turns.end(Effects())
    assert reads[0] <= 1 + 1000 * 0.001 / OWN_SAMPLE_S
    turns.event()
    now[0] += 0.2
    used[0] += 0.15
    turns.end(Effects())
    (fields,) = said
    assert 150 <= int(str(fields["own_ms"])) <= 150 + 1000 * OWN_SAMPLE_S


def test_own_time_of_a_thread_is_not_that_of_others() -> None:
    other = threading.Thread(target=_busy, args=(0.05,))
    read = thread_use()
    before = read()
    other.start()
    other.join()
    slept = read()
    _busy(0.05)
    worked = read()
    assert slept.own_s - before.own_s < 0.03
    assert worked.own_s - slept.own_s >= 0.045 and worked.waited_s >= before.waited_s


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this kernel does not count it")
def test_waiting_for_a_processor_is_measured() -> None:
    """Two busy threads of two processes share one processor: each waits about as long as the other runs."""
    before_all = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before_all)})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        read = thread_use()
        before = read()
        _busy(0.2)
        assert read().waited_s - before.waited_s > 0.05
    finally:
        os.sched_setaffinity(0, before_all)
        other.kill()
        other.wait()


@pytest.mark.parametrize("told", [None, b"", b"1", b"a b c"])
def test_an_unreadable_schedstat_loses_only_the_waiting_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bytes | None
) -> None:
    """The use is read before an event is handled; an error would lose the event."""
    path = tmp_path / "schedstat"
    if told is not None:
        path.write_bytes(told)
    monkeypatch.setattr("nodeagent.runtime.turns.SCHEDSTAT", path)
    assert thread_use()().waited_s == 0.0


def _busy(seconds: float) -> None:
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


LATE = """
import sys

import pyarrow as pa

import nodeagent.host.opening
import nodeagent.runtime.agent
from nodeagent.storage.pandas_free import forbid_pandas

forbid_pandas()
came = pa.table({"time": [2, 1, 1], "device": ["b", "a", "a"], "v": [1.0, 2.0, None]})
before = set(sys.modules)

import numpy as np

from nodeagent.model.files import ScanSpec
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.ranges import from_slots
from nodeagent.table.arrow import decode, encode, normalise
from nodeagent.table.checksum import by_day, checksum
from nodeagent.table.merge import merge

schema = TableSchema("sg", "t", 1, (Column("device", "STRING", True), Column("v", "DOUBLE", False)))
rows = decode(encode(normalise(came, schema)))
merged = merge([((1,), rows)], (), schema, ScanSpec(schema, tags=(("device", "a"),)))
by_day(checksum(merged, schema))
from_slots(np.unique(np.array([3, 1, 1])))
print(*sorted(set(sys.modules) - before))
"""


def test_nothing_is_imported_in_a_turn() -> None:
    """An import that a library defers until a function is called would delay the loop."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr

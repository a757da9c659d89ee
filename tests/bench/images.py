"""Saving an image of a large meta state beside the event loop: its duration and memory, and what it adds to
the writes of other entries. In one process, without sockets."""

import gc
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from nodeagent.meta import commands
from nodeagent.meta.image import Image
from nodeagent.meta.sections import check_image, sections_of
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings
from nodeagent.model.disk import File
from nodeagent.model.entries import Base, Config, Entry, EntryKind
from nodeagent.model.features import SPOKEN
from nodeagent.model.ids import META
from nodeagent.model.image_format import Header
from nodeagent.model.requests import GroupRecord, NodeRecord
from nodeagent.model.schema import Column, TableSchema
from nodeagent.partition.ring import initial_ring
from nodeagent.partition.table import initial_table
from nodeagent.runtime.agent import SWITCH_INTERVAL_S
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.startup import IMAGE_PAUSE_S
from nodeagent.storage import layout
from nodeagent.storage.images import Images
from tests.bench.figures import Report, of

NODES, SLOTS, TABLES, LINES = 1_000, 100_000, 10_000, 4_096
COLUMNS = 20
WRITE_EVERY_S = 0.001
LOG_BYTES = 4 << 20
BUILD_S_MAX, P99_MAX, MEMORY_MB_MAX = 3.0, 2.0, 200.0


def run(*, quick: bool) -> Report:
    started = time.monotonic()
    image = large_image()
    sys.setswitchinterval(SWITCH_INTERVAL_S)  # as the agent does
    gc.collect()
    gc.freeze()
    with tempfile.TemporaryDirectory() as root:
        disk = RealDisk(root)
        disk.mkdirs(layout.TMP)
        pause = partial(time.sleep, IMAGE_PAUSE_S)
        images = Images(disk, partial(check_image, pause=pause), pause)
        with disk.create("log") as log:
            log.zero_fill(0, LOG_BYTES)  # as segments of the log are
            log.sync()
            measured = [_once(images, image, log) for _ in range(3 if quick else 15)]
    built, quiet, busy, memory, copied = map(list, zip(*measured, strict=True))
    ratio = float(np.percentile(np.concatenate(busy), 99) / np.percentile(np.concatenate(quiet), 99))
    return Report(
        "image",
        f"{NODES} nodes, {SLOTS} slots, {TABLES} tables, {LINES} audit lines, and a write every ms",
        (
            of("image: copy in the event loop", copied, "ms"),
            of("image: build, validate and sync", built, "s", ceiling=BUILD_S_MAX),
            of("image: p99 of a meta write, during a build / before", [ratio], "x", ceiling=P99_MAX),
            of("image: additional memory", memory, "MB", ceiling=MEMORY_MB_MAX),
        ),
        time.monotonic() - started,
    )


def large_image() -> Image:
    names = [f"node{i:04d}" for i in range(NODES)]
    ring = initial_ring(names)
    nodes = {
        p.node: NodeRecord(p.node, f"10.0.{i // 256}.{i % 256}", 7000, 8000, f"{i:032x}", p.position)
        for i, p in enumerate(ring.nodes)
    }
    members = {name: ring.members(name, 3) for name in names}
    columns = tuple(Column(f"field{i}", "DOUBLE", False) for i in range(COLUMNS))
    line = "drain node17 because of a reason that is about as long as real ones"
    return Image(
        applied=1,
        cluster_id="c",
        settings=ClusterSettings("c", slots=SLOTS),
        nodes=nodes,
        table=initial_table(ring, SLOTS).to_wire(),
        groups={f"{n}.2": GroupRecord(f"{n}.2", n, m, m) for n, m in members.items()},
        schemas=[TableSchema(f"root.plant{i // 100}", f"table{i}", 1, columns) for i in range(TABLES)],
        audit=[(1_700_000_000_000 + i, "operator", line) for i in range(LINES)],
        level=SPOKEN.newest,
    )


def _once(images: Images, image: Image, log: File) -> tuple[float, list[float], list[float], float, float]:
    """(seconds of the build, of the writes before it, of those during it, MB more than before it, ms of the
    copy)"""
    state = MetaState(image)
    quiet = _writes(state, log, lambda t: t < 1.0)
    header = Header(Base(image.applied, 1, Config()), META)
    begun = time.perf_counter()
    sections = sections_of(image)
    copied = time.perf_counter() - begun
    before, memory, seconds = _resident_mb(), [0.0], list[float]()

    def build() -> None:
        begun = time.perf_counter()
        images.save(header, sections)
        seconds.append(time.perf_counter() - begun)

    def during(_: float) -> bool:
        memory.append(_resident_mb() - before)
        return not seconds

    thread = threading.Thread(target=build)
    thread.start()
    busy = _writes(state, log, during)
    thread.join()
    return seconds[0], quiet, busy, max(memory), copied * 1000


def _writes(state: MetaState, log: File, goes_on: Callable[[float], bool]) -> list[float]:
    """Seconds of each write from the moment when it is due: the entry is appended, synced and applied."""
    took: list[float] = []
    at = 0
    begun = time.perf_counter()
    while goes_on(time.perf_counter() - begun):
        due = time.perf_counter() + WRITE_EVERY_S
        time.sleep(WRITE_EVERY_S)
        drain = commands.encode(commands.SetDraining(1, "node0001", len(took) % 2 == 0, "bench"))
        log.pwrite(at, drain)
        at += len(drain)
        log.sync()
        state.apply(state.applied + 1, [Entry(1, EntryKind.COMMAND, drain)])
        took.append(time.perf_counter() - due)
    return took


def _resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024

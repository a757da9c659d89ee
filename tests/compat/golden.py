"""Reference data of a release: `make golden VERSION=0.1.0` writes it once, when the release is tagged.

    VERSION/FORMAT.json        a format's shape, and a value and its bytes for each of its structs
    VERSION/directory.tar.xz   the directory of a killed node: files, deletes, and rows only in the log
    VERSION/TABLE.arrow        the rows of each table in it
    VERSION/nodeagent.whl      the agent, to upgrade it to later releases

These files never change: later releases are tested against them.
"""

import argparse
import base64
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa

from iotctl.fleet import local, wheelhouse
from nodeagent.model.config import ClusterSettings
from tests.cluster.world import World
from tests.compat import formats, samples, shapes

HERE = Path(__file__).parent
DIRECTORY, WHEEL = "directory.tar.xz", "nodeagent.whl"
NODE = "node1"
HOST, PORTS = "127.41.7.1", [24_701, 24_702]
"""The node's metadata contains its address, so a copy of the directory must use the same one."""

LEFT_OUT = ("LOCK", "agent.log", "agent.pid", "node.yaml", "tls")
"""Files in a node's directory that belong to the installation."""

STORAGE_GROUP = "root.plant"
DEVICES, STEPS, STEP_MS = 3, 40, 6 * 3_600_000
DELETED = (7 * STEP_MS, 11 * STEP_MS)
"""First and last deleted time (ms)."""


class Sample(msgspec.Struct, frozen=True):
    value: Any
    """The value as JSON."""

    content: str
    """The stored or sent bytes, in base64."""


class Golden(msgspec.Struct, frozen=True):
    """One format of one release."""

    shapes: shapes.Shapes
    samples: dict[str, Sample]
    """By the struct's tag; "" if the format is a single struct."""


def releases() -> list[Path]:
    """The directories of all releases, oldest first."""
    found = [p for p in HERE.iterdir() if re.fullmatch(r"\d+\.\d+\.\d+", p.name)]
    return sorted(found, key=lambda p: [int(number) for number in p.name.split(".")])


def load(path: Path) -> Golden:
    return msgspec.json.decode(path.read_bytes(), type=Golden)


def golden(name: str) -> Golden:
    """The format in the current release."""
    made: dict[str, Sample] = {}
    for struct in formats.structs_of(name):
        value = samples.sample(struct)
        content = base64.b64encode(formats.encode(name, value)).decode()
        tag = struct.__struct_config__.tag
        made["" if tag is None else str(tag)] = Sample(shapes.plain(value), content)
    return Golden(shapes.shapes_of(formats.FORMATS[name]), made)


@contextmanager
def fleet_of(directory: Path, kept: Path | None = None) -> Iterator[World]:
    """Run a fleet of one node, starting with the directory of a release if one is given."""
    fleet = local.LocalFleet(directory)
    with mock.patch.multiple(local, LOOPBACK=HOST, take_ports=lambda *_, **__: PORTS):
        fleet.create(ClusterSettings(name="plant", replicas=1), 1, node_settings={"segment_bytes": 1 << 20})
    if kept is not None:
        with tarfile.open(kept) as archive:
            # The argument exists since 3.11.4.
            archive.extraction_filter = getattr(tarfile, "data_filter", None) or (lambda member, path: member)
            archive.extractall(directory / NODE)
    world = World(fleet)
    try:
        world.up()
        yield world
    finally:
        world.close()


def rows(first: int) -> pa.Table:
    """One row per device and step from `first` on, with a column of every type; some values are null."""
    count = DEVICES * STEPS
    ordinal = [first + i // DEVICES for i in range(count)]
    empty = [i % 5 == 0 for i in range(count)]
    columns: Mapping[str, pa.Array] = {
        "time": pa.array([n * STEP_MS for n in ordinal]),
        "device": pa.array([f"d{i % DEVICES}" for i in range(count)]),
        "running": pa.array([n % 2 == 0 for n in ordinal], mask=empty),
        "starts": pa.array(ordinal, pa.int32(), mask=empty),
        "counter": pa.array([n << 40 for n in ordinal], pa.int64(), mask=empty),
        "pressure": pa.array([n / 4 for n in ordinal], pa.float32(), mask=empty),
        "temperature": pa.array([n / 3 for n in ordinal], pa.float64(), mask=empty),
        "state": pa.array([f"zustand ü {n}" for n in ordinal], pa.string(), mask=empty),
        "frame": pa.array([bytes([n % 256, 0]) for n in ordinal], pa.binary(), mask=empty),
        "day": pa.array(ordinal, pa.date32(), mask=empty),
        "seen": pa.array([n * STEP_MS for n in ordinal], pa.timestamp("ms"), mask=empty),
    }
    return pa.table(columns)


def fill(world: World) -> None:
    """Write rows and deletes and close them to files; then write rows and a delete that stay in the log."""
    cluster = world.cluster
    for first in (0, STEPS):
        cluster.write(STORAGE_GROUP, "pump", rows(first), tags=["device"])
        cluster.write(
            STORAGE_GROUP, "fan", rows(first).select(["time", "device", "counter"]), tags=["device"]
        )
        cluster.delete(STORAGE_GROUP, "pump", time_from=DELETED[0], time_to=DELETED[1])
        world.close_memtables()
    cluster.write(STORAGE_GROUP, "pump", rows(2 * STEPS - 8), tags=["device"])
    cluster.delete(STORAGE_GROUP, "fan", tags={"device": "d1"}, time_from=0, time_to=DELETED[1])


def write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def make_directory(to: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="golden-"))
    try:
        with fleet_of(home / "fleet") as world:
            fill(world)
            for table in ("pump", "fan"):
                write_arrow(world.cluster.scan(STORAGE_GROUP, table), to / f"{table}.arrow")
            assert world.fleet.kill(NODE), f"{NODE} was not running"
        with tarfile.open(to / DIRECTORY, "w:xz") as archive:
            for part in sorted((home / "fleet" / NODE).iterdir()):
                if part.name not in LEFT_OUT:
                    archive.add(part, part.name)
    finally:
        shutil.rmtree(home)


def make_wheel(to: Path) -> None:
    found = wheelhouse.software()
    code = tuple((name, text) for name, text in found.code if not name.startswith("nodeagent/testing/"))
    (to / WHEEL).write_bytes(wheelhouse._wheel(msgspec.structs.replace(found, code=code)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compat.golden", description=__doc__)
    parser.add_argument("version", help="three numbers with dots")
    version = parser.parse_args().version
    to = HERE / version
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        parser.error(f"{version}: not three numbers with dots")
    if to.exists():
        parser.error(f"{to} is there already: a release is never changed")
    to.mkdir()
    try:
        for name in formats.FORMATS:
            (to / f"{name}.json").write_bytes(msgspec.json.encode(golden(name)) + b"\n")
        make_directory(to)
        make_wheel(to)
    except BaseException:
        shutil.rmtree(to)
        raise
    print(f"{to}: {sum(p.stat().st_size for p in to.iterdir()):,} bytes in {len(list(to.iterdir()))} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())

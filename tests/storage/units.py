"""Units, jobs and storages for tests."""

import datetime
import math
import random
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa

from nodeagent.model.disk import Disk
from nodeagent.model.files import CloseSpec, FileMeta, ScanSpec, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CloseFiles, CloseUnit, FilesClosed, MemBatch
from nodeagent.model.schema import Column, TableSchema
from nodeagent.storage.arrow_format import ArrowFormat
from nodeagent.storage.engine import InlineEngine
from nodeagent.storage.executor import Storage
from nodeagent.table.arrow import arrow_schema, encode

GROUP = "node1.1"
KEY = PartitionKey("sg", 7, 0)

EVERY_TYPE = TableSchema(
    "sg",
    "every_type",
    1,
    (
        Column("site", "STRING", True),
        Column("dev", "STRING", True),
        Column("bo", "BOOLEAN", False),
        Column("i4", "INT32", False),
        Column("i8", "INT64", False),
        Column("f4", "FLOAT", False),
        Column("f8", "DOUBLE", False),
        Column("te", "TEXT", False),
        Column("st", "STRING", False),
        Column("ts", "TIMESTAMP", False),
        Column("da", "DATE", False),
        Column("bl", "BLOB", False),
        Column("none", "DOUBLE", False),
    ),
)

SIMPLE = TableSchema("sg", "t", 1, (Column("dev", "STRING", True), Column("v", "DOUBLE", False)))


def every_type_rows() -> pa.Table:
    """Odd values of every type, null and empty tags; one column contains only nulls."""
    values: dict[str, list[object]] = {
        "time": [1, 2, 3, -5, 1 << 62],
        "site": [None, None, "", "\u00e9", "x" * 3000],
        "dev": [None, "", None, "q", "\U0001f600"],
        "bo": [True, None, False, True, False],
        "i4": [1, None, -(2**31), 2**31 - 1, 0],
        "i8": [1, None, -(2**63), 2**63 - 1, 0],
        "f4": [1.5, None, math.nan, math.inf, -0.0],
        "f8": [-0.0, None, math.nan, -math.inf, 5e-324],
        "te": ["", None, "a\0b", "\U0001f600", "y" * 70_000],
        "st": ["", None, "a\0b", "null", "z"],
        "ts": [1, None, -(2**62), 2**62, 0],
        "da": [
            *(datetime.date(2020, 2, 29), None, datetime.date(1000, 1, 1), datetime.date(9999, 12, 31)),
            None,
        ],
        "bl": [b"", None, b"\0\xff", b"x", b"y"],
        "none": [None] * 5,
    }
    return table(values, EVERY_TYPE)


def table(values: Mapping[str, Sequence[object]], schema: TableSchema = SIMPLE) -> pa.Table:
    shape = arrow_schema(schema)
    return pa.table({f.name: pa.array(values[f.name], f.type) for f in shape}, schema=shape)


def rows(n: int, devices: int = 3, seed: int = 1) -> pa.Table:
    rng = random.Random(seed)
    devs = [f"d{i % devices}" for i in range(n)]
    return table({"time": list(range(n)), "dev": devs, "v": [rng.random() for _ in range(n)]})


def unit(
    name: str,
    *batches: tuple[int, pa.Table],
    schema: TableSchema = SIMPLE,
    tombstones: tuple[Tombstone, ...] = (),
    slot: int = 5,
) -> CloseUnit:
    spec = CloseSpec(name, slot, KEY, (100,), schema)
    return CloseUnit(spec, tuple(MemBatch((i,), encode(t)) for i, t in batches), tombstones)


def room(disk: Disk) -> Storage:
    """A storage as the simulator creates it."""
    storage = Storage(disk, InlineEngine(disk, ArrowFormat()))
    storage.prepare()
    return storage


def close(storage: Storage, *units: CloseUnit, group: str = GROUP) -> list[FileMeta]:
    result = storage.run(CloseFiles(group, units))
    assert isinstance(result, FilesClosed), result
    return [m for m in result.files if m is not None]


def path_of(meta: FileMeta, group: str = GROUP) -> str:
    return f"groups/{group}/slots/{meta.slot:05d}/{meta.name}"


def spec(schema: TableSchema = SIMPLE, **changes: object) -> ScanSpec:
    return msgspec.structs.replace(ScanSpec(schema), **changes)

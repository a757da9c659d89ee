"""`python -m tests.cluster.forge DATA GROUP FILE FIELD`: change one value of a stored TsFile and
update all metadata to match: hash, footer, logical checksum, manifest entry.

It is a separate process, because the native reader and writer must not be loaded in a process that forks.
Prints the row's time, the tags and both values as JSON.
"""

import json
import sys
import tempfile
from pathlib import Path

import msgspec
import pyarrow as pa

from nodeagent.data.checkpoint import decode_checkpoint, encode_checkpoint
from nodeagent.host.saved import Saved
from nodeagent.model.files import CloseSpec, ScanSpec
from nodeagent.model.jobs import CloseUnit, MemBatch
from nodeagent.runtime.disk import RealDisk
from nodeagent.storage import layout
from nodeagent.storage.checkpoint import load_checkpoint, save_checkpoint
from nodeagent.storage.format import close_unit
from nodeagent.storage.tsfile_format import TsFileFormat
from nodeagent.table.arrow import TIME, encode, one_batch


def forge(data: Path, group: str, name: str, field: str) -> dict[str, object]:
    """Add 1000 to the first value of `field`; return what `main` prints."""
    disk = RealDisk(data)
    payload = load_checkpoint(disk, group)
    assert payload is not None
    saved = msgspec.msgpack.decode(payload, type=Saved)
    state = decode_checkpoint(saved.state)
    meta = next(f for f in state.files if f.name == name)
    where = (meta.partition.storage_group, meta.table)
    schema = next(s for s in state.schemas if (s.storage_group, s.table) == where)
    path = layout.file_path(group, meta.slot, meta.name)
    with tempfile.TemporaryDirectory() as scratch:
        tsfile = TsFileFormat(scratch)
        rows = tsfile.decode(disk.read(path), ScanSpec(schema))
        values = rows.column(field).to_pylist()
        at = next(i for i, v in enumerate(values) if v is not None)
        before, values[at] = values[at], values[at] + 1000.0
        changed = rows.set_column(rows.column_names.index(field), field, pa.array(values, pa.float64()))
        spec = CloseSpec(meta.name, meta.slot, meta.partition, meta.order, schema)
        closed = close_unit(CloseUnit(spec, (MemBatch((1,), encode(one_batch(changed))),)), tsfile)
    assert closed is not None and closed.meta.rows == meta.rows and closed.meta.xxh3 != meta.xxh3
    disk.write_atomic(path, closed.content)
    state.files = [closed.meta if f.name == name else f for f in state.files]
    whole = msgspec.structs.replace(saved, state=encode_checkpoint(state))
    save_checkpoint(disk, group, msgspec.msgpack.encode(whole))
    return {
        "time_ms": rows.column(TIME)[at].as_py(),
        "tags": [rows.column(t)[at].as_py() for t in schema.tags],
        "before": before,
        "after": values[at],
    }


if __name__ == "__main__":
    print(json.dumps(forge(Path(sys.argv[1]), *sys.argv[2:5])))

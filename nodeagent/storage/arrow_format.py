"""Arrow IPC files, uncompressed: for rows that cannot be stored in a TsFile (`data.closing`), and for all
rows in the simulator. Deterministic, in-process, never crashes."""

from collections.abc import Mapping

import pyarrow as pa

from nodeagent.model.errors import FileCorrupt
from nodeagent.model.files import CloseSpec, ScanSpec
from nodeagent.table.arrow import TIME, one_batch


class ArrowFormat:
    """`storage.format.FileFormat`; the properties are the file's schema metadata."""

    def encode(self, table: pa.Table, spec: CloseSpec, properties: Mapping[str, bytes]) -> bytes:
        assert table.num_rows > 0, "a file has rows"
        sink = pa.BufferOutputStream()
        batch = one_batch(table).replace_schema_metadata(dict(sorted(properties.items())))
        with pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue())

    def decode(self, content: bytes, spec: ScanSpec) -> pa.Table:
        table = _read(content)
        wanted = {TIME, *spec.schema.tags, *(spec.schema.fields if spec.fields is None else spec.fields)}
        return table.select([name for name in table.column_names if name in wanted])

    def properties(self, content: bytes) -> dict[str, bytes]:
        return {key.decode(): value for key, value in (_read(content).schema.metadata or {}).items()}


def _read(content: bytes) -> pa.Table:
    try:
        with pa.ipc.open_file(pa.py_buffer(content)) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise FileCorrupt(f"Arrow reader: {error}") from error

"""An import: the file's columns, the table they go to, and the file's rows as blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.errors import InputProblem, UsageProblem
from iotctl.rows.binary_rows import BinaryFile
from iotctl.rows.blocks import BAD_ROWS_MAX, Block
from iotctl.rows.csv_rows import ARROW as CSV_TYPES
from iotctl.rows.csv_rows import infer_types, read_csv
from iotctl.rows.tables import CSV, PARQUET, format_of
from iotctl.rows.times import TimeRule
from nodeagent.model.errors import InvalidInput, SchemaMismatch
from nodeagent.model.limits import WRITE_BYTES_MAX
from nodeagent.model.schema import TYPES, TableSchema
from nodeagent.table.arrow import ARROW_TYPES, encode, infer_schema, normalise


class ImportRequest(msgspec.Struct, frozen=True):
    """`time` names the time column, `types` gives column types by name (as in the file).

    `last_wins`: of different rows with the same time and tags, the last is kept.
    """

    file: Path
    storage_group: str
    table: str
    time: str
    tags: tuple[str, ...]
    types: dict[str, str]
    skip_bad: bool
    last_wins: bool = False
    times: TimeRule = TimeRule()


def parse_types(given: Sequence[str]) -> dict[str, str]:
    """Parse `col=DOUBLE` words into a mapping. Raises `UsageProblem`."""
    types: dict[str, str] = {}
    for word in given:
        name, _, kind = word.partition("=")
        if not name or kind.upper() not in TYPES:
            raise UsageProblem(f"--type {word!r} is not COLUMN=TYPE", next=f"use one of {', '.join(TYPES)}")
        if types.setdefault(name, kind.upper()) != kind.upper():
            raise UsageProblem(f"--type: {name} is given two types", next="omit one of them")
    return types


@dataclass(slots=True)
class Import:
    """One file and the table it goes to; `schema` is the table after the import."""

    request: ImportRequest
    types: dict[str, str]
    schema: TableSchema
    known: TableSchema | None
    coded: list[str]
    binary: BinaryFile | None
    version: tuple[int, ...]
    """The file's `file_version` when it was first opened."""

    def blocks(self) -> Iterator[Block]:
        """The rows that the table accepts, and the bad rows.

        Raises:
            InputProblem: the file cannot be read, or has changed since it was first opened.
        """
        r = self.request
        source = (
            read_csv(r.file, self.types, r.time, r.times)
            if self.binary is None
            else self.binary.blocks(self.types, r.time, r.times)
        )
        try:
            for block in source:
                if block.rows.num_rows:
                    self._fit(block)
                self._check_same()
                yield block
            self._check_same()
        except OSError as error:
            raise InputProblem("the file cannot be read", why=str(error), where=str(r.file)) from None

    def _check_same(self) -> None:
        """Check that the rows read are those that were checked. Raises `InputProblem` or `OSError`."""
        if file_version(self.request.file) != self.version:
            raise InputProblem(
                "the file was changed while it was read",
                next="repeat the import once the file is complete",
                where=str(self.request.file),
            )

    def _fit(self, block: Block) -> None:
        """Leave out the rows that a node would refuse, by the node's own rules."""
        before = block.bad_rows
        while True:
            try:
                rows = normalise(block.rows, self.schema)
                _check_row_bytes(rows)
                return
            except InvalidInput as error:
                row = error.details.get("row")
                if not isinstance(row, int) or block.bad_rows - before > BAD_ROWS_MAX:
                    first, last = int(block.lines[0]), int(block.lines[-1])
                    raise InputProblem(
                        error.what,
                        why=f"between {self.place(first)} and {self.place(last)}",
                        next=f"nothing was written; {error.next_step or 'correct the file'}",
                        where=str(self.request.file),
                    ) from None
                block.drop(
                    row, error.what.replace(f" in row {row}", "").replace(f"row {row} is", "the row is")
                )

    def place(self, line: int) -> str:
        return f"{self.request.file}:{line}" if self.binary is None else f"{self.request.file} row {line}"

    @property
    def tags(self) -> list[str]:
        """Tags of the table for which the file has a column."""
        have = {name.lower() for name in self.types}
        return [t for t in self.schema.tags if t in have]

    def size(self) -> tuple[int, str]:
        """(total, unit) of a block's `at`."""
        return (self.version[2], "B") if self.binary is None else (self.binary.rows, "")


def open_import(request: ImportRequest, schemas: Sequence[TableSchema]) -> Import:
    """Read the file's columns and decide their types.

    Raises:
        UsageProblem, InputProblem: options or columns do not fit the file or the table.
        InvalidInput, InvalidName: a name or type is not allowed in a table.
    """
    _check_file(request.file)
    version = file_version(request.file)
    for name in request.tags:
        if request.types.get(name, "STRING") != "STRING":
            raise UsageProblem(
                f"--type {name}={request.types[name]}: a tag is a STRING", next="omit this --type"
            )
    wanted = request.storage_group.lower(), request.table.lower()
    known = next((s for s in schemas if (s.storage_group, s.table) == wanted), None)
    late = [t for t in request.tags if known is not None and t.lower() not in {c.name for c in known.columns}]
    if late:
        raise InputProblem(
            f"tag {late[0]} cannot be added to an existing table",
            why=f"{'.'.join(wanted)} has the tags: {', '.join(known.tags if known else ()) or 'none'}",
            next="nothing was written; omit the --tag, or import into another table",
            where=str(request.file),
        )
    given = {**request.types, **dict.fromkeys(request.tags, "STRING")}
    of_table = {c.name: c.type for c in known.columns} if known else {}
    if format_of(request.file) == CSV:
        inferred = infer_types(request.file, given, request.time)
        types = {n: given.get(n) or of_table.get(n.lower()) or t for n, t in inferred.types.items()}
        kinds = {n: CSV_TYPES.get(t, ARROW_TYPES[t]) for n, t in types.items()}
        coded = [n for n in inferred.coded if types[n] == "STRING"]
        return Import(request, types, _schema(request, kinds, known), known, coded, None, version)
    binary = BinaryFile(request.file, parquet=format_of(request.file) == PARQUET)
    binary.check(request.time, (*request.tags, *request.types))
    own = {n: t for n, t in binary.kinds.items() if n != request.time}
    kinds = {n: ARROW_TYPES[given[n]] if n in given else kind for n, kind in own.items()}
    schema = _schema(request, kinds, known)
    by_name = {c.name: c.type for c in schema.columns}
    return Import(request, {n: by_name[n.lower()] for n in own}, schema, known, [], binary, version)


def _schema(request: ImportRequest, kinds: dict[str, pa.DataType], known: TableSchema | None) -> TableSchema:
    """The table after the import, checked against the columns' Arrow types."""
    source = pa.schema([("time", pa.int64()), *((n.lower(), kind) for n, kind in kinds.items())])
    tags = [t.lower() for t in request.tags]
    if known is not None:
        fields = [t for t in tags if t in known.fields]
        if fields:
            raise InputProblem(
                f"--tag {fields[0]}: the column is a field of {known.storage_group}.{known.table}",
                next="nothing was written; omit the --tag, or import into another table",
                where=str(request.file),
            )
        tags += [t for t in known.tags if t in source.names and t not in tags]
    try:
        schema = infer_schema(
            source, storage_group=request.storage_group, table=request.table, tags=tags, known=known
        )
    except InvalidInput as error:
        if "type" not in error.details:
            raise
        raise InputProblem(
            error.what,
            next=f"nothing was written; name a type: --type {error.details['column']}=DOUBLE, or remove the"
            " column from the file",
            where=str(request.file),
        ) from None
    if known is not None:
        have = {c.name for c in known.columns}
        added = tuple(c for c in schema.columns if c.name not in have)
        schema = msgspec.structs.replace(known, columns=known.columns + added)
    # Tags of any type become text.
    plain = pa.schema([pa.field(f.name, pa.string()) if f.name in tags else f for f in source])
    try:
        normalise(plain.empty_table(), schema)
    except SchemaMismatch as error:
        column = error.details.get("column")
        kind = next((c.type for c in schema.columns if c.name == column), "")
        raise InputProblem(
            error.what,
            next=f"nothing was written; to convert the column, add --type {column}={kind}",
            where=str(request.file),
        ) from None
    return schema


def _check_row_bytes(rows: pa.RecordBatch | pa.Table) -> None:
    """Raises `InvalidInput` for the first row that is too large for a log entry."""
    if rows.nbytes <= WRITE_BYTES_MAX // 2:
        return
    sizes = sum(
        pc.binary_length(column).fill_null(0).to_numpy().astype(np.int64)
        for column in rows.columns
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    )
    for row in np.flatnonzero(sizes > WRITE_BYTES_MAX // 2):
        size = len(encode(rows.slice(row, 1)))
        if size > WRITE_BYTES_MAX:
            what = f"row {row} is {size} bytes; the limit is {WRITE_BYTES_MAX}"
            raise InvalidInput(what, row=int(row))


def file_version(path: Path) -> tuple[int, ...]:
    """(device, inode, size in bytes, time of the last change in ns)"""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _check_file(path: Path) -> None:
    try:
        if path.is_file():
            return
    except OSError as error:
        raise InputProblem("the file cannot be read", why=error.strerror or "", where=str(path)) from None
    what = "is not a regular file and cannot be read twice" if path.exists() else "no such file"
    what = "is a directory, not a file" if path.is_dir() else what
    raise InputProblem(what, next="name a .csv, .parquet or .arrow file, or example:weather", where=str(path))

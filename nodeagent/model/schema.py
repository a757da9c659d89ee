"""Tables as Apache TsFile's table model has them: one time column, TAG columns, FIELD columns."""

import msgspec

TYPES = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE", "TEXT", "STRING", "TIMESTAMP", "DATE", "BLOB")


class Column(msgspec.Struct, array_like=True, frozen=True):
    """`type` is one of `TYPES`; a tag is always STRING. Names are lower case."""

    name: str
    type: str
    tag: bool


class TableSchema(msgspec.Struct, frozen=True):
    """One version of one table. Columns are only ever added; `version` grows with each change.

    Arrow form: `time: int64` (milliseconds), then the columns in this order.
    """

    storage_group: str
    table: str
    version: int
    columns: tuple[Column, ...]
    ttl_ms: int = 0
    """Rows older than this go; 0 keeps them for ever. No matter of `version`, which is about columns."""

    dropped: bool = False
    """Nothing is written to it and nobody is shown it. Its columns are kept: files with them may be there
    yet, and a table of this name made later has them again."""

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns if c.tag)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns if not c.tag)


Schemas = dict[tuple[str, str], TableSchema]
"""By storage group and table."""

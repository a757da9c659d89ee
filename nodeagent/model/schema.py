"""Tables in the table model of Apache TsFile: one time column, TAG columns and FIELD columns."""

import msgspec

TYPES = ("BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE", "TEXT", "STRING", "TIMESTAMP", "DATE", "BLOB")


class Column(msgspec.Struct, array_like=True, frozen=True):
    """`type` is one of `TYPES`; a tag is always STRING. Names are lower case."""

    name: str
    type: str
    tag: bool


class TableSchema(msgspec.Struct, frozen=True):
    """One version of one table. Columns are only added; `version`, from 1, grows with each change of columns.

    Arrow form: `time: int64` (milliseconds), then the columns in this order.
    """

    storage_group: str
    table: str
    version: int
    columns: tuple[Column, ...]
    ttl_ms: int = 0
    """Rows older than this are deleted; 0 retains them without limit. A change of the TTL leaves `version`
    unchanged."""

    dropped: bool = False
    """The table accepts no rows and no read shows it. Its columns are retained: files with them may still
    exist, and a table of the same name that is created later has them too."""

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns if c.tag)

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns if not c.tag)


Schemas = dict[tuple[str, str], TableSchema]
"""By storage group and table."""

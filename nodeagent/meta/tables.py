"""The tables of the cluster, each with its newest schema.

Columns are added, never changed or removed. A dropped table retains its columns: files with them may still
exist, and a table of the same name that is created later has them too.
"""

from typing import Protocol

import msgspec

from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.meta.schema_changes import SchemaChanges
from nodeagent.model.requests import Accepted, ErrorReply, Reply, SchemaInForce
from nodeagent.model.schema import Column, Schemas, TableSchema


class Kept(Protocol):
    """The fields of the image that this module changes."""

    schemas: list[TableSchema]


class Tables:
    def __init__(self, kept: Kept, audit: Audit) -> None:
        self.schemas: Schemas = {(s.storage_group, s.table): s for s in kept.schemas}
        self._kept = kept
        self._audit = audit
        self._changes: SchemaChanges | None = None
        """None until the first view: a state that is only validated needs none."""

    @property
    def changes(self) -> SchemaChanges:
        if self._changes is None:
            self._changes = SchemaChanges(self.schemas.values())
        return self._changes

    def put(self, p: c.PutSchema) -> Reply:
        key = (p.schema.storage_group, p.schema.table)
        known = self.schemas.get(key)
        merged = merge_schema(known, p.schema)
        if isinstance(merged, ErrorReply):
            return merged
        is_new = known is None or known.dropped
        if p.ttl_ms is not None and p.ttl_ms != merged.ttl_ms and (is_new or not p.if_new):
            merged = msgspec.structs.replace(merged, ttl_ms=p.ttl_ms)
            self._audit.note(p.now, "schema", f"TTL of {'.'.join(key)}: {p.ttl_ms or 'no'} ms")
        if merged is not known:
            self._set(merged)
        return SchemaInForce(merged)

    def drop(self, index: int, d: c.DropTable) -> Reply:
        name = f"{d.storage_group}.{d.table}"
        known = self.schemas.get((d.storage_group, d.table))
        if known is None:
            what = f"no table was dropped: there is no table {name}"
            return ErrorReply("not_found", what, "iotctl data schema")
        if known.version != d.version:
            what = (
                f"table {name} was not dropped: it has changed since, from version {d.version} "
                f"to {known.version}"
            )
            return ErrorReply("refused", what, "check the table (`iotctl data schema`), then drop it again")
        if not known.dropped:
            self._set(msgspec.structs.replace(known, dropped=True, ttl_ms=0))
            self._audit.note(d.now, "schema", f"table {name} dropped")
        return Accepted(index)

    def _set(self, schema: TableSchema) -> None:
        key = (schema.storage_group, schema.table)
        if self._changes is not None:
            self._changes.changed(self.schemas.get(key), schema)
        self.schemas[key] = schema
        self._kept.schemas = list(self.schemas.values())


def _kind(column: Column) -> str:
    return f"{'tag ' if column.tag else ''}{column.type}"


def merge_schema(known: TableSchema | None, wanted: TableSchema) -> TableSchema | ErrorReply:
    """The table with the columns of `wanted` added: `known` itself if there is nothing new. A table that was
    dropped exists again, with the columns it had."""
    if known is None:
        return msgspec.structs.replace(wanted, version=1, ttl_ms=0)
    columns = {c.name: c for c in known.columns}
    place = f"table {known.storage_group}.{known.table} was not changed"
    was = " (the table was dropped; its columns are retained)" if known.dropped else ""
    fresh = []
    for column in wanted.columns:
        have = columns.get(column.name)
        if have is None and column.tag:
            return ErrorReply(
                "schema_mismatch",
                f"{place}: tag {column.name} cannot be added to an existing table{was}",
                "add it as a field, or create a new table",
            )
        if have is None:
            fresh.append(column)
        elif have != column:
            return ErrorReply(
                "schema_mismatch",
                f"{place}: column {column.name} is {_kind(have)}, not {_kind(column)}{was}",
                "use the column's type, or another name for the column",
            )
    if not fresh and not known.dropped:
        return known
    return msgspec.structs.replace(
        known, version=known.version + 1, columns=(*known.columns, *fresh), dropped=False
    )

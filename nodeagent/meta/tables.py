"""The tables of the cluster, each with its newest schema.

Columns are added, never changed or taken away. A table that was dropped keeps its columns: files with them
may be there yet, and one of its name that is made later has them again.
"""

from typing import Protocol

import msgspec

from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.model.requests import Accepted, ErrorReply, Reply, SchemaInForce
from nodeagent.model.schema import Schemas, TableSchema


class Kept(Protocol):
    """The part of the image that is changed here."""

    schemas: list[TableSchema]


class Tables:
    def __init__(self, kept: Kept, audit: Audit) -> None:
        self.schemas: Schemas = {(s.storage_group, s.table): s for s in kept.schemas}
        self._kept = kept
        self._audit = audit

    def put(self, p: c.PutSchema) -> Reply:
        key = (p.schema.storage_group, p.schema.table)
        known = self.schemas.get(key)
        merged = merge_schema(known, p.schema)
        if isinstance(merged, ErrorReply):
            return merged
        if p.ttl_ms is not None and p.ttl_ms != merged.ttl_ms:
            merged = msgspec.structs.replace(merged, ttl_ms=p.ttl_ms)
            self._audit.note(p.now, "schema", f"TTL of {'.'.join(key)}: {p.ttl_ms or 'no'} ms")
        if merged is not known:
            self._set(merged)
        return SchemaInForce(merged)

    def drop(self, index: int, d: c.DropTable) -> Reply:
        name = f"{d.storage_group}.{d.table}"
        known = self.schemas.get((d.storage_group, d.table))
        if known is None:
            return ErrorReply("not_found", f"there is no table {name}", "iotctl data schema")
        if known.version != d.version:
            what = f"table {name} was changed meanwhile: version {known.version}, not {d.version}"
            return ErrorReply("refused", what, "look again: iotctl data schema")
        if not known.dropped:
            self._set(msgspec.structs.replace(known, dropped=True, ttl_ms=0))
            self._audit.note(d.now, "schema", f"table {name} dropped")
        return Accepted(index)

    def _set(self, schema: TableSchema) -> None:
        self.schemas[schema.storage_group, schema.table] = schema
        self._kept.schemas = list(self.schemas.values())


def merge_schema(known: TableSchema | None, wanted: TableSchema) -> TableSchema | ErrorReply:
    """The table with `wanted`'s columns added: `known` itself when there is nothing new. One that was dropped
    is there again, with the columns it had."""
    if known is None:
        return msgspec.structs.replace(wanted, version=1, ttl_ms=0)
    columns = {c.name: c for c in known.columns}
    was = " (it was dropped; its columns are kept)" if known.dropped else ""
    fresh = []
    for column in wanted.columns:
        have = columns.get(column.name)
        if have is None and column.tag:
            return ErrorReply(
                "schema_mismatch",
                f"table {known.storage_group}.{known.table}: tag {column.name} cannot be added later{was}",
            )
        if have is None:
            fresh.append(column)
        elif have != column:
            return ErrorReply(
                "schema_mismatch",
                f"table {known.storage_group}.{known.table}: column {column.name} is "
                f"{'tag ' if have.tag else ''}{have.type}, not {'tag ' if column.tag else ''}{column.type}"
                f"{was}",
            )
    if not fresh and not known.dropped:
        return known
    return msgspec.structs.replace(
        known, version=known.version + 1, columns=(*known.columns, *fresh), dropped=False
    )

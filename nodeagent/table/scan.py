"""Validate a scan against its table before a file is opened for it."""

from collections.abc import Sequence

from nodeagent.model.errors import InvalidInput
from nodeagent.model.files import ScanSpec
from nodeagent.model.schema import TYPES, Column, TableSchema
from nodeagent.table.arrow import TIME


def check_scan(spec: ScanSpec) -> None:
    """Check that the tags and fields of a scan match its schema.

    Raises:
        InvalidInput: the table does not have a tag or field (the error lists those it has), or the schema
            itself is invalid.
    """
    schema = spec.schema
    names = {TIME, *(c.name for c in schema.columns)}
    if len(names) <= len(schema.columns) or any(c.type not in TYPES for c in schema.columns):
        raise InvalidInput(
            f"invalid schema: column names must be unique and not {TIME!r}, types are {', '.join(TYPES)}"
        )
    for name, value in spec.tags:
        if name not in schema.tags:
            raise _no_column(schema, "tag", name, schema.tags)
        if value is not None and not isinstance(value, str):
            raise InvalidInput(f"tag {name!r} is text and cannot equal {value!r}")
    for name in spec.fields or ():
        if name not in schema.fields:
            raise _no_column(schema, "field", name, schema.fields)


def check_same_columns(asked: TableSchema, known: TableSchema) -> None:
    """Check a reader's schema: it may be an older or newer version, but may not redefine a column.

    Raises:
        InvalidInput: a column has another type or role in the known schema.
    """
    here = {c.name: c for c in known.columns}
    for column in asked.columns:
        if here.get(column.name, column) != column:
            raise InvalidInput(
                f"column {column.name!r} of {known.storage_group}.{known.table} is"
                f" {_kind(here[column.name])}, not {_kind(column)}",
                next_step="iotctl data schema",
            )


def _kind(column: Column) -> str:
    return f"a {column.type} {'tag' if column.tag else 'field'}"


def _no_column(schema: TableSchema, kind: str, name: str, there: Sequence[str]) -> InvalidInput:
    place = f"{schema.storage_group}.{schema.table}"
    if name == TIME:
        why = "it is the time column; use a time range (--from, --to)"
    elif name in schema.tags:
        why = "it is a tag; tags are always read, and --where filters rows by them"
    elif name in schema.fields:
        why = "it is a field, and rows can be filtered only by tags"
    else:
        why = "there is no such column"
    return InvalidInput(
        f"no {kind} {name!r} in {place}: {why}; the {kind}s are: {', '.join(there) or 'none'}",
        next_step=f"iotctl data schema --storage-group {schema.storage_group} --table {schema.table}",
    )

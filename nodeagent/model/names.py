"""Which names storage groups, tables and columns may have, and which schemas can become files.

The client checks before it sends, the leader before it logs, and the leader of the meta group before it
creates a table. Names are stored in lower case, as in TsFile; code that takes names from operators lowers
them first. The limits were measured with the TsFile library (`tests/storage/test_accepted.py`): it ends a
name at a NUL, accepts no empty name, and cannot read back a field whose name has 1 500 bytes.

A table created by an earlier release may have a name that is refused today. It is served as long as its rows
can become files: only new names are checked in full (`check_schema`), other names by `check_fileable`.
"""

from collections.abc import Iterable
from functools import lru_cache

from nodeagent.model.errors import InvalidInput, InvalidName
from nodeagent.model.limits import COLUMNS_MAX, NAME_BYTES_MAX
from nodeagent.model.schema import TYPES, TableSchema

TIME = "time"
"""Name of the time column of every table; no other column may have it."""

_WORD = "letters and digits of any script, '_' and '-', in parts joined by single dots"
_COLUMN = "printable text without blanks at its ends, and not beginning with '$', '.' or '['"
_RESERVED = ("$", ".", "[")
"""`$` begins internal columns; Arrow reads the other two as a path to a nested field."""


def check_storage_group(name: str) -> str:
    """Return `name` if a storage group may have it (`root.plant`).

    Raises:
        InvalidName: it may not; the error states the rule.
    """
    return _check_path("storage group", name)


def check_table(name: str) -> str:
    """Like `check_storage_group`, for a table."""
    return _check_path("table", name)


def check_column(name: str) -> str:
    """Like `check_storage_group`, for a tag or field."""
    _check_text("column", name, _COLUMN)
    if name == TIME:
        raise InvalidName(
            f"a column cannot be named {TIME!r}: that is the time column",
            next_step="give the column another name",
        )
    if not name.isprintable() or name != name.strip() or name.startswith(_RESERVED):
        raise _refused("column", name, _COLUMN)
    return name


def check_columns(names: Iterable[str]) -> None:
    """Check every name, and that no two names are equal to a reader that ignores case.

    Raises:
        InvalidName: a name or a pair of names is not allowed.
    """
    for name in (names := tuple(names)):
        check_column(name)
    check_apart(names)


def check_apart(names: Iterable[str]) -> None:
    """Check that no two names are equal when case is ignored, as Spark compares them: in the lower case
    of their upper case, in which `ı` and `i` are equal.

    Raises:
        InvalidName: two names are equal when case is ignored.
    """
    known: dict[str, str] = {}
    for name in names:
        twin = known.setdefault(name.upper().casefold(), name)
        if twin is not name:
            raise InvalidName(
                f"columns {twin!r} and {name!r} are equal if case is ignored, as in Spark",
                next_step="rename either of them",
            )


def check_schema(schema: TableSchema, known: TableSchema | None = None) -> None:
    """Check that the table may be created, or `known` be extended to it.

    Raises:
        InvalidName: a name is not in `known` and not allowed.
        InvalidInput: a type does not exist, a tag is not STRING, a column is given twice, or there are no
            columns or too many.
    """
    if known is None:
        check_storage_group(schema.storage_group)
        check_table(schema.table)
    place = f"table {schema.table}"
    before = {c.name for c in known.columns} if known is not None else set[str]()
    names = [*before, *(c.name for c in schema.columns if c.name not in before)]
    if not 0 < len(names) <= COLUMNS_MAX:
        raise InvalidInput(
            f"{place} would have {len(names)} columns; 1 to {COLUMNS_MAX} are allowed",
            next_step="use several tables" if names else "give at least one column",
        )
    for column in schema.columns:
        if column.type not in TYPES:
            types = ", ".join(TYPES)
            raise InvalidInput(
                f"{place}: column {column.name!r} has the type {column.type!r}, which does not exist",
                next_step=f"use one of the types {types}",
            )
        if column.tag and column.type != "STRING":
            raise InvalidInput(
                f"{place}: tag {column.name!r} is {column.type}; a tag must be STRING",
                next_step="make it a STRING, or a field",
            )
    for name in names[len(before) :]:
        check_column(name)
    if len({c.name for c in schema.columns}) < len(schema.columns):
        raise InvalidInput(f"{place}: a column is given twice", next_step="give each column once")
    if len(names) > len(before):
        check_apart(names)


@lru_cache(maxsize=1024)
def check_fileable(schema: TableSchema) -> None:
    """Check that rows of the table can become a TsFile, whichever release created the table.

    Raises:
        InvalidName: they cannot; the error names the table or the column.
    """
    where = f"rows of {schema.storage_group}.{schema.table} cannot be stored"
    next_step = "write to a new table with allowed names and at least one column: iotctl data write --create"
    if not schema.table or "\0" in schema.table or not schema.columns:
        raise InvalidName(f"{where}: the table lacks a valid name or a column", next_step=next_step)
    for column in schema.columns:
        size = 0 if column.tag else len(column.name.encode())
        if not column.name or "\0" in column.name or size > _FIELD_BYTES_MAX:
            what = f"{where}: no TsFile can have a column named {_shown(column.name)}"
            raise InvalidName(what, next_step=next_step)


_FIELD_BYTES_MAX = 1000
"""Bytes of a field's name that can be read back from a TsFile; 1 500 bytes cannot. Release 0.1.0 had no
bound."""


def _check_path(kind: str, name: str) -> str:
    _check_text(kind, name, _WORD)
    for part in name.split("."):
        if not part or not all(c.isalnum() or c in "_-" for c in part):
            raise _refused(kind, name, _WORD)
    return name


def _check_text(kind: str, name: str, rule: str) -> None:
    if not name:
        raise InvalidName(f"a {kind} without a name", next_step=f"name it: {rule}")
    size = len(name.encode(errors="surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise InvalidName(
            f"{kind} {_shown(name)} is {size} bytes long; at most {NAME_BYTES_MAX} are allowed",
            next_step="use a shorter name",
        )
    if name != name.lower():
        raise InvalidName(f"{kind} {_shown(name)} is not in lower case", next_step=f"use {name.lower()!r}")


def _refused(kind: str, name: str, rule: str) -> InvalidName:
    return InvalidName(f"{kind} {_shown(name)} is not allowed", next_step=f"the name of a {kind} is {rule}")


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 80 else f"{name[:77]!r}..."

"""The entries of a log in readable form, for `nodeagent log dump --entries`.

Bytes that this release cannot decode are reported with the reason; the dump continues after them.
"""

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any

import msgspec

from nodeagent.data import commands as data_commands
from nodeagent.log.check import Line
from nodeagent.log.record import Copy
from nodeagent.meta import commands as meta_commands
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.entries import Append, Entry, EntryKind
from nodeagent.model.ids import META, GroupId
from nodeagent.raft.membership import decode_config


def entry_lines(op: Append | Copy) -> Iterator[Line]:
    """One line per entry of the operation, in order.

    Keys: group, index, term, kind (`noop`, `config`, `command` or `unknown`), bytes, valid. A config has
    `config`, a command has `command` (its name) and `fields`; an entry that cannot be decoded has `error`.
    Binary values are `{"bytes": size}`.
    """
    for index, entry in enumerate(op.entries, op.first):
        line: Line = {
            "group": op.group,
            "index": index,
            "term": entry.term,
            "kind": _NAMES.get(entry.kind, "unknown"),
            "bytes": len(entry.data),
            "valid": True,
        }
        try:
            line.update(_content(op.group, entry))
        except UNDECODABLE as error:
            line.update(valid=False, error=str(error))
        yield line


_NAMES = {int(kind): kind.name.lower() for kind in EntryKind}


def _content(group: GroupId, entry: Entry) -> Line:
    if entry.kind == EntryKind.CONFIG:
        return {"config": readable(decode_config(entry.data))}
    if entry.kind != EntryKind.COMMAND:
        return {}
    command = (meta_commands if group == META else data_commands).decode(entry.data)
    return {"command": type(command).__name__, "fields": readable(command)}


def readable(value: Any) -> Any:
    """The value as JSON with the names of all fields, also of structs that are stored without them."""
    match value:
        case msgspec.Struct():
            return {name: readable(getattr(value, name)) for name in value.__struct_fields__}
        case Enum():
            return value.name
        case bytes() | memoryview():
            return {"bytes": len(value)}
        case Mapping():
            return {str(key): readable(item) for key, item in value.items()}
        case set() | frozenset():
            return [readable(item) for item in sorted(value)]
        case Collection() if not isinstance(value, str):
            return [readable(item) for item in value]
        case _:
            return value

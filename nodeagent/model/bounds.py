"""Ranges and sizes of what comes over the wire, checked where it is decoded.

Fields of structs that are only sent are declared with these types; the decoder refuses a value outside.
Structs that are stored too (a partition's key, an operator's options) keep their plain types, so that what
an earlier release stored is still read: `wire.codec` looks at those inside a request.

What a value means (whether a table may have that name, a slot exists) is checked where it is used.
"""

from typing import Annotated

from msgspec import Meta

from nodeagent.model.errors import InvalidInput
from nodeagent.model.limits import CHUNK_BYTES, NAME_BYTES_MAX, NODES_MAX, SLOTS_MAX, TEXT_CHARS_MAX

COUNT_MAX = 1 << 53
"""Log indexes, sequences, versions, numbers of bytes and milliseconds: a few may be added within 63 bits."""

TERM_MAX = 1 << 48
"""A term is durable and spreads: one absurd value would leave no room for an election, for good."""

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
SHARD_MAX = (1 << 16) - 1

Name = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
"""Of a node, group, table, column, operation, session, snapshot or file."""

Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
"""For people."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Rate = Annotated[int, Meta(ge=-1, le=COUNT_MAX)]
Time = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
"""Of a row, in milliseconds."""

Term = Annotated[int, Meta(ge=0, le=TERM_MAX)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Weight = Annotated[float, Meta(ge=0, le=1e9)]
Slot = Annotated[int, Meta(ge=0, lt=SLOTS_MAX)]
SlotEnd = Annotated[int, Meta(ge=0, le=SLOTS_MAX)]
Slots = Annotated[tuple[tuple[Slot, SlotEnd], ...], Meta(max_length=SLOTS_MAX)]
Nodes = Annotated[tuple[Name, ...], Meta(max_length=NODES_MAX)]
ChunkBytes = Annotated[int, Meta(ge=0, le=CHUNK_BYTES)]


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raises `InvalidInput`."""
    if not least <= value <= most:
        raise InvalidInput(f"{name} is {value}; {least} to {most} are allowed")

"""Ranges and sizes of values that come over the wire, checked when they are decoded.

In structs that are only sent, the decoder refuses a value of one of these types outside its range; a field of
a plain type has no bound. Structs that are stored too (a partition's key, an operator's options) have plain
types, so that what an earlier release stored can still be read: `wire.codec` checks those that a request
stores unchanged.

The meaning of a value (whether a table may have that name, whether a slot exists) is checked where it is
used.
"""

from typing import Annotated

from msgspec import Meta

from nodeagent.model.errors import InvalidInput
from nodeagent.model.limits import CHUNK_BYTES, NAME_BYTES_MAX, NODES_MAX, SLOTS_MAX, TEXT_CHARS_MAX

COUNT_MAX = 1 << 53
"""Limit of log indexes, sequences, versions, byte counts and milliseconds: sums of a few fit 63 bits."""

TERM_MAX = 1 << 48
"""A term is durable and spreads to all members: one absurd value would prevent every later election."""

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
SHARD_MAX = (1 << 16) - 1

Name = Annotated[str, Meta(max_length=NAME_BYTES_MAX)]
"""The name of a node, group, table, column, operation, session, snapshot or file."""

Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
"""Text for operators."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Rate = Annotated[int, Meta(ge=-1, le=COUNT_MAX)]
"""Bytes per second; 0 lets the agents choose, -1 leaves the rate unchanged."""

Time = Annotated[int, Meta(ge=INT64_MIN, le=INT64_MAX)]
"""The time of a row, in milliseconds since the epoch."""

Term = Annotated[int, Meta(ge=0, le=TERM_MAX)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Weight = Annotated[float, Meta(ge=0, le=1e9)]
"""A node's share of the slots, relative to the other nodes' weights."""
Slot = Annotated[int, Meta(ge=0, lt=SLOTS_MAX)]
SlotEnd = Annotated[int, Meta(ge=0, le=SLOTS_MAX)]
Slots = Annotated[tuple[tuple[Slot, SlotEnd], ...], Meta(max_length=SLOTS_MAX)]
Nodes = Annotated[tuple[Name, ...], Meta(max_length=NODES_MAX)]
Zones = Annotated[dict[Name, Name], Meta(max_length=NODES_MAX)]
"""Node -> its zone."""
ChunkBytes = Annotated[int, Meta(ge=0, le=CHUNK_BYTES)]


def check_range(name: str, value: int, least: int, most: int) -> None:
    """Raise `InvalidInput` unless `value` is in [least, most]."""
    if not least <= value <= most:
        raise InvalidInput(
            f"{name} is {value}; {least} to {most} are allowed", next_step=f"use a {name} in that range"
        )

"""Names of nodes, groups and partitions.

A node id is a short lower-case name (`node1`). A group id is `meta` or `<owner>.<created>`: *owner* is the
node that owns the data group and *created* the meta log index of the entry that created it, so that an id is
never reused.
"""

import re
from typing import Self

import msgspec

from nodeagent.model.errors import InvalidName

NodeId = str
GroupId = str

META: GroupId = "meta"

_TIME_OFFSET = 1 << 40
_SHARD_BITS = 20
"""Bits of a partition's position: a time partition fits 41 bits with its sign, a shard 20."""

_NODE = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def check_node_id(name: str) -> NodeId:
    """Return `name` if a node may have it, else raise `InvalidName`."""
    if not _NODE.fullmatch(name):
        raise InvalidName(
            f"node name {name!r} is not allowed",
            next_step="use 1-63 characters: a-z, 0-9, '-' or '_', starting with a letter or digit",
        )
    return name


def data_group(owner: NodeId, created: int) -> GroupId:
    """Id of the data group that `owner` has owned since meta log index `created`."""
    return f"{owner}.{created}"


def is_group(name: str) -> bool:
    """Whether this may be the id of a group."""
    owner, _, created = name.partition(".")
    return name == META or (created.isdecimal() and created.isascii() and _NODE.fullmatch(owner) is not None)


def owner_of(group: GroupId) -> NodeId:
    """The group owner: the node that a data group is named after."""
    return group.partition(".")[0]


class PartitionKey(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """One (storage group, time partition, shard): the unit that is closed into TsFiles."""

    storage_group: str
    time_partition: int
    shard: int

    @property
    def position(self) -> int:
        """A positive number of at most 63 bits that orders the partitions of one storage group."""
        return (((self.time_partition + _TIME_OFFSET) << _SHARD_BITS) | self.shard) + 1

    @classmethod
    def at(cls, storage_group: str, position: int) -> Self:
        """The partition of the storage group at that `position`."""
        time, shard = divmod(position - 1, 1 << _SHARD_BITS)
        return cls(storage_group, time - _TIME_OFFSET, shard)


class Owner(msgspec.Struct, frozen=True):
    """Who wrote stored data: a node, the incarnation of its directory, and the number of the agent's start,
    counted from 1. "" and 0 if it is not known."""

    node: NodeId = ""
    incarnation: str = ""
    start: int = 0

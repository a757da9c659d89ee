"""Raft log entries, hard state and membership.

Indexes start at 1; index 0 with term 0 is "before everything". An `Entry` does not carry its index:
a run of entries is always given with the index of its first.
"""

from enum import IntEnum

import msgspec

from nodeagent.model.ids import GroupId, NodeId


class EntryKind(IntEnum):
    NOOP = 0
    CONFIG = 1
    COMMAND = 2


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One log entry; `data` stays encoded until it is applied."""

    term: int
    kind: int
    data: bytes


class HardState(msgspec.Struct, array_like=True, frozen=True):
    """What must be durable before any reply that promises it. `vote` is "" for none."""

    term: int = 0
    vote: NodeId = ""
    held: tuple[int, int] = (0, 0)
    """(term, index): the node votes for no candidate whose log ends before. It is where its log ended when it
    left the group, the greatest if it left more than once, and the leader's term and commit index when it
    began with an empty log; (0, 0) for a founder that never left."""


class Config(msgspec.Struct, frozen=True):
    """Members of one group. A member is in exactly one of the two tuples; order is ring order.

    `operation` names the change that made it ("" for the first one).
    """

    voters: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    operation: str = ""

    @property
    def members(self) -> tuple[NodeId, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1


class Base(msgspec.Struct, array_like=True, frozen=True):
    """Where a group's log begins: everything up to `index` is in the checkpoint.

    `config` is the membership as of `index`.
    """

    index: int
    term: int
    config: Config
    checkpoint: int = 0
    """A group's checkpoints on a node are counted. In a checkpoint: its number; 0 where nobody counted it,
    because it was made for a peer or by an earlier release. In the log: the least number that the log goes on
    from, as files were removed that older ones need; 0 for any."""


# What the log is asked to make durable. One list of these is one atomic batch.


class Append(msgspec.Struct, tag="append", frozen=True):
    """Entries from `first`; whatever the log holds from `first` on is replaced."""

    group: GroupId
    first: int
    entries: list[Entry]


class SetHard(msgspec.Struct, tag="hard", frozen=True):
    group: GroupId
    hard: HardState


class Rebase(msgspec.Struct, tag="rebase", frozen=True):
    """The log of `group` now begins at `base`.

    Entries up to `base.index` are forgotten. `keep_suffix` tells whether the entries after it stay
    (a purge) or go (a snapshot was installed that they do not continue).
    """

    group: GroupId
    base: Base
    keep_suffix: bool


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """The replica is gone; its records may be reclaimed.

    `memory` stays: the node may be made a member again, and must not vote against what it promised. None when
    the group itself is gone.
    """

    group: GroupId
    memory: HardState | None = None


LogOp = Append | SetHard | Rebase | Forget

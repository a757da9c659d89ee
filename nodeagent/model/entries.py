"""Raft log entries, hard state and membership.

Indexes start at 1; index 0 with term 0 is "before everything". An `Entry` does not carry its index:
a run of entries is always given with the index of its first.
"""

from enum import IntEnum

import msgspec

from nodeagent.model.ids import GroupId, NodeId


class EntryKind(IntEnum):
    NOOP = 0
    """The first entry of a leader's term."""

    CONFIG = 1
    """A membership (`Config`)."""

    COMMAND = 2
    """A command for the group's state (`data.commands`, `meta.commands`)."""


class Entry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One log entry; `data` stays encoded until it is applied."""

    term: int
    kind: int
    data: bytes


class HardState(msgspec.Struct, array_like=True, frozen=True):
    """What must be durable before any reply that promises it."""

    term: int = 0
    vote: NodeId = ""
    """The candidate that got the node's vote in `term`; "" for none."""

    held: tuple[int, int] = (0, 0)
    """(term, index): the node votes for no candidate whose log ends before this position. It is the end of
    the node's log when it left the group, or the leader's term and commit index when the node began with an
    empty log, whichever is greatest; (0, 0) for a founder that never left."""


class Config(msgspec.Struct, frozen=True):
    """The members of one group, in ring order. A member is in exactly one of the two tuples.

    `operation` is the id of the change that made this membership; "" if none did.
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
    """Where a group's log begins: everything up to the entry (`index`, `term`) is in the checkpoint.

    `config` is the membership as of `index`.
    """

    index: int
    term: int
    config: Config
    checkpoint: int = 0
    """The checkpoints of a group on a node are numbered from 1. In a checkpoint: its number; 0 if it was made
    for a peer or by a release that did not number them. In the log: the least number of a checkpoint that the
    log can continue from, because files that older checkpoints need were removed; 0 for any."""


# Operations that the log makes durable. One list of them is one atomic batch.


class Append(msgspec.Struct, tag="append", frozen=True):
    """Store entries from index `first` on; they replace whatever the log holds from there on."""

    group: GroupId
    first: int
    entries: list[Entry]


class SetHard(msgspec.Struct, tag="hard", frozen=True):
    """Store the hard state of `group`."""

    group: GroupId
    hard: HardState


class Rebase(msgspec.Struct, tag="rebase", frozen=True):
    """Let the log of `group` begin at `base`, and drop the entries up to `base.index`.

    `keep_suffix` retains the entries after it (a purge); else they are dropped too (a snapshot was installed
    that they do not continue).
    """

    group: GroupId
    base: Base
    keep_suffix: bool


class Forget(msgspec.Struct, tag="forget", frozen=True):
    """The replica was removed; its records may be reclaimed.

    `memory` is retained: the node may become a member again, and must not vote against what it promised. None
    if the group itself was removed.
    """

    group: GroupId
    memory: HardState | None = None


LogOp = Append | SetHard | Rebase | Forget

"""What a start finds of each group, and which parts of it do not belong together. Pure.

A log and a checkpoint name one another: the checkpoint says whose it is and in which start of the node it
was written, and it never ends before the log begins. The log says which checkpoint it needs at least: an
older one names files that were removed since, or lacks those whose staged copies were. What does not fit was
lost, copied from elsewhere or is older than the rest: a group that goes on from there votes without its
memory or never finds its files.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from nodeagent.data.checkpoint import decode_checkpoint
from nodeagent.data.state import INITIAL_INDEX
from nodeagent.host.saved import Saved
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.entries import Base, Entry, HardState, LogOp, Rebase
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import META, GroupId, Owner


class Found(Protocol):
    """What the log held of one group."""

    @property
    def base(self) -> Base: ...
    @property
    def hard(self) -> HardState: ...
    @property
    def entries(self) -> list[Entry]: ...


class Lost(Protocol):
    """Entries of a group that its log may have promised and cannot read."""

    @property
    def group(self) -> GroupId: ...
    @property
    def message(self) -> str: ...


def is_traceless(found: Found) -> bool:
    """Whether the log knows nothing of the group but perhaps that it was to join with nothing."""
    empty = not found.entries and found.hard == HardState()
    return empty and not found.base.index and not found.base.config.members


def is_blank(payload: bytes | None) -> bool:
    """Whether a data group's checkpoint, if any, is the one a new replica begins with: no row, no file. One
    that another release wrote is none."""
    if payload is None:
        return True
    try:
        state = decode_checkpoint(msgspec.msgpack.decode(payload, type=Saved).state)
    except UNDECODABLE:
        return False
    return state.applied <= INITIAL_INDEX and not state.files


def fault_of(group: GroupId, found: Found, payload: bytes | None, me: Owner) -> str:
    """Why this log and this checkpoint are not both of `group` on this node, as it is now; "" if they are."""
    place = f"data/groups/{group}/checkpoint"
    if payload is None:
        is_needed = found.base.index > 0 if group == META else not is_traceless(found)
        return f"{place} is missing, and the log goes on from it" if is_needed else ""
    try:
        saved = msgspec.msgpack.decode(payload, type=Saved)
    except UNDECODABLE as error:
        return f"{place} is unreadable: {error}"
    if (saved.group or group) != group:
        return f"{place} is that of group {saved.group}"
    owner = saved.owner
    if (owner.node or me.node) != me.node or (owner.incarnation or me.incarnation) != me.incarnation:
        return f"{place} is that of {owner.node} {owner.incarnation}, this is {me.node} {me.incarnation}"
    if owner.start > me.start > 0:
        return f"{place} was written in start {owner.start} of this node, node.id knows of {me.start} only"
    if group == META and is_traceless(found):
        return f"the log knows nothing of the meta group, and {place} is there"
    if saved.base.index < found.base.index:
        return (
            f"{place} is an older one: it ends at entry {saved.base.index}, "
            f"the log begins after {found.base.index}"
        )
    if 0 < saved.base.checkpoint < found.base.checkpoint or _is_overtaken(saved, found):
        return (
            f"{place} is an older one, or checkpoint.delta beside it is missing: it is number "
            f"{saved.base.checkpoint}, files were removed after number {found.base.checkpoint}"
        )
    return ""


def _is_overtaken(saved: Saved, found: Found) -> bool:
    """Whether own checkpoints have followed this state of a peer, which has no number. One that was installed
    a moment ago is ahead of the log's beginning."""
    return saved.sent and found.base.checkpoint > 0 and saved.base.index <= found.base.index


def unsaid(groups: Mapping[GroupId, tuple[Found, bytes | None]]) -> list[LogOp]:
    """What the log must say before a sweep removes what these checkpoints, which fit it, do not name: a crash
    came between a checkpoint and the record of it."""
    found: list[LogOp] = []
    for group, (log, payload) in sorted(groups.items()):
        number = msgspec.msgpack.decode(payload, type=Saved).base.checkpoint if payload is not None else 0
        if number > log.base.checkpoint:
            base = msgspec.structs.replace(log.base, checkpoint=number)
            found.append(Rebase(group, base, keep_suffix=True))
    return found


def lost_meta(groups: Mapping[GroupId, tuple[Found, bytes | None]], holding: Collection[GroupId]) -> str:
    """Why the meta group's log was lost; "" when it is there, or nothing else is.

    Every node follows the meta group before it is in any other.
    """
    if META in groups and not is_traceless(groups[META][0]):
        return ""
    held = [
        group
        for group, (found, payload) in sorted(groups.items())
        if group != META and not (is_traceless(found) and is_blank(payload) and group not in holding)
    ]
    return f"the log knows nothing of the meta group, data/groups holds {', '.join(held)}" if held else ""


def foreign(group: GroupId, error: Exception) -> str:
    """Why a group whose checkpoint is whole, and cannot be taken for a state, does not run."""
    if isinstance(error, NodeAgentError):
        return f"{error.what}: {error.next_step}"
    return (
        f"the checkpoint of {group} is of a release that this one does not know"
        f" ({type(error).__name__}: {error}): upgrade this node"
    )

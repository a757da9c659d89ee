"""Checks at the start whether the log and the checkpoint of each group belong together. Pure.

The checkpoint says whose it is and in which start of the node it was written, and it never ends before the
log begins. The log says which checkpoint it needs at least: an older checkpoint names files that were removed
later, or lacks files whose staged copies were removed. If the two do not fit, one was lost, copied from
elsewhere or is older: a group that continued from there would vote without its memory or lack its files.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from nodeagent.data.checkpoint import decode_checkpoint
from nodeagent.data.state import INITIAL_INDEX
from nodeagent.host.saved import Saved, read_saved
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.entries import Base, Entry, HardState, LogOp, Rebase
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import META, GroupId, Owner
from nodeagent.model.image_format import is_image


class Found(Protocol):
    """The records of one group in the log."""

    @property
    def base(self) -> Base: ...
    @property
    def hard(self) -> HardState: ...
    @property
    def entries(self) -> list[Entry]: ...


class Lost(Protocol):
    """Records that may contain promises and cannot be read; `group` is "" if they may be of any group."""

    @property
    def group(self) -> GroupId: ...
    @property
    def message(self) -> str: ...


def is_traceless(found: Found) -> bool:
    """Whether the log has no record of the group, except perhaps that an empty replica was to join."""
    empty = not found.entries and found.hard == HardState()
    return empty and not found.base.index and not found.base.config.members


def is_blank(payload: bytes | None) -> bool:
    """Whether a data group has no checkpoint, or that of a new replica, without rows and files. A checkpoint
    that this release cannot decode counts as one with data."""
    if payload is None:
        return True
    try:
        state = decode_checkpoint(read_saved(payload).state)
    except UNDECODABLE:
        return False
    return state.applied <= INITIAL_INDEX and not state.files


def fault_of(group: GroupId, found: Found, payload: bytes | None, me: Owner) -> str:
    """Why this log and this checkpoint are not the current ones of `group` on this node; "" if they are."""
    place = f"data/groups/{group}/checkpoint"
    if payload is None:
        is_needed = found.base.index > 0 if group == META else not is_traceless(found)
        if group == META:
            place = f"data/groups/{group}: the state (image or checkpoint)"
        return f"{place} is missing, and the log continues from it" if is_needed else ""
    try:
        saved = read_saved(payload)
    except UNDECODABLE as error:
        return f"{place} is unreadable: {error}"
    if (saved.group or group) != group:
        return f"{place} is that of group {saved.group}"
    is_imaged = is_image(payload)
    if is_imaged:
        place = f"data/groups/{group}/image.{saved.base.index}"
    owner = saved.owner
    if (owner.node or me.node) != me.node or (owner.incarnation or me.incarnation) != me.incarnation:
        return f"{place} is that of {owner.node} {owner.incarnation}, this is {me.node} {me.incarnation}"
    if owner.start > me.start > 0:
        return f"{place} was written in start {owner.start} of this node, but node.id counts only {me.start}"
    if group == META and is_traceless(found):
        return f"the log has no record of the meta group, but {place} exists"
    if saved.base.index < found.base.index:
        return (
            f"{place} is an older one: it ends at entry {saved.base.index}, "
            f"the log begins after {found.base.index}"
        )
    # An image names no files: an older one that the log continues is as good as the newest.
    number_differs = 0 < saved.base.checkpoint < found.base.checkpoint or _is_overtaken(saved, found)
    if number_differs and not is_imaged:
        return (
            f"{place} is an older one, or checkpoint.delta beside it is missing: it is number "
            f"{saved.base.checkpoint}, files were removed after number {found.base.checkpoint}"
        )
    return ""


def _is_overtaken(saved: Saved, found: Found) -> bool:
    """Whether this node saved checkpoints after it installed this state of a peer, which has no number. If
    it saved none, the state ends after the beginning of the log."""
    return saved.sent and found.base.checkpoint > 0 and saved.base.index <= found.base.index


def unsaid(groups: Mapping[GroupId, tuple[Found, bytes | None]]) -> list[LogOp]:
    """Records that the log lacks because of a crash between a checkpoint and its record. They must be durable
    before a sweep removes the files that these checkpoints, which fit the log, do not name."""
    found: list[LogOp] = []
    for group, (log, payload) in sorted(groups.items()):
        names_files = payload is not None and not is_image(payload)
        number = read_saved(payload).base.checkpoint if payload is not None and names_files else 0
        if number > log.base.checkpoint:
            base = msgspec.structs.replace(log.base, checkpoint=number)
            found.append(Rebase(group, base, keep_suffix=True))
    return found


def lost_meta(groups: Mapping[GroupId, tuple[Found, bytes | None]], holding: Collection[GroupId]) -> str:
    """Why the meta group's log must have been lost; "" if it is there, or if there are no other groups.

    Every node follows the meta group before it joins any other.
    """
    if META in groups and not is_traceless(groups[META][0]):
        return ""
    held = [
        group
        for group, (found, payload) in sorted(groups.items())
        if group != META and not (is_traceless(found) and is_blank(payload) and group not in holding)
    ]
    return f"the log has no record of the meta group, but data/groups holds {', '.join(held)}" if held else ""


def foreign(group: GroupId, error: Exception) -> str:
    """Why a group whose checkpoint is intact but cannot be decoded does not run."""
    if isinstance(error, NodeAgentError):
        return f"{error.what}: {error.next_step}"
    return (
        f"the checkpoint of {group} was written by a release that this one cannot read"
        f" ({type(error).__name__}: {error}): upgrade this node"
    )

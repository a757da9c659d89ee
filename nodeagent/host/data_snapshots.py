"""Which state and files of a data group a peer is sent, and when it may be sent them."""

from collections.abc import Callable

from nodeagent.data import commands
from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.host.group_context import GroupContext
from nodeagent.host.held_state import HeldState
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.entries import EntryKind
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import GroupId, NodeId

IsSource = Callable[[str, GroupId, NodeId], bool]
"""Whether slots of the group are copied from the node in the operation."""


class DataSnapshots:
    def __init__(self, context: GroupContext, held: HeldState, is_source: IsSource) -> None:
        self._context = context
        self._held = held
        self._is_source = is_source

    def is_ready(self, peer: NodeId) -> bool:
        """A member that holds the files of sealed slots must not be given a state that lacks them, and no
        peer a state with an applied `Adopt` whose files are not in place here yet.

        Nor may a newcomer be given a state from before an `Adopt` that is logged: the files it adopts are
        staged only at the members of that time. A voter is one of those members: it had applied all
        entries when it became a voter, so such an `Adopt` came later. Other entries ahead of the state do
        not matter, and waiting for them might never end: this very peer may be needed to commit them.
        """
        newcomer = peer not in self._context.raft.log.config.voters
        if self._held.state.adoptions.waiting or (newcomer and self._has_adopt_ahead()):
            return False
        return not self.lacks_files_of(peer)

    def lacks_files_of(self, peer: NodeId) -> bool:
        """Whether slots are sealed here without their files, and `peer` holds those as a source of copies."""
        sealed = self._held.state.slots.sealed
        return any(
            s.metadata_only and self._is_source(op, self._context.group, peer) for op, s in sealed.items()
        )

    def encode(self, peer: NodeId | None) -> bytes:
        """The state without its files, for `peer` or for this node's own checkpoint."""
        return encode_checkpoint(self._held.state.checkpoint(self._not_for(peer), with_files=False))

    def files(self, peer: NodeId) -> tuple[FileMeta, ...]:
        """The files that `peer` is sent with the state."""
        state = self._held.state
        without = state.slots.sources(self._not_for(peer))
        files = state.files.manifest.unsorted()
        return tuple(f for f in files if f.slot not in without) if without else files

    def _has_adopt_ahead(self) -> bool:
        log = self._context.raft.log
        ahead = log.slice(max(self._held.state.rows.delivered + 1, log.first_index), log.last_index, 1 << 62)
        return any(e.kind == EntryKind.COMMAND and _may_adopt(e.data) for e in ahead)

    def _not_for(self, peer: NodeId | None) -> set[str]:
        """Operations whose sealed slots `peer` does not need, because it is no source of them."""
        if peer is None:
            return set()
        sealed = self._held.state.slots.sealed
        return {op for op in sealed if not self._is_source(op, self._context.group, peer)}


def _may_adopt(data: bytes) -> bool:
    """Whether a logged command is an `Adopt`; a command that this release cannot decode may be one."""
    try:
        return isinstance(commands.decode(data), commands.Adopt)
    except UNDECODABLE:
        return True

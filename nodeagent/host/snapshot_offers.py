"""Snapshots of one group that this node makes for its peers."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import msgspec

from nodeagent.host.group_context import GroupContext
from nodeagent.host.saved import Saved
from nodeagent.host.state_machine import StateMachine
from nodeagent.model.entries import Base
from nodeagent.model.ids import NodeId, Owner
from nodeagent.model.image_format import Header
from nodeagent.model.jobs import DropSnapshot, Failed, JobResult, MakeSnapshot, SaveImage
from nodeagent.raft.progress import ProgressState

NOT_READY_MS = 200
"""The wait before a snapshot that cannot be made yet is reported as failed, so that Raft asks again."""


@dataclass(frozen=True, slots=True)
class Offered:
    """A snapshot that a peer may be pulling; the log after `base` is retained until the snapshot is
    dropped."""

    name: str
    base: int


class SnapshotOffers:
    """
    Args:
        new_id: draws the name of a snapshot.
    """

    def __init__(self, context: GroupContext, machine: StateMachine, new_id: Callable[[], str]) -> None:
        self._context = context
        self._machine = machine
        self._new_id = new_id
        self._offered: dict[NodeId, Offered] = {}
        self._making: set[NodeId] = set()

    def bases(self) -> Iterator[tuple[NodeId, int]]:
        """The peers, and the index after which each needs the log."""
        return ((peer, offered.base) for peer, offered in self._offered.items())

    def make(self, peer: NodeId) -> None:
        """Make a snapshot for `peer` and offer it, unless one is being made."""
        context, machine = self._context, self._machine
        if peer in self._making:
            return
        if machine.applied_index < machine.state_index or not machine.snapshot_ready(peer):
            context.effects.later(
                NOT_READY_MS, lambda: context.raft.snapshot_failed(peer, context.effects.now)
            )
            return
        self._making.add(peer)
        base = context.base_at(machine.log_needed_after())
        name = self._new_id()
        self._drop(peer)
        self._offered[peer] = Offered(name, base.index)
        job = self._job(name, peer, base)
        context.jobs.run(job, lambda r: self._on_made(peer, name, r))

    def make_once(self, peer: NodeId, then: Callable[[str, int, JobResult], None]) -> None:
        """Make a snapshot of the applied state for `peer`, which need not be a follower; `then` gets its
        name, its log index and the result. No log is retained for it."""
        name, base = self._new_id(), self._context.base_at(self._machine.log_needed_after())
        self._context.jobs.run(self._job(name, peer, base), lambda r: then(name, base.index, r))

    def _job(self, name: str, peer: NodeId, base: Base) -> MakeSnapshot:
        group, machine = self._context.group, self._machine
        sections = machine.sections()
        if sections is not None:
            image = SaveImage(Header(base, group, Owner(peer), sent=True), sections)
            return MakeSnapshot(name, group, (), image=image)
        saved = Saved(base, machine.encode_state(peer), sent=True, group=group, owner=Owner(peer))
        payload = msgspec.msgpack.encode(saved)
        return MakeSnapshot(name, group, machine.snapshot_files(peer), payload, machine.has_files)

    def _on_made(self, peer: NodeId, name: str, result: JobResult) -> None:
        raft, effects = self._context.raft, self._context.effects
        self._making.discard(peer)
        if isinstance(result, Failed):
            self._offered.pop(peer, None)
            raft.snapshot_failed(peer, effects.now)
            return
        offered = self._offered.get(peer)
        if offered is None or offered.name != name:
            # Dropped while it was made: the log after its base may be purged, so the peer could not continue.
            effects.remove(DropSnapshot(name))
            raft.snapshot_failed(peer, effects.now)
            return
        raft.offer_snapshot(peer, name)

    def on_expired(self, names: Collection[str]) -> None:
        """These snapshots were removed because nobody read from them; a peer that needs one gets another."""
        for peer, offered in list(self._offered.items()):
            if offered.name in names:
                del self._offered[peer]
                self._context.raft.snapshot_failed(peer, self._context.effects.now)

    def drop_taken(self) -> None:
        """Drop the snapshots of peers that have caught up or left the group."""
        if self._offered and self._context.leads:
            progress = self._context.raft.status().progress
            for peer in list(self._offered):
                followed = progress.get(peer)
                if followed is None or followed.state is ProgressState.REPLICATE:
                    self._drop(peer)

    def _drop(self, peer: NodeId) -> None:
        offered = self._offered.pop(peer, None)
        if offered is not None:
            self._context.effects.remove(DropSnapshot(offered.name))

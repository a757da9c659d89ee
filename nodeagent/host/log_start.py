"""Where the log of one replica begins: what pins it, and the purging of what is no longer needed."""

import sys

import msgspec

from nodeagent.host.group_context import GroupContext
from nodeagent.host.snapshot_offers import SnapshotOffers
from nodeagent.host.state_machine import StateMachine
from nodeagent.model.entries import Base, LogOp, Rebase
from nodeagent.model.freeing import DeferredFree
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import LOG_KEEP_MS_MAX
from nodeagent.model.requests import LogPin

KEEP_LOG_MS = 1_000
"""Between two checks of what pins the log."""

SNAPSHOT_KEEPS = 8
"""A snapshot that is made or sent pins up to this many times the log that is kept for a follower."""


class LogStart:
    def __init__(self, context: GroupContext, machine: StateMachine, offers: SnapshotOffers) -> None:
        self._context = context
        self._machine = machine
        self._offers = offers
        self.number_needed = 0
        """Number of the checkpoint that the log says it needs: the last after which files were removed."""

        self._saved_to = 0
        """The newest durable checkpoint needs the log from the next index on; 0 while that is not known."""

        self._purge_at = context.effects.now
        self._purged = DeferredFree()
        """Entries that left the log."""

        self._headway: dict[NodeId, tuple[int, int]] = {}
        """Leader: how far a lagging follower has come, and since when."""

    def free(self) -> None:
        """Free a part of the purged entries."""
        self._purged.free()

    def on_saved(self, index: int) -> bool:
        """The newest durable checkpoint needs the log after `index`: purge what nothing else needs.

        Returns:
            Whether `number_needed` was logged, because something was purged.
        """
        self._saved_to = index
        return self._purge_unpinned()

    def reset(self) -> None:
        """A snapshot is installed: no checkpoint of this replica counts any more."""
        self._saved_to = self.number_needed = 0

    def keep(self, *, may_purge: bool) -> None:
        """Called now and then: purge what an ended pin has kept, even if no more checkpoints are written."""
        effects = self._context.effects
        if self._saved_to <= self._context.raft.log.base.index or effects.now < self._purge_at:
            return
        self._purge_at = effects.now + KEEP_LOG_MS
        if may_purge:
            self._purge_unpinned()

    def pins(self) -> list[tuple[LogPin, int]]:
        """What needs the log, with the index after which it does. A leader keeps log for its followers,
        bounded in bytes, entries and age."""
        context = self._context
        kept = self._share_kept()
        if kept >= SNAPSHOT_KEEPS:
            return []
        pins = [(LogPin("snapshot", peer), base) for peer, base in self._offers.bases()]
        if context.leads and kept < 1:
            status = context.raft.status()
            followed = {n: p.match for n, p in status.progress.items() if p.match >= status.base}
            pins += [
                (LogPin("follower", n), match) for n, match in followed.items() if self._has_headway(n, match)
            ]
        else:
            self._headway.clear()
        return pins

    def _share_kept(self) -> float:
        """How much log there is, relative to what may be kept for a follower in bytes or in entries."""
        log = self._context.raft.log
        entries = (log.last_index - log.base.index) / self._machine.log_entries_max
        return max(entries, self._context.log_bytes() / self._context.effects.space.log_keep)

    def _has_headway(self, peer: NodeId, match: int) -> bool:
        """Whether the follower advanced lately. A follower that holds the whole log needs no more of it, and
        is not timed."""
        if match >= self._context.raft.log.last_index:
            self._headway.pop(peer, None)
            return True
        known, since = self._headway.get(peer, (-1, 0))
        if match != known:
            self._headway[peer] = (match, self._context.effects.now)
            return True
        return self._context.effects.now - since < LOG_KEEP_MS_MAX

    @property
    def pin(self) -> LogPin | None:
        """Why the log is not shorter; None if it only waits for a checkpoint."""
        needed = self._machine.log_needed_after()
        pin, index = min(self.pins(), key=lambda pin: pin[1], default=(None, needed))
        if index < needed:
            return pin
        return LogPin("rows") if needed < self._machine.applied_index else None

    def rebase(self, base: Base) -> LogOp:
        """The record with which the log says that it begins at `base`, and which checkpoint it needs."""
        return Rebase(self._context.group, msgspec.structs.replace(base, checkpoint=self.number_needed), True)

    def _purge_unpinned(self) -> bool:
        return self.purge(min([self._saved_to, *(index for _, index in self.pins())]))

    def purge(self, index: int) -> bool:
        """Purge the log up to `index`, or up to the commit index if that is less.

        Returns:
            Whether there was something to purge; the number of the checkpoint is then logged too.
        """
        raft = self._context.raft
        # After a restart the state may be ahead of the commit index that Raft knows so far.
        index = min(index, raft.commit)
        if index <= raft.log.base.index:
            return False
        log = raft.log
        purged = log.slice(log.first_index, index, sys.maxsize)
        self._context.outbox.persist(self._context.group, [self.rebase(raft.compact(index))])
        self._purged.add(purged)
        return True

"""The checkpoints of one replica: when its state is saved, and what follows once it is durable."""

from typing import NamedTuple

import msgspec

from nodeagent.host.group_context import GroupContext
from nodeagent.host.log_start import LogStart
from nodeagent.host.saved import Saved
from nodeagent.host.state_machine import StateMachine
from nodeagent.model.entries import Base
from nodeagent.model.image_format import Header
from nodeagent.model.jobs import Failed, ImageSaved, JobResult, SaveImage
from nodeagent.model.jobs import SaveCheckpoint as SaveJob

CHECKPOINT_MIN_MS = 500
CHECKPOINT_ROWS_MS = 5_000
"""Between two checkpoints if only rows were applied: a restart reads those from the log anyway, and every
checkpoint makes the writers wait for two syncs of the disk."""

CHECKPOINT_RETRY_MS = 1_500
CHECKPOINT_BYTES_PER_MS = 2_000
"""A group writes its regular checkpoints no faster than this on average. A whole checkpoint names every file:
for a hundred thousand files, two checkpoints a second would be about 40 MB/s of disk writes in each group."""

FILE_BYTES = 210
"""Approximate size of a file's record in a checkpoint."""


class Images(NamedTuple):
    """Log indexes of the group's validated images on this disk; 0 if there is none."""

    newest: int = 0
    fallback: int = 0


class Checkpoints:
    def __init__(self, context: GroupContext, machine: StateMachine, log_start: LogStart) -> None:
        self._context = context
        self._machine = machine
        self._log_start = log_start
        self._number = 0
        """Number of the last checkpoint that was begun; the numbers reveal an older checkpoint."""

        self.images = Images()
        self._saving = False
        self._save_from = context.effects.now + CHECKPOINT_MIN_MS

    def continue_from(self, number: int) -> None:
        """The replica starts with this checkpoint, and its log needs it."""
        self._number = self._log_start.number_needed = number

    def maybe_save(self, *, force: bool = False) -> None:
        """Save the state if it changed; then the log before it may be purged.

        Args:
            force: do not wait until the usual time between two checkpoints has passed.
        """
        context, machine, unsaved = self._context, self._machine, self._context.unsaved
        condition = context.condition
        if self._saving or condition.installing or condition.is_unlogged:
            return
        if not unsaved.changes or machine.applied_index < machine.state_index:
            return
        if condition.stopped:
            return  # the state may hold part of an entry that the next release applies
        patience_ms = 0 if unsaved.pressing else CHECKPOINT_ROWS_MS - CHECKPOINT_MIN_MS
        if not force and context.effects.now < self._save_from + patience_ms:
            return
        self._number += 1
        base = context.base_at(machine.log_needed_after())
        base = msgspec.structs.replace(base, checkpoint=self._number)
        self._saving = True
        unsaved.changes, unsaved.pressing = 0, False
        sections = machine.sections()
        if sections is not None:
            header = Header(base, context.group, context.effects.owner)
            return context.jobs.run(SaveImage(header, sections), lambda r: self._on_saved(base, r))
        saved = Saved(base, machine.encode_state(None), group=context.group, owner=context.effects.owner)
        payload, changes = msgspec.msgpack.encode(saved), machine.file_changes()
        nbytes = len(payload) + (FILE_BYTES * len(changes.files) if changes is not None else 0)
        self._pause(nbytes)
        job = SaveJob(context.group, payload, changes)
        context.jobs.run(job, lambda r: self._on_saved(saved.base, r))
        return None

    def _pause(self, nbytes: int) -> None:
        """Save no sooner than what was written allows on average."""
        pause_ms = max(CHECKPOINT_MIN_MS, nbytes // CHECKPOINT_BYTES_PER_MS)
        self._save_from = self._context.effects.now + pause_ms

    def keep_log(self) -> None:
        """Called now and then: purge the log that nothing pins any more."""
        condition = self._context.condition
        is_busy = condition.removed or condition.installing is not None or self._saving
        self._log_start.keep(may_purge=not is_busy)

    def _on_saved(self, base: Base, result: JobResult) -> None:
        condition = self._context.condition
        self._machine.on_files_saved(result)
        if isinstance(result, Failed):
            self._saving = False
            self._context.unsaved.add()
            self._save_from = self._context.effects.now + CHECKPOINT_RETRY_MS
            condition.error = f"checkpoint: {result.what}"
            return
        condition.error = ""
        if condition.removed:
            return
        removes_files = self._machine.removes_files
        if removes_files:
            self._log_start.number_needed = base.checkpoint
        if isinstance(result, ImageSaved):
            self.images = Images(base.index, result.fallback)
            is_logged = self._log_start.on_saved(result.fallback)
            self._pause(result.nbytes)
        else:
            is_logged = self._log_start.on_saved(base.index)
        if removes_files:
            self._log_number(is_logged)
        else:
            self._saving = False
            self._machine.on_saved()

    def _log_number(self, is_logged: bool) -> None:
        """Remove files only when the log durably says that it needs this checkpoint: an older checkpoint
        would name files that are missing, and nobody would notice."""

        def durable() -> None:
            self._saving = False
            if not self._context.condition.removed:
                self._machine.on_saved()

        # Until this record is durable, no other checkpoint begins, and no snapshot is installed.
        held = self._context.jobs.hold(durable)
        ops = [] if is_logged else [self._log_start.rebase(self._context.raft.log.base)]
        self._context.outbox.persist(self._context.group, ops, held)

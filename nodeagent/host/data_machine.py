"""A data group's state behind its replica: entries, checkpoints and snapshots of rows and files."""

from nodeagent.data.checkpoint import decode_checkpoint
from nodeagent.data.state import DataState
from nodeagent.host.checkpoint_waits import CheckpointWaits
from nodeagent.host.closer import Closer
from nodeagent.host.data_snapshots import DataSnapshots
from nodeagent.host.file_deltas import FileDeltas
from nodeagent.host.group_context import GroupContext
from nodeagent.host.held_state import HeldState
from nodeagent.host.state_jobs import StateJobs
from nodeagent.host.state_machine import StateMachine
from nodeagent.model.entries import Entry
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import DeleteFiles, FileChanges, JobResult
from nodeagent.model.requests import Reply


class DataMachine(StateMachine):
    has_files = True

    def __init__(
        self,
        context: GroupContext,
        held: HeldState,
        jobs: StateJobs,
        snapshots: DataSnapshots,
        waits: CheckpointWaits,
        closer: Closer,
    ) -> None:
        self._context = context
        self._held = held
        self._jobs = jobs
        self._snapshots = snapshots
        self._waits = waits
        self._closer = closer
        self._deltas = FileDeltas(held)
        self._adopted: set[str] = set()
        """Operations whose outcome here is in the checkpoint that was begun last."""

        self.ended_here: frozenset[str] = frozenset(held.state.slots.ended_here())
        """Operations whose outcome here is in the durable checkpoint: their staged files may go."""

    @property
    def applied_index(self) -> int:
        return self._held.state.rows.delivered

    @property
    def state_index(self) -> int:
        return self._held.state.rows.recovered_to

    def apply_entries(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        replies = self._held.state.apply(first, entries, self._context.effects.now)
        self._jobs.start()
        return replies

    def take_news(self) -> bool:
        return self._held.state.take_changes()

    def log_needed_after(self) -> int:
        return self._held.state.base()

    def encode_state(self, peer: NodeId | None) -> bytes:
        if peer is None:
            self._adopted = self._held.state.slots.ended_here()
            self._waits.on_begun()
        return self._snapshots.encode(peer)

    def restore(self, payload: bytes, base: int) -> None:
        held, removals = self._held, self._jobs.removals
        old, held.state = held.state, DataState.restore(decode_checkpoint(payload), base)
        self._deltas.reset()
        held.state.writes.rates = old.writes.rates
        superseded = held.state.superseded(old, removals.take_leaving())
        self._jobs.failures.reset()
        if superseded:
            held.state.jobs.append(DeleteFiles(self._context.group, superseded))
        self._closer.reset()
        self.ended_here = frozenset(held.state.slots.ended_here())
        self._jobs.start()

    # --- checkpoints -------------------------------------------------------------------------------

    def file_changes(self) -> FileChanges:
        return self._deltas.take()

    def on_files_saved(self, result: JobResult) -> None:
        self._deltas.on_saved(result)

    @property
    def removes_files(self) -> bool:
        return self._waits.is_saving or self.ended_here != self._adopted

    def on_saved(self) -> None:
        self.ended_here = frozenset(self._adopted)
        self._waits.on_durable()

    # --- snapshots ---------------------------------------------------------------------------------

    def snapshot_ready(self, peer: NodeId) -> bool:
        return self._snapshots.is_ready(peer)

    def snapshot_files(self, peer: NodeId) -> tuple[FileMeta, ...]:
        return self._snapshots.files(peer)

    def on_pulled(self) -> None:
        self._jobs.removals.unlink()

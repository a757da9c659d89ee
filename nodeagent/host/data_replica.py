"""The replica of a data group: the parts that make, read, remove and check its files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from nodeagent.data.compaction import Key
from nodeagent.data.state import DataState
from nodeagent.host.checkpoint_waits import CheckpointWaits
from nodeagent.host.closer import Closer
from nodeagent.host.damaged_files import DamagedFiles
from nodeagent.host.data_machine import DataMachine
from nodeagent.host.data_snapshots import DataSnapshots, IsSource
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.failing import Copied, parked_trouble
from nodeagent.host.file_reads import FileReads
from nodeagent.host.freshness import Freshness
from nodeagent.host.group_context import GroupContext
from nodeagent.host.held_state import HeldState
from nodeagent.host.outbox import Outbox
from nodeagent.host.replica import Replica
from nodeagent.host.session_expiry import SessionExpiry
from nodeagent.host.state_jobs import StateJobs
from nodeagent.host.writer import FileWriter
from nodeagent.model.config import NodeConfig
from nodeagent.model.files import CloseSpec
from nodeagent.model.ids import GroupId
from nodeagent.raft.core import Raft


@dataclass(frozen=True, slots=True)
class Helpers:
    """What the data replicas of a node share."""

    config: NodeConfig
    new_id: Callable[[], str]
    is_source: IsSource
    copy: Callable[["DataReplica", Sequence[CloseSpec], Copied], None]
    """Fetches a file that another member has made."""

    writer: FileWriter


class DataReplica(Replica):
    def __init__(
        self,
        group: GroupId,
        raft: Raft,
        effects: EffectQueue,
        outbox: Outbox,
        state: DataState,
        helpers: Helpers,
    ) -> None:
        self.config = helpers.config
        context = GroupContext(group, raft, effects, outbox)
        held = self._held = HeldState(state, context.condition)
        waits = self._waits = CheckpointWaits()
        self.damaged_files = DamagedFiles(held)
        self.state_jobs = StateJobs(
            context, held, self.damaged_files, waits, helpers.writer, partial(helpers.copy, self)
        )
        self.failures = self.state_jobs.failures
        self.removals = self.state_jobs.removals
        self.files = FileReads(context, held, self.removals, self.damaged_files)
        self.closer = Closer(context, held, helpers.config, helpers.writer)
        self.sessions = SessionExpiry(context, held, helpers.config.session_ttl_ms)
        self.for_peers = DataSnapshots(context, held, helpers.is_source)
        self._machine = DataMachine(context, held, self.state_jobs, self.for_peers, waits, self.closer)
        super().__init__(context, self._machine, helpers.new_id)
        self.freshness = Freshness(effects, self.read, lambda: self.applied_index)
        self.damaged: dict[Key, str] = {}
        """Leader: the tables and partitions that may not be compacted because a member's copy of a file is
        damaged, and which copy."""

        self.compared_at = -(1 << 62)
        """When files of this replica were last closed, hashed or exported for a comparison."""

    @property
    def state(self) -> DataState:
        return self._held.state

    @property
    def ended_here(self) -> frozenset[str]:
        """As `DataMachine.ended_here`."""
        return self._machine.ended_here

    @property
    def is_whole(self) -> bool:
        """Whether the state is that of the log: it has recovered, has not ended and is not being replaced."""
        condition = self.condition
        has_ended = condition.removed or bool(condition.stopped)
        is_replaced = condition.installing is not None or condition.rebasing
        return not (has_ended or is_replaced) and self.state.rows.recovered

    @property
    def trouble(self) -> str:
        """What an operator should know, "" if nothing."""
        parked = self.state.files.manifest.parked.values()
        troubles = (
            *self.failures.troubles(),
            *(self.damaged.values() if self.leads else ()),
            *(parked_trouble(f) for f in islice(parked, 1)),
        )
        return self.condition.error or next(iter(troubles), "")

    def tick(self) -> None:
        super().tick()
        self.state.rows.memtable.to_free.free()

    def when_saved(self, then: Callable[[], None], abandoned: Callable[[], None]) -> None:
        """Run `then` once a checkpoint of the current state is durable, `abandoned` if none will be."""
        self._waits.add(then, abandoned)
        self.context.unsaved.add()
        self.checkpoints.maybe_save(force=True)

    def stop(self, index: int, why: str) -> None:
        super().stop(index, why)
        self._waits.abandon()

    def abandon(self) -> None:
        super().abandon()
        self._waits.abandon()

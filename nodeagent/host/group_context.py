"""What the parts of one replica share."""

from dataclasses import dataclass

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.group_jobs import GroupJobs
from nodeagent.host.outbox import Outbox
from nodeagent.host.proposals import Proposals
from nodeagent.model.entries import Base
from nodeagent.model.ids import GroupId
from nodeagent.raft.core import Raft
from nodeagent.raft.state import Role


@dataclass(slots=True)
class Condition:
    """What keeps a replica from its usual work."""

    error: str = ""
    """Why a checkpoint or a job of the state failed, "" once one succeeds. A file that cannot be made is not
    here, but in `FileFailures`."""

    removed: bool = False
    stopped: str = ""
    """Why no entry is applied any more (`Replica.stop`), "" as long as entries are applied."""

    is_unlogged: bool = False
    """The replica is new and not yet durable in the log: nothing is saved or installed, because a
    checkpoint that the log does not know looks like a lost log."""

    installing: str | None = None
    """The snapshot that is being installed. Until the log begins at its base, no checkpoint is saved, and no
    file is replaced or unlinked; the old state may still make files."""

    rebasing: bool = False
    """The new state is in place and the log's new beginning not yet durable: nothing is applied."""


@dataclass(slots=True)
class Unsaved:
    """What the last checkpoint lacks."""

    changes: int = 0
    """Entries applied or files made since then."""

    pressing: bool = False
    """Whether `changes` are not only rows: they are to be saved soon."""

    def add(self) -> None:
        """Something changed that a restart must know."""
        self.changes += 1
        self.pressing = True


class GroupContext:
    """One group on this node: its Raft core, its effects, its condition, and its jobs and proposals."""

    def __init__(self, group: GroupId, raft: Raft, effects: EffectQueue, outbox: Outbox) -> None:
        self.group = group
        self.raft = raft
        self.effects = effects
        self.outbox = outbox
        self.condition = Condition()
        self.unsaved = Unsaved()
        self.jobs = GroupJobs(effects)
        self.proposals = Proposals(group, raft, effects)

    @property
    def leads(self) -> bool:
        return self.raft.role is Role.LEADER

    def log_bytes(self) -> int:
        log = self.raft.log
        return log.bytes_between(log.base.index, log.last_index)

    def base_at(self, index: int) -> Base:
        """The beginning of a log that continues after `index`, or where this log begins if that is later."""
        index = max(index, self.raft.log.base.index)
        term = self.raft.log.term(index)
        assert term is not None, (self.group, index)
        return Base(index, term, self.raft.log.config_at(index))

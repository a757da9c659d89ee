"""What the entries of a group mean: the interface between a replica and the state that it replicates."""

from nodeagent.model.entries import Entry
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import NodeId
from nodeagent.model.image_format import Section
from nodeagent.model.jobs import FileChanges, JobResult
from nodeagent.model.limits import LOG_ENTRIES_MAX
from nodeagent.model.requests import Reply


class StateMachine:
    """A subclass implements at least the methods that raise `NotImplementedError`."""

    has_files = False
    """Whether the state has files, which are stored beside what `encode_state` returns."""

    log_entries_max = LOG_ENTRIES_MAX
    """Entries of log that a leader retains for followers that lag."""

    @property
    def applied_index(self) -> int:
        """Last entry given to the state."""
        raise NotImplementedError

    @property
    def state_index(self) -> int:
        """The state is complete once the entry at this index is applied."""
        raise NotImplementedError

    def apply_entries(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        """Apply the entries; return the replies to proposals, by index.

        Raises:
            EntryFailed: an entry cannot be applied; those before it are.
        """
        raise NotImplementedError

    def take_news(self) -> bool:
        """Whether the entries applied since the last call changed more than rows."""
        return True

    def log_needed_after(self) -> int:
        """The log is needed from the next index on if this state is saved now."""
        raise NotImplementedError

    def encode_state(self, peer: NodeId | None) -> bytes:
        """The state without its files: for this node's own checkpoint, or for `peer` to install."""
        raise NotImplementedError

    def sections(self) -> tuple[Section, ...] | None:
        """The state as the sections of an image; None if `encode_state` is saved and sent instead."""
        return None

    def restore(self, payload: bytes, base: int) -> None:
        """Take the state of a checkpoint; entries after `base` are applied to it once more."""
        raise NotImplementedError

    # --- checkpoints -------------------------------------------------------------------------------

    def file_changes(self) -> FileChanges | None:
        """The files of the checkpoint that begins now: all, or those that changed since all were written."""
        return None

    def on_files_saved(self, result: JobResult) -> None:
        """The last checkpoint was written or failed."""

    @property
    def removes_files(self) -> bool:
        """Whether files, staged ones included, are to be removed once the last checkpoint is durable."""
        return False

    def on_saved(self) -> None:
        """The last checkpoint is durable; if files are to be removed, the log accepts no older one."""

    # --- snapshots ---------------------------------------------------------------------------------

    def snapshot_ready(self, peer: NodeId) -> bool:
        """Whether `peer` may be sent this state now."""
        return True

    def snapshot_files(self, peer: NodeId) -> tuple[FileMeta, ...]:
        """The files of the state that `peer` is sent."""
        return ()

    def on_pulled(self) -> None:
        """The pull of a snapshot ended, whether or not its state was taken."""

    # --- leadership --------------------------------------------------------------------------------

    def on_role(self) -> None:
        """Leadership was won or lost."""

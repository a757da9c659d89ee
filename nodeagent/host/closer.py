"""When the leader of a data group closes partitions: all members then make files of the same rows."""

from collections.abc import Iterable

from nodeagent.data import commands
from nodeagent.host.group_context import GroupContext
from nodeagent.host.held_state import HeldState
from nodeagent.host.writer import FileWriter
from nodeagent.model.config import NodeConfig
from nodeagent.model.ids import PartitionKey

CLOSE_PARTITIONS_MAX = 256
"""Partitions that one log entry closes."""


class Closer:
    def __init__(
        self, context: GroupContext, held: HeldState, config: NodeConfig, writer: FileWriter
    ) -> None:
        self._context = context
        self._held = held
        self._config = config
        self._writer = writer
        self._proposed = (0, 0)
        """(term, index) of the last `CloseFile` proposed here; `maybe_close` waits until it is applied."""

    def maybe_close(self) -> None:
        """Leader: close the partitions that are too big or were not written to lately, and all of them if the
        rows or the log of the group take too many bytes."""
        context, config, rows = self._context, self._config, self._held.state.rows
        term, index = self._proposed
        is_waiting = term == context.raft.term and rows.delivered < index
        if not context.leads or not rows.slot_of or is_waiting:
            return
        partitions = rows.memtable.partitions()
        open_ = [(p, held) for p, held in partitions.items() if held.open]
        idle_before = context.effects.now - config.idle_close_ms
        due = {p for p, h in open_ if h.open_bytes > config.partition_bytes_max}
        due |= {p for p, h in open_ if h.last_write_ms < idle_before}
        unfrozen = sum(h.open_bytes for _, h in open_)
        if unfrozen > config.memtable_bytes_max or context.log_bytes() > config.log_bytes_max:
            due |= {p for p, _ in open_}
        self.close(sorted(due))

    def close(self, partitions: Iterable[PartitionKey], token: int | None = None) -> None:
        """Log the close of these partitions; the token is answered when it is applied."""
        slot_of = self._held.state.rows.slot_of
        pairs = [(slot_of[p], p) for p in partitions if p in slot_of]
        chunks = [pairs[i : i + CLOSE_PARTITIONS_MAX] for i in range(0, len(pairs), CLOSE_PARTITIONS_MAX)]
        writer = self._writer.named
        data = [commands.encode(commands.CloseFile(tuple(c), writer=writer)) for c in chunks]
        if not data and token is not None:
            data = [commands.encode(commands.Opaque(b""))]
        if data:
            first = self._context.proposals.propose(data, token)
            if first is not None:
                self._proposed = (self._context.raft.term, first + len(data) - 1)

    def reset(self) -> None:
        """A snapshot was installed: what was proposed before does not count."""
        self._proposed = (0, 0)

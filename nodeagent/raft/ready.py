"""`Ready`: the writes, messages and committed entries of one turn, for the caller to carry out."""

from dataclasses import dataclass, field

from nodeagent.model.entries import Entry, HardState
from nodeagent.model.ids import NodeId
from nodeagent.model.raft_messages import SnapshotOffer
from nodeagent.raft.state import Outgoing, State


@dataclass(slots=True)
class Ready:
    """Everything since the last `take()`."""

    hard: HardState | None = None
    """The hard state if it changed; must be made durable."""

    append: tuple[int, list[Entry]] | None = None
    """First index and entries; they replace the log from that index on."""

    now: Outgoing = field(default_factory=list)
    """Messages that may be sent at once."""

    after: Outgoing = field(default_factory=list)
    """Messages that may be sent when `hard` and `append` of this and every earlier Ready are durable."""

    committed: tuple[int, list[Entry]] | None = None
    """First index and entries to apply: committed, durable here, not handed out before."""

    reads: list[tuple[int, int]] = field(default_factory=list)
    """(context, index): answer the read once the applied index has reached `index`."""

    reads_failed: list[int] = field(default_factory=list)
    """Contexts of reads that will not be answered; they may be retried."""

    snapshots: list[NodeId] = field(default_factory=list)
    """Followers that need a snapshot; answer with `offer_snapshot` or `snapshot_failed`."""

    offer: tuple[NodeId, SnapshotOffer] | None = None
    """A leader and the snapshot it offers; pull it, then call `installed`. The leader repeats its offer."""

    role_changed: bool = False
    """Whether the role, the term or the known leader changed."""


def take_writes(state: State, ready: Ready) -> None:
    """Move the unwritten hard state and entries into `ready`."""
    if state.hard_changed:
        ready.hard = state.hard
        state.hard_changed = False
    first = state.unwritten
    if first is not None:
        log = state.log
        last = log.last_index
        ready.append = (first, log.slice(first, last, log.bytes_between(first - 1, last)))
        state.durability.started(last, log.last_term)
        state.unwritten = None


def take_committed(state: State, ready: Ready, entries_max: int, bytes_max: int) -> None:
    """Hand out the next committed entries in `ready`, within the limits (`Raft.take`)."""
    last = min(state.commit, state.durability.index, state.handed_out + entries_max)
    if last > state.handed_out:
        entries = state.log.slice(state.handed_out + 1, last, bytes_max)
        ready.committed = (state.handed_out + 1, entries)
        state.handed_out += len(entries)

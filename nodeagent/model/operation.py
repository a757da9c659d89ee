"""The record of one change of the cluster (add-node, remove-node, rebalance) as the meta group keeps it.

Slots are given as ranges [start, end). A group carries only its own slots.
"""

from enum import StrEnum

import msgspec

from nodeagent.model.ids import GroupId, NodeId

Ranges = tuple[tuple[int, int], ...]


class Stage(StrEnum):
    """The work in progress; docs/internals/scaling.md has a table of it."""

    PLANNED = "PLANNED"
    SEALED = "SEALED"
    OPEN = "OPEN"
    FORMAL = "FORMAL"
    MOVING = "MOVING"
    RELEASED = "RELEASED"
    DONE = "DONE"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"


ENDED = (Stage.DONE, Stage.CANCELLED)
PAUSABLE = (Stage.PLANNED, Stage.SEALED, Stage.OPEN, Stage.FORMAL, Stage.MOVING)
"""Up to here a pause still holds something back: the pulls of MOVING and the step to RELEASED."""

NEXT: dict[Stage, tuple[Stage, ...]] = {
    Stage.PLANNED: (Stage.SEALED, Stage.CANCELLING),
    Stage.SEALED: (Stage.OPEN, Stage.CANCELLING),
    Stage.OPEN: (Stage.FORMAL,),
    Stage.FORMAL: (Stage.MOVING,),
    Stage.MOVING: (Stage.RELEASED,),
    Stage.RELEASED: (Stage.DONE,),
    Stage.CANCELLING: (Stage.CANCELLED,),
    Stage.DONE: (),
    Stage.CANCELLED: (),
}
"""Legal transitions; `docs/internals/scaling.md` draws the same picture."""


class SlotMove(msgspec.Struct, frozen=True):
    """Slots that leave one group for another, with both member lists written out."""

    slots: Ranges
    source: GroupId
    source_members: tuple[NodeId, ...]
    target: GroupId
    target_members: tuple[NodeId, ...]


class GroupChange(msgspec.Struct, frozen=True):
    """A group of the new ring whose members change. One node joins, one leaves (either may be None)."""

    group: GroupId
    joins: NodeId | None
    leaves: NodeId | None
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]


class Options(msgspec.Struct, frozen=True):
    """What the operator asked for."""

    verify: bool = False
    depth: str = "content"
    no_migrate: bool = False
    hold_release_ms: int = 0
    rate_bytes_per_s: int = 0
    """0: as fast as the agents judge right."""

    dead: bool = False
    """The node that leaves is gone for good."""


class StageSpan(msgspec.Struct):
    name: str
    entered_ms: int
    left_ms: int = 0
    evidence: list[str] = []


class SealResult(msgspec.Struct, frozen=True):
    """What a losing group committed: the seal's log index, and which sessions go with the moved slots."""

    group: GroupId
    index: int
    sessions: bytes = b""
    """The table itself, from members of the first release, which has no `parts`."""

    parts: tuple[str, ...] = ()
    """XXH3-128 of each part of the table, which goes from group to group."""


class CopyRecord(msgspec.Struct, frozen=True):
    """A verified, durable copy of `slots` for `target`, held by one incarnation of a node."""

    target: GroupId
    node: NodeId
    incarnation: str
    slots: Ranges
    digest: str
    """XXH3-128 over the slots' (slot, staged name, size, hash): equal on every member."""

    files: int
    bytes_received: int
    refetched: int = 0


class Lease(msgspec.Struct, frozen=True):
    """While it lives the agents leave the order of pulls to its owner."""

    owner: str
    serial: int
    ttl_ms: int


EVIDENCE_CHARS = 100
ERROR_CHARS = 500
"""Of each text in a short record of an operation."""

_KEPT_IN_SHORT = (
    *("id", "kind", "node", "started_ms", "base_version", "table_version", "options", "stage"),
    *("created_group", "dissolved_group", "replaces", "dead", "signed_off"),
)


def cut_text(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


class Operation(msgspec.Struct):
    """One change. `id` is `op-<meta index>`; evidence is kept as sets, never as counters.

    `node` is the one that comes or leaves; "" for a rebalance, which moves slots and changes no members.
    """

    id: str
    kind: str
    node: NodeId
    by: str
    started_ms: int
    base_version: int
    table_version: int
    moves: list[SlotMove]
    changes: list[GroupChange]
    options: Options
    stage: Stage = Stage.PLANNED
    created_group: GroupId | None = None
    created_members: tuple[NodeId, ...] = ()
    dissolved_group: GroupId | None = None
    replaces: NodeId = ""
    """replace-node: who leaves; `node` takes its place on the ring."""

    dead: list[NodeId] = []
    """Nodes that are gone for good: fenced, and nothing is expected of them."""

    fenced: list[NodeId] = []
    """Those of `dead` whom this operation gave up. The others an earlier one did: they lack its copies."""

    sealed: dict[str, SealResult] = {}
    unsealed: list[str] = []
    sources_ready: list[tuple[str, str]] = []
    """(group, node): the node applied the seal and its files are made."""

    joined: list[tuple[str, str]] = []
    """(group, node): the node made its replica of the group for this operation and will keep it."""

    opened: list[str] = []
    formed: list[str] = []
    copies: list[CopyRecord] = []
    adopted: list[str] = []
    released: list[str] = []
    migrate_go: bool = False
    signed_off: bool = False
    release_go: bool = False
    held_since_ms: int = 0
    """When `waiting_release` began, by the wall clock of the meta leader of then."""

    paused: bool = False
    """No pull of MOVING starts and MOVING is not left; every other stage goes on."""

    meta_ready: bool = False
    """The newcomer follows the meta log / the leaver's meta vote is replaced; at once for a rebalance."""

    group_ready: bool = False
    """The created group has a leader."""

    lease: Lease | None = None
    stages: list[StageSpan] = []
    last_error: str = ""
    moved_slots: int = 0
    """How many slots move, in a short record, which lists no moves, members and copies; 0 in a whole one."""

    copied_bytes: int = 0
    """What copies received over the network, in a short record."""

    error_group: GroupId = ""
    """Data group that `last_error` is about."""

    @property
    def ended(self) -> bool:
        return self.stage in ENDED

    @property
    def is_short(self) -> bool:
        return self.moved_slots > 0

    def shortened(self) -> "Operation":
        """A line of history: who did what, when, and how it ended."""
        spans = [
            StageSpan(s.name, s.entered_ms, s.left_ms, [cut_text(e, EVIDENCE_CHARS) for e in s.evidence])
            for s in self.stages
        ]
        kept = {name: getattr(self, name) for name in _KEPT_IN_SHORT}
        return Operation(
            **kept,
            by=cut_text(self.by, EVIDENCE_CHARS),
            moves=[],
            changes=[],
            stages=spans,
            last_error=cut_text(self.last_error, ERROR_CHARS),
            moved_slots=sum(end - start for move in self.moves for start, end in move.slots),
            copied_bytes=sum(c.bytes_received for c in self.copies),
        )

    @property
    def title(self) -> str:
        """For people: `add-node node6`, `rebalance`."""
        return f"{self.kind} {self.node}".rstrip()

    @property
    def joining(self) -> NodeId | None:
        """Who comes into the cluster."""
        return self.node if self.kind in ("add-node", "replace-node") else None

    @property
    def leaving(self) -> NodeId | None:
        """Who leaves the cluster."""
        return {"remove-node": self.node, "replace-node": self.replaces}.get(self.kind)

    def required(self, target: GroupId) -> set[NodeId]:
        """Members of a gaining group that must hold a copy before anything is released."""
        members = {n for m in self.moves if m.target == target for n in m.target_members}
        return members - set(self.dead)

    @property
    def losing(self) -> list[GroupId]:
        return sorted({m.source for m in self.moves})

    @property
    def gaining(self) -> list[GroupId]:
        return sorted({m.target for m in self.moves})

    def state(self) -> str:
        """`running`, `paused`, `waiting_(migrate|signoff|release)`, `done`, `cancelled`."""
        if self.stage is Stage.DONE:
            return "done"
        if self.stage is Stage.CANCELLED:
            return "cancelled"
        if self.paused and self.stage in PAUSABLE:
            return "paused"
        if self.stage is Stage.MOVING:
            if self.options.no_migrate and not self.migrate_go:
                return "waiting_migrate"
            if set(self.adopted) >= set(self.gaining):
                if self.options.verify and not self.signed_off:
                    return "waiting_signoff"
                if self.is_held:
                    return "waiting_release"
        return "running"

    @property
    def is_held(self) -> bool:
        """Whether everything is adopted and approved, and --hold-release alone keeps the previous copies."""
        if self.stage is not Stage.MOVING or not set(self.adopted) >= set(self.gaining):
            return False
        unsigned = self.options.verify and not self.signed_off
        return bool(self.options.hold_release_ms) and not self.release_go and not unsigned

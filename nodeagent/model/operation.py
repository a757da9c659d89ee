"""The record of one change of the cluster (add-node, remove-node, replace-node, rebalance) in the meta group.

Slots are given as ranges [start, end). Times are in milliseconds, by the wall clock of the meta leader.
"""

from enum import StrEnum

import msgspec

from nodeagent.model.ids import GroupId, NodeId

Ranges = tuple[tuple[int, int], ...]


class Stage(StrEnum):
    """The stage of a change; docs/internals/scaling.md describes what happens in each stage.

    Values are stored and sent and never change; operators see the names.
    """

    PLANNED = "PLANNED"
    SEALED = "SEALED"
    OPEN = "OPEN"
    RECONFIGURING = "FORMAL"
    COPYING = "MOVING"
    CLEANUP = "RELEASED"
    DONE = "DONE"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


ENDED = (Stage.DONE, Stage.CANCELLED)
PAUSABLE = (Stage.PLANNED, Stage.SEALED, Stage.OPEN, Stage.RECONFIGURING, Stage.COPYING)
"""Stages in which a pause has an effect: it holds back the pulls of COPYING and the step to CLEANUP."""

NEXT: dict[Stage, tuple[Stage, ...]] = {
    Stage.PLANNED: (Stage.SEALED, Stage.CANCELLING),
    Stage.SEALED: (Stage.OPEN, Stage.CANCELLING),
    Stage.OPEN: (Stage.RECONFIGURING,),
    Stage.RECONFIGURING: (Stage.COPYING,),
    Stage.COPYING: (Stage.CLEANUP,),
    Stage.CLEANUP: (Stage.DONE,),
    Stage.CANCELLING: (Stage.CANCELLED,),
    Stage.DONE: (),
    Stage.CANCELLED: (),
}
"""The allowed transitions, as docs/internals/scaling.md draws them."""


class SlotMove(msgspec.Struct, frozen=True):
    """Slots that move from one group to another, with the members of both."""

    slots: Ranges
    source: GroupId
    source_members: tuple[NodeId, ...]
    target: GroupId
    target_members: tuple[NodeId, ...]


class GroupChange(msgspec.Struct, frozen=True):
    """A group of the new ring whose members change: `joins` is added, `leaves` is removed (either may be
    None)."""

    group: GroupId
    joins: NodeId | None
    leaves: NodeId | None
    before: tuple[NodeId, ...]
    after: tuple[NodeId, ...]


class Options(msgspec.Struct, frozen=True):
    """What the operator asked for when the change began."""

    verify: bool = False
    """Release the previous copies only after a sign-off."""

    depth: str = "content"
    """How deeply the verification compares (`iotctl --depth`)."""

    no_migrate: bool = False
    """Start no copy before the operator says so (`ControlOperation`, verb `go`)."""

    hold_release_ms: int = 0
    """Retain the previous copies for this long after all slots are adopted (with `verify`: after the
    sign-off); 0 does not hold them."""

    rate_bytes_per_s: int = 0
    """Rate at which a node pulls files; 0 lets the agents choose."""

    dead: bool = False
    """The node that leaves is permanently lost."""


class StageSpan(msgspec.Struct):
    """When an operation was in a stage, and what let it leave the stage."""

    name: str
    """The value of the stage."""

    entered_ms: int
    left_ms: int = 0
    """0 while the operation is in the stage."""

    reports: list[str] = msgspec.field(default=[], name="evidence")
    """Why the operation left the stage: the last progress reports, or an operator's cancel."""

    @property
    def stage(self) -> Stage:
        return Stage(self.name)


class SealResult(msgspec.Struct, frozen=True):
    """The seal of a losing group: its log index, and the session table that goes with the sealed slots."""

    group: GroupId
    index: int
    """In the log of `group`."""

    sessions: bytes = b""
    """The session table itself, from a member of a release that sets no `parts`."""

    parts: tuple[str, ...] = ()
    """XXH3-128 of each part of the session table; gaining groups fetch the parts from the losing group."""


class CopyRecord(msgspec.Struct, frozen=True):
    """A verified, durable copy of `slots` for `target`, held by one incarnation of a node."""

    target: GroupId
    node: NodeId
    incarnation: str
    slots: Ranges
    digest: str
    """XXH3-128 over (slot, staged name, size, hash) of all files: equal on every member."""

    files: int
    bytes_received: int
    refetched: int = 0
    """Files that arrived damaged and were fetched from another source."""


class Lease(msgspec.Struct, frozen=True):
    """While the lease is held, its owner decides the order of pulls; else the agents do.

    It ends when it is not renewed for `ttl_ms`. `serial` grows with each renewal; a lease that is taken after
    the last one ended begins at 1 again.
    """

    owner: str
    serial: int
    ttl_ms: int


REPORT_CHARS = 100
ERROR_CHARS = 500
"""Characters of the texts in a short record of an operation."""

_KEPT_IN_SHORT = (
    *("id", "kind", "node", "started_ms", "base_version", "table_version", "options", "stage"),
    *("created_group", "dissolved_group", "replaces", "dead", "signed_off"),
)


def recovery_name(index: int, change: str) -> str:
    """The name of the force recovery at meta log index `index`, while `change` is open ("" for none). The
    config of a recovered group has it as its operation."""
    return f"{change}.{index}" if change else f"op-{index}"


def order_of(operation: str) -> tuple[int, ...]:
    """The operation's place in the order of all operations and recoveries; (0,) for none. A recovery comes
    after the change that is open during it and before the next change."""
    return tuple(int(number) for number in operation.removeprefix("op-").split(".")) if operation else (0,)


def cut_text(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


class Operation(msgspec.Struct):
    """One change. `id` is `op-<meta log index>`; progress reports are stored as sets, never as counters.

    `node` is the node that joins or leaves; "" for a rebalance, which moves slots and changes no members.
    `kind` is add-node, remove-node, replace-node or rebalance.
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
    """replace-node: the node that leaves; `node` takes its place on the ring."""

    dead: list[NodeId] = []
    """Nodes that are permanently lost: they are fenced, and the operation requires nothing of them."""

    fenced: list[NodeId] = []
    """Those of `dead` that this operation fenced; an earlier operation fenced the others."""

    sealed: dict[str, SealResult] = {}
    """Losing group -> its seal."""

    unsealed: list[str] = []
    sources_ready: list[tuple[str, str]] = []
    """(group, node): the node applied the group's seal and made the files of the sealed slots."""

    joined: list[tuple[str, str]] = []
    """(group, node): the node created its replica of the group for this operation and will retain it."""

    opened: list[str] = []
    formed: list[str] = []
    copies: list[CopyRecord] = []
    adopted: list[str] = []
    released: list[str] = []
    """`unsealed`, `opened`, `formed`, `adopted` and `released` list the groups that reported that step."""

    migrate_go: bool = False
    signed_off: bool = False
    release_go: bool = False
    """The operator said go, signed off, or ended the hold of the release (`ControlOperation`)."""

    held_since_ms: int = 0
    """When the hold of the release began (`is_held`), even if the operation was paused; 0 before."""

    paused: bool = False
    """In COPYING no pull starts and the operation does not enter CLEANUP; every other stage continues."""

    meta_ready: bool = False
    """add-node: the joining node follows the meta log. remove-node: the leaving node has no vote in the meta
    group. replace-node: both. Always set for a rebalance."""

    group_ready: bool = False
    """The created group has a leader."""

    lease: Lease | None = None
    stages: list[StageSpan] = []
    last_error: str = ""
    moved_slots: int = 0
    """Number of slots that move: set in a short record, which lists no moves, members or copies; 0 in a
    whole record."""

    copied_bytes: int = 0
    """Bytes that copies received over the network; set in a short record."""

    error_group: GroupId = ""
    """The data group that `last_error` concerns (since `Feature.REASONS`); "" if it concerns none, and in a
    short record."""

    recovered: dict[GroupId, str] = {}
    """Groups whose recovery was forced during this operation -> the name of the last recovery (since
    `Feature.RECOVERY_IN_CHANGE`)."""

    @property
    def ended(self) -> bool:
        return self.stage in ENDED

    @property
    def is_short(self) -> bool:
        return self.moved_slots > 0

    def shortened(self) -> "Operation":
        """The short record of an ended operation: who did what, when, and how it ended."""
        spans = [
            StageSpan(s.name, s.entered_ms, s.left_ms, [cut_text(e, REPORT_CHARS) for e in s.reports])
            for s in self.stages
        ]
        kept = {name: getattr(self, name) for name in _KEPT_IN_SHORT}
        return Operation(
            **kept,
            by=cut_text(self.by, REPORT_CHARS),
            moves=[],
            changes=[],
            stages=spans,
            last_error=cut_text(self.last_error, ERROR_CHARS),
            moved_slots=sum(end - start for move in self.moves for start, end in move.slots),
            copied_bytes=sum(c.bytes_received for c in self.copies),
        )

    @property
    def title(self) -> str:
        """For operators: `add-node node6`, `rebalance`."""
        return f"{self.kind} {self.node}".rstrip()

    @property
    def joining(self) -> NodeId | None:
        """The node that joins the cluster."""
        return self.node if self.kind in ("add-node", "replace-node") else None

    @property
    def leaving(self) -> NodeId | None:
        """The node that leaves the cluster."""
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
        if self.stage is Stage.COPYING:
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
        """Whether all slots are adopted and signed off, and only --hold-release retains the previous
        copies."""
        if self.stage is not Stage.COPYING or not set(self.adopted) >= set(self.gaining):
            return False
        unsigned = self.options.verify and not self.signed_off
        return bool(self.options.hold_release_ms) and not self.release_go and not unsigned

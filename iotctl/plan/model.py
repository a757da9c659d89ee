"""The plan as people and programs read it. Keys are stable; more may be added.

All sizes are bytes. A *slot's* bytes are one replica's; `bytes_copied` counts every replica byte that
crosses the network. Headers name data groups.
"""

import msgspec

FORMAT_VERSION = 1


class SlotMove(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One slot between two group headers; `bytes` is one replica's."""

    slot: int
    source: str
    target: str
    bytes: int


class GroupChange(msgspec.Struct, frozen=True):
    """`bytes` is what all joiners of this group copy because they join.

    For an existing group that is its catch-up. For the group that is created it is 0: its members copy
    the slots in `moves`. A group that is dissolved has only `leaves`.
    """

    group: str
    joins: tuple[str, ...]
    leaves: tuple[str, ...]
    bytes: int


class NodeLoad(msgspec.Struct, frozen=True):
    """`slots` owned as header; `bytes` on disk, all replicas the node holds."""

    node: str
    slots: int
    bytes: int
    weight: float = 1.0


class NodePeak(msgspec.Struct, frozen=True):
    """The most disk a node needs on the way: old copies stay until the new ones are verified.

    `extra_bytes` is the peak above what it holds now; `free_bytes` None is not known.
    """

    node: str
    bytes: int
    extra_bytes: int
    copied_bytes: int
    free_bytes: int | None


class GroupLoad(msgspec.Struct, frozen=True):
    """What one data group carries; `bytes` are one replica's, rates are acknowledged bytes per second."""

    group: str
    weight: float
    slots_before: int
    slots_after: int
    bytes_before: int
    bytes_after: int
    write_bytes_per_s_before: float
    write_bytes_per_s_after: float


class Summary(msgspec.Struct, frozen=True):
    """`max_minus_min_*`: difference of slots per weight between the most and the least loaded node.

    `max_over_mean_*` (rebalance): the group with the most slots, bytes or writes, by the plan's strategy,
    per weight and over the mean. `lower_bound_slots` is for what the strategy evens out.
    """

    slots_moved: int
    lower_bound_slots: int
    bytes_copied: int
    lower_bound_bytes: int
    """Replica-placement bound: bytes that are on a node by the final table and are not there now."""

    max_minus_min_before: float
    max_minus_min_after: float
    before: tuple[NodeLoad, ...]
    after: tuple[NodeLoad, ...]
    peak_disk: tuple[NodePeak, ...]
    eta_s: int
    """bytes_copied / rate, rounded up."""

    rate_bytes_per_s: int
    nonempty_slots_moved: int
    free_placement_bytes: int = 0
    """Fewest that would be copied if groups did not follow from the ring, for the same share on each node."""

    gap: float | None = None
    """How much more than `lower_bound_bytes` is copied, as a fraction of it; None when the bound is 0."""

    copying_at_once_max: int = 0
    """Most nodes that pull at the same time in one step."""

    max_over_mean_before: float | None = None
    max_over_mean_after: float | None = None


class HotSlot(msgspec.Struct, frozen=True):
    """A slot with more than a fifth of its group's bytes or writes; no placement splits it.

    `times_mean` is over the mean of the non-empty slots; shares are of its group, in [0, 1].
    """

    slot: int
    header: str
    bytes: int
    times_mean: float
    bytes_share: float = 0.0
    write_bytes_per_s: float = 0.0
    write_share: float = 0.0
    advice: str = ""


class Refusal(msgspec.Struct, frozen=True):
    """Why this cannot be done; `subject` is a node or a group header."""

    code: str
    subject: str
    reason: str
    next: str


class Step(msgspec.Struct, frozen=True):
    """One change to execute, in order: `add`, `remove`, or `move` (whose `node` is "").

    `after` is the ring place of an added node.
    """

    kind: str
    node: str
    position: int
    after: str
    weight: float
    slots: int
    bytes_copied: int
    replaces: str = ""
    """replace: whose place on the ring `node` takes."""

    copies: tuple[str, ...] = ()
    """Nodes that pull bytes in this step, all at the same time."""

    eta_s: int = 0
    """bytes_copied / rate, rounded up."""


class Difference(msgspec.Struct, frozen=True):
    """cluster.yaml says `wanted` of what is kept for ever; `node` "" is the cluster itself."""

    node: str
    what: str
    present: str
    wanted: str
    next: str


class Plan(msgspec.Struct, frozen=True):
    """Invariant: with a refusal there is no move, no group change and no step."""

    kind: str
    """`add-node`, `remove-node`, `replace-node` or `rebalance`; `spec` when cluster.yaml asks for several of
    them, `none` when it asks for nothing."""

    table_version: int
    spec_hash: str
    strategy: str
    """What was evened out per weight. rebalance: `slots`, `bytes` or `write-rate`, as asked. Else always the
    number of slots: `slots` (sizes unknown) or `bytes` (sizes decide which slots go)."""

    moves: tuple[SlotMove, ...]
    group_changes: tuple[GroupChange, ...]
    summary: Summary
    hot_slots: tuple[HotSlot, ...]
    refusals: tuple[Refusal, ...]
    steps: tuple[Step, ...]
    replicas: int
    format_version: int = FORMAT_VERSION
    group_loads: tuple[GroupLoad, ...] = ()
    """Of a rebalance: every group, in ring order."""

    from_spec: bool = False
    """Made from cluster.yaml; it removes nodes only when `apply` is told so."""

    differences: tuple[Difference, ...] = ()
    """Of a plan from cluster.yaml: what no plan brings about."""

    @property
    def has_changes(self) -> bool:
        return bool(self.steps)

    @property
    def leaving(self) -> list[str]:
        """Who is not in the cluster any more after it, in order."""
        gone = [s.replaces or s.node for s in self.steps if s.kind in ("remove", "replace")]
        return [n for n in gone if n not in {s.node for s in self.steps if s.kind == "add"}]

"""The published plan. Keys are stable; more may be added.

All sizes are bytes. A *slot's* bytes are those of one replica; `bytes_copied` counts every byte that crosses
the network. Data groups are named by their owners.
"""

import msgspec

FORMAT_VERSION = 1


class SlotMove(msgspec.Struct, frozen=True, rename={"source": "from", "target": "to"}):
    """One slot that moves between two groups, named by their owners; `bytes` are those of one replica."""

    slot: int
    source: str
    target: str
    bytes: int


class GroupChange(msgspec.Struct, frozen=True):
    """`bytes`: how much the joining members of this group copy because they join.

    For an existing group that is the catch-up. For a group that the plan creates, only members that join in
    a later step count: the first members copy the slots in `moves`. A group that is dissolved has only
    `leaves`.
    """

    group: str
    joins: tuple[str, ...]
    leaves: tuple[str, ...]
    bytes: int


class NodeLoad(msgspec.Struct, frozen=True):
    """`slots` that the node owns; `bytes` on disk of all replicas that the node holds."""

    node: str
    slots: int
    bytes: int
    weight: float = 1.0


class NodePeak(msgspec.Struct, frozen=True):
    """The most disk that a node needs during the plan: old copies stay until the new copies are verified.

    `extra_bytes` is the peak above what the node holds now; `free_bytes` None means unknown.
    """

    node: str
    bytes: int
    extra_bytes: int
    copied_bytes: int
    free_bytes: int | None


class GroupLoad(msgspec.Struct, frozen=True):
    """The load of one data group; `bytes` of one replica, rates in acknowledged bytes per second."""

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

    `max_over_mean_*` (rebalance): the highest load per weight of any group, divided by the mean. The load is
    slots, bytes or writes, as the plan's strategy says; `lower_bound_slots` refers to the same load.
    """

    slots_moved: int
    lower_bound_slots: int
    bytes_copied: int
    lower_bound_bytes: int
    """Replica-placement bound: bytes that the final table places on a node and that are not there now."""

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
    """The fewest bytes to copy for the same share on each node, if groups did not have to follow the ring."""

    gap: float | None = None
    """Bytes copied beyond `lower_bound_bytes`, as a fraction of that bound; None if the bound is 0."""

    copying_at_once_max: int = 0
    """The most nodes that pull at the same time in one step."""

    max_over_mean_before: float | None = None
    max_over_mean_after: float | None = None


class HotSlot(msgspec.Struct, frozen=True):
    """A slot with more than a fifth of its group's bytes or writes; a slot cannot be split.

    `times_mean`: bytes over the mean of the non-empty slots; shares are of its group, in [0, 1].
    """

    slot: int
    header: str
    """The former name of `owner`, written until 0.3.0."""

    bytes: int
    times_mean: float
    bytes_share: float = 0.0
    write_bytes_per_s: float = 0.0
    write_share: float = 0.0
    advice: str = ""
    owner: str = ""
    """Empty in a plan of 0.1.0, which has `header`."""


class Refusal(msgspec.Struct, frozen=True):
    """Why the change cannot be done; `subject` is a node or a group owner, "" if the reason concerns none."""

    code: str
    subject: str
    reason: str
    next: str


class Step(msgspec.Struct, frozen=True):
    """One change to execute, in order: `add`, `remove`, `replace`, or `move` (whose `node` is "").

    `after`: the node that an added node follows on the ring.
    """

    kind: str
    node: str
    position: int
    after: str
    weight: float
    slots: int
    bytes_copied: int
    replaces: str = ""
    """The node whose ring place `node` takes over (`replace`)."""

    copies: tuple[str, ...] = ()
    """Nodes that pull bytes in this step, all at the same time."""

    eta_s: int = 0
    """bytes_copied / rate, rounded up."""


class Difference(msgspec.Struct, frozen=True):
    """A fixed setting that cluster.yaml gives as `wanted`; `node` "" is the cluster itself."""

    node: str
    what: str
    present: str
    wanted: str
    next: str


class Plan(msgspec.Struct, frozen=True):
    """Invariant: with a refusal there is no move, no group change and no step."""

    kind: str
    """`add-node`, `remove-node`, `replace-node` or `rebalance`; `spec` if cluster.yaml requires several of
    these, `none` if it requires no change."""

    table_version: int
    spec_hash: str
    strategy: str
    """What was balanced per weight. For a rebalance: `slots`, `bytes` or `write-rate`, as requested.
    Otherwise always the number of slots: `slots` (sizes unknown) or `bytes` (sizes decide which slots
    move)."""

    moves: tuple[SlotMove, ...]
    group_changes: tuple[GroupChange, ...]
    summary: Summary
    hot_slots: tuple[HotSlot, ...]
    refusals: tuple[Refusal, ...]
    steps: tuple[Step, ...]
    replicas: int
    format_version: int = FORMAT_VERSION
    group_loads: tuple[GroupLoad, ...] = ()
    """For a rebalance: every group, in ring order."""

    from_spec: bool = False
    """The plan was made from cluster.yaml; `apply` removes nodes only with the option that allows it."""

    differences: tuple[Difference, ...] = ()
    """For a plan from cluster.yaml: the differences that no plan can resolve."""

    options: tuple[str, ...] = ()
    """The options of `iotctl plan` that decided what changes, such as `--after node2`."""

    @property
    def has_changes(self) -> bool:
        return bool(self.steps)

    @property
    def leaving(self) -> list[str]:
        """The nodes that are no longer in the cluster afterwards, in order."""
        gone = [s.replaces or s.node for s in self.steps if s.kind in ("remove", "replace")]
        return [n for n in gone if n not in {s.node for s in self.steps if s.kind == "add"}]

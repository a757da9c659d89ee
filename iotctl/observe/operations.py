"""Shows the operations of the cluster as rows, and looks up, controls and awaits them."""

import time
from collections.abc import Callable, Mapping

import msgspec

from iotctl.errors import Partly, RefusedProblem, UsageProblem
from iotctl.humanize import bytes_text, time_text
from iotctl.observe.cluster import Cluster
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.operation import ENDED, Operation, Ranges, Stage
from nodeagent.model.requests import ControlOperation, GetOperation, MetaView, NodeStatus, OperationReply
from nodeagent.partition import ranges

POLL_S = 0.25
WAITS = ("waiting_migrate", "waiting_signoff", "waiting_release", "paused")
"""States that only a command or a deadline ends."""


class StageRow(msgspec.Struct, frozen=True):
    """`left_ms` is None while the operation is in the stage."""

    name: str
    entered_ms: int
    left_ms: int | None
    reports: list[str]
    former_name: str
    """The name in 0.1.0. It and `evidence`, now `reports`, are printed until 0.3.0."""

    evidence: list[str]


class OperationRow(msgspec.Struct, frozen=True):
    """`slots_done` counts slots with a verified copy on every new member. `bytes_total` is extrapolated and
    None until the first slot is done; bytes are those that crossed the network."""

    id: str
    kind: str
    node: str
    stage: str
    state: str
    blocked_on: str
    last_error: str
    slots_total: int
    slots_done: int
    bytes_total: int | None
    bytes_done: int
    eta_s: float | None
    started_ms: int
    by: str
    cancellable: bool
    next: str
    stages: list[StageRow]
    former_stage: str
    """The name of `stage` in 0.1.0, printed until 0.3.0."""

    @property
    def title(self) -> str:
        """As shown to operators: `add-node node6`, `rebalance`."""
        return f"{self.kind} {self.node}".rstrip()


class Operations(msgspec.Struct, frozen=True):
    operations: list[OperationRow]


def describe_operation(
    operation: Operation, *, now_ms: int, received: Mapping[str, int] | None = None
) -> OperationRow:
    """`received`: by node, the file bytes pulled for this operation, as far as known."""
    total = operation.moved_slots or ranges.count(ranges.union(*(m.slots for m in operation.moves)))
    done = total if operation.stage in (Stage.CLEANUP, Stage.DONE) else ranges.count(copied(operation))
    by_copies = operation.copied_bytes + sum(c.bytes_received for c in operation.copies)
    bytes_done = max(by_copies, sum((received or {}).values()))
    share = done / total if total else 1.0
    entered = operation.stages[-1].entered_ms if operation.stages else operation.started_ms
    eta = None
    if operation.stage is Stage.COPYING and 0 < share < 1:
        eta = round((now_ms - entered) / 1000 * (1 - share) / share, 1)
    return OperationRow(
        id=operation.id,
        kind=operation.kind,
        node=operation.node,
        stage=operation.stage.name,
        former_stage=operation.stage.value,
        state=operation.state(),
        blocked_on=blocked_on(operation),
        last_error=operation.last_error,
        slots_total=total,
        slots_done=done,
        bytes_total=int(bytes_done / share) if share else None,
        bytes_done=bytes_done,
        eta_s=eta,
        started_ms=operation.started_ms,
        by=operation.by,
        cancellable=operation.stage in (Stage.PLANNED, Stage.SEALED),
        next=next_command(operation),
        stages=[
            # The two times may come from the clocks of two leaders, which can differ by more than the
            # stage took.
            StageRow(
                name=s.stage.name,
                entered_ms=s.entered_ms,
                left_ms=max(s.left_ms, s.entered_ms) if s.left_ms else None,
                reports=list(s.reports),
                former_name=s.name,
                evidence=list(s.reports),
            )
            for s in operation.stages
        ],
    )


def copied(operation: Operation) -> Ranges:
    """Slots that every required member of the gaining group has copied and recorded; a dead member is not
    required."""
    done: list[Ranges] = []
    for move in operation.moves:
        slots = move.slots
        for member in operation.required(move.target):
            held = [c.slots for c in operation.copies if c.target == move.target and c.node == member]
            slots = ranges.intersect(slots, ranges.union(*held))
        done.append(slots)
    return ranges.union(*done)


def blocked_on(operation: Operation) -> str:
    """What the stage still waits for; "" if it waits for nothing or the operation has ended."""
    match operation.stage:
        case Stage.PLANNED:
            if not operation.meta_ready:
                return "the meta group's membership"
            return "" if operation.group_ready or operation.joining is None else "a leader of the new group"
        case Stage.SEALED:
            return _missing("seal of", operation.losing, set(operation.sealed))
        case Stage.OPEN:
            return _missing("opening of", _opening(operation), set(operation.opened))
        case Stage.RECONFIGURING:
            return _missing("members of", [c.group for c in operation.changes], set(operation.formed))
        case Stage.COPYING:
            return _blocked_moving(operation)
        case Stage.CLEANUP:
            return _missing("release by", operation.losing, set(operation.released))
        case _:
            return ""


def _opening(operation: Operation) -> list[str]:
    return sorted({*operation.gaining, *([operation.created_group] if operation.created_group else [])})


def _missing(what: str, wanted: list[str], have: set[str]) -> str:
    left = [g for g in wanted if g not in have]
    return f"{what} {', '.join(left)}" if left else ""


def _blocked_moving(operation: Operation) -> str:
    state = operation.state()
    if state == "paused":
        return "iotctl ops resume"
    if state == "waiting_migrate":
        return "iotctl migrate"
    if state == "waiting_signoff":
        return "sign-off by iotctl migrate --verify"
    if state == "waiting_release":
        end = operation.held_since_ms + operation.options.hold_release_ms
        return f"iotctl ops release, or the end of --hold-release at {time_text(end)}"
    owed = []
    for move in operation.moves:
        for member in operation.required(move.target):
            held = [c.slots for c in operation.copies if c.target == move.target and c.node == member]
            if ranges.subtract(move.slots, ranges.union(*held)):
                owed.append(member)
    if owed:
        return f"copies on {', '.join(sorted(set(owed)))}"
    return _missing("adoption by", operation.gaining, set(operation.adopted))


def next_command(operation: Operation) -> str:
    """The command that ends a wait or follows the operation; "" once the operation has ended."""
    match operation.state():
        case "waiting_migrate" if operation.options.verify:
            return f"iotctl migrate --verify --op {operation.id}"
        case "waiting_migrate":
            return f"iotctl migrate --op {operation.id}"
        case "waiting_signoff":
            return f"iotctl migrate --verify --op {operation.id}"
        case "waiting_release":
            return f"iotctl ops release {operation.id}"
        case "paused":
            return f"iotctl ops resume {operation.id}"
        case "running":
            return f"iotctl cluster wait --for op={operation.id}"
        case _:
            return ""


def cancel_cost(operation: Operation, received: Mapping[str, int]) -> str:
    """What cancelling undoes, in one sentence; `received` as in `describe_operation`."""
    done = max(sum(c.bytes_received for c in operation.copies), sum(received.values()))
    slots = ranges.count(ranges.union(*(m.slots for m in operation.moves)))
    groups = ", ".join(operation.losing)
    undone = f"{slots} slots stay with" if operation.stage is Stage.PLANNED else f"{slots} slots reopen in"
    return f"{undone} {groups or 'their groups'}; {bytes_text(done)} copied so far are discarded"


def received_bytes(statuses: Mapping[str, NodeStatus | NodeAgentError], operation: str) -> dict[str, int]:
    """Bytes received for the operation by each node that answered."""
    return {
        node: status.received_bytes.get(operation, 0)
        for node, status in statuses.items()
        if isinstance(status, NodeStatus)
    }


def removed_by(meta: MetaView, node: str) -> Operation | None:
    """The operation that removed this node, if no later operation concerns the node."""
    own = [o for o in meta.operations if node in (o.joining, o.leaving)]
    return own[-1] if own and own[-1].leaving == node and own[-1].stage is Stage.DONE else None


def open_operations(view: MetaView) -> list[Operation]:
    return [o for o in view.operations if o.stage not in ENDED]


def pick(view: MetaView, wanted: str | None) -> Operation:
    """The named operation, or the only open one.

    Raises:
        RefusedProblem: there is no such operation, or none is open.
        UsageProblem: several are open and none is named.
    """
    if wanted:
        for operation in view.operations:
            if operation.id == wanted:
                return operation
        raise RefusedProblem(f"there is no operation {wanted}", next="iotctl ops list")
    candidates = open_operations(view)
    if not candidates:
        raise RefusedProblem("no operation is open", next="iotctl ops list")
    if len(candidates) > 1:
        names = ", ".join(o.id for o in candidates)
        raise UsageProblem(f"several operations are open: {names}", next="name one of them")
    return candidates[0]


def whole(cluster: Cluster, operation: Operation) -> Operation:
    """The full record: with moves, members, copies and all progress reports."""
    if not operation.is_short:
        return operation
    reply = cluster.call_meta(GetOperation(operation.id))
    assert isinstance(reply, OperationReply), reply
    return reply.operation


def control(cluster: Cluster, operation: str, verb: str, by: str, *, rate: int = -1) -> Operation:
    """Send one verb (go, release, pause, cancel, set, …) to the meta group; returns the updated operation."""
    return cluster.control(ControlOperation(operation=operation, verb=verb, by=by, rate_bytes_per_s=rate))


OnOperation = Callable[[Operation], None]


def _looked_up(cluster: Cluster, operation: str) -> Operation:
    """As `pick`. The first node that answers may lag and not know the operation yet, so only a strong
    read can refuse it."""
    try:
        return pick(cluster.meta(), operation)
    except RefusedProblem:
        return pick(cluster.meta(strong=True), operation)


def wait_operation(
    cluster: Cluster,
    operation: str,
    *,
    on_update: OnOperation,
    until: tuple[str, ...] = ("done", "cancelled", *WAITS),
    timeout_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Operation:
    """Poll until the operation's state is one of `until`.

    Polling continues while the cluster does not answer: the operation runs in the cluster, not here.

    Raises:
        Partly: the timeout expired first; the operation continues.
        RefusedProblem: there is no such operation.
    """
    deadline = None if timeout_s is None else clock() + timeout_s
    reason = ""
    while True:
        try:
            found = _looked_up(cluster, operation)
            on_update(found)
            if found.state() in until:
                return found
            reason = blocked_on(found)
        except NodeAgentError as error:
            reason = error.what
        if deadline is not None and clock() >= deadline:
            raise Partly(
                f"operation {operation} has not ended yet",
                why=f"waiting for {reason}" if reason else "",
                next=f"iotctl cluster wait --for op={operation}",
            )
        sleep(POLL_S)

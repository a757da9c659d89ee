"""Execute a plan: begin its steps as operations in the meta group, one change at a time.

The executed plan is the plan that was shown: each step carries its slots and ring position, and the plan
carries the table version for which it was made. Once the meta group has recorded an operation, the agents
complete it without this program. What remains for it, at the end of a removal, is to stop the node's agent
and to edit cluster.yaml.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from iotctl.change.lock import lock_purpose
from iotctl.change.provision import Provisioner, started
from iotctl.errors import BusyProblem, Partly, RefusedProblem, UsageProblem
from iotctl.observe.cluster import Cluster
from iotctl.observe.facts import spec_hash
from iotctl.observe.layout import table_of
from iotctl.observe.operations import (
    OnOperation,
    blocked_on,
    next_command,
    open_operations,
    wait_operation,
)
from iotctl.plan.apply import changes_of, check_fresh
from iotctl.plan.model import Plan, Step
from iotctl.spec.cluster import ClusterSource, NodeEntry, load_cluster
from iotctl.spec.edit import add_node, diff, remove_node
from nodeagent.model.config import RaftSettings
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.operation import Operation, Options, Ranges, Stage
from nodeagent.model.requests import BeginChange, NodeStatus
from nodeagent.partition.change import Change
from nodeagent.partition.ranges import union

SILENT_MS = 10 * RaftSettings().election_timeout_ms
"""A node that any agent heard from within this time is not dead."""

KINDS = {"add": "add-node", "remove": "remove-node", "replace": "replace-node", "move": "rebalance"}
"""Maps the kind of a plan's step to the kind of the operation."""

OnNote = Callable[[str], None]
Locked = Callable[[str], AbstractContextManager[None]]
"""Holds the cluster lock, for the stated purpose, while the block runs."""


class Executed(msgspec.Struct, frozen=True):
    """`operations` in the order they began; `state` is that of the last one. `nodes`: those that the steps
    add or remove; of a replacement, only the new one."""

    operations: list[str]
    state: str
    nodes: list[str]


class ChangeRequest(msgspec.Struct, frozen=True):
    """How to execute a plan. With `wait_s` None, the wait has no limit."""

    by: str
    options: Options = Options()
    wait: bool = True
    wait_s: float | None = None
    write_spec: bool = True
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class ClusterLock:
    """The cluster lock as a change uses it.

    `hold`: held until the last change has begun: the agents then complete it, and other work may begin.
    `check`: called before each change begins; returns the lock's serial. Raises `RefusedProblem` if the lock
    was lost.
    """

    hold: Locked = lambda what: nullcontext()
    check: Callable[[], int] = lambda: 0


def execute(
    connected: Callable[[], Cluster],
    source: ClusterSource,
    plan: Plan,
    request: ChangeRequest,
    *,
    provisioner: Provisioner,
    on_note: OnNote,
    on_update: OnOperation,
    lock: ClusterLock = ClusterLock(),
) -> Executed:
    """Begin every step of `plan`, each after the previous one has ended.

    Args:
        connected: returns the client. Called under the lock, since taking the lock may have closed an
            earlier client.

    Raises:
        RefusedProblem: the plan is stale or was refused, an operation was cancelled, or the lock was lost;
            earlier steps may have been carried out.
        BusyProblem: another change is open.
        UsageProblem: the plan has several steps and `request` does not wait.
        Partly: the timeout expired before an operation ended.
    """
    if len(plan.steps) > 1 and not request.wait:
        raise UsageProblem(
            "a change of several steps needs --wait: one step follows the other; nothing was changed",
            next="omit --no-wait",
        )
    execution = _Execution(source, request, provisioner, on_note, on_update, lock)
    return execution.run(connected, plan)


@dataclass(frozen=True, slots=True)
class _Execution:
    """One execution of a plan."""

    source: ClusterSource
    request: ChangeRequest
    provisioner: Provisioner
    on_note: OnNote
    on_update: OnOperation
    lock: ClusterLock

    def run(self, connected: Callable[[], Cluster], plan: Plan) -> Executed:
        begun: list[str] = []
        state = "running"
        named = [n for s in plan.steps for n in (s.replaces, s.node) if n]
        with ExitStack() as held:
            held.enter_context(self.lock.hold(lock_purpose(" ".join([plan.kind, *named]), plan)))
            cluster = connected()
            view = cluster.meta(strong=True)
            check_fresh(plan, view.table_version, spec_hash(self.source))
            changes = changes_of(plan, table_of(view))
            version = view.table_version
            for i, (step, change) in enumerate(zip(plan.steps, changes, strict=True)):
                last = i == len(plan.steps) - 1
                operation = self._begin(cluster, step, change, version)
                begun.append(operation.id)
                if last:
                    try:
                        held.close()
                    except Partly as error:  # the lock was lost, but it was only needed to begin the change
                        self.on_note(f"{error.what}; {error.next}")
                leaves = {"remove": step.node, "replace": step.replaces}.get(step.kind)
                if self.request.wait:
                    state = self._await(cluster, operation, leaves, last=last)
                    version = cluster.meta(strong=True).table_version
                elif leaves is not None:
                    self.on_note(
                        f"{leaves} stays in {self.source.path.name}: run iotctl ops wait {operation.id} to"
                        " complete its removal"
                    )
        return Executed(begun, state, [s.node for s in plan.steps if s.node])

    def _begin(self, cluster: Cluster, step: Step, change: Change, version: int) -> Operation:
        lock = self.lock.check()
        entry = None
        if step.kind in ("add", "replace"):
            check_idle(cluster)
            entry = self.provisioner.place(step, self.request.host, self.request.port)
            with started(self.provisioner, entry) as starting:
                status = self.provisioner.status(entry)
                begin = _begin(step, change, self.request, version, entry, status, self.lock.check())
                starting.asked = True
                operation = cluster.begin_change(begin)
        else:
            operation = cluster.begin_change(_begin(step, change, self.request, version, None, None, lock))
        self.on_note(f"operation {operation.id}: {operation.title}")
        if entry:
            _spec_edit(self.source, partial(_with, entry=entry), self.request, self.on_note)
        return operation

    def _await(self, cluster: Cluster, operation: Operation, leaves: str | None, *, last: bool) -> str:
        """Wait for the operation and complete a removal; returns the operation's state.

        Raises:
            RefusedProblem: the operation was cancelled.
            Partly: the timeout expired first.
        """
        operation = _wait(cluster, operation, self.request, self.on_update, final=last)
        state = operation.state()
        if state == "cancelled":
            raise RefusedProblem(
                f"operation {operation.id} was cancelled",
                why=operation.last_error,
                next=f"iotctl ops show {operation.id}",
            )
        if leaves is not None and state == "done":
            _removed(self.source, self.provisioner, leaves, self.request, self.on_note)
        return state


def _wait(
    cluster: Cluster, operation: Operation, request: ChangeRequest, on_update: OnOperation, *, final: bool
) -> Operation:
    """Wait for the end of the operation, or for the hold the operator requested (last step only)."""
    until = ["done", "cancelled"]
    if final and operation.options.no_migrate:
        until.append("waiting_migrate")
    if final and operation.options.verify:
        until.append("waiting_signoff")
    if final and operation.options.hold_release_ms:
        until.append("waiting_release")
    return wait_operation(
        cluster, operation.id, on_update=on_update, until=tuple(until), timeout_s=request.wait_s
    )


def _begin(
    step: Step,
    change: Change,
    request: ChangeRequest,
    version: int,
    entry: NodeEntry | None,
    status: NodeStatus | None,
    lock: int,
) -> BeginChange:
    gains: dict[str, list[Ranges]] = {}
    for move in change.moves:
        gains.setdefault(move.target, []).append(move.slots)
    return BeginChange(
        kind=KINDS[step.kind],
        node=step.node,
        by=request.by,
        options=msgspec.structs.replace(
            request.options, dead=request.options.dead and step.kind in ("remove", "replace")
        ),
        after=step.after or None,
        host=entry.host if entry else "",
        port=entry.port if entry else 0,
        http_port=entry.http_port if entry else 0,
        incarnation=status.incarnation if status else "",
        weight=step.weight or 1.0,
        zone=entry.zone if entry else "",
        table_version=version,
        gains=tuple((h, union(*r)) for h, r in sorted(gains.items())),
        replaces=step.replaces,
        lock=lock,
    )


def check_idle(cluster: Cluster) -> None:
    """Raise `BusyProblem` if another change is open, so that no new node is started without need."""
    for operation in open_operations(cluster.meta(strong=True)):
        waits = blocked_on(operation)
        raise BusyProblem(
            f"{operation.id} ({operation.title}, by {operation.by}) is open",
            why=f"it waits for {waits}" if waits else "one change at a time",
            next=next_command(operation),
        )


def finish_removal(
    cluster: Cluster,
    source: ClusterSource,
    provisioner: Provisioner,
    operation: Operation,
    on_note: OnNote,
) -> None:
    """Complete a removal that has ended: stop the agent and remove the node from `cluster.yaml`.

    Other operations, nodes that have rejoined since, and removals that were completed before are ignored.
    """
    node = operation.leaving
    if node is None or operation.stage is not Stage.DONE or node not in load_cluster(source.path).node_names:
        return
    if node not in cluster.meta(strong=True).ring:
        _removed(source, provisioner, node, ChangeRequest(operation.by), on_note)


def forget_node(
    source: ClusterSource, provisioner: Provisioner, node: str, on_note: OnNote, *, write_spec: bool
) -> None:
    """As `finish_removal`, for a node that the cluster no longer knows, no matter how it left."""
    if node in load_cluster(source.path).node_names:
        _removed(source, provisioner, node, ChangeRequest("", write_spec=write_spec), on_note)


def _removed(
    source: ClusterSource, provisioner: Provisioner, node: str, request: ChangeRequest, on_note: OnNote
) -> None:
    # The agent first: once the file does not list the node, nothing would stop its agent after a Ctrl-C.
    said = provisioner.retire(node)
    if said:
        on_note(said)
    _spec_edit(source, partial(remove_node, name=node), request, on_note)


def _with(text: str, entry: NodeEntry) -> str:
    """`text` with `entry` among its nodes; unchanged if it is listed already."""
    import yaml

    known = [n.get("name") for n in yaml.safe_load(text).get("nodes", [])]
    return text if entry.name in known else add_node(text, entry)


def _spec_edit(
    source: ClusterSource, change: Callable[[str], str], request: ChangeRequest, on_note: OnNote
) -> None:
    """Edit the file, or only show the edit if the operator asked to leave the file alone."""
    if request.write_spec:
        on_note(update_spec(source.path, change))
    else:
        on_note(diff(source.text, change(source.text), str(source.path)))


def update_spec(path: Path, change: Callable[[str], str]) -> str:
    """Rewrite `path` by `change`, atomically; returns the diff ("" if nothing changed)."""
    old = path.read_text(encoding="utf-8")
    new = change(old)
    if new == old:
        return ""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(new, encoding="utf-8")
    load_cluster(temporary)
    temporary.replace(path)
    return diff(old, new, str(path))


def check_silent(
    statuses: Mapping[str, NodeStatus | NodeAgentError],
    name: str,
    incarnation: str = "",
    *,
    otherwise: str = "omit --dead",
) -> None:
    """Check that a node is dead: it does not answer and no agent heard from it recently.

    Args:
        incarnation: the member's. An agent that answers with another incarnation is not the member: its
            disk was wiped.
        otherwise: what the operator can do if the node is not dead.

    Raises:
        RefusedProblem: the node answers, or an agent heard from it; says which agent and when.
    """
    answer = statuses.get(name)
    if isinstance(answer, NodeStatus) and incarnation in ("", answer.incarnation):
        raise RefusedProblem(f"{name} is not dead: it answers; nothing was changed", next=otherwise)
    heard = {
        s.node: s.heard_ms[name]
        for s in statuses.values()
        if isinstance(s, NodeStatus) and name in s.heard_ms
    }
    last = min(heard, key=heard.__getitem__, default=None)
    if last is not None and heard[last] < SILENT_MS:
        raise RefusedProblem(
            f"{name} is not dead: {last} heard from it {heard[last]} ms ago; nothing was changed",
            next=f"retry once it has been silent for {SILENT_MS // 1000} s, or {otherwise}",
        )


def check_plan(plan: Plan) -> None:
    """Raise `RefusedProblem` with the plan's refusals, if it has any."""
    if plan.refusals:
        first, *rest = plan.refusals
        raise RefusedProblem(first.reason, why="; ".join(r.reason for r in rest), next=first.next)

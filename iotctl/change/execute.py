"""Add and remove nodes, move slots: from a plan to operations in the meta group, one change at a time.

The plan that was shown is the plan that is executed: each step carries its slots and ring place, and the
table version it was made for. Once the meta group has the operation, the agents finish it by themselves;
waiting here only watches.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path

import msgspec

from iotctl.change.lock import of_plan
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

START_TIMEOUT_S = 30.0
SILENT_MS = 10 * RaftSettings().election_timeout_ms
"""A node that some agent heard from within this is not dead."""

POLL_S = 0.1
KINDS = {"add": "add-node", "remove": "remove-node", "replace": "replace-node", "move": "rebalance"}
"""Of a plan's step: what the operation is called."""

OnNote = Callable[[str], None]
Locked = Callable[[str], AbstractContextManager[None]]
"""Holds the cluster's lock, for what it says, while the block runs."""

Probe = Callable[[NodeEntry], NodeStatus]


class Executed(msgspec.Struct, frozen=True):
    """`operations` in the order they were begun; `state` is that of the last one. `nodes` come or leave."""

    operations: list[str]
    state: str
    nodes: list[str]


class ChangeRequest(msgspec.Struct, frozen=True):
    """How to execute a plan. `wait_s` None waits without end."""

    by: str
    options: Options = Options()
    wait: bool = True
    wait_s: float | None = None
    write_spec: bool = True
    host: str = ""
    port: int = 0


def execute(
    connected: Callable[[], Cluster],
    source: ClusterSource,
    plan: Plan,
    request: ChangeRequest,
    *,
    provisioner: Provisioner,
    on_note: OnNote,
    on_update: OnOperation,
    locked: Locked = lambda what: nullcontext(),
    check: Callable[[], int] = lambda: 0,
) -> Executed:
    """Begin every step of `plan`, each after the one before it is over.

    Args:
        connected: the client; asked for under the lock, for taking it may have closed the one before.
        locked: held until the last change is begun: from then on the agents do it, and other work may begin.
        check: called before each change is begun; the lock's serial. Raises `RefusedProblem` when it is not
            ours any more.

    Raises:
        RefusedProblem: the plan is stale or was refused.
        UsageProblem: several steps without waiting.
        Partly: the wait ended first.
    """
    if len(plan.steps) > 1 and not request.wait:
        raise UsageProblem(
            "several nodes are changed one after the other", next="leave --no-wait out, or name one node"
        )
    begun: list[str] = []
    state = "running"
    named = [n for s in plan.steps for n in (s.replaces, s.node) if n]
    with ExitStack() as held:
        held.enter_context(locked(of_plan(" ".join([plan.kind, *named]), plan)))
        cluster = connected()
        view = cluster.meta(strong=True)
        check_fresh(plan, view.table_version, spec_hash(source))
        changes = changes_of(plan, table_of(view))
        version = view.table_version
        for i, (step, change) in enumerate(zip(plan.steps, changes, strict=True)):
            leaves = {"remove": step.node, "replace": step.replaces}.get(step.kind)
            last = i == len(plan.steps) - 1
            operation = _begun(cluster, source, step, change, version, request, provisioner, on_note, check)
            begun.append(operation.id)
            if last:
                try:
                    held.close()
                except Partly as error:  # lost meanwhile; the change is begun, and that is what it was for
                    on_note(f"{error.what}; {error.next}")
            if not request.wait:
                if leaves is not None:
                    on_note(f"{leaves} stays in {source.path.name} until the removal is over and waited for")
                continue
            operation = _wait(cluster, operation, request, on_update, final=last)
            state = operation.state()
            if state == "cancelled":
                raise RefusedProblem(
                    f"operation {operation.id} was cancelled",
                    why=operation.last_error,
                    next=f"iotctl ops show {operation.id}",
                )
            if leaves is not None and state == "done":
                _removed(source, provisioner, leaves, request, on_note)
            version = cluster.meta(strong=True).table_version
    return Executed(begun, state, [s.node for s in plan.steps if s.node])


def _begun(
    cluster: Cluster,
    source: ClusterSource,
    step: Step,
    change: Change,
    version: int,
    request: ChangeRequest,
    provisioner: Provisioner,
    on_note: OnNote,
    check: Callable[[], int],
) -> Operation:
    lock = check()
    entry = None
    if step.kind in ("add", "replace"):
        _check_idle(cluster)
        entry = provisioner.place(step, request.host, request.port)
        with started(provisioner, entry) as starting:
            status = provisioner.status(entry)
            begin = _begin(step, change, request, version, entry, status, check())
            starting.asked = True
            operation = cluster.begin_change(begin)
    else:
        operation = cluster.begin_change(_begin(step, change, request, version, None, None, lock))
    on_note(f"operation {operation.id}: {operation.title}")
    if entry:
        _spec_edit(source, partial(_with, entry=entry), request, on_note)
    return operation


def _wait(
    cluster: Cluster, operation: Operation, request: ChangeRequest, on_update: OnOperation, *, final: bool
) -> Operation:
    """To the end, or to the wait the operator asked for (which only the last step may stop at)."""
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
        table_version=version,
        gains=tuple((h, union(*r)) for h, r in sorted(gains.items())),
        replaces=step.replaces,
        lock=lock,
    )


def _check_idle(cluster: Cluster) -> None:
    """Raise `BusyProblem` while another change is open: before a newcomer is started for nothing."""
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
    """What is left to do here once a removal is over, whoever waited for it: `cluster.yaml` and the agent.

    Nothing for any other operation, for a node that has come back since, and when it was done already.
    """
    node = operation.leaving
    if node is None or operation.stage is not Stage.DONE or node not in load_cluster(source.path).node_names:
        return
    if node not in cluster.meta(strong=True).ring:
        _removed(source, provisioner, node, ChangeRequest(operation.by), on_note)


def forget_node(
    source: ClusterSource, provisioner: Provisioner, node: str, on_note: OnNote, *, write_spec: bool
) -> None:
    """As `finish_removal`, of a node that the cluster does not know any more, whichever way it went."""
    if node in load_cluster(source.path).node_names:
        _removed(source, provisioner, node, ChangeRequest("", write_spec=write_spec), on_note)


def _removed(
    source: ClusterSource, provisioner: Provisioner, node: str, request: ChangeRequest, on_note: OnNote
) -> None:
    # Its agent first: after a Ctrl-C nobody looks for one that the file does not name.
    said = provisioner.retire(node)
    if said:
        on_note(said)
    _spec_edit(source, partial(remove_node, name=node), request, on_note)


def _with(text: str, entry: NodeEntry) -> str:
    """`text` listing `entry`; unchanged when it does already."""
    import yaml

    known = [n.get("name") for n in yaml.safe_load(text).get("nodes", [])]
    return text if entry.name in known else add_node(text, entry)


def _spec_edit(
    source: ClusterSource, change: Callable[[str], str], request: ChangeRequest, on_note: OnNote
) -> None:
    """Make the edit, or only show it when the operator wants the file left alone."""
    if request.write_spec:
        on_note(update_spec(source.path, change))
    else:
        on_note(diff(source.text, change(source.text), str(source.path)))


def update_spec(path: Path, change: Callable[[str], str]) -> str:
    """Rewrite `path` by `change`, atomically; returns the diff ("" when nothing changed)."""
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
    statuses: Mapping[str, NodeStatus | NodeAgentError], name: str, incarnation: str = ""
) -> None:
    """Refuse to call a node dead that answers, or that any agent heard from lately.

    Args:
        incarnation: the member's. Another that answers under its name is not it: its disk was wiped.

    Raises:
        RefusedProblem: names who heard it and when.
    """
    answer = statuses.get(name)
    if isinstance(answer, NodeStatus) and incarnation in ("", answer.incarnation):
        raise RefusedProblem(f"{name} is not dead: it answers", next="leave --dead out")
    heard = {
        s.node: s.heard_ms[name]
        for s in statuses.values()
        if isinstance(s, NodeStatus) and name in s.heard_ms
    }
    last = min(heard, key=heard.__getitem__, default=None)
    if last is not None and heard[last] < SILENT_MS:
        raise RefusedProblem(
            f"{name} is not dead: {last} heard from it {heard[last]} ms ago",
            next=f"repeat when it has been silent for {SILENT_MS // 1000} s, or leave --dead out",
        )


def check_plan(plan: Plan) -> None:
    """Raise what a refused plan means for the operator."""
    if plan.refusals:
        first, *rest = plan.refusals
        raise RefusedProblem(first.reason, why="; ".join(r.reason for r in rest), next=first.next)

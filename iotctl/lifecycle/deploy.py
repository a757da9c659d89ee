"""Deploys cluster.yaml to its machines: facts → plan → execution, with the same plan for `--dry-run`.

Changes that take effect only when a running agent restarts are left to `upgrade`, which restarts agents node
by node.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from iotctl.errors import RefusedProblem, Unreachable
from iotctl.fleet import deployment
from iotctl.fleet.deployment import CONFIG, Change, Found, Wanted
from iotctl.fleet.facts import Facts
from iotctl.fleet.findings import Finding
from iotctl.fleet.host import Host
from iotctl.fleet.service import Service, files_of, unit_name
from iotctl.fleet.upload import File
from iotctl.fleet.wheelhouse import Platform, Software, software, wheelhouse
from iotctl.lifecycle import credentials
from iotctl.lifecycle.hosts import checked
from iotctl.lifecycle.machines import Machines, all_or_raise, chosen, examine
from iotctl.lifecycle.node_settings import check_layout, is_new, node_settings
from iotctl.spec.cluster import ClusterSource, NodeEntry
from iotctl.spec.find import cache_dir
from nodeagent.client.identity import KeyPair

B = TypeVar("B")

OnStep = Callable[[str, int, int], None]
"""Called with the phase, and how many of how many machines are done."""


class NodePlan(msgspec.Struct, frozen=True):
    """`changes` are made now, `later` by `upgrade`, since the node runs. `start`: the node does not run."""

    node: str
    host: str
    changes: list[Change]
    later: list[Change]
    start: bool

    @property
    def differences(self) -> list[Change]:
        """All changes, made now or later."""
        return sorted([*self.changes, *self.later], key=lambda c: c.what)


class DeployPlan(msgspec.Struct, frozen=True):
    """`new_cluster`: the cluster does not exist yet. `new_authority`: its authority is created here."""

    version: str
    new_cluster: bool
    new_authority: bool
    nodes: list[NodePlan]
    findings: list[Finding]

    @property
    def has_changes(self) -> bool:
        return any(n.changes or n.start for n in self.nodes)

    @property
    def is_behind(self) -> list[str]:
        """Running nodes that an upgrade would change."""
        return [n.node for n in self.nodes if n.later]


class Deployed(msgspec.Struct, frozen=True):
    """`changed`: number of nodes that were changed. `healthy`: the cluster was healthy afterwards."""

    version: str
    changed: int
    nodes: list[NodePlan]
    healthy: bool


class Deployment(msgspec.Struct, frozen=True):
    """A plan with everything needed to execute it."""

    plan: DeployPlan
    entries: dict[str, NodeEntry]
    wanted: dict[str, Wanted]
    found: dict[str, Found]
    facts: dict[str, Facts]
    software: Software
    authority: KeyPair | None


def prepare(
    source: ClusterSource,
    names: Sequence[str],
    env: Mapping[str, str],
    machines: Machines,
    on_step: OnStep,
    *,
    now_ms: int,
    joins: bool = False,
    accept_layout: bool = False,
) -> Deployment:
    """Examine every machine and make the plan; nothing is changed anywhere.

    Args:
        joins: these nodes are about to be added to an existing cluster.
        accept_layout: accept a ring of a new cluster that violates the rules for zones or weights.

    Raises:
        Unreachable: a machine did not answer, so its state is unknown.
        RefusedProblem: a machine cannot run its node, or holds another cluster's node.
    """
    picked = chosen(source, names)
    which, answers = _examined(source, machines, on_step)
    heard = {n: a for n, a in answers.items() if not isinstance(a, Unreachable)}
    existing = {n: f.text(CONFIG) for n, (_, f) in heard.items()}
    if len(heard) < len(answers) and (is_new(existing) or not names):
        all_or_raise(answers, "nothing was changed")
    all_or_raise({n.name: answers[n.name] for n in picked}, "nothing was changed")
    facts = {n: a[0] for n, a in heard.items()}
    found = {n: a[1] for n, a in heard.items()}
    seen = checked(source, picked, {n.name: facts[n.name] for n in picked})
    _check_findings(seen.findings)

    if is_new(existing) and not accept_layout:
        check_layout(source)
    settings = node_settings(source, existing, [n.name for n in picked] if joins else ())
    authority = credentials.authority_of(source, env, found)
    wanted: dict[str, Wanted] = {}
    plans = []
    for node in picked:
        one = found[node.name]
        files = (
            *_certificate(node, one, authority, now_ms),
            *files_of(one.kind),
            File(CONFIG, settings[node.name].encode()),
        )
        wanted[node.name] = _wanted(source, node, one, which.version, files)
        _check_writable(wanted[node.name], one)
        plans.append(_node_plan(node, wanted[node.name], one))
    plan = DeployPlan(
        version=which.version,
        new_cluster=is_new(existing),
        new_authority=authority is None,
        nodes=plans,
        findings=seen.findings,
    )
    return Deployment(plan, {n.name: n for n in picked}, wanted, found, facts, which, authority)


def _examined(
    source: ClusterSource, machines: Machines, on_step: OnStep
) -> tuple[Software, dict[str, tuple[Facts, Found] | Unreachable]]:
    """The software of this machine, and the answers of all machines, in the order of the file."""
    everyone = list(source.file.nodes)
    with ThreadPoolExecutor(1) as beside:  # hashes all our code while the machines answer
        reading = beside.submit(software)
        answers = machines.each(
            everyone, partial(examine, source), lambda n: on_step("asking machines", n, len(everyone))
        )
        return reading.result(), answers


def _wanted(
    source: ClusterSource, node: NodeEntry, found: Found, version: str, files: tuple[File, ...]
) -> Wanted:
    return Wanted(
        node=node.name,
        unit_name=unit_name(source.name, node.name),
        home=source.data_dir_of(node),
        install_dir=source.install_dir_of(node),
        version=version,
        service=found.kind,
        user=found.user,
        files=files,
    )


def _node_plan(node: NodeEntry, wanted: Wanted, found: Found) -> NodePlan:
    differs = deployment.changes(wanted, found)
    runs = bool(found.running)
    now = [c for c in differs if not (runs and c.needs_restart)]
    return NodePlan(node.name, node.host, now, [c for c in differs if c not in now], not runs)


def execute(
    source: ClusterSource,
    todo: Deployment,
    env: Mapping[str, str],
    machines: Machines,
    on_step: OnStep,
    *,
    now_ms: int,
    check: Callable[[], object] = lambda: None,
) -> Deployment:
    """Execute the plan and start every agent that is down; returns it with the files that were written. A
    repeated call continues where it stopped. `check` is called before each step and may raise.

    Raises:
        Unreachable: a machine failed to do its part; the others did theirs.
    """
    if todo.plan.new_authority:
        todo = _with_authority(todo, credentials.make_authority(source, env), now_ms)
    elif todo.authority is not None:
        credentials.ensure_operator(source, env, todo.authority)
    wanted, changes = todo.wanted, {n.node: n.changes for n in todo.plan.nodes}

    def on(kind: str) -> list[NodeEntry]:
        return [todo.entries[n] for n, made in changes.items() if any(c.what == kind for c in made)]

    def run(phase: str, nodes: list[NodeEntry], work: Callable[[NodeEntry, Host], B]) -> None:
        if nodes:
            check()
            on_step(phase, 0, len(nodes))
            answers = machines.each(nodes, work, lambda n: on_step(phase, n, len(nodes)))
            all_or_raise(answers, "the others were deployed")

    run(
        "making directories",
        on("dirs"),
        lambda node, host: deployment.make_dirs(
            host, wanted[node.name], sudo=todo.found[node.name].needs_sudo
        ),
    )
    lacking = {n.name: wanted[n.name] for n in on("software")}
    if lacking:
        first = [group[0] for group in deployment.machines(lacking, _machine_of(todo))]
        houses = _wheelhouses(todo, first, cache_dir(env), on_step)
        run(
            "installing",
            [todo.entries[n] for n in first],
            lambda node, host: deployment.install(
                host, wanted[node.name], _python(todo, node.name), houses[platform_of(todo, node.name)]
            ),
        )
    configured = [todo.entries[n] for n, made in changes.items() if any(c.needs_restart for c in made)]
    run("writing settings", configured, lambda node, host: configure(todo, node.name, host))
    started = [todo.entries[n.node] for n in todo.plan.nodes if n.start]
    run(
        "starting",
        started,
        lambda node, host: _service(todo, node.name, host).start(),
    )
    return todo


def prune(todo: Deployment, machines: Machines) -> tuple[list[str], list[Unreachable]]:
    """Delete on each machine the versions that no node runs, except the one of them that was linked last.

    Returns: the versions deleted on any machine, and the errors of machines that could not delete them.
    """
    together = deployment.machines(todo.wanted, _machine_of(todo))
    nodes = [todo.entries[group[0]] for group in together]

    def work(node: NodeEntry, host: Host) -> list[str]:
        wanted = todo.wanted[node.name]
        return deployment.prune(host, wanted.install_dir, wanted.version)

    answers = machines.each(nodes, work).values()
    failed = [a for a in answers if isinstance(a, Unreachable)]
    return sorted({v for a in answers if not isinstance(a, Unreachable) for v in a}), failed


def deployed(plan: DeployPlan, healthy: bool) -> Deployed:
    """The result once every step is done."""
    changed = sum(bool(n.changes) or n.start for n in plan.nodes)
    return Deployed(plan.version, changed, plan.nodes, healthy)


def configure(todo: Deployment, node: str, host: Host) -> None:
    """Write everything that the agent reads when it starts; the software must be installed.

    Raises:
        Unreachable: the machine could not write the files.
    """
    wanted = todo.wanted[node]
    differs = deployment.changes(wanted, todo.found[node])
    deployment.configure(_service(todo, node, host), wanted, differs)


def platform_of(todo: Deployment, node: str) -> Platform:
    facts = todo.facts[node]
    version = facts.python.partition(" ")[2]
    return Platform(".".join(version.split(".")[:2]), facts.arch, todo.found[node].libc)


def _certificate(node: NodeEntry, found: Found, authority: KeyPair | None, now_ms: int) -> tuple[File, ...]:
    """The certificate's files; without an authority only their names, since `--dry-run` creates none."""
    if authority is None:
        return tuple(File(name, b"") for name in credentials.FILES)
    return credentials.node_files(node, found, authority, now_ms)


def _with_authority(todo: Deployment, authority: KeyPair, now_ms: int) -> Deployment:
    wanted = {}
    for name, one in todo.wanted.items():
        rest = tuple(f for f in one.files if f.name not in credentials.FILES)
        made = credentials.node_files(todo.entries[name], todo.found[name], authority, now_ms)
        wanted[name] = msgspec.structs.replace(one, files=(*made, *rest))
    return msgspec.structs.replace(todo, wanted=wanted)


def _wheelhouses(
    todo: Deployment, nodes: Sequence[str], cache: Path, on_step: OnStep
) -> dict[Platform, bytes]:
    made: dict[Platform, bytes] = {}
    platforms = list(dict.fromkeys(platform_of(todo, n) for n in nodes))
    for count, platform in enumerate(platforms):
        on_step("fetching packages", count, len(platforms))
        made[platform] = wheelhouse(todo.software, platform, cache)
    return made


def _check_findings(found: Sequence[Finding]) -> None:
    errors = [f for f in found if f.severity == "error"]
    if errors:
        first = errors[0]
        raise RefusedProblem(
            f"{first.message}; nothing was changed",
            why=f"this is the first of {len(errors)} problems found" if len(errors) > 1 else "",
            next=first.next if len(errors) == 1 else "iotctl cluster check",
            where=first.node,
        )


def _check_writable(wanted: Wanted, found: Found) -> None:
    """Raises `RefusedProblem` if a directory belongs to another user and there is no sudo."""
    places = (wanted.home, wanted.install_dir)
    blocked = [p for p in places if p not in (*found.ready, *found.makeable)]
    if blocked and not found.sudo:
        raise RefusedProblem(
            f"{found.user} may not write {blocked[0]}; nothing was changed",
            next=f"on the machine of {wanted.node}: sudo install -d -o {found.user} {' '.join(blocked)}",
            where=wanted.node,
        )


def _service(todo: Deployment, node: str, host: Host) -> Service:
    wanted = todo.wanted[node]
    return todo.found[node].service(host, node, wanted.unit_name, wanted.home)


def _python(todo: Deployment, node: str) -> str:
    return todo.facts[node].python.partition(" ")[0]


def _machine_of(todo: Deployment) -> dict[str, str]:
    return {n: f.machine for n, f in todo.facts.items()}

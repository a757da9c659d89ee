"""The machines of a cluster before it exists: their host keys, and whether nodes can run there."""

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from iotctl.errors import IotctlError, RefusedProblem, Unreachable, UsageProblem
from iotctl.fleet.dial import wait_s
from iotctl.fleet.facts import Facts
from iotctl.fleet.findings import Finding, Place, findings
from iotctl.fleet.known_hosts import HostKey, Known, KnownHosts
from iotctl.fleet.many import each
from iotctl.fleet.ssh import Connector
from iotctl.fleet.ssh_config import Target, target_of
from iotctl.lifecycle.machines import Machines, OnDone, chosen, facts_of, place_of
from iotctl.spec.cluster import ClusterSource, NodeEntry


class CheckedHost(msgspec.Struct, frozen=True):
    """`facts` is None if the machine did not answer; `error` says why."""

    node: str
    host: str
    facts: Facts | None
    error: str


class HostsChecked(msgspec.Struct, frozen=True):
    hosts: list[CheckedHost]
    findings: list[Finding]

    @property
    def unreachable(self) -> list[str]:
        return [h.node for h in self.hosts if h.facts is None]

    @property
    def errors(self) -> int:
        return sum(f.severity == "error" for f in self.findings)


class EnrolledHost(msgspec.Struct, frozen=True):
    """`state`: `known` (in the cluster's known_hosts), `yours` (in the operator's own), `new`, `changed`, or
    `unreachable` with `error`."""

    node: str
    host: str
    type: str
    fingerprint: str
    state: str
    error: str


class Enrolment(msgspec.Struct, frozen=True):
    """`file`: where accepted keys are stored."""

    file: str
    hosts: list[EnrolledHost]


def check_hosts(
    source: ClusterSource,
    names: Sequence[str],
    env: Mapping[str, str],
    done: OnDone = lambda count: None,
    timeout_s: float | None = None,
) -> HostsChecked:
    """Ask all machines for their facts, in parallel; nothing is changed."""
    nodes = chosen(source, names)
    with Machines(source, env, timeout_s) as machines:
        return checked(source, nodes, machines.each(nodes, partial(facts_of, source), done))


def checked(
    source: ClusterSource, nodes: Sequence[NodeEntry], answers: Mapping[str, Facts | Unreachable]
) -> HostsChecked:
    """The machines' answers and findings; a machine that did not answer is an error. Pure."""
    asked: dict[str, tuple[Place, Facts]] = {}
    hosts, silent = [], []
    for node in nodes:
        answer = answers[node.name]
        if isinstance(answer, Unreachable):
            hosts.append(CheckedHost(node.name, node.host, None, _said(answer)))
            silent.append(Finding("error", "unreachable", node.name, _said(answer), answer.next))
        else:
            hosts.append(CheckedHost(node.name, node.host, answer, ""))
            asked[node.name] = (place_of(source, node), answer)
    return HostsChecked(hosts, [*silent, *findings(asked)])


def stages_of(source: ClusterSource, names: Sequence[str], env: Mapping[str, str]) -> list[list[Target]]:
    """The distinct machines of these nodes, in stages: jump hosts come first, since an outer host must be
    trusted before a host behind it can be asked.

    Raises:
        UsageProblem: the fleet is local and has no host keys.
        InputProblem: the jump hosts of a machine form a cycle.
    """
    if source.is_local:
        raise UsageProblem(
            "a local fleet has no host keys", why="its transport is local", next="name a cluster of machines"
        )
    connector = Connector(KnownHosts(source.directory), env)
    targets: dict[tuple[str, str, int, str], Target] = {}
    for node in chosen(source, names):
        target = target_of(source, node)
        targets.setdefault((target.host, target.user, target.port, target.jump), target)
    depth: dict[Target, int] = {}
    for target in targets.values():
        ways = connector.gateways(target)
        depth |= {gate: len(connector.gateways(gate)) for gate in ways} | {target: len(ways)}
    return [[t for t, d in depth.items() if d == level] for level in sorted(set(depth.values()))]


def look_at_keys(
    source: ClusterSource,
    targets: Sequence[Target],
    env: Mapping[str, str],
    done: OnDone = lambda count: None,
    timeout_s: float | None = None,
) -> list[tuple[EnrolledHost, HostKey | None]]:
    """The host keys that the machines present, compared with the known keys; nothing is accepted."""
    connector = Connector(KnownHosts(source.directory), env, timeout_s=wait_s(timeout_s))
    try:
        answers = each(targets, connector.host_key, done)
    finally:
        connector.close()
    found: list[tuple[EnrolledHost, HostKey | None]] = []
    for target, answer in zip(targets, answers, strict=True):
        if isinstance(answer, IotctlError):
            row = EnrolledHost(target.name, target.host, "", "", "unreachable", _said(answer))
            found.append((row, None))
            continue
        key, known = answer
        state = _state(key, known)
        found.append((EnrolledHost(target.name, key.host, key.type, key.fingerprint, state, ""), key))
    return found


def _state(key: HostKey, known: Known) -> str:
    if key.blob in known.revoked:
        return "changed"
    if key in known.keys:
        return "known" if known.own else "yours"
    return "changed" if known.keys else "new"


def check_unchanged(hosts: Sequence[EnrolledHost], replace: Sequence[str], so_far: str) -> None:
    """Raises `RefusedProblem` if a key has changed or is revoked, and its node is not named in `replace`;
    its text ends with `so_far`: what this command has changed until now."""
    unnamed = [h.node for h in hosts if h.state == "changed" and h.node not in replace]
    if unnamed:
        raise RefusedProblem(
            f"the host key of {', '.join(unnamed)} has CHANGED or is revoked; {so_far}",
            why="another machine may answer at this address",
            next="if the machine was reinstalled: iotctl cluster trust "
            + " ".join(f"--replace {n}" for n in unnamed),
        )


def accept(source: ClusterSource, found: Sequence[tuple[EnrolledHost, HostKey | None]]) -> None:
    """Write the keys that are missing or different in the cluster's known_hosts."""
    keys = [key for row, key in found if key is not None and row.state != "known"]
    if keys:
        KnownHosts(source.directory).put(keys)


def _said(error: IotctlError | None) -> str:
    if error is None:
        return ""
    return f"{error.what}: {error.why}" if error.why else error.what

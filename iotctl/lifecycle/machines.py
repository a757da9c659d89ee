"""Connections to the machines of a cluster's nodes, open for the duration of one command."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from iotctl.errors import RefusedProblem, Unreachable, UsageProblem
from iotctl.fleet import deployment, facts
from iotctl.fleet.asking import Question, ask
from iotctl.fleet.deployment import Found
from iotctl.fleet.dial import Prefetch, wait_s
from iotctl.fleet.facts import Facts
from iotctl.fleet.findings import Place
from iotctl.fleet.host import Host, ThisHost
from iotctl.fleet.known_hosts import KnownHosts
from iotctl.fleet.many import each
from iotctl.fleet.service import Service, running_in, unit_name
from iotctl.fleet.service import question as service_question
from iotctl.fleet.ssh import Connector
from iotctl.fleet.ssh_config import target_of
from iotctl.spec.cluster import ClusterSource, NodeEntry

B = TypeVar("B")

OnDone = Callable[[int], None]
"""Called with the number of machines that are done."""


class Machines:
    """One connection per node, opened when first used and kept until the end.

    `timeout_s` is that of the whole command. `ahead`: connections that were prefetched.
    """

    def __init__(
        self,
        source: ClusterSource,
        env: Mapping[str, str],
        timeout_s: float | None = None,
        ahead: Prefetch | None = None,
    ) -> None:
        self.source = source
        self._connector = Connector(
            KnownHosts(source.directory),
            env,
            timeout_s=wait_s(timeout_s),
            ahead=ahead,
        )
        self._open: dict[str, Host] = {}
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # after Ctrl-C some thread may still be connecting
            self._closed = True
            open_now = list(self._open.values())
        for host in open_now:
            with suppress(Exception):
                host.close()
        self._connector.close()

    def of(self, node: NodeEntry) -> Host:
        """Raises as `Connector.open`."""
        found = self._open.get(node.name)
        if found is None:
            local = self.source.is_local
            found = ThisHost() if local else self._connector.open(target_of(self.source, node))
            with self._lock:
                late = self._closed
                if not late:
                    self._open[node.name] = found
            if late:
                found.close()
                raise Unreachable(f"{node.name}: the command has ended")
        return found

    def each(
        self,
        nodes: Sequence[NodeEntry],
        work: Callable[[NodeEntry, Host], B],
        done: OnDone = lambda count: None,
    ) -> dict[str, B | Unreachable]:
        """Run `work` on all machines in parallel; results by node name, in the order of `nodes`."""
        answers = each(nodes, lambda node: work(node, self.of(node)), done)
        return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}


def look(source: ClusterSource, node: NodeEntry, host: Host) -> Found:
    """The state of `node` on its machine.

    Raises:
        Unreachable: the machine did not answer.
        RefusedProblem: we may not read some of it. If that were ignored, a live node could be overwritten.
    """
    runs, held = ask(host, _about_agent(source, node), _about_node(source, node))
    return _readable(source, node, deployment.found_in(held, running_in(runs)))


def facts_of(source: ClusterSource, node: NodeEntry, host: Host) -> Facts:
    """The facts of the machine only. Raises `Unreachable`."""
    machine, runs = ask(host, _about_machine(source, node), _about_agent(source, node))
    return facts.facts_of(machine, host, agent=bool(running_in(runs).agent))


def examine(source: ClusterSource, node: NodeEntry, host: Host) -> tuple[Facts, Found]:
    """Both `facts_of` and `look`, in one round trip. Raises as `look`."""
    machine, runs, held = ask(
        host, _about_machine(source, node), _about_agent(source, node), _about_node(source, node)
    )
    found = _readable(source, node, deployment.found_in(held, running_in(runs)))
    return facts.facts_of(machine, host, agent=bool(found.running)), found


def place_of(source: ClusterSource, node: NodeEntry) -> Place:
    ports = (source.port_of(node), source.http_port_of(node))
    return Place(node.name, source.data_dir_of(node), ports, node.host)


def _about_machine(source: ClusterSource, node: NodeEntry) -> Question:
    place = place_of(source, node)
    return facts.question(place.data_dir, place.ports, source.host_names)


def _about_agent(source: ClusterSource, node: NodeEntry) -> Question:
    return service_question(source.data_dir_of(node))


def _about_node(source: ClusterSource, node: NodeEntry) -> Question:
    unit = unit_name(source.name, node.name)
    return deployment.question(source.data_dir_of(node), source.install_dir_of(node), unit)


def _readable(source: ClusterSource, node: NodeEntry, found: Found) -> Found:
    if found.unreadable:
        path, _, owner = found.unreadable[0].rpartition(" ")
        raise RefusedProblem(
            f"{node.name}: {path} belongs to {owner} and {found.user} may not read it;"
            " nothing was changed there",
            next=f"set `ssh: {{user: {owner}}}` in {source.path.name}",
            where=node.name,
        )
    return found


def service(source: ClusterSource, node: NodeEntry, host: Host, found: Found) -> Service:
    return found.service(host, node.name, unit_name(source.name, node.name), source.data_dir_of(node))


def chosen(source: ClusterSource, names: Sequence[str]) -> list[NodeEntry]:
    """The named nodes in the order of the file; without names, all nodes.

    Raises:
        UsageProblem: a name is not in the file.
    """
    unknown = [n for n in names if n not in source.node_names]
    if unknown:
        raise UsageProblem(
            f"{source.path} does not list {', '.join(unknown)}",
            next=f"name nodes that it lists: {', '.join(source.node_names)}",
        )
    return [n for n in source.file.nodes if not names or n.name in names]


def all_or_raise(answers: Mapping[str, B | Unreachable], what: str) -> dict[str, B]:
    """The answers, if every machine gave one.

    Raises:
        Unreachable: the error of the first machine without an answer, then `what`; `why` names the others.
    """
    silent = {n: a for n, a in answers.items() if isinstance(a, Unreachable)}
    if silent:
        first = next(iter(silent.values()))
        others = list(silent)[1:]
        why = f"{first.why}; also {', '.join(others)}" if others else first.why
        raise Unreachable(f"{first.what}; {what}", why=why, next=first.next, where=first.where)
    return {n: a for n, a in answers.items() if not isinstance(a, Unreachable)}

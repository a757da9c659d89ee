"""The agents of a cluster as processes: started, stopped, asked for their last words, wherever they run."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from iotctl.execute.machines import Machines, all_or_raise, chosen
from iotctl.fleet import service
from iotctl.fleet.deployment import Found, look
from iotctl.fleet.facts import Facts, read_facts
from iotctl.fleet.host import Host
from iotctl.fleet.local import LocalFleet
from iotctl.spec.cluster import ClusterSource, NodeEntry


class Agents(Protocol):
    """Raises `Unreachable` when a machine does not do it."""

    def start(self, names: Sequence[str]) -> list[str]:
        """Start those that are down; returns them."""

    def stop(self, names: Sequence[str]) -> list[str]:
        """Stop those that run; returns them."""

    def log_tail(self, name: str, lines: int) -> str: ...


class RemoteAgents:
    """Over SSH; see `fleet.service`."""

    def __init__(self, source: ClusterSource, machines: Machines) -> None:
        self._source = source
        self._machines = machines

    def start(self, names: Sequence[str]) -> list[str]:
        def begin(node: NodeEntry, host: Host) -> bool:
            found, kind, sudo = self._look(node, host)
            if not found.running:
                service.start(host, kind, node.name, self._home(node), sudo=sudo)
            return not found.running

        answers = self._machines.each(chosen(self._source, names), begin)
        return [n for n, began in all_or_raise(answers, "the others were started").items() if began]

    def stop(self, names: Sequence[str]) -> list[str]:
        def end(node: NodeEntry, host: Host) -> bool:
            found, kind, sudo = self._look(node, host)
            service.stop(host, kind, node.name, self._home(node), sudo=sudo)
            return bool(found.running)

        answers = self._machines.each(chosen(self._source, names), end)
        return [n for n, ran in all_or_raise(answers, "the others were stopped").items() if ran]

    def log_tail(self, name: str, lines: int) -> str:
        (node,) = chosen(self._source, [name])
        host = self._machines.of(node)
        _, kind, sudo = self._look(node, host)
        return service.log_tail(host, kind, name, self._home(node), lines, sudo=sudo)

    def _home(self, node: NodeEntry) -> str:
        return self._source.data_dir_of(node)

    def _look(self, node: NodeEntry, host: Host) -> tuple[Found, str, bool]:
        facts: Facts = read_facts(host, self._home(node), ())
        found = look(host, self._home(node), self._source.install_dir_of(node), node.name)
        kind = service.kind_of(found.systemd, facts.user, facts.sudo)
        return found, kind, facts.sudo and facts.user != "root"


def agents_of(source: ClusterSource, machines: Machines) -> Agents:
    return LocalFleet(source.directory) if source.is_local else RemoteAgents(source, machines)


def logs(source: ClusterSource, machines: Machines, names: Sequence[str], lines: int) -> Mapping[str, str]:
    agents = agents_of(source, machines)
    return {n.name: agents.log_tail(n.name, lines) for n in chosen(source, names)}

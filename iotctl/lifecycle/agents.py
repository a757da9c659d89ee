"""The agents of a cluster as processes, local or over SSH: start, stop, and read the end of their logs."""

from collections.abc import Sequence
from typing import Protocol

from iotctl.errors import Unreachable
from iotctl.fleet.deployment import Found
from iotctl.fleet.host import Host
from iotctl.fleet.local import LocalFleet
from iotctl.fleet.service import Service
from iotctl.lifecycle.machines import Machines, all_or_raise, chosen, look, service
from iotctl.spec.cluster import ClusterSource, NodeEntry


class Agents(Protocol):
    """Every method raises `Unreachable` if a machine fails to do its part, `RefusedProblem` if we may not
    read the node's files or a local agent cannot be started."""

    def down(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that `start` would start."""

    def start(self, names: Sequence[str]) -> list[str]:
        """Start the agents that are down; returns their names."""

    def stop(self, names: Sequence[str]) -> list[str]:
        """Stop the agents that run; returns their names."""

    def log_tail(self, name: str, lines: int) -> str:
        """The last lines that the agent logged."""


class RemoteAgents:
    """Agents over SSH; see `fleet.service`."""

    def __init__(self, source: ClusterSource, machines: Machines) -> None:
        self._source = source
        self._machines = machines

    def down(self, names: Sequence[str]) -> list[str]:
        answers = self._machines.each(
            chosen(self._source, names), lambda node, host: bool(look(self._source, node, host).running)
        )
        return [n for n, runs in all_or_raise(answers, "nothing was changed").items() if not runs]

    def start(self, names: Sequence[str]) -> list[str]:
        def begin(node: NodeEntry, host: Host) -> bool:
            found, agent = self._look(node, host)
            if not found.running:
                agent.start()
            return not found.running

        answers = self._machines.each(chosen(self._source, names), begin)
        return [n for n, began in all_or_raise(answers, "the others were started").items() if began]

    def stop(self, names: Sequence[str]) -> list[str]:
        def end(node: NodeEntry, host: Host) -> bool:
            found, agent = self._look(node, host)
            agent.stop()
            return bool(found.running)

        answers = self._machines.each(chosen(self._source, names), end)
        return [n for n, ran in all_or_raise(answers, "the others were stopped").items() if ran]

    def log_tail(self, name: str, lines: int) -> str:
        (node,) = chosen(self._source, [name])
        return self._look(node, self._machines.of(node))[1].log_tail(lines)

    def _look(self, node: NodeEntry, host: Host) -> tuple[Found, Service]:
        found = look(self._source, node, host)
        return found, service(self._source, node, host, found)


def agents_of(source: ClusterSource, machines: Machines) -> Agents:
    return LocalFleet(source.directory) if source.is_local else RemoteAgents(source, machines)


def logs(
    source: ClusterSource, machines: Machines, names: Sequence[str], lines: int
) -> dict[str, str | Unreachable]:
    """By node, the last lines of its agent's log, or why they could not be read."""
    agents = agents_of(source, machines)
    return machines.each(chosen(source, names), lambda node, _: agents.log_tail(node.name, lines))

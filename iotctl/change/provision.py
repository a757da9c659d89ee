"""Starts the agent of a new node before it is added, and stops the agent of a removed node."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from iotctl.errors import Unreachable
from iotctl.fleet.local import LocalFleet
from iotctl.observe.cluster import cluster_spec, connect
from iotctl.plan.model import Step
from iotctl.spec.cluster import ClusterSource, NodeEntry
from nodeagent.model.errors import Definite, NodeAgentError
from nodeagent.model.requests import NodeStatus

START_TIMEOUT_S = 30.0
ASK_S = 2.0
POLL_S = 0.1

Probe = Callable[[NodeEntry, float], NodeStatus | NodeAgentError]
"""Asks a node at its own address, which the cluster need not know yet, until it answers; returns the last
error if the given number of seconds passes first. 0 asks once."""


class Provisioner(ABC):
    """Starts and stops the agents of one cluster."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    @abstractmethod
    def place(self, step: Step, host: str, port: int) -> NodeEntry:
        """Where the new node of `step` listens; `host` and `port` are the operator's, "" and 0 if not given.

        Raises:
            InputProblem: the host is neither given nor in cluster.yaml.
        """

    @abstractmethod
    def start(self, entry: NodeEntry) -> bool:
        """Start the agent; False if it was running. Raises `IotctlError`."""

    @abstractmethod
    def stop(self, entry: NodeEntry) -> None:
        """Stop the agent that `start` started, since the change did not begin."""

    @abstractmethod
    def retire(self, name: str) -> str:
        """Stop the agent of a removed node. Returns a note for the operator, or ""."""

    @abstractmethod
    def log_tail(self, entry: NodeEntry) -> str:
        """The last lines that the agent logged; "" if there are none."""

    @abstractmethod
    def log_of(self, entry: NodeEntry) -> str:
        """Where an operator reads the whole log."""

    def status(self, entry: NodeEntry) -> NodeStatus:
        """Ask the node until it answers.

        Raises:
            Unreachable: it does not answer in time; the end of the agent's log says why.
        """
        answer = self._probe(entry, START_TIMEOUT_S)
        if isinstance(answer, NodeStatus):
            return answer
        tail = self.log_tail(entry)
        raise Unreachable(
            f"{entry.name} did not answer at {entry.host}:{entry.port}",
            why=f"{answer.what}; its log ends: {tail}" if tail else answer.what,
            next=f"see {self.log_of(entry)}",
        )


class LocalProvisioner(Provisioner):
    """The agents of a local fleet."""

    def __init__(self, fleet: LocalFleet, probe: Probe) -> None:
        super().__init__(probe)
        self._fleet = fleet

    def place(self, step: Step, host: str, port: int) -> NodeEntry:
        return msgspec.structs.replace(self._fleet.add(step.node), weight=step.weight)

    def start(self, entry: NodeEntry) -> bool:
        return bool(self._fleet.start([entry.name]))

    def stop(self, entry: NodeEntry) -> None:
        self._fleet.stop([entry.name])

    def retire(self, name: str) -> str:
        self._fleet.retire(name)
        return ""

    def log_tail(self, entry: NodeEntry) -> str:
        return self._fleet.log_tail(entry.name)

    def log_of(self, entry: NodeEntry) -> str:
        return str(self._fleet.directory / entry.name / "agent.log")


def probe_of(source: ClusterSource, identity: Path | None, env: Mapping[str, str]) -> Probe:
    """A probe that uses the operator's certificate and opens one connection per call."""

    def probe(entry: NodeEntry, timeout_s: float) -> NodeStatus | NodeAgentError:
        spec = cluster_spec(source, identity, env)
        endpoint = type(spec.endpoints[0])(entry.name, entry.host, entry.port)
        alone = connect(msgspec.structs.replace(spec, endpoints=(endpoint,)))
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                answer = alone.statuses(ASK_S).get(entry.name) or NodeAgentError("no answer")
                if isinstance(answer, NodeStatus) or time.monotonic() >= deadline:
                    return answer
                time.sleep(POLL_S)
        finally:
            alone.close()

    return probe


@dataclass(slots=True)
class Starting:
    """`asked`: the change was requested, so the meta group may have it and need the new node."""

    asked: bool = False


@contextlib.contextmanager
def started(provisioner: Provisioner, entry: NodeEntry) -> Iterator[Starting]:
    """Starts the agent of a new node before the block; stops it again if the change did not begin."""
    starting = Starting()
    begun = provisioner.start(entry)
    try:
        yield starting
    except BaseException as error:
        if begun and (not starting.asked or isinstance(error, Definite)):
            provisioner.stop(entry)
        raise

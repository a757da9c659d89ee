"""A newcomer's agent is started before it is added, a leaver's ended once it has left, wherever they run."""

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
"""Asks a node's own address, which the cluster need not know yet, until it answers or so many seconds are
over; its last error then. 0 asks once."""


class Provisioner(ABC):
    """Starts and ends the agents of one cluster."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    @abstractmethod
    def place(self, step: Step, host: str, port: int) -> NodeEntry:
        """Where the newcomer of `step` listens; `host` and `port` are what the operator said, if anything.

        Raises:
            InputProblem: nobody tells.
        """

    @abstractmethod
    def start(self, entry: NodeEntry) -> bool:
        """Have its agent running; False when it was. Raises `IotctlError`."""

    @abstractmethod
    def stop(self, entry: NodeEntry) -> None:
        """End what `start` began: nothing came of it."""

    @abstractmethod
    def retire(self, name: str) -> str:
        """End the agent of a node that has left for good; what the operator should know, or ""."""

    @abstractmethod
    def last_words(self, entry: NodeEntry) -> str:
        """The last lines its agent wrote, "" without any."""

    @abstractmethod
    def log_of(self, entry: NodeEntry) -> str:
        """How an operator reads more of them."""

    def status(self, entry: NodeEntry) -> NodeStatus:
        """Ask until it answers.

        Raises:
            Unreachable: it does not in time; the last words of its agent say why.
        """
        answer = self._probe(entry, START_TIMEOUT_S)
        if isinstance(answer, NodeStatus):
            return answer
        tail = self.last_words(entry)
        raise Unreachable(
            f"{entry.name} at {entry.host}:{entry.port} does not answer",
            why=f"{answer.what}; its log ends: {tail}" if tail else answer.what,
            next=f"see {self.log_of(entry)}",
        )


class LocalProvisioner(Provisioner):
    """Agents of a local fleet."""

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

    def last_words(self, entry: NodeEntry) -> str:
        return self._fleet.log_tail(entry.name)

    def log_of(self, entry: NodeEntry) -> str:
        return str(self._fleet.directory / entry.name / "agent.log")


def probe_of(source: ClusterSource, identity: Path | None, env: Mapping[str, str]) -> Probe:
    """Questions with the operator's certificate, over one connection for each call."""

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
    """`asked`: the meta group may know the change, so that the newcomer may be needed."""

    asked: bool = False


@contextlib.contextmanager
def started(provisioner: Provisioner, entry: NodeEntry) -> Iterator[Starting]:
    """A newcomer that runs for the block; what did not come to be a change leaves no agent behind."""
    starting = Starting()
    begun = provisioner.start(entry)
    try:
        yield starting
    except BaseException as error:
        if begun and (not starting.asked or isinstance(error, Definite)):
            provisioner.stop(entry)
        raise

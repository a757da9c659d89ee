"""A newcomer's agent is started before it is added, a leaver's ended once it has left, wherever they run."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from iotctl.errors import InputProblem, IotctlError, RefusedProblem, Unreachable
from iotctl.execute import deploy as deploying
from iotctl.execute.cluster import cluster_spec, connect
from iotctl.execute.deploy import OnStep
from iotctl.execute.machines import Machines, look, service
from iotctl.fleet import deployment
from iotctl.fleet.local import LocalFleet
from iotctl.plan.model import Step
from iotctl.spec.cluster import ClusterSource, NodeEntry
from nodeagent.model.errors import Definite, NodeAgentError
from nodeagent.model.requests import NodeStatus

START_TIMEOUT_S = 30.0
ASK_S = 2.0
POLL_S = 0.1

Ask = Callable[[NodeEntry], NodeStatus | NodeAgentError]
"""One question to a node's own address, which the cluster need not know yet."""


class Provisioner:
    """Agents that somebody else starts and stops; the base of those that do it."""

    def __init__(
        self,
        source: ClusterSource,
        ask: Ask,
        *,
        timeout_s: float = START_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._ask = ask
        self._timeout_s = timeout_s
        self._clock = clock
        self._sleep = sleep

    def place(self, step: Step, host: str, port: int) -> NodeEntry:
        """Where the newcomer of `step` listens: by cluster.yaml, or by what the operator said.

        Raises:
            InputProblem: neither tells.
        """
        defaults = self._source.file.defaults
        for node in self._source.file.nodes:
            if node.name == step.node:
                return msgspec.structs.replace(
                    node,
                    host=host or node.host,
                    port=port or self._source.port_of(node),
                    http_port=self._source.http_port_of(node),
                )
        if not host:
            raise InputProblem(
                f"where does {step.node} run?",
                why=f"{self._source.path} does not list it",
                next=f"add it to {self._source.path.name}, or give --host",
            )
        return NodeEntry(
            name=step.node,
            host=host,
            port=port or defaults.port,
            http_port=defaults.http_port,
            weight=step.weight,
        )

    def start(self, entry: NodeEntry) -> bool:
        """Have its agent running; False when it was, or is not ours to start. Raises `IotctlError`."""
        return False

    def stop(self, entry: NodeEntry) -> None:
        """End what `start` began: nothing came of it."""

    def retire(self, name: str) -> str:
        """End the agent of a node that has left for good; what the operator should know, or ""."""
        return ""

    def last_words(self, entry: NodeEntry) -> str:
        return ""

    def status(self, entry: NodeEntry) -> NodeStatus:
        """Ask until it answers.

        Raises:
            Unreachable: it does not in time; the last words of its agent say why.
        """
        deadline = self._clock() + self._timeout_s
        reason = "no answer"
        while self._clock() < deadline:
            answer = self._ask(entry)
            if isinstance(answer, NodeStatus):
                return answer
            reason = answer.what
            self._sleep(POLL_S)
        tail = self.last_words(entry)
        raise Unreachable(
            f"{entry.name} at {entry.host}:{entry.port} does not answer",
            why=f"{reason}; its log ends: {tail}" if tail else reason,
            next=f"see {self._log_of(entry)}",
        )

    def _log_of(self, entry: NodeEntry) -> str:
        return f"the log of {entry.name}"


class LocalProvisioner(Provisioner):
    """Agents of a local fleet."""

    def __init__(self, fleet: LocalFleet, ask: Ask) -> None:
        super().__init__(fleet.source(), ask)
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

    def _log_of(self, entry: NodeEntry) -> str:
        return str(self._fleet.directory / entry.name / "agent.log")


class SshProvisioner(Provisioner):
    """Agents on machines: a newcomer that does not answer is deployed first."""

    def __init__(
        self, source: ClusterSource, ask: Ask, machines: Machines, env: Mapping[str, str], on_step: OnStep
    ) -> None:
        super().__init__(source, ask)
        self._machines = machines
        self._env = env
        self._on_step = on_step

    def start(self, entry: NodeEntry) -> bool:
        """As `deploy` of this node alone, which joins.

        Raises:
            Unreachable, RefusedProblem: it does not answer, and cannot be deployed from here.
        """
        if isinstance(self._ask(entry), NodeStatus):
            return False
        source, now_ms = _listing(self._source, entry), int(time.time() * 1000)
        try:
            todo = deploying.prepare(
                source, [entry.name], self._env, self._machines, self._on_step, now_ms=now_ms, joins=True
            )
            if todo.plan.new_cluster or todo.plan.new_authority:
                raise RefusedProblem(
                    "no machine of this cluster was deployed by iotctl; nothing was changed",
                    next=f"start the agent of {entry.name} with `join: true`",
                )
            deploying.execute(source, todo, self._env, self._machines, self._on_step, now_ms=now_ms)
        except IotctlError as error:
            at = f"{entry.name} does not answer at {entry.host}:{entry.port}, and cannot be deployed"
            raise type(error)(
                f"{at}: {error.what}", why=error.why, next=error.next, where=error.where
            ) from None
        return True

    def stop(self, entry: NodeEntry) -> None:
        host = self._machines.of(entry)
        found = look(self._source, entry, host)
        service(self._source, entry, host, found).stop()

    def retire(self, name: str) -> str:
        entry = next((n for n in self._source.file.nodes if n.name == name), None)
        if entry is None:
            return ""
        home = self._source.data_dir_of(entry)
        try:
            host = self._machines.of(entry)
            found = look(self._source, entry, host)
            service(self._source, entry, host, found).remove()
            aside = deployment.put_aside(host, home)
        except Unreachable as error:
            return f"{name} has left, but its agent could not be ended: {error.what}; the cluster ignores it"
        return f"{name}: its agent has ended, its files are in {aside}" if aside else ""

    def last_words(self, entry: NodeEntry) -> str:
        with contextlib.suppress(Unreachable):
            host = self._machines.of(entry)
            found = look(self._source, entry, host)
            return service(self._source, entry, host, found).log_tail(3)
        return ""

    def _log_of(self, entry: NodeEntry) -> str:
        return f"iotctl cluster logs {entry.name}"


def asks(source: ClusterSource, identity: Path | None, env: Mapping[str, str]) -> Ask:
    """Questions with the operator's certificate."""

    def ask(entry: NodeEntry) -> NodeStatus | NodeAgentError:
        spec = cluster_spec(source, identity, env)
        endpoint = type(spec.endpoints[0])(entry.name, entry.host, entry.port)
        alone = connect(msgspec.structs.replace(spec, endpoints=(endpoint,)))
        try:
            return alone.statuses(ASK_S).get(entry.name) or NodeAgentError("no answer")
        finally:
            alone.close()

    return ask


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


def _listing(source: ClusterSource, entry: NodeEntry) -> ClusterSource:
    """`source` with `entry` among its nodes, as it stands here."""
    others = tuple(n for n in source.file.nodes if n.name != entry.name)
    file = msgspec.structs.replace(source.file, nodes=(*others, entry))
    return msgspec.structs.replace(source, file=file)

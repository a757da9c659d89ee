"""Starts new nodes and stops removed nodes over SSH. Separate from `change.provision`: SSH loads slowly."""

import contextlib
import time
from collections.abc import Mapping

import msgspec

from iotctl.change.provision import Probe, Provisioner
from iotctl.errors import InputProblem, IotctlError, RefusedProblem
from iotctl.fleet.host import Host
from iotctl.fleet.removal import archive
from iotctl.fleet.service import Service
from iotctl.lifecycle import deploy as deploying
from iotctl.lifecycle.deploy import OnStep
from iotctl.lifecycle.machines import Machines, look, service
from iotctl.plan.model import Step
from iotctl.spec.cluster import ClusterSource, NodeEntry
from nodeagent.model.requests import NodeStatus


class SshProvisioner(Provisioner):
    """Agents on machines: a new node that does not answer is deployed first."""

    def __init__(
        self,
        source: ClusterSource,
        probe: Probe,
        machines: Machines,
        env: Mapping[str, str],
        on_step: OnStep,
    ) -> None:
        super().__init__(probe)
        self._source = source
        self._machines = machines
        self._env = env
        self._on_step = on_step

    def place(self, step: Step, host: str, port: int) -> NodeEntry:
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
                f"the address of {step.node} is unknown; nothing was changed",
                why=f"{self._source.path} does not list {step.node}",
                next=f"add {step.node} to {self._source.path.name}, or give --host",
            )
        return NodeEntry(
            name=step.node,
            host=host,
            port=port or defaults.port,
            http_port=defaults.http_port,
            weight=step.weight,
        )

    def start(self, entry: NodeEntry) -> bool:
        """Deploy this node alone, as a node that joins, unless it answers.

        Raises:
            Unreachable, RefusedProblem: it does not answer and cannot be deployed from here.
        """
        if isinstance(self._probe(entry, 0.0), NodeStatus):
            return False
        source, now_ms = _listing(self._source, entry), int(time.time() * 1000)
        try:
            todo = deploying.prepare(
                source, [entry.name], self._env, self._machines, self._on_step, now_ms=now_ms, joins=True
            )
            if todo.plan.new_cluster or todo.plan.new_authority:
                raise RefusedProblem(
                    "this cluster was not deployed by iotctl; nothing was changed",
                    next=f"start the agent of {entry.name} with `join: true`",
                )
            deploying.execute(source, todo, self._env, self._machines, self._on_step, now_ms=now_ms)
        except IotctlError as error:
            at = f"{entry.name} does not answer at {entry.host}:{entry.port} and cannot be deployed"
            raise type(error)(
                f"{at}: {error.what}", why=error.why, next=error.next, where=error.where
            ) from None
        return True

    def stop(self, entry: NodeEntry) -> None:
        self._agent(entry)[1].stop()

    def retire(self, name: str) -> str:
        entry = next((n for n in self._source.file.nodes if n.name == name), None)
        if entry is None:
            return (
                f"{name} was removed, but cluster.yaml does not list its machine: stop its agent and delete"
                " its files there"
            )
        try:
            host, agent = self._agent(entry)
            agent.remove()
            aside = archive(host, agent.home)
        except IotctlError as error:  # the node is removed from the cluster already
            return (
                f"{name} was removed, but its machine was not cleaned up: {error.what};"
                " if its agent still runs, the cluster ignores it"
            )
        return f"{name}: its agent has stopped, its files are in {aside}" if aside else ""

    def log_tail(self, entry: NodeEntry) -> str:
        with contextlib.suppress(IotctlError):
            return self._agent(entry)[1].log_tail(3)
        return ""

    def log_of(self, entry: NodeEntry) -> str:
        return f"iotctl cluster logs {entry.name}"

    def _agent(self, entry: NodeEntry) -> tuple[Host, Service]:
        host = self._machines.of(entry)
        return host, service(self._source, entry, host, look(self._source, entry, host))


def _listing(source: ClusterSource, entry: NodeEntry) -> ClusterSource:
    """`source` with `entry` among its nodes."""
    others = tuple(n for n in source.file.nodes if n.name != entry.name)
    file = msgspec.structs.replace(source.file, nodes=(*others, entry))
    return msgspec.structs.replace(source, file=file)

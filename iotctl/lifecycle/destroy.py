"""Destroys a cluster: on every machine its agent, its service and its data."""

from collections.abc import Sequence

import msgspec

from iotctl.errors import Partly, Unreachable
from iotctl.fleet.deployment import CONFIG, Found
from iotctl.fleet.host import Host
from iotctl.fleet.removal import clear
from iotctl.lifecycle.machines import Machines, chosen, look, service
from iotctl.lifecycle.node_settings import check_ours
from iotctl.spec.cluster import ClusterSource, NodeEntry


class DestroyTarget(msgspec.Struct, frozen=True):
    """`there`: the machine holds this node, or a part of it. `error`: why that is unknown, else ""."""

    node: str
    host: str
    data_dir: str
    there: bool
    running: bool
    error: str


class Destroyed(msgspec.Struct, frozen=True):
    """`destroyed`: the nodes that were deleted. `left`: by node, the other files that remain in its
    directory. `software`: directories that remain, since other clusters may run from them."""

    destroyed: list[str]
    left: dict[str, str]
    software: list[str]


def survey(source: ClusterSource, machines: Machines) -> list[DestroyTarget]:
    """What `destroy` would delete; nothing is changed.

    Raises:
        RefusedProblem: a machine holds another cluster's node, or a node that we may not read.
    """
    nodes = chosen(source, ())
    answers = machines.each(nodes, lambda node, host: look(source, node, host))
    heard = {n: a for n, a in answers.items() if not isinstance(a, Unreachable)}
    check_ours(source, {n: found.text(CONFIG) for n, found in heard.items()})
    return [_target(source, node, answers[node.name]) for node in nodes]


def _target(source: ClusterSource, node: NodeEntry, found: Found | Unreachable) -> DestroyTarget:
    home = source.data_dir_of(node)
    if isinstance(found, Unreachable):
        return DestroyTarget(node.name, node.host, home, there=False, running=False, error=found.what)
    there = bool(found.files or found.key or found.app or found.running or found.kept or found.unit)
    return DestroyTarget(node.name, node.host, home, there=there, running=bool(found.running), error="")


def destroy(source: ClusterSource, machines: Machines, targets: Sequence[DestroyTarget]) -> Destroyed:
    """Stop every agent first, so that none reports the others as failed; then delete. Can be repeated.

    Raises:
        Partly: a machine failed, or did not answer the survey; the others are destroyed.
    """
    names = {d.node for d in targets if d.there}
    nodes = [n for n in source.file.nodes if n.name in names]
    errors = [f"{d.node}: {d.error}" for d in targets if d.error]

    def end(node: NodeEntry, host: Host) -> None:
        found = look(source, node, host)
        if found.running or found.unit or found.supervised:  # an interrupted deployment may leave no service
            service(source, node, host, found).remove()

    def delete(node: NodeEntry, host: Host) -> str:
        return clear(host, source.data_dir_of(node), source.name)

    ended = machines.each(nodes, end)
    errors += [a.what for a in ended.values() if isinstance(a, Unreachable)]
    stopped = [n for n in nodes if not isinstance(ended[n.name], Unreachable)]
    deleted = machines.each(stopped, delete)
    errors += [a.what for a in deleted.values() if isinstance(a, Unreachable)]
    deleted_nodes = {n: a for n, a in deleted.items() if not isinstance(a, Unreachable)}
    if errors:
        raise Partly(
            f"destroyed: {', '.join(deleted_nodes) or 'no node'}; not destroyed: {errors[0]}",
            why=f"also not destroyed: {'; '.join(errors[1:])}" if errors[1:] else "",
            next=f"iotctl cluster destroy --confirm {source.name}",
        )
    return Destroyed(
        destroyed=list(deleted_nodes),
        left={n: left for n, left in deleted_nodes.items() if left},
        software=sorted({source.install_dir_of(n) for n in nodes}),
    )

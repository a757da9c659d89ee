"""Copies that differed from their manifest when they were pulled.

The pulling node cannot know whether the source's disk, the network or its own memory is to blame. So the node
that holds the copy hashes it, and reports damage with its manifest, as it does for damage that a read found.
"""

from collections.abc import Iterable, Mapping

from nodeagent.host.data_replica import DataReplica
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.limits import SUSPECTS_CHECKED_MAX
from nodeagent.model.requests import CheckFiles


def request_hashes(
    effects: EffectQueue,
    replicas: Mapping[GroupId, DataReplica],
    group: GroupId,
    suspects: Iterable[tuple[NodeId, str]],
) -> None:
    """Have each node hash its suspected files of `group`.

    Nobody waits for the answer: if the request is lost, the next pull repeats it.

    Args:
        suspects: (node, file name); node "" is this node.
    """
    names: dict[NodeId, list[str]] = {}
    for node, name in suspects:
        names.setdefault(node, []).append(name)
    for node, files in names.items():
        some = tuple(files[:SUSPECTS_CHECKED_MAX])
        if node:
            effects.call(node, CheckFiles(group, (), some), lambda _: None)
        elif group in replicas:
            replicas[group].files.check(some)

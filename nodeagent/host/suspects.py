"""Copies that a pull found to be other than their manifest says.

Whoever pulled cannot tell whether the disk there, the way or its own memory is to blame. So the node that
holds the copy hashes it itself, and what it finds is its own finding, told with its manifest like what a read
finds.
"""

from collections.abc import Iterable, Mapping

from nodeagent.host.data_replica import DataReplica
from nodeagent.host.desk import Desk
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.limits import SUSPECTS_CHECKED_MAX
from nodeagent.model.requests import CheckFiles


def have_checked(
    desk: Desk,
    replicas: Mapping[GroupId, DataReplica],
    group: GroupId,
    suspects: Iterable[tuple[NodeId, str]],
) -> None:
    """Have every node hash the files of `group` that it is suspected of, given as (node, name); node "" is
    this one. No answer is waited for: if it is lost, the next pull tells again."""
    names: dict[NodeId, list[str]] = {}
    for node, name in suspects:
        names.setdefault(node, []).append(name)
    for node, files in names.items():
        some = tuple(files[:SUSPECTS_CHECKED_MAX])
        if node:
            desk.call(node, CheckFiles(group, (), some), lambda _: None)
        elif group in replicas:
            replicas[group].files.check(some)

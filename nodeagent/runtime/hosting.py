"""Creates the host of a node from its opened directory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from nodeagent.model.errors import InvalidInput
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.runtime.startup import Opened, fresh_random
from nodeagent.storage.tsfile_release import tsfile_library

if TYPE_CHECKING:
    from nodeagent.host.host import Host


def create_host(opened: Opened, now: int, wall: int, failpoints: Sequence[str] | None) -> "Host":
    """The host of an opened directory. `failpoints` are set, for tests; with None, none may be set.
    Raises `InvalidInput` if one of them does not exist."""
    from nodeagent.host.context import NodeRun
    from nodeagent.host.opening import Held, open_host

    damaged = [msgspec.structs.replace(damage, message=damage.text) for damage in opened.damaged]
    life = NodeRun(
        opened.config,
        opened.identity.incarnation,
        fresh_random(),
        now,
        wall,
        opened.identity.start,
        writer=tsfile_library(),
    )
    held = Held(
        opened.groups,
        damaged,
        staged=opened.storage.staging.operations(),
        holding=opened.holding,
        starts=opened.starts,
        left=opened.left,
        faults=opened.storage.faults,
        imageless=opened.storage.imageless,
    )
    host = open_host(life, held)
    if failpoints is not None:
        host.operations.failpoints.may_set = True
        refusal = host.operations.failpoints.set(failpoints)
        if refusal is not None:
            raise InvalidInput(refusal.what, next_step=refusal.next_step)
    return host


def joining_operation(host: "Host", node: NodeId, group: GroupId) -> str:
    """The open operation by which `node` joins `group`, "" if there is none."""
    operation = host.cluster.meta.operations.open()
    if operation is None:
        return ""
    joins = any(c.group == group and c.joins == node for c in operation.changes)
    return operation.id if joins else ""

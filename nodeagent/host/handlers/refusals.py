"""Refusals that all requests share."""

from nodeagent.host.cluster import Cluster
from nodeagent.host.replica import Replica
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import Failed, JobResult
from nodeagent.model.requests import ErrorReply


def blind(node: NodeId, damage: str) -> ErrorReply:
    """Without the meta state a node knows no tables, slots and schemas, and would refuse correct requests."""
    what = f"{node} serves no requests: its meta group is damaged: {damage}"
    return ErrorReply("unavailable", what, "ask another node")


def stopped(node: NodeId, replica: Replica) -> ErrorReply:
    """The replica's state ends before an entry that other members have applied."""
    what = f"the replica of {replica.group} on {node} is {replica.stopped}"
    return ErrorReply("unavailable", what, "ask another member; upgrade this node")


def not_leader(replica: Replica) -> ErrorReply:
    leader = replica.raft.leader
    return ErrorReply(
        "not_leader",
        f"this node does not lead group {replica.group}",
        f"ask {leader}" if leader else "retry shortly",
        {"leader": leader, "group": replica.group},
    )


def moved(cluster: Cluster, slot: int, *, waiting: bool) -> ErrorReply:
    table = cluster.meta.placement.table
    owner = table.route(slot) if table is not None and 0 <= slot < table.slots else None
    return ErrorReply(
        "moved",
        f"slot {slot} is not open here",
        "refresh the partition table",
        {"slot": slot, "header": owner, "table_version": cluster.meta.placement.version, "wait": waiting},
    )


def job_error(result: JobResult) -> ErrorReply:
    if isinstance(result, Failed):
        return ErrorReply(result.code, result.what)
    return ErrorReply("error", f"unexpected result {type(result).__name__}")

"""The meta group's state in the form that operators and clients get."""

from functools import lru_cache

from msgspec.structs import replace

from nodeagent.host.meta_replica import MetaReplica
from nodeagent.meta.state import MetaState
from nodeagent.meta.tables import Tables
from nodeagent.model import requests as q
from nodeagent.model.entries import Config
from nodeagent.model.ids import NodeId
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import PartitionTable


@lru_cache(maxsize=4)
def _owners(table: PartitionTable) -> tuple[tuple[int, int, NodeId], ...]:
    """Cached, because every waiting client requests the same table repeatedly."""
    return tuple(sorted((a, b, h) for h in table.ring.names for a, b in table.slots_of(h)))


def runs_view(state: MetaState, run: str) -> q.RunsReply:
    """All runs; only the run named `run` comes with its entries."""
    image = state.image
    return q.RunsReply(image.lock, tuple(r if r.id == run else replace(r, entries=[]) for r in image.runs))


def audit_view(state: MetaState) -> q.AuditReply:
    image = state.image
    return q.AuditReply(image.audit_first, image.audit_base, tuple(image.audit))


def operation_view(state: MetaState, operation: str) -> q.Reply:
    found = state.operations.find(operation)
    if found is None:
        return q.ErrorReply("not_found", f"no operation {operation}", "iotctl ops list")
    return q.OperationReply(found)


def meta_view(node: NodeId, replica: MetaReplica, age_ms: int, held: str = "") -> q.MetaView:
    """`held` as in `GetMeta`."""
    state = replica.state
    schemas, base, dropped = schemas_since(state.tables, held)
    image, table = state.image, state.placement.table
    assert image.settings is not None and table is not None
    config: Config = replica.raft.log.config
    return q.MetaView(
        node=node,
        applied=image.applied,
        cluster_id=image.cluster_id,
        settings=image.settings,
        nodes=tuple(image.nodes.values()),
        table_version=table.version,
        ring=table.ring.names,
        owners=_owners(table),
        groups=tuple(image.groups.values()),
        schemas=schemas,
        operations=state.operations.listed(),
        leader=replica.raft.leader,
        term=replica.raft.term,
        voters=config.voters,
        learners=config.learners,
        level=image.level,
        age_ms=age_ms,
        schemas_digest=state.tables.changes.digest,
        schemas_base=base,
        dropped=dropped,
    )


def schemas_since(
    tables: Tables, held: str
) -> tuple[tuple[TableSchema, ...], str, tuple[tuple[str, str], ...]]:
    """The fields `schemas`, `schemas_base` and `dropped` of a view."""
    keys = tables.changes.since(held)
    if keys is None:
        return tuple(s for s in tables.schemas.values() if not s.dropped), "", ()
    dropped = {k for k in keys if tables.schemas[k].dropped}
    return tuple(tables.schemas[k] for k in sorted(keys - dropped)), held, tuple(sorted(dropped))

"""Writes on the leader, checked against schema and routing before they cost a log entry.

The decisive check is made when the entry is applied; this one gives a clear error early and keeps rows that
do not belong to the slot out of the log.
"""

import pyarrow as pa

from nodeagent.data import commands
from nodeagent.host.cluster import Cluster
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.handlers.refusals import moved, not_leader
from nodeagent.model import limits, requests
from nodeagent.model.errors import InvalidInput, NodeAgentError
from nodeagent.model.files import ScanSpec
from nodeagent.model.ids import PartitionKey
from nodeagent.model.names import check_fileable
from nodeagent.model.requests import ErrorReply
from nodeagent.model.schema import TableSchema
from nodeagent.partition.hash import slot_of
from nodeagent.partition.rows import check_rows
from nodeagent.table import arrow
from nodeagent.table.scan import check_scan


def on_write(cluster: Cluster, replica: DataReplica, token: int, w: requests.Write) -> None:
    effects = cluster.effects
    if not replica.leads:
        return effects.reply(token, not_leader(replica))
    refusal = _check_place(cluster, w.slot, w.partition) or _owned(cluster, replica, w.slot)
    if refusal is not None:
        return effects.reply(token, refusal)
    if len(w.ipc) > limits.WRITE_BYTES_MAX:
        return effects.refuse(
            token, "invalid_input", f"{len(w.ipc)} bytes in one write; the limit is {limits.WRITE_BYTES_MAX}"
        )
    short = replica.raft.voters_low_on_space()
    refusal = effects.space.refusal(short, len(replica.raft.log.config.voters))
    if refusal is not None:
        return effects.reply(token, refusal)
    held = replica.state.rows.memtable.nbytes
    if held > limits.MEMTABLES_MAX * replica.config.memtable_bytes_max:
        what = f"{held} bytes of rows wait for their files"
        refusal = ErrorReply(
            "overloaded", what, "write more slowly", {"at_work": replica.state_jobs.is_closing}
        )
        return effects.later(limits.OVERLOAD_REPLY_DELAY_MS, lambda: effects.reply(token, refusal))
    schema = _schema(cluster, w)
    if isinstance(schema, ErrorReply):
        return effects.reply(token, schema)
    try:
        command = _command(cluster, w, schema)
    except NodeAgentError as error:
        return effects.reply(token, ErrorReply(error.code, error.what, error.next_step))
    effects.space.spend(len(command.ipc))
    _propose(replica, schema, command, token)
    return None


def _schema(cluster: Cluster, w: requests.Write | requests.DeleteRows) -> TableSchema | ErrorReply:
    """The newest schema known here, if it is no older than the client's."""
    schema = cluster.meta.tables.schemas.get((w.partition.storage_group, w.table))
    is_new = schema is not None and schema.version >= w.schema_version
    # A dropped table that was created again has a later version; if that is unknown, this node lags.
    if schema is not None and is_new and schema.dropped and isinstance(w, requests.Write):
        what = f"table {w.partition.storage_group}.{w.table} was dropped"
        return ErrorReply("invalid_input", what, "an import creates it again", {"dropped": True})
    if schema is not None and is_new:
        return schema
    return ErrorReply(
        "not_found" if schema is None else "overloaded",
        f"table {w.partition.storage_group}.{w.table} version {w.schema_version} is not known here",
        "retry shortly if it was just created; the first import or write creates it",
    )


def _propose(
    replica: DataReplica, schema: TableSchema, command: commands.WriteRows | commands.DeleteRange, token: int
) -> None:
    """Propose the command. If the group uses an older schema than `schema`, propose `schema` before it."""
    batch = [commands.encode(command)]
    used = replica.state.schemas.get((schema.storage_group, schema.table))
    if used is None or used.version < schema.version:
        batch.insert(0, commands.encode(commands.UseSchema(schema)))
    replica.propose(batch, token)


def _command(cluster: Cluster, w: requests.Write, schema: TableSchema) -> commands.WriteRows:
    settings = cluster.meta.image.settings
    assert settings is not None
    check_fileable(schema)
    given = arrow.decode(w.ipc)
    rows, span = arrow.normalise_timed(given, schema, limits.WRITE_BYTES_MAX)
    if span is None:
        raise InvalidInput("the write has no rows")
    if not check_rows(rows, schema.tags, w.partition, settings, span):
        raise InvalidInput(
            f"not all rows belong to time partition {w.partition.time_partition}, shard {w.partition.shard}"
        )
    ipc = w.ipc if _is_exact(given.schema, rows.schema) else arrow.encode(rows)
    if len(ipc) > limits.WRITE_BYTES_MAX:
        raise InvalidInput(
            f"the rows take {len(ipc)} bytes in the table's column types;"
            f" the limit is {limits.WRITE_BYTES_MAX}"
        )
    return commands.WriteRows(
        w.session,
        w.sequence,
        w.acknowledged_through,
        w.slot,
        w.partition,
        w.table,
        w.schema_version,
        rows.num_rows,
        *span,
        memoryview(ipc),
    )


def _is_exact(given: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether the bytes may be logged as they came: later readers take names and types literally."""
    if arrow.are_alike(given, wanted):
        return True
    types = dict(zip(wanted.names, wanted.types, strict=True))
    return all(types.get(field.name) == field.type for field in given)


def _check_place(cluster: Cluster, slot: int, partition: PartitionKey) -> ErrorReply | None:
    settings = cluster.meta.image.settings
    if settings is None:
        return ErrorReply("unavailable", "this node does not know the cluster yet")
    if not 0 <= partition.shard < settings.shards:
        return ErrorReply("invalid_input", f"no shard {partition.shard}: the last is {settings.shards - 1}")
    right = slot_of(partition.storage_group, partition.time_partition, partition.shard, settings)
    if right == slot:
        return None
    what = (
        f"shard {partition.shard} of time partition {partition.time_partition} of {partition.storage_group} "
        f"hashes to slot {right}, not {slot}"
    )
    return ErrorReply("invalid_input", what)


def _owned(cluster: Cluster, replica: DataReplica, slot: int) -> ErrorReply | None:
    """Why the group takes no write for the slot now, None if it does; a refused write is not logged."""
    refusal = replica.state.writes.check_slot(slot)
    if refusal is None:
        return None
    return moved(cluster, slot, waiting=bool(refusal.details["wait"]) or replica.state.applied == 0)


def on_delete(cluster: Cluster, replica: DataReplica, token: int, d: requests.DeleteRows) -> None:
    if not replica.leads:
        return cluster.effects.reply(token, not_leader(replica))
    refusal = _check_place(cluster, d.slot, d.partition) or _owned(cluster, replica, d.slot)
    if refusal is not None:
        return cluster.effects.reply(token, refusal)
    schema = _schema(cluster, d)
    if isinstance(schema, ErrorReply):
        return cluster.effects.reply(token, schema)
    try:
        check_scan(ScanSpec(schema, time_from=d.time_from, time_to=d.time_to, tags=d.tags))
    except InvalidInput as error:
        return cluster.effects.refuse(token, error.code, error.what, error.next_step)
    command = commands.DeleteRange(
        d.session,
        d.sequence,
        d.acknowledged_through,
        d.slot,
        d.partition,
        d.table,
        d.tags,
        d.time_from,
        d.time_to,
    )
    _propose(replica, schema, command, token)
    return None

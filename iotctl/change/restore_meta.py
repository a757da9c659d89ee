"""Restore tables and the placement of slots from a backup of the metadata.

The other metadata describes the cluster that was: its nodes' directories, its groups, its operations. A new
cluster has its own. Every step has the same result when it is repeated, so a restore that was interrupted is
completed by the same command.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import msgspec

from iotctl.change.execute import check_plan
from iotctl.errors import Partly, RefusedProblem
from iotctl.observe.backup import Backup
from iotctl.observe.cluster import Cluster
from iotctl.observe.facts import plan_facts
from iotctl.plan.make import make_placement
from iotctl.plan.model import Plan
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import PartitionTable

MISSING, INCOMPLETE, PRESENT = "missing", "incomplete", "present"

ROUTING = ("slots", "shards", "time_partition_interval_ms", "hash_mode")
"""The settings that decide which slot a row has."""

IN_FLIGHT = 16
"""Tables created at a time: the meta group commits them together."""


class TableState(msgspec.Struct, frozen=True):
    """A table of the backup, and what the cluster had of it before the restore: `missing`, `incomplete`
    (columns are missing) or `present`. `ttl_ms` is the TTL in the backup, `ttl_here_ms` the one in the
    cluster (None if the table is missing), which a restore does not change."""

    storage_group: str
    table: str
    columns: int
    state: str
    ttl_ms: int
    ttl_here_ms: int | None


class MetaRestore(msgspec.Struct, frozen=True):
    """What a restore of the state at journal entry `index` of cluster `cluster_id` does, or did: it changes
    the tables that are not `present`, and moves `slots` slots by `operation` ("" if no slot moves)."""

    cluster_id: str
    index: int
    tables: list[TableState]
    slots: int
    operation: str = ""


def look(
    cluster: Cluster, source: ClusterSource, backup: Backup, *, tables_only: bool = False
) -> tuple[MetaRestore, Plan]:
    """What a restore would do; the plan gives each slot the owner that it has in the backup, and is empty if
    it has. Changes nothing.

    Raises:
        RefusedProblem: a table of the cluster does not fit that of the backup; or the slots cannot be placed,
            because the cluster has another ring or other settings, or cannot carry out the plan now.
        Unreachable: no agent answers.
    """
    here = {(s.storage_group, s.table): s for s in cluster.meta(strong=True).schemas}
    states = [_state_of(here.get((s.storage_group, s.table)), s) for s in backup.schemas]
    facts, view = plan_facts(cluster, source)
    wanted = facts.table
    if not tables_only:
        _check_routing(view.settings, wanted, backup)
        wanted = backup.table
    plan = make_placement(facts, wanted)
    check_plan(plan)
    return MetaRestore(backup.cluster_id, backup.index, states, len(plan.moves)), plan


def _state_of(known: TableSchema | None, wanted: TableSchema) -> TableState:
    state, ttl_ms = MISSING, None
    if known is not None:
        columns = {c.name: c for c in known.columns}
        for column in wanted.columns:
            have = columns.get(column.name)
            if have != column and (have is not None or column.tag):
                raise RefusedProblem(
                    f"table {wanted.storage_group}.{wanted.table} of the cluster is not that of the backup; "
                    "nothing was changed",
                    why=f"column {column.name} is of another kind"
                    if have
                    else f"it has no tag {column.name}",
                    next="restore into a cluster without this table",
                )
        if not known.dropped:
            complete = all(c.name in columns for c in wanted.columns)
            state, ttl_ms = PRESENT if complete else INCOMPLETE, known.ttl_ms
    columns_wanted = len(wanted.columns)
    return TableState(wanted.storage_group, wanted.table, columns_wanted, state, wanted.ttl_ms, ttl_ms)


def _check_routing(settings: ClusterSettings, here: PartitionTable, backup: Backup) -> None:
    """Raises `RefusedProblem` unless the groups are those of the backup, and a row has the same slot."""
    what = "the slots cannot be placed as in the backup: "
    if here.ring.names != backup.table.ring.names:
        raise RefusedProblem(
            f"{what}it has other nodes, or in another order; nothing was changed",
            why=f"backup: {', '.join(backup.table.ring.names)}; cluster: {', '.join(here.ring.names)}",
            next="form a cluster of these nodes in this order, or restore the tables alone: --tables-only",
        )
    for name in ROUTING:
        then, now = getattr(backup.settings, name), getattr(settings, name)
        if then != now:
            raise RefusedProblem(
                f"{what}it has {name}: {then}, the cluster has {now}; nothing was changed",
                next="form a cluster with this setting, or restore the tables alone: --tables-only",
            )


def restore_tables(
    cluster: Cluster,
    backup: Backup,
    states: Sequence[TableState],
    on_done: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Create the missing tables with their TTLs, and add missing columns.

    Args:
        states: of each table of the backup, as `look` found them.
        on_done: called with the number of tables that are done, and of all that are to be done.

    Raises:
        Partly: some tables could not be restored.
    """
    wanted = [(s, t) for s, t in zip(backup.schemas, states, strict=True) if t.state != PRESENT]

    def put(schema: TableSchema, state: TableState) -> None:
        cluster.put_schema(schema, schema.ttl_ms if state.state == MISSING else None)

    pool = ThreadPoolExecutor(IN_FLIGHT)
    done = 0
    try:
        for task in as_completed([pool.submit(put, *pair) for pair in wanted]):
            task.result()
            done += 1
            on_done(done, len(wanted))
    except NodeAgentError as error:
        raise Partly(
            f"{done} of {len(wanted)} tables were restored",
            why=error.what,
            next="repeat the command: it continues with the others",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)

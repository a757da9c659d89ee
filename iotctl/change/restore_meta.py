"""Restore tables and the placement of slots from a backup of the metadata.

The other metadata describes the cluster that was: its nodes' directories, its groups, its operations. A new
cluster has its own. Every step has the same result when it is repeated, so a restore that was interrupted is
completed by the same command.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

import msgspec
import numpy as np

from iotctl.change.execute import check_idle, check_plan
from iotctl.errors import Partly, RefusedProblem
from iotctl.observe.backup import Backup
from iotctl.observe.cluster import Cluster
from iotctl.observe.facts import plan_facts
from iotctl.observe.layout import table_of
from iotctl.plan.make import make_placement
from iotctl.plan.model import Plan
from iotctl.spec.cluster import ClusterSource
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import NodeAgentError, OutcomeUnknown, Overloaded, Unavailable
from nodeagent.model.features import Feature
from nodeagent.model.limits import TABLES_MAX
from nodeagent.model.requests import MetaView, PutSchema
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
) -> tuple[MetaRestore, Plan | None]:
    """What a restore would do; the plan, if slots must move, gives each slot the owner that it has in the
    backup. Changes nothing.

    Raises:
        RefusedProblem: a table of the cluster does not fit that of the backup, or there are too many tables;
            or the slots cannot be placed, because the cluster has another ring or other settings, or cannot
            carry out the plan now.
        BusyProblem: slots must move, and another change is open.
        Unreachable: no agent answers.
    """
    view = cluster.meta(strong=True)
    here = {(s.storage_group, s.table): s for s in view.schemas}
    states = [_state_of(here.get((s.storage_group, s.table)), s) for s in backup.schemas]
    missing = sum(t.state == MISSING for t in states)
    if len(here) + missing > TABLES_MAX:
        raise RefusedProblem(
            f"the cluster has {len(here)} tables, and the backup has {missing} others; nothing was changed",
            why=f"a cluster has at most {TABLES_MAX} tables",
            next="restore into a cluster with fewer tables",
        )
    if view.level < Feature.TTL_IF_NEW and any(t.state == MISSING and t.ttl_ms for t in states):
        raise RefusedProblem(
            f"a TTL for new tables needs feature level {Feature.TTL_IF_NEW}, the cluster is at {view.level}; "
            "nothing was changed",
            next="iotctl cluster finalize-upgrade",
        )
    plan = None if tables_only else _placement(cluster, source, view, backup)
    slots = len(plan.moves) if plan is not None else 0
    return MetaRestore(backup.cluster_id, backup.index, states, slots), plan


def _placement(cluster: Cluster, source: ClusterSource, view: MetaView, backup: Backup) -> Plan | None:
    here = table_of(view)
    _check_routing(view.settings, here, backup)
    if np.array_equal(here.owners, backup.table.owners):
        return None
    check_idle(cluster)
    facts, _ = plan_facts(cluster, source)
    _check_routing(view.settings, facts.table, backup)  # a change may have ended since `view`
    plan = make_placement(facts, backup.table)
    check_plan(plan)
    return plan if plan.has_changes else None


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
        complete = all(c.name in columns for c in wanted.columns)
        state, ttl_ms = PRESENT if complete else INCOMPLETE, known.ttl_ms
    columns_wanted = len(wanted.columns)
    return TableState(wanted.storage_group, wanted.table, columns_wanted, state, wanted.ttl_ms, ttl_ms)


def _check_routing(settings: ClusterSettings, here: PartitionTable, backup: Backup) -> None:
    """Raises `RefusedProblem` unless the groups are those of the backup, and a row has the same slot."""
    what = "the slots cannot be placed as in the backup: "
    if here.ring.names != backup.table.ring.names:
        raise RefusedProblem(
            f"{what}its nodes or their order differ from the cluster's; nothing was changed",
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
    """Create the missing tables with their TTLs, and add missing columns. A table that appeared in the
    meantime retains its TTL.

    Args:
        states: of each table of the backup, as `look` found them.
        on_done: called with the number of tables that are done, and of all that are to be done.

    Raises:
        Partly: some tables could not be restored.
        NodeAgentError: none could.
    """
    wanted = [s for s, t in zip(backup.schemas, states, strict=True) if t.state != PRESENT]

    def put(schema: TableSchema) -> None:
        # Without a TTL, no node has to know `if_new`.
        ttl = (schema.ttl_ms, True) if schema.ttl_ms else (None, False)
        cluster.call_meta(PutSchema(schema, *ttl))

    pool = ThreadPoolExecutor(IN_FLIGHT)
    tasks = [pool.submit(put, schema) for schema in wanted]
    try:
        for done, task in enumerate(as_completed(tasks), 1):
            if task.exception() is not None:
                break
            on_done(done, len(wanted))
    finally:
        pool.shutdown(cancel_futures=True)  # also after Ctrl-C
    failed = [e for t in tasks if not t.cancelled() and (e := t.exception()) is not None]
    if failed:
        done = sum(not t.cancelled() and t.exception() is None for t in tasks)
        raise _failure(failed[0], done, len(wanted))


def _failure(error: BaseException, done: int, total: int) -> BaseException:
    """The error of a restore after `done` of `total` tables."""
    if not isinstance(error, NodeAgentError):
        return error
    again = isinstance(error, Unavailable | OutcomeUnknown | Overloaded)
    if not done and not isinstance(error, OutcomeUnknown):
        return error
    return Partly(
        f"{done} of {total} tables were restored",
        why=error.what,
        next="repeat the command: it continues with the others" if again else error.next_step,
    )

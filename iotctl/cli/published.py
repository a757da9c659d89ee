"""The JSON Schemas of every document that iotctl prints, made from the printed structs.

`python -m iotctl.cli.published` rewrites `iotctl/output/schemas/`; a test fails when that was forgotten.
"""

from pathlib import Path
from typing import Any

import msgspec

from iotctl.change.draining import Drained
from iotctl.change.execute import Executed
from iotctl.change.levels import FeatureLevel
from iotctl.change.lock import Unlocked
from iotctl.change.recover import Recovery
from iotctl.change.recover_meta import MetaRecovery
from iotctl.change.restore_meta import MetaRestore
from iotctl.change.zones import Zones
from iotctl.fleet.local import FleetNode
from iotctl.lifecycle.certificates import Certificates
from iotctl.lifecycle.deploy import Deployed, DeployPlan
from iotctl.lifecycle.destroy import Destroyed, DestroyTarget
from iotctl.lifecycle.hosts import Enrolment, HostsChecked
from iotctl.lifecycle.initialise import Initialised
from iotctl.lifecycle.rolling import RestartPlan, RestartReport
from iotctl.observe.audit import AuditLog, Checked, Exported
from iotctl.observe.backup import MetaBackup
from iotctl.observe.bundle import Bundle
from iotctl.observe.events import Events
from iotctl.observe.layout import RingView, SlotsView
from iotctl.observe.meta import MetaGroupView
from iotctl.observe.model import ClusterStatus, GroupRow, MetaRow, NodeRow
from iotctl.observe.operations import Operations
from iotctl.observe.route import RouteView
from iotctl.observe.stopping import OkToStop
from iotctl.output.document import FORMAT_VERSION
from iotctl.output.failure import Failure
from iotctl.output.writer import DryRun
from iotctl.pipeline.report import MigrateReport, VerifyReport
from iotctl.plan.make import KINDS
from iotctl.plan.model import Plan
from iotctl.playbook.model import Report
from iotctl.playbook.records import RecordedRuns
from iotctl.rows.import_report import ImportReport

DIRECTORY = Path(__file__).parent.parent / "output" / "schemas"


class Error(msgspec.Struct):
    error: Failure


class ClusterNodes(msgspec.Struct):
    as_of_ms: int
    source: str
    nodes: list[NodeRow]


class ClusterGroups(msgspec.Struct):
    as_of_ms: int
    source: str
    meta: MetaRow
    groups: list[GroupRow]


class LocalFleetView(msgspec.Struct):
    directory: str
    cluster: str
    nodes: list[FleetNode]
    export: str
    next: list[str]


class TableCount(msgspec.Struct):
    storage_group: str
    table: str
    rows: int
    time_min_ms: int | None
    time_max_ms: int | None


class DataCount(msgspec.Struct):
    tables: list[TableCount]


class ColumnView(msgspec.Struct):
    name: str
    type: str
    tag: bool


class TableView(msgspec.Struct):
    storage_group: str
    table: str
    version: int
    columns: list[ColumnView]
    ttl_ms: int = 0


class DataSchema(msgspec.Struct):
    tables: list[TableView]


class DataQuery(msgspec.Struct):
    """The rows include every write acknowledged at least `age_ms` ago; null: no leader confirmed an age."""

    read: str
    age_ms: int | None
    columns: list[str]
    rows: list[dict[str, str | int | float | bool | None]]


class DataWrite(msgspec.Struct):
    rows: int
    time_ms: int


class DataDelete(msgspec.Struct):
    partitions: int


class DataDrop(msgspec.Struct):
    """`table` is "" with --all-tables; `tables` are the tables that were dropped."""

    storage_group: str
    table: str
    partitions: int
    tables: list[str]


class DataExport(msgspec.Struct):
    """`age_ms` as in data-query."""

    read: str
    age_ms: int | None
    path: str
    format: str
    rows: int


class ClusterAgents(msgspec.Struct):
    """`what` happened to `nodes`: `started` or `stopped`. Nodes already in that state are left out."""

    what: str
    nodes: list[str]


class DestroyPlan(msgspec.Struct):
    nodes: list[DestroyTarget]


class NodeLog(msgspec.Struct):
    node: str
    lines: list[str]


class ClusterLogs(msgspec.Struct):
    nodes: list[NodeLog]


class PlaybookValid(msgspec.Struct):
    playbook: str
    steps: list[str]
    valid: bool


BODIES: dict[str, Any] = {
    "audit-checked": Checked,
    "audit-exported": Exported,
    "audit-log": AuditLog,
    "certificates": Certificates,
    "change": Executed,
    "cluster-agents": ClusterAgents,
    "cluster-check": HostsChecked,
    "cluster-deploy": Deployed,
    "cluster-deploy-plan": DeployPlan,
    "cluster-destroy": Destroyed,
    "cluster-destroy-plan": DestroyPlan,
    "cluster-drain": Drained,
    "cluster-feature-level": FeatureLevel,
    "cluster-zones": Zones,
    "cluster-events": Events,
    "cluster-groups": ClusterGroups,
    "cluster-init": Initialised,
    "cluster-logs": ClusterLogs,
    "cluster-nodes": ClusterNodes,
    "cluster-ok-to-stop": OkToStop,
    "cluster-recover": Recovery,
    "cluster-ring": RingView,
    "cluster-rolled": RestartReport,
    "cluster-route": RouteView,
    "cluster-slots": SlotsView,
    "cluster-status": ClusterStatus,
    "cluster-trust": Enrolment,
    "cluster-waves": RestartPlan,
    "data-count": DataCount,
    "data-delete": DataDelete,
    "data-drop": DataDrop,
    "data-export": DataExport,
    "data-import": ImportReport,
    "data-query": DataQuery,
    "data-schema": DataSchema,
    "data-write": DataWrite,
    "dry-run": DryRun,
    "error": Error,
    "local-down": LocalFleetView,
    "local-status": LocalFleetView,
    "local-up": LocalFleetView,
    "meta-backup": MetaBackup,
    "meta-recover": MetaRecovery,
    "meta-restore": MetaRestore,
    "meta-status": MetaGroupView,
    "migrate": MigrateReport,
    "operations": Operations,
    "ops-unlock": Unlocked,
    "plan": Plan,
    "playbook-check": Report,
    "playbook-run": Report,
    "playbook-runs": RecordedRuns,
    "playbook-validate": PlaybookValid,
    "support-bundle": Bundle,
    "verify": VerifyReport,
}


def schema_of(kind: str) -> dict[str, Any]:
    """JSON Schema 2020-12 of one kind of document."""
    schema = msgspec.json.schema(BODIES[kind])
    name = schema["$ref"].rpartition("/")[2]
    body = schema["$defs"].pop(name)
    kinds = list(KINDS) if kind == "plan" else [kind]
    body["properties"] = {
        "format_version": {"const": FORMAT_VERSION},
        "kind": {"enum": kinds},
        **{k: v for k, v in body["properties"].items() if k not in ("format_version", "kind")},
    }
    required = [k for k in body.get("required", []) if k not in ("format_version", "kind")]
    body["required"] = ["format_version", "kind", *required]
    defs = {"$defs": schema["$defs"]} if schema["$defs"] else {}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body, **defs, "title": kind}


def text_of(kind: str) -> str:
    return msgspec.json.format(msgspec.json.encode(schema_of(kind)), indent=2).decode() + "\n"


def publish() -> None:
    for kind in BODIES:
        (DIRECTORY / f"{kind}.json").write_text(text_of(kind))


if __name__ == "__main__":
    publish()

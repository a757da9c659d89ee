"""The whole meta state, as it is saved and sent.

Names, types and defaults of the fields are the stored format: they never change (`tests/compat`). Each field
is changed by exactly one class: the part whose `Kept` protocol declares it (`Operations` and `Audit` only
read `level`), else `MetaState`. Any code may read.
"""

import msgspec

from nodeagent.model import features
from nodeagent.model.audit_chain import AuditLine
from nodeagent.model.config import ClusterSettings
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation
from nodeagent.model.requests import GroupRecord, NodeRecord
from nodeagent.model.runs import Lock, Run
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import TableWire


class Image(msgspec.Struct):
    """The whole state at meta log index `applied`."""

    applied: int = 0
    cluster_id: str = ""
    """Empty before `Bootstrap`."""

    settings: ClusterSettings | None = None
    nodes: dict[NodeId, NodeRecord] = {}
    retired: list[str] = []
    """Incarnations that may never return."""

    table: TableWire | None = None
    next_table: TableWire | None = None
    """The table that the open operation will put in force, until the operation enters OPEN."""

    groups: dict[GroupId, GroupRecord] = {}
    schemas: list[TableSchema] = []
    operations: list[Operation] = []
    """Oldest first; at most one, the last, has not ended."""

    audit: list[AuditLine] = []
    """(wall clock in ms, who, what), oldest first."""

    audit_first: int = 0
    """Number of the first line in `audit` (since `Feature.AUDIT_CHAIN`): how many lines were before it."""

    audit_base: str = ""
    """Digest of the lines before it (`model.audit_chain`)."""

    lock: Lock | None = None
    runs: list[Run] = []
    """Oldest first."""

    level: int = features.FIRST
    """The cluster's feature level."""

    unnamed_writer: str = ""
    """The TsFile library that made the files of entries that name no library: the library of the leader that
    raised the level to `Feature.FILE_WRITER`."""

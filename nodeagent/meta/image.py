"""The whole meta state, as it is saved and sent.

Names, types and defaults of the fields are what lies on disks: they stay (`tests/compat`). A field is
changed by one class alone, which knows of the image only the fields that are its own (`Kept`); everybody
may read.
"""

import msgspec

from nodeagent.model import features
from nodeagent.model.config import ClusterSettings
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.operation import Operation
from nodeagent.model.requests import GroupRecord, NodeRecord
from nodeagent.model.runs import Lock, Run
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import TableWire


class Image(msgspec.Struct):
    """The whole state at `applied`."""

    applied: int = 0
    cluster_id: str = ""
    settings: ClusterSettings | None = None
    nodes: dict[NodeId, NodeRecord] = {}
    retired: list[str] = []
    table: TableWire | None = None
    next_table: TableWire | None = None
    """Of the open operation, until it enters OPEN."""

    groups: dict[GroupId, GroupRecord] = {}
    schemas: list[TableSchema] = []
    operations: list[Operation] = []
    audit: list[tuple[int, str, str]] = []
    """(ms, who, what)"""

    lock: Lock | None = None
    runs: list[Run] = []
    """Oldest first."""

    level: int = features.FIRST
    """The cluster's feature level."""

    unnamed_writer: str = ""
    """That made the files of entries which name none: of the leader when `Feature.FILE_WRITER` came."""

"""Backups of the cluster's metadata: images of the meta state in files, which `nodeagent image` also reads.

This module reads the sections that a restore needs, and ignores fields that it does not know.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from iotctl.errors import InputProblem, RefusedProblem
from iotctl.files import whole_file
from iotctl.observe.cluster import Cluster
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import Damaged, FileCorrupt, NodeAgentError
from nodeagent.model.features import SPOKEN
from nodeagent.model.image_format import ImageBytes, records_of
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import PartitionTable, TableWire

NODES_ASKED = 3
"""Nodes that a backup asks for an image, one after the other."""


class _Cluster(msgspec.Struct):
    cluster_id: str
    settings: ClusterSettings | None
    level: int


class _Table(msgspec.Struct):
    table: TableWire
    is_next: bool


_KINDS: dict[str, Any] = {"cluster": _Cluster, "partition": _Table, "schemas": TableSchema}
"""Section -> the part of its records that a restore needs (`nodeagent.meta.sections`)."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What a restore needs of the state at journal entry `index` of term `term`."""

    cluster_id: str
    index: int
    term: int
    digest: str
    settings: ClusterSettings
    table: PartitionTable
    schemas: tuple[TableSchema, ...]
    """Without dropped tables."""


class MetaBackup(msgspec.Struct, frozen=True):
    """`file` holds the state of `node` at journal entry `index` of term `term`. Images of the same state have
    the same digest."""

    file: str
    bytes: int
    node: str
    cluster_id: str
    index: int
    term: int
    tables: int
    digest: str


def back_up(cluster: Cluster, path: Path) -> MetaBackup:
    """Write the state, with everything acknowledged before, to a file; verify it first, and sync it.

    A file of this name is replaced as a whole.

    Raises:
        InputProblem: the file cannot be written; a file of this name is unchanged.
        NodeAgentError: no majority of the meta group answers, or the cluster's feature level has no images.
        FileCorrupt: the image does not verify; nothing was written.
    """
    node, content = _image(cluster)
    try:
        found = _backup_of(content)
    except Damaged as error:
        raise FileCorrupt(
            f"the image of {node} does not verify: {error.what}; nothing was written",
            next_step="repeat the command",
        ) from error
    with whole_file(path) as file:
        file.write(content)
    return MetaBackup(
        file=str(path),
        bytes=len(content),
        node=node,
        cluster_id=found.cluster_id,
        index=found.index,
        term=found.term,
        tables=len(found.schemas),
        digest=found.digest,
    )


def _image(cluster: Cluster) -> tuple[str, bytes]:
    """A node and its image. Any node can make it, but not while it restarts or its disk is full."""
    view = cluster.meta(strong=True)
    nodes = [view.node, *(n.node for n in view.nodes if n.node != view.node)][:NODES_ASKED]
    for node in nodes[:-1]:
        with suppress(NodeAgentError):
            return node, cluster.back_up_meta(node)
    return nodes[-1], cluster.back_up_meta(nodes[-1])


def read_backup(path: Path) -> Backup:
    """Read and verify a backup.

    Raises:
        InputProblem: there is no such file, or a byte of it is damaged.
        RefusedProblem: it is of a cluster whose feature level this release does not support.
    """
    try:
        return _backup_of(path.read_bytes())
    except OSError as error:
        raise InputProblem(f"{path} cannot be read: {error.strerror}") from error
    except Damaged as error:
        raise InputProblem(
            f"{path} is not a complete backup", why=error.what, next=f"nodeagent image dump {path}"
        ) from error


def _backup_of(content: bytes) -> Backup:
    image = ImageBytes(content)
    end = image.verified()
    found: dict[str, list[Any]] = {name: [] for name in _KINDS}
    for frame in image.frames(image.sections_at):
        if frame.name in _KINDS:
            found[frame.name] += records_of(frame, _KINDS[frame.name])
        if frame.name == "cluster":
            _check_level(found["cluster"])
    tables = [t.table for t in found["partition"] if not t.is_next]
    cluster: _Cluster | None = next(iter(found["cluster"]), None)
    if cluster is None or cluster.settings is None or not tables:
        raise Damaged("the image is that of a cluster which was not formed yet")
    return Backup(
        cluster_id=cluster.cluster_id,
        index=image.header.base.index,
        term=image.header.base.term,
        digest=end.digest,
        settings=cluster.settings,
        table=PartitionTable.from_wire(tables[0]),
        schemas=tuple(s for s in found["schemas"] if not s.dropped),
    )


def _check_level(clusters: list[_Cluster]) -> None:
    """The first section says whether this release can read the others."""
    for cluster in clusters:
        if cluster.level not in SPOKEN:
            raise RefusedProblem(
                f"the backup is at feature level {cluster.level}; this release supports {SPOKEN}",
                next="use the release that wrote it",
            )

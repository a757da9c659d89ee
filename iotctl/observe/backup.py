"""Backups of the cluster's metadata: images of the meta state in files, which `nodeagent image` also reads.

This module reads the sections that a restore needs, and ignores fields that it does not know.
"""

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from iotctl.errors import InputProblem, RefusedProblem
from iotctl.observe.cluster import Cluster
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import Damaged, FileCorrupt
from nodeagent.model.features import SPOKEN, Feature
from nodeagent.model.image_format import ImageBytes, records_of
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import PartitionTable, TableWire


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
        RefusedProblem: the cluster's feature level has no images.
        InputProblem: the file cannot be written; a file of this name is unchanged.
        NodeAgentError: no majority of the meta group answers.
        FileCorrupt: the image does not verify; nothing was written.
    """
    view = cluster.meta(strong=True)
    if view.level < Feature.IMAGES:
        raise RefusedProblem(
            f"the cluster is at feature level {view.level}, which has no images; nothing was written",
            next="iotctl cluster finalize-upgrade",
        )
    content = cluster.back_up_meta(view.node)
    try:
        found = _backup_of(content)
    except Damaged as error:
        raise FileCorrupt(
            f"the image of {view.node} does not verify: {error.what}; nothing was written",
            next_step="repeat the command",
        ) from error
    _write(path, content)
    return MetaBackup(
        file=str(path),
        bytes=len(content),
        node=view.node,
        cluster_id=found.cluster_id,
        index=found.index,
        term=found.term,
        tables=len(found.schemas),
        digest=found.digest,
    )


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
            f"{path} is not a whole backup", why=error.what, next=f"nodeagent image dump {path}"
        ) from error


def _backup_of(content: bytes) -> Backup:
    image = ImageBytes(content)
    end = image.verified()
    found: dict[str, list[Any]] = {name: [] for name in _KINDS}
    for frame in image.frames(image.sections_at):
        if frame.name in _KINDS:
            found[frame.name] += records_of(frame, _KINDS[frame.name])
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


def _write(path: Path, content: bytes) -> None:
    temporary = ""
    try:
        path = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        temporary = ""
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except (OSError, RuntimeError, ValueError) as error:  # a cycle of links; an empty name
        why = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise InputProblem(f"{path} cannot be written: {why}", next="name another file") from error
    finally:
        if temporary:
            with suppress(OSError):
                Path(temporary).unlink()

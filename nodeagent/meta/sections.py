"""The meta state as the sections of an image, and back.

Names, order and types of the sections are the stored format (since `Feature.IMAGES`).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from nodeagent.meta.image import Image
from nodeagent.meta.level import check_level
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import Damaged
from nodeagent.model.features import SPOKEN, Levels
from nodeagent.model.image_format import END, ImageBytes, Section, records_of
from nodeagent.model.operation import Operation
from nodeagent.model.requests import GroupRecord, NodeRecord
from nodeagent.model.runs import Lock, Run
from nodeagent.model.schema import TableSchema
from nodeagent.partition.table import TableWire


class ClusterRecord(msgspec.Struct, frozen=True):
    """What the state has once."""

    cluster_id: str
    settings: ClusterSettings | None
    level: int
    unnamed_writer: str
    lock: Lock | None
    audit_first: int
    audit_base: str


class TableRecord(msgspec.Struct, frozen=True):
    """A partition table: the one in force, or the one that the open operation will put in force."""

    table: TableWire
    is_next: bool


CLUSTER = "cluster"
"""The first section: it says whether this release can read the others."""

KINDS: dict[str, Any] = {
    CLUSTER: ClusterRecord,
    "nodes": NodeRecord,
    "retired": str,
    "partition": TableRecord,
    "groups": GroupRecord,
    "schemas": TableSchema,
    "operations": Operation,
    "audit": tuple[int, str, str],
    "runs": Run,
}
"""The sections in their order, each with the type of its records."""


def sections_of(image: Image) -> tuple[Section, ...]:
    """A copy of the state that later entries do not change. Records are shared where they are immutable; the
    open operation and the open runs are copied."""
    cluster = ClusterRecord(
        image.cluster_id,
        image.settings,
        image.level,
        image.unnamed_writer,
        image.lock,
        image.audit_first,
        image.audit_base,
    )
    tables = ((image.table, False), (image.next_table, True))
    found: dict[str, Sequence[Any]] = {
        CLUSTER: (cluster,),
        "nodes": tuple(image.nodes.values()),
        "retired": tuple(image.retired),
        "partition": tuple(TableRecord(t, is_next) for t, is_next in tables if t is not None),
        "groups": tuple(image.groups.values()),
        "schemas": tuple(image.schemas),
        "operations": tuple(op if op.ended else _encoded(op) for op in image.operations),
        "audit": tuple(image.audit),
        "runs": tuple(run if run.ended else replace(run, entries=list(run.entries)) for run in image.runs),
    }
    return tuple(Section(name, found[name]) for name in KINDS)


def _encoded(record: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(record))


def image_of(content: ImageBytes, levels: Levels) -> Image:
    """The state that the image holds.

    Raises:
        Refused: the cluster's feature level is not in `levels`.
        Damaged: the bytes do not verify, or have other sections than this release writes.
    """
    found: dict[str, list[Any]] = {name: [] for name in KINDS}
    for name, records in _records(content, levels):
        found[name] += records
    (cluster,) = found[CLUSTER]
    tables: dict[bool, TableWire] = {t.is_next: t.table for t in found["partition"]}
    return Image(
        applied=content.header.base.index,
        cluster_id=cluster.cluster_id,
        settings=cluster.settings,
        nodes={n.node: n for n in found["nodes"]},
        retired=found["retired"],
        table=tables.get(False),
        next_table=tables.get(True),
        groups={g.group: g for g in found["groups"]},
        schemas=found["schemas"],
        operations=found["operations"],
        audit=found["audit"],
        audit_first=cluster.audit_first,
        audit_base=cluster.audit_base,
        lock=cluster.lock,
        runs=found["runs"],
        level=cluster.level,
        unnamed_writer=cluster.unnamed_writer,
    )


def check_image(
    content: ImageBytes, levels: Levels = SPOKEN, pause: Callable[[], None] = lambda: None
) -> None:
    """Decode every record of a new image, to prove that a start can; raises what `image_of` raises.

    The records are dropped at once: a second state of many tables would make the garbage collector stop the
    event loop. `pause` is called after each frame, as in `storage.images.Images`.
    """
    for _ in _records(content, levels):
        pause()


def _records(content: ImageBytes, levels: Levels) -> Iterator[tuple[str, list[Any]]]:
    """(section, records) of each frame, in order; raises as `image_of`."""
    content.verified()
    check_level(levels, _cluster_of(content).level)
    names: dict[str, None] = {}
    for frame in content.frames(content.sections_at):
        if frame.name == END:
            break
        if frame.name not in KINDS:
            raise Damaged(f"section {frame.name!r} is not known to this release")
        names[frame.name] = None
        yield frame.name, records_of(frame, KINDS[frame.name])
    if list(names) != list(KINDS):
        raise Damaged(f"the image has the sections {', '.join(names)}; expected {', '.join(KINDS)}")


def _cluster_of(content: ImageBytes) -> ClusterRecord:
    first = next(content.frames(content.sections_at))
    if first.name != CLUSTER or first.records != 1:
        raise Damaged(f"the image begins with section {first.name!r} of {first.records} records")
    cluster: ClusterRecord = records_of(first, ClusterRecord)[0]
    return cluster

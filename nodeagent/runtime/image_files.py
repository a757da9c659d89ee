"""Images in readable form, for `nodeagent image`.

Nothing is changed, and damaged bytes are reported with their place; what follows them is still read. The node
may run: an image never changes once it has its name.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nodeagent.meta.sections import KINDS, check_image
from nodeagent.model.errors import Damaged, NodeAgentError, NotFound
from nodeagent.model.ids import META
from nodeagent.model.image_format import END, HEADER, Bad, End, Frame, Header, ImageBytes, records_of
from nodeagent.runtime.directory import CONFIG_FILE, DATA_DIR
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.log_entries import readable
from nodeagent.storage import layout
from nodeagent.storage.images import image_indexes

Line = dict[str, Any]

_KINDS = KINDS | {HEADER: Header, END: End}
SECTIONS = tuple(KINDS)
_KEYS = {
    "nodes": ("node",),
    "groups": ("group",),
    "schemas": ("storage_group", "table"),
    "operations": ("id",),
    "runs": ("id",),
    "partition": ("is_next",),
}
"""The fields that identify a record of a section."""


def images_at(path: Path) -> list[Path]:
    """The image itself, or all images of a node's directory, oldest first.

    Raises:
        NotFound: there is no such file, or the directory has no image.
    """
    if path.is_dir():
        data = path / DATA_DIR if (path / CONFIG_FILE).exists() else path
        indexes = image_indexes(RealDisk(data), META)
        found = [data / layout.image_path(META, index) for index in indexes]
        if not found:
            raise NotFound(
                f"{path} has no image of the meta state",
                next_step="images are written once the cluster is at a feature level that has them: "
                "iotctl cluster finalize-upgrade",
            )
        return found
    if not path.is_file():
        raise NotFound(f"there is no file {path}", next_step="name an image or a node's directory")
    return [path]


def check(path: Path) -> Line:
    """Whether the image verifies and can be loaded.

    Keys: image, bytes, valid, error; of a valid image also index, term, group, node, digest and records.
    Images of one state have the same digest on every node.
    """
    content = path.read_bytes()
    line: Line = {"image": str(path), "bytes": len(content), "valid": True, "error": ""}
    try:
        image = ImageBytes(content)
        end = image.verified()
        check_image(image)
    except NodeAgentError as error:
        return line | {"valid": False, "error": error.what}
    header = image.header
    return line | {
        "index": header.base.index,
        "term": header.base.term,
        "group": header.group,
        "node": header.owner.node,
        "digest": end.digest,
        "records": end.records,
    }


def dump(path: Path, section: str = "") -> Iterator[Line]:
    """One line for each record, and for each place that cannot be read.

    Keys: section, record (its number in the section), valid, fields; for bytes that cannot be read section
    "", offset, bytes, valid and error.

    Args:
        section: only records of this section, and what cannot be read; "" for everything.
    """
    numbers: dict[str, int] = {}
    for found in ImageBytes.scan(path.read_bytes()):
        if isinstance(found, Bad):
            yield {
                "section": "",
                "offset": found.offset,
                "bytes": found.length,
                "valid": False,
                "error": found.error,
            }
            continue
        first = numbers.get(found.name, 0)
        numbers[found.name] = first + found.records
        if section in ("", found.name):
            yield from _records(found, first)


def _records(frame: Frame, first: int) -> Iterator[Line]:
    try:
        records = records_of(frame, _KINDS.get(frame.name, Any))
    except Damaged as error:
        yield {"section": frame.name, "record": first, "valid": False, "error": error.what}
        return
    for number, record in enumerate(records, first):
        yield {"section": frame.name, "record": number, "valid": True, "fields": readable(record)}


def diff(old: Path, new: Path) -> Iterator[Line]:
    """One line for each record that only one of the images has, or that differs.

    Keys: section, key (names the record), change (`added`, `removed` or `changed`), old, new. Of a record
    that changed, `old` and `new` have only the fields that differ.

    Raises:
        Damaged: one of the images does not verify.
    """
    before, after = _by_key(old), _by_key(new)
    for at in [*before, *(key for key in after if key not in before)]:
        section, key = at
        line: Line = {"section": section, "key": key}
        if at not in after:
            yield line | {"change": "removed", "old": before[at], "new": None}
        elif at not in before:
            yield line | {"change": "added", "old": None, "new": after[at]}
        elif before[at] != after[at]:
            yield line | {"change": "changed"} | _differing(before[at], after[at])


def _by_key(path: Path) -> dict[tuple[str, str], Any]:
    image = ImageBytes(path.read_bytes(), str(path))
    image.verified()
    found: dict[tuple[str, str], Any] = {}
    for frame in image.frames(image.sections_at):
        if frame.name == END:
            continue
        for record in records_of(frame, _KINDS.get(frame.name, Any), str(path)):
            fields = readable(record)
            names = _KEYS.get(frame.name)
            key = ".".join(str(fields[n]) for n in names) if names else _text(fields)
            found[frame.name, key] = fields
    return found


def _text(fields: Any) -> str:
    """The key of a record without a name: of a line of the audit log its text; "" if there is one record."""
    if isinstance(fields, dict):
        return ""
    return " ".join(str(part) for part in fields) if isinstance(fields, list) else str(fields)


def _differing(old: Any, new: Any) -> Line:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return {"old": old, "new": new}
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return {"old": {n: old.get(n) for n in names}, "new": {n: new.get(n) for n in names}}


def encoded(line: Line) -> str:
    return msgspec.json.encode(line).decode()

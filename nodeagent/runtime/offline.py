"""What checkpoints say of files, without a host: to check a stopped node, and to clean up at a start."""

from collections.abc import Iterator, Mapping

import msgspec

from nodeagent.data.state import decode_checkpoint
from nodeagent.host.replica import Saved
from nodeagent.model.disk import Disk
from nodeagent.model.errors import Damaged
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import META, GroupId
from nodeagent.storage.checkpoint import load_checkpoint
from nodeagent.storage.files import SlotFiles

Line = dict[str, str | int | bool]


def check_files(disk: Disk) -> Iterator[Line]:
    """One line for each checkpoint below the data directory, each file its manifest names, and each file
    that none names.

    Keys: group, slot, name, bytes, found, valid. `found` is the XXH3-128 on disk, `missing`, `orphan`
    (harmless: removed by the node itself), or what is wrong with a checkpoint.
    """
    files = SlotFiles(disk)
    for group in files.groups():
        try:
            metas = manifest_in(group, load_checkpoint(disk, group))
        except (Damaged, msgspec.DecodeError) as error:
            yield _line(group, "checkpoint", str(error), valid=False)
            continue
        yield _line(group, "checkpoint", "ok", valid=True)
        for meta in metas:
            found = files.hash(group, meta)
            yield _line(group, meta.name, found, valid=found == meta.xxh3, slot=meta.slot, size=meta.size)
        known = {(meta.slot, meta.name) for meta in metas}
        for slot, names in files.names(group).items():
            for name in names:
                if (slot, name) not in known:
                    yield _line(group, name, "orphan", valid=True, slot=slot)


def manifest_in(group: GroupId, payload: bytes | None) -> list[FileMeta]:
    """What a checkpoint's payload names; the meta group has no files. Raises `msgspec.DecodeError`."""
    if payload is None or group == META:
        return []
    return decode_checkpoint(msgspec.msgpack.decode(payload, type=Saved).state).files


def known_files(groups: Mapping[GroupId, bytes]) -> dict[GroupId, dict[int, set[str]]]:
    """Names per group and slot, from the checkpoints of `groups`.

    At a start nothing else is needed: a file made after the checkpoint is made again from the log, and
    an adopted one is linked again from staging.
    """
    known: dict[GroupId, dict[int, set[str]]] = {}
    for group, payload in groups.items():
        slots = known.setdefault(group, {})
        for meta in manifest_in(group, payload):
            slots.setdefault(meta.slot, set()).add(meta.name)
    return known


def _line(group: GroupId, name: str, found: str, *, valid: bool, slot: int = -1, size: int = 0) -> Line:
    return {"group": group, "slot": slot, "name": name, "bytes": size, "found": found, "valid": valid}

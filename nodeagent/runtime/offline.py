"""The files that checkpoints name, without a host: to check a stopped node, and to clean up at a start."""

import contextlib
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from nodeagent.data.checkpoint import decode_checkpoint
from nodeagent.host.found import fault_of
from nodeagent.host.saved import read_saved
from nodeagent.log import GroupLog
from nodeagent.log.identity import LOG_DIR, known_identity
from nodeagent.log.replay import Replay
from nodeagent.meta.state import MetaState
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Disk
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.errors import Damaged
from nodeagent.model.files import FileMeta
from nodeagent.model.ids import META, GroupId, NodeId, Owner
from nodeagent.runtime.directory import DATA_DIR
from nodeagent.storage import layout
from nodeagent.storage.files import SlotFiles
from nodeagent.storage.images import image_indexes, read_image
from nodeagent.storage.leftovers import ORPHAN, leftovers
from nodeagent.storage.saved_state import load_state

NONE: Mapping[GroupId, str] = MappingProxyType({})
Line = dict[str, str | int | bool]


def mismatches(home: Disk, data: Disk, node: NodeId) -> dict[GroupId, str]:
    """Group -> why its log and checkpoint do not belong together, by the rules of a start; empty for a
    directory that was never started.

    Raises:
        Damaged: `node.id` or the log is missing, unreadable, of another directory or an older copy.
        Refused: the directory belongs to another node.
    """
    known = known_identity(home, node, f"{DATA_DIR}/{layout.GROUPS}")
    if known is None:
        return {}
    replay = Replay()
    replay.run(home, LOG_DIR)
    logs = replay.recovered().groups
    me = Owner(known.node, known.incarnation, known.start)
    found: dict[GroupId, str] = {}
    for group in {*logs, *SlotFiles(data).groups()}:
        log = logs.get(group) or GroupLog(Base(0, 0, Config()), HardState(), [])
        with contextlib.suppress(Damaged):  # `check_files` reports it
            fault = fault_of(group, log, load_state(data, group).content, me)
            if fault:
                found[group] = fault
    return found


def check_files(disk: Disk, node: NodeId, faults: Mapping[GroupId, str] = NONE) -> Iterator[Line]:
    """One line for each checkpoint and image below the data directory, each file in its manifest, and each
    file or empty directory that no manifest names (`storage.leftovers`).

    Keys: group, slot, name, bytes, found, valid. `found` is the XXH3-128 on disk, `missing` or
    `unreadable`; for a checkpoint or an image, `ok` or its fault; for a leftover, its kind. Leftovers are
    harmless, and expected while an operation is open or soon after a crash. Their `name` is a path below the
    data directory, except for orphans, which have group, slot and name like a file of a manifest. `faults` is
    the result of `mismatches`.
    """
    files = SlotFiles(disk)
    for group in sorted(faults.keys() - set(files.groups())):
        yield _line(group, "checkpoint", faults[group], valid=False)
    manifests: dict[GroupId, list[FileMeta]] = {}
    damaged: list[str] = []
    for group in files.groups():
        try:
            metas = manifest_in(group, load_state(disk, group).content)
            if group in faults:
                raise Damaged(faults[group])
        except (Damaged, *UNDECODABLE) as error:
            yield _line(group, "checkpoint", str(error), valid=False)
            damaged.append(f"{layout.group_dir(group)}/")
            continue
        manifests[group] = metas
        yield from _states(disk, group)
        for meta in metas:
            found = files.hash(group, meta)
            yield _line(group, meta.name, found, valid=found == meta.xxh3, slot=meta.slot, size=meta.size)
    for group in set(manifests) - _groups_of(disk, node, manifests):
        del manifests[group]
    for left in leftovers(disk, manifests):
        if left.path.startswith(tuple(damaged)):
            continue  # it is unknown which files the damaged checkpoint names
        size = disk.stat(left.path).size
        if left.kind == ORPHAN:
            _, group, _, slot, name = left.path.split("/", 4)
            yield _line(
                group, name, ORPHAN, valid=True, slot=int(slot) if slot.isdecimal() else -1, size=size
            )
        else:
            yield _line("", left.path, left.kind, valid=True, size=size)


def _states(disk: Disk, group: GroupId) -> Iterator[Line]:
    """A line for each saved state of a group whose newest state, or the one before it, verifies."""
    indexes = image_indexes(disk, group)
    if not indexes or disk.exists(layout.checkpoint_path(group)):
        yield _line(group, "checkpoint", "ok", valid=True)
    for index in indexes:
        name, size = f"{layout.IMAGE}{index}", disk.stat(layout.image_path(group, index)).size
        try:
            read_image(disk, group, index).verified()
        except Damaged as error:
            yield _line(group, name, str(error), valid=False, size=size)
        else:
            yield _line(group, name, "ok", valid=True, size=size)


def _groups_of(disk: Disk, node: NodeId, here: Collection[GroupId]) -> set[GroupId]:
    """The groups of `here` with `node` as a member; all if the meta group has no readable checkpoint."""
    try:
        payload = load_state(disk, META).content
        image = MetaState.decode(read_saved(payload).state).image if payload else None
    except (Damaged, *UNDECODABLE):
        image = None
    if image is None or not image.cluster_id:
        return set(here)
    return {META} | {g.group for g in image.groups.values() if node in g.members}


def manifest_in(group: GroupId, payload: bytes | None) -> list[FileMeta]:
    """The files that a checkpoint's payload names; the meta group has none. Raises one of `UNDECODABLE`."""
    if payload is None or group == META:
        return []
    files = decode_checkpoint(read_saved(payload).state).files
    return sorted(files, key=lambda f: f.name)


def known_files(groups: Mapping[GroupId, bytes]) -> dict[GroupId, dict[int, set[str]]]:
    """Names per group and slot, from the checkpoints of `groups`.

    A start needs no other files: a file written after the checkpoint is rewritten from the log, and an
    adopted file is linked again from staging. A group whose checkpoint is of an unknown release is left out,
    because its files are unknown.
    """
    known: dict[GroupId, dict[int, set[str]]] = {}
    for group, payload in groups.items():
        try:
            files = manifest_in(group, payload)
        except UNDECODABLE:
            continue
        slots = known.setdefault(group, {})
        for meta in files:
            slots.setdefault(meta.slot, set()).add(meta.name)
    return known


def _line(group: GroupId, name: str, found: str, *, valid: bool, slot: int = -1, size: int = 0) -> Line:
    return {"group": group, "slot": slot, "name": name, "bytes": size, "found": found, "valid": valid}

"""Corrupt files of replicas, and repair them as `iotctl verify --repair` does: compare the files of all
members, and send the majority's version to the members that differ.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping

from nodeagent.model.files import FileMeta, FileRef
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.requests import (
    CheckFiles,
    ExportFiles,
    FileRepaired,
    FilesChecked,
    GetManifest,
    ManifestReply,
    RepairFile,
    Reply,
    Request,
    SourceOpened,
)
from nodeagent.storage import layout
from nodeagent.testing.node import SimNode

Ask = Callable[[NodeId, Request], Reply]
"""Sends a request and waits for the reply; returns an error if none arrives."""

MAGIC_BYTES = 6
"""Length of the magic bytes at the end of an Arrow file. A bit flipped there also makes the file unreadable;
elsewhere, only the file's hash shows it."""


def spoil(node: SimNode, rng: random.Random) -> FileMeta | None:
    """Make one file of the node's replicas unreadable and return it; None if there are no files."""
    found = [
        (path, f)
        for group, replica in sorted(node.host.replicas.data.items())
        for f in replica.state.files.manifest.files()
        if node.disk.exists(path := layout.file_path(group, f.slot, f.name))
    ]
    if not found:
        return None
    path, file = rng.choice(found)
    node.disk.flip(path, file.size - 1 - rng.randrange(MAGIC_BYTES), rng.randrange(8))
    return file


class Member:
    """The files that one member reported."""

    def __init__(self, manifest: ManifestReply, checked: FilesChecked) -> None:
        self.wanted = {f.name for f in manifest.files} | {d.output for d in manifest.damaged if d.output}
        """Files that it must have, and the outputs of its blocked compactions."""

        found = dict(checked.found)
        self.whole = {f.name: f for f in checked.files if found.get(f.name) == f.xxh3}


class Operator:
    """Verifies and repairs one group at a time."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.repaired = 0

    def repair(self, group: GroupId, members: tuple[NodeId, ...]) -> bool:
        """Verify and repair once; returns whether every member answered and had every file undamaged."""
        found: dict[NodeId, Member] = {}
        for node in members:
            manifest = self._ask(node, GetManifest(group))
            checked = self._ask(node, CheckFiles(group))
            if not isinstance(manifest, ManifestReply) or not isinstance(checked, FilesChecked):
                return False
            found[node] = Member(manifest, checked)
        is_whole = True
        for node, member in found.items():
            for name in sorted(member.wanted - member.whole.keys()):
                is_whole = False
                wanted, holders = _majority(found, name)
                if wanted is not None:
                    self._replace(group, node, wanted, holders)
        return is_whole

    def _replace(self, group: GroupId, node: NodeId, wanted: FileMeta, holders: list[NodeId]) -> None:
        for holder in holders:
            offer = self._ask(holder, ExportFiles(group, (), (wanted.name,)))
            if not isinstance(offer, SourceOpened):
                continue
            source = FileRef(holder, offer.snapshot, wanted.name, wanted.size, wanted.xxh3)
            done = self._ask(node, RepairFile(group, wanted, (source,)))
            self.repaired += isinstance(done, FileRepaired)
            return


def _majority(found: Mapping[NodeId, Member], name: str) -> tuple[FileMeta | None, list[NodeId]]:
    whole = {node: m.whole[name] for node, m in found.items() if name in m.whole}
    for wanted, count in Counter(whole.values()).most_common(1):
        if 2 * count > len(found):
            return wanted, [node for node, f in whole.items() if f == wanted]
    return None, []

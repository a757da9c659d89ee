"""The files of a data group that were found damaged on this node."""

from collections.abc import Iterable

import msgspec

from nodeagent.host.held_state import HeldState
from nodeagent.model.files import FileMeta
from nodeagent.model.jobs import CompactFiles, Failed, FilesHashed
from nodeagent.model.limits import DAMAGED_KEPT_MAX
from nodeagent.model.requests import DamagedFile


class DamagedFiles:
    def __init__(self, held: HeldState) -> None:
        self._held = held
        self._files: dict[str, DamagedFile] = {}
        """By name; the last `DAMAGED_KEPT_MAX` that a read or a compaction found damaged."""

    def named(self) -> tuple[DamagedFile, ...]:
        """The damaged files that the manifest still names."""
        manifest = self._held.state.files.manifest
        self._files = {
            n: d for n, d in self._files.items() if (m := manifest.get(n)) and m.xxh3 == d.expected
        }
        return tuple(self._files.values())

    def on_failed(
        self, result: Failed, files: Iterable[FileMeta], compaction: CompactFiles | None = None
    ) -> None:
        """A job that read `files` failed: note the file that the job found damaged, if it did."""
        meta = next((f for f in files if f.name == result.file), None)
        if meta is None or not result.found:
            return
        unit = compaction.unit if compaction is not None else None
        output, inputs = (unit.spec.name, tuple(f.name for f in unit.inputs)) if unit else ("", ())
        self._add(DamagedFile(meta.name, meta.slot, meta.xxh3, result.found, output, inputs))

    def on_hashed(self, hashed: FilesHashed, files: Iterable[FileMeta]) -> None:
        """Forget the files that are whole now. Note the others, and keep what is known of the compaction that
        found the damage."""
        metas = {f.name: f for f in files}
        for name, found in hashed.found:
            meta, known = metas.get(name), self._files.get(name)
            if meta is None:
                continue
            if found == meta.xxh3:
                self._files.pop(name, None)
            elif known is not None and known.expected == meta.xxh3:
                self._add(msgspec.structs.replace(known, found=found))
            else:
                self._add(DamagedFile(name, meta.slot, meta.xxh3, found))

    def forget(self, name: str) -> None:
        """The file was repaired."""
        self._files.pop(name, None)

    def _add(self, damage: DamagedFile) -> None:
        self._files.pop(damage.file, None)
        self._files[damage.file] = damage
        while len(self._files) > DAMAGED_KEPT_MAX:
            del self._files[next(iter(self._files))]

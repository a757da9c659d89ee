"""What a checkpoint of a data group says about files: all of them, or those that changed."""

from math import isqrt

from nodeagent.host.held_state import HeldState
from nodeagent.model.jobs import CheckpointSaved, FileChanges, JobResult

DELTA_FILES_MIN = 64
DELTA_ROOTS = 8
"""All files are written if, since all were last written, more have changed than `DELTA_FILES_MIN` plus
`DELTA_ROOTS` times the square root of the number of files: 2 600 of a hundred thousand."""


class FileDeltas:
    def __init__(self, held: HeldState) -> None:
        self._held = held
        self._whole = ""
        """Name of the last checkpoint on disk that lists all files; "" if this process wrote none."""

    def take(self) -> FileChanges:
        """The files of the checkpoint that begins now.

        A checkpoint costs what changed since all files were written, and all files are written only after
        many changes.
        """
        manifest = self._held.state.files.manifest
        if not self._whole or len(manifest.changes) > DELTA_FILES_MIN + DELTA_ROOTS * isqrt(len(manifest)):
            self._whole = ""
            manifest.changes = {}
            return FileChanges("", manifest.unsorted())
        added = tuple(f for f in manifest.changes.values() if f is not None)
        removed = tuple(name for name, f in manifest.changes.items() if f is None)
        return FileChanges(self._whole, added, removed)

    def on_saved(self, result: JobResult) -> None:
        """After a checkpoint that failed, the next one names all files."""
        self._whole = result.base if isinstance(result, CheckpointSaved) else ""

    def reset(self) -> None:
        """A snapshot was installed: the next checkpoint names all files."""
        self._whole = ""

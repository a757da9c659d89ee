"""Puts files of slots that came from another group into the manifest.

An `Adopt` entry names the files; a job puts them in place. Applying entries never waits for that job. For
later entries, the slots count as adopted, and the deletes in the `Adopt` are already in effect
(`deletes_of`). The manifest, `Files.tombstones` and `Slots.arriving` change only once the files are in place.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nodeagent.data.commands import Adopt
from nodeagent.data.compaction import Key
from nodeagent.data.files import Files
from nodeagent.data.slots import Slots, expand
from nodeagent.model.files import Tombstone
from nodeagent.model.ids import GroupId
from nodeagent.model.jobs import AdoptFiles, Job


@dataclass(slots=True)
class Adopting:
    """An `Adopt` whose files are not in place yet."""

    index: int
    command: Adopt
    released: set[int] = field(default_factory=set)
    """Slots released since the entry, as in `closing.Pending`."""

    @property
    def slots(self) -> set[int]:
        return expand(self.command.slots)


class Adoptions:
    """The logged adoptions of one group whose files are not in place yet."""

    def __init__(self, group: GroupId, jobs: list[Job], slots: Slots, files: Files) -> None:
        self.waiting: list[Adopting] = []
        """In log order."""

        self._group = group
        self._jobs = jobs
        self._slots = slots
        self._files = files

    def adopt(self, index: int, command: Adopt) -> None:
        if command.operation in self._slots.ended or command.operation not in self._slots.arriving:
            return
        if self._unadopted(command.operation).isdisjoint(expand(command.slots)):
            return  # a retry: the files may have been compacted since
        self.wait_for(Adopting(index, command))

    def wait_for(self, adopting: Adopting) -> None:
        """Request the job that puts the files in place."""
        self.waiting.append(adopting)
        self._jobs.append(AdoptFiles(adopting.command.operation, self._group, adopting.command.files))

    def on_adopted(self, job: AdoptFiles) -> bool:
        """Record that the job put its files in place; return whether an adoption waited for them."""
        adopted = next((a for a in self.waiting if a.command.files == job.files), None)
        if adopted is None:
            return False
        self.waiting.remove(adopted)
        command = adopted.command
        self._files.tombstones.add_older(command.tombstones)
        self._files.keep([a.meta for a in command.files], adopted.released)
        self._slots.adopted(command.operation, command.slots)
        return True

    def is_stable(self, slot: int) -> bool:
        """Whether the log so far opened the slot and adopted all of its older files."""
        if slot not in self._slots.open:
            return False
        operation = self._slots.arriving_by(slot)
        return operation is None or slot not in self._unadopted(operation)

    def holds_back(self, slot: int, index: int) -> bool:
        """Whether files of the slot, named by an entry before `index`, are not in place yet."""
        return any(a.index < index and slot in a.slots for a in self.waiting)

    def concern(self, slots: set[int]) -> bool:
        """Whether files of any of these slots are not in place yet."""
        return any(not slots.isdisjoint(a.slots) for a in self.waiting)

    def deletes_of(self, key: Key) -> Iterator[Tombstone]:
        """Deletes of the table and partition that came with the waiting files."""
        return (t for a in self.waiting for t in a.command.tombstones if (t.partition, t.table) == key)

    def release(self, slots: set[int]) -> None:
        for adopting in self.waiting:
            adopting.released |= slots

    def _unadopted(self, operation: str) -> set[int]:
        """Slots of the operation that no `Adopt` in the log covers yet, whether or not files are in place."""
        adopted = [a.slots for a in self.waiting if a.command.operation == operation]
        return self._slots.arriving[operation].slots.difference(*adopted)

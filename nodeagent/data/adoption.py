"""Files of slots that came from another group, on their way into the manifest.

An `Adopt` names them; a job puts them in place. What the log decides never waits for that: a slot counts as
adopted with the entry, its deletes are known from then on, and only what needs the files waits for them.
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
    gone: set[int] = field(default_factory=set)
    """Slots released since, as in `closing.Pending`."""

    @property
    def slots(self) -> set[int]:
        return expand(self.command.slots)


class Adoptions:
    """Those of one group that are logged and whose files are not in place yet."""

    def __init__(self, group: GroupId, jobs: list[Job], slots: Slots, files: Files) -> None:
        self.waiting: list[Adopting] = []
        """In the order of the log."""

        self._group = group
        self._jobs = jobs
        self._slots = slots
        self._files = files

    def adopt(self, index: int, command: Adopt) -> None:
        if command.operation in self._slots.ended or command.operation not in self._slots.arriving:
            return
        if self._unadopted(command.operation).isdisjoint(expand(command.slots)):
            return  # sent again; by now its files may have been compacted
        self.wait_for(Adopting(index, command))

    def wait_for(self, adopting: Adopting) -> None:
        """Have its files put in place."""
        self.waiting.append(adopting)
        self._jobs.append(AdoptFiles(adopting.command.operation, self._group, adopting.command.files))

    def on_adopted(self, job: AdoptFiles) -> bool:
        """The files of an `Adopt` are in place under their new names; whether it waited for them."""
        adopted = next((a for a in self.waiting if a.command.files == job.files), None)
        if adopted is None:
            return False
        self.waiting.remove(adopted)
        command = adopted.command
        self._files.tombstones.add_older(command.tombstones)
        self._files.keep([a.meta for a in command.files], adopted.gone)
        self._slots.adopted(command.operation, command.slots)
        return True

    def is_settled(self, slot: int) -> bool:
        """Whether the slot is open by the log so far and nothing older is still to be adopted for it."""
        if slot not in self._slots.open:
            return False
        operation = self._slots.arriving_by(slot)
        return operation is None or slot not in self._unadopted(operation)

    def holds_back(self, slot: int, index: int) -> bool:
        """Whether files of the slot that an entry before `index` named are still to come."""
        return any(a.index < index and slot in a.slots for a in self.waiting)

    def concern(self, slots: set[int]) -> bool:
        """Whether files of one of these slots are still to come."""
        return any(not slots.isdisjoint(a.slots) for a in self.waiting)

    def deletes_of(self, key: Key) -> Iterator[Tombstone]:
        """Deletes of the table and partition that come with the files."""
        return (t for a in self.waiting for t in a.command.tombstones if (t.partition, t.table) == key)

    def release(self, slots: set[int]) -> None:
        for adopting in self.waiting:
            adopting.gone |= slots

    def _unadopted(self, operation: str) -> set[int]:
        """Slots of the operation without an `Adopt` in the log so far. (When files are in place is no
        matter of the log.)"""
        adopted = [a.slots for a in self.waiting if a.command.operation == operation]
        return self._slots.arriving[operation].slots.difference(*adopted)

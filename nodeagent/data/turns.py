"""When a logged compaction begins, and how it ends (`data.compaction` defines its output).

The turn of a compaction comes when everything logged before it that may concern its files is in the manifest.
The compaction ends when the manifest has its output or another member's file into which the output was
merged, or when neither is needed any more. Whenever files enter the manifest, `begin_next` begins the
compactions whose turn has come.
"""

from collections.abc import Iterable

import msgspec

from nodeagent.data import compaction
from nodeagent.data.adoption import Adoptions
from nodeagent.data.closing import Closes
from nodeagent.data.commands import Compact, Park
from nodeagent.data.compaction import Compacting, Compactions, Key, Outcome
from nodeagent.data.files import Files
from nodeagent.model.files import FileMeta, parked_name
from nodeagent.model.ids import GroupId
from nodeagent.model.jobs import CompactFiles, Job
from nodeagent.model.schema import Schemas


class Turns:
    """Begins and ends the compactions of one group."""

    def __init__(
        self,
        group: GroupId,
        jobs: list[Job],
        schemas: Schemas,
        files: Files,
        closes: Closes,
        adoptions: Adoptions,
        compactions: Compactions,
    ) -> None:
        self._group = group
        self._jobs = jobs
        self._schemas = schemas
        self._files = files
        self._closes = closes
        self._adoptions = adoptions
        self._compactions = compactions

    def compact(self, index: int, command: Compact) -> None:
        schema = self._schemas.get((command.partition.storage_group, command.table))
        if schema is None or not command.inputs or not self._adoptions.is_stable(command.slot):
            return
        key = (command.partition, command.table)
        deletes = dict.fromkeys([*self._files.tombstones.of(*key), *self._adoptions.deletes_of(key)])
        self._compactions.add(Compacting(index, command, schema, list(deletes)))
        self.begin_next()

    def park(self, index: int, command: Park) -> None:
        """Store rows that fail to become a TsFile as an Arrow file, also on a member that already has the
        TsFile: otherwise the members would differ permanently.

        An input of a compaction logged earlier is parked after that compaction, if the file still exists:
        whether the compaction merges it is known only at its turn, which members reach at different times.
        """
        if self._compactions.is_input(command.name):
            self._compactions.add(Compacting(index, command, command.schema, []))
            return
        merge = next((c for c in self._compactions.active if c.index == command.close), None)
        if merge is not None:
            return self._park_merge(merge, command.why)
        is_parked = self._closes.park(command)
        if not is_parked and command.name in self._files.manifest:
            self._compactions.add(Compacting(index, command, command.schema, []))
            self.begin_next()

    def _park_merge(self, c: Compacting, why: str) -> None:
        """Make the output as Arrow; `on_compacted` deletes the TsFile that the current job still makes."""
        if c.released or not isinstance(c.command, Compact) or c.command.parked:
            return
        c.command = msgspec.structs.replace(c.command, parked=why)
        if c.job is not None:
            self._begin(c, c.job.unit.inputs)

    def begin_next(self) -> None:
        """Begin the compactions whose turn has come."""
        taken: set[Key] = set()
        for c in list(self._compactions.active):
            if c.released or c.key in taken:
                continue
            if c.job is None and self._is_next(c):
                inputs = compaction.find_inputs(self._files.manifest, c)
                if not inputs:
                    self._compactions.end(c)
                    self._files.remove_expired(c.key)
                    continue
                self._begin(c, inputs)
            taken.add(c.key)

    def _begin(self, c: Compacting, inputs: tuple[FileMeta, ...]) -> None:
        c.job = compaction.job_of(self._group, c, inputs, self._files.substitutes)
        self._jobs.append(c.job)

    def _is_next(self, c: Compacting) -> bool:
        """Whether everything logged before `c` that may concern its files is in the manifest."""
        is_held = self._closes.holds_back(c.command.partition, c.index)
        return not (is_held or self._adoptions.holds_back(c.command.slot, c.index))

    # --- the end -----------------------------------------------------------------------------------

    def on_compacted(self, job: CompactFiles, made: FileMeta | None) -> None:
        """Record that the file of `job` is durable; None if no row was left for it."""
        c = self._compactions.of(job)
        if c is None:
            if made is not None and self._is_parked_by_now(made.name):
                self._files.unlink([made])
            return
        self._compactions.end(c)
        files = [made] if made is not None else []
        if c.released:
            self._files.delete_later(files)
            self.begin_next()
        else:
            self._replace(job.unit.inputs, files, c.key)

    def on_copied(self, outcome: Outcome, made: FileMeta | None) -> None:
        """Record that the copy of another member's file, which ends all compactions of `outcome`, is durable;
        None if no row was left for the file."""
        self._compactions.end(*outcome.steps)
        self._replace(outcome.inputs, [made] if made is not None else [], outcome.steps[0].key)

    def should_retry(self, job: CompactFiles) -> bool:
        """Whether to retry a failed compaction. If not, it has ended: its slot was released, or its inputs
        have expired, and then no other member holds its output any more either."""
        c = self._compactions.of(job)
        if c is None:
            return False
        if c.released:
            self._compactions.end(c)
            return False
        over = next((o for o in self.outcomes(job) if self._has_expired(o)), None)
        if over is not None:
            self.on_copied(over, None)
        return over is None

    def outcomes(self, job: CompactFiles) -> list[Outcome]:
        """Files of other members that would end the compaction here, the latest first: those members may have
        applied more entries."""
        c = self._compactions.of(job)
        if c is None or c.released:
            return []
        active = self._compactions.active
        later = active[active.index(c) :]
        alike = [d for d in later if d.key == c.key and not d.released and self._is_next(d)]
        return compaction.outcomes_of(c, alike, self._files.manifest.of_partition(*c.key))

    def _replace(self, inputs: Iterable[FileMeta], files: list[FileMeta], key: Key) -> None:
        self._files.replace(inputs, files, key)
        self.begin_next()

    def _is_parked_by_now(self, name: str) -> bool:
        """Whether no manifest names this TsFile because its rows were parked while it was made."""
        instead = parked_name(name)
        coming = (c.output for c in self._compactions.active if c.job is not None)
        return name not in self._files.manifest and (instead in self._files.manifest or instead in coming)

    def _has_expired(self, outcome: Outcome) -> bool:
        """Whether no other member holds the outcome any more, nor an output into which it was merged. A
        cut-off removes no input of a compaction that was logged before the cut-off."""
        steps = set(map(id, outcome.steps))
        names = {name for c in outcome.steps for name in (*c.names, c.output)}
        others = (c for c in self._compactions.active if id(c) not in steps)
        later = [c.index for c in others if not names.isdisjoint(c.names)]
        pinned = {f.name: min(later) for f in outcome.inputs} if later else {}
        cuts = self._files.tombstones.cuts(*outcome.steps[0].key)
        return len(compaction.expired(outcome.inputs, cuts, pinned)) == len(outcome.inputs)

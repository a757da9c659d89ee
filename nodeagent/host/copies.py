"""Fetches files from other members if this node repeatedly fails to make them.

By law 6, a file that a worker here cannot make (its TsFile library is broken on this machine, or memory is
short) is the same on every member. So another member's file is used if its name and order match, and its
bytes are checked against that member's manifest. The same holds for the output of a compaction whose input is
damaged or missing here, and for the file into which the other members have merged that output.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from nodeagent.data.state import DataState
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.failing import PASSED, Answers, Copied
from nodeagent.host.repair_areas import RepairAreas
from nodeagent.host.suspects import request_hashes
from nodeagent.model.errors import InvariantBroken, NotFound
from nodeagent.model.files import CloseSpec, FileMeta, FileRef
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import (
    FileReplaced,
    FilesStaged,
    JobResult,
    ReplaceFile,
    StagedFile,
    StageFiles,
    repair_area,
)
from nodeagent.model.requests import ErrorReply, ExportFiles, Reply, SourceOpened


@dataclass(slots=True)
class _Missing:
    replica: DataReplica
    specs: Sequence[CloseSpec]
    """Any of these files is sufficient; earlier ones are preferred. The last is the file that fails here."""

    state: DataState
    """The state that asked; a state that replaces it asks for its own files."""

    then: Copied
    answers: Answers = field(default_factory=Answers)
    is_answered: bool = False

    @property
    def is_current(self) -> bool:
        return self.replica.is_whole and self.replica.state is self.state


class Copies:
    """Copies for this node; every `then` is called once."""

    def __init__(self, node: NodeId, effects: EffectQueue, areas: RepairAreas) -> None:
        self._node = node
        self._effects = effects
        self._areas = areas

    def fetch(self, replica: DataReplica, specs: Sequence[CloseSpec], then: Copied) -> None:
        """Put one of the files that `specs` describe in place, from the first member that has one."""
        missing = _Missing(replica, specs, replica.state, then)
        self._areas.when_taken(replica.group, lambda: self._begin(missing))

    def _begin(self, missing: _Missing) -> None:
        members = [n for n in missing.replica.raft.log.config.members if n != self._node]
        if members and missing.is_current and not self._effects.space.room:
            missing.answers.is_nowhere = True
            return self._ask(missing, [(spec, n) for spec in missing.specs for n in members])
        # Later, because otherwise each waiting copy would begin the next one recursively.
        return self._effects.later(0, lambda: self._end(missing, None))

    def _ask(self, missing: _Missing, candidates: list[tuple[CloseSpec, NodeId]]) -> None:
        if not candidates:
            return self._end(missing, None)
        (spec, node), *others = candidates
        request = ExportFiles(missing.replica.group, ((spec.slot, spec.slot + 1),), (spec.name,))

        def answered(reply: Reply) -> None:
            slots = reply.slots if isinstance(reply, SourceOpened) else ()
            made = next((f for s in slots for f in s.files if _fits(f, spec)), None)
            if isinstance(reply, ErrorReply) and reply.code == NotFound.code:
                missing.answers.has_passed |= bool(reply.details.get(PASSED)) and spec is missing.specs[-1]
            else:
                missing.answers.is_nowhere = False
            if made is None or not isinstance(reply, SourceOpened):
                return self._ask(missing, others)
            source = FileRef(node, reply.snapshot, made.name, made.size, made.xxh3)
            staged = (StagedFile(made, (source,)),)
            job = StageFiles(repair_area(missing.replica.group), missing.replica.group, staged)
            then = self._part_of(missing, lambda r: self._on_fetched(missing, made, others, r))
            return self._effects.job(job, then)

        self._effects.call(node, request, self._part_of(missing, answered))

    def _on_fetched(
        self, missing: _Missing, made: FileMeta, others: list[tuple[CloseSpec, NodeId]], result: JobResult
    ) -> None:
        group = missing.replica.group
        if isinstance(result, FilesStaged):
            request_hashes(self._effects, {}, group, result.suspects)
        if not isinstance(result, FilesStaged) or result.failed:
            return self._areas.clear(group, self._part_of(missing, lambda: self._ask(missing, others)))
        if not missing.is_current:
            return self._end(missing, None, is_clear=False)

        def placed(result: JobResult) -> None:
            is_placed = isinstance(result, FileReplaced)
            is_clear = isinstance(result, FileReplaced) and not result.left
            self._end(missing, made if is_placed else None, is_clear=is_clear)

        return missing.replica.job(ReplaceFile(group, made), self._part_of(missing, placed))

    def _part_of(self, missing: _Missing, then: Callable[..., None]) -> Callable[..., None]:
        """`then`, as a part of this copy: an exception ends the copy without a file; the next begins."""

        def failed(why: str) -> None:
            missing.answers = Answers()
            self._end(missing, None, is_clear=False)

        return self._effects.isolated("a copy", then, failed)

    def _end(self, missing: _Missing, made: FileMeta | None, *, is_clear: bool = True) -> None:
        if missing.is_answered:
            return
        missing.is_answered = True
        try:
            missing.then(made, missing.answers)
        except Exception as error:
            raise InvariantBroken(
                f"{missing.specs[0].name} was copied, but was added only in part"
            ) from error
        self._areas.leave(missing.replica.group, is_clear=is_clear)


def _fits(made: FileMeta, spec: CloseSpec) -> bool:
    """Whether this is the file that the log has every member make."""
    wanted = spec.slot, spec.partition, spec.schema.table, spec.order
    return (made.name, made.place, made.parked) == (spec.name, wanted, spec.parked)

"""Fetches files that repeatedly fail to be made here from other members.

A file that a worker here cannot make (its TsFile library is broken on this machine, or memory is short) is by
the log the same on every member (law 6). So another member's file is taken if its name and age match, and its
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
class _Lack:
    replica: DataReplica
    specs: Sequence[CloseSpec]
    """Any of these files will do, the first is preferred; the last is the file that fails here."""

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
        lack = _Lack(replica, specs, replica.state, then)
        self._areas.when_taken(replica.group, lambda: self._begin(lack))

    def _begin(self, lack: _Lack) -> None:
        members = [n for n in lack.replica.raft.log.config.members if n != self._node]
        if members and lack.is_current and not self._effects.space.room:
            lack.answers.is_nowhere = True
            return self._ask(lack, [(spec, n) for spec in lack.specs for n in members])
        # Not at once: if many wait, each would begin the next one recursively.
        return self._effects.later(0, lambda: self._came(lack, None))

    def _ask(self, lack: _Lack, whom: list[tuple[CloseSpec, NodeId]]) -> None:
        if not whom:
            return self._came(lack, None)
        (spec, node), *others = whom
        request = ExportFiles(lack.replica.group, ((spec.slot, spec.slot + 1),), (spec.name,))

        def answered(reply: Reply) -> None:
            slots = reply.slots if isinstance(reply, SourceOpened) else ()
            made = next((f for s in slots for f in s.files if _fits(f, spec)), None)
            if isinstance(reply, ErrorReply) and reply.code == NotFound.code:
                lack.answers.has_passed |= bool(reply.details.get(PASSED)) and spec is lack.specs[-1]
            else:
                lack.answers.is_nowhere = False
            if made is None or not isinstance(reply, SourceOpened):
                return self._ask(lack, others)
            source = FileRef(node, reply.snapshot, made.name, made.size, made.xxh3)
            staged = (StagedFile(made, (source,)),)
            job = StageFiles(repair_area(lack.replica.group), lack.replica.group, staged)
            then = self._part_of(lack, lambda r: self._on_fetched(lack, made, others, r))
            return self._effects.job(job, then)

        self._effects.call(node, request, self._part_of(lack, answered))

    def _on_fetched(
        self, lack: _Lack, made: FileMeta, others: list[tuple[CloseSpec, NodeId]], result: JobResult
    ) -> None:
        group = lack.replica.group
        if isinstance(result, FilesStaged):
            request_hashes(self._effects, {}, group, result.suspects)
        if not isinstance(result, FilesStaged) or result.failed:
            return self._areas.clear(group, self._part_of(lack, lambda: self._ask(lack, others)))
        if not lack.is_current:
            return self._came(lack, None, is_clear=False)

        def placed(result: JobResult) -> None:
            is_placed = isinstance(result, FileReplaced)
            is_clear = isinstance(result, FileReplaced) and not result.left
            self._came(lack, made if is_placed else None, is_clear=is_clear)

        return lack.replica.job(ReplaceFile(group, made), self._part_of(lack, placed))

    def _part_of(self, lack: _Lack, then: Callable[..., None]) -> Callable[..., None]:
        """`then`, as a part of this copy: after an exception in it nothing came, and the next copy begins."""

        def failed(why: str) -> None:
            lack.answers = Answers()
            self._came(lack, None, is_clear=False)

        return self._effects.isolated("a copy", then, failed)

    def _came(self, lack: _Lack, made: FileMeta | None, *, is_clear: bool = True) -> None:
        if lack.is_answered:
            return
        lack.is_answered = True
        try:
            lack.then(made, lack.answers)
        except Exception as error:
            raise InvariantBroken(f"{lack.specs[0].name} came and was taken half way") from error
        self._areas.leave(lack.replica.group, is_clear=is_clear)


def _fits(made: FileMeta, spec: CloseSpec) -> bool:
    """Whether this is the file that the log has every member make."""
    wanted = spec.slot, spec.partition, spec.schema.table, spec.order
    return (made.name, made.place, made.parked) == (spec.name, wanted, spec.parked)

"""Repairs of single files of this node's replicas, from copies of other members (`RepairFile`).

`iotctl verify --repair` requests a repair after it has compared the replicas and knows what their majority
holds. This module fetches and verifies the copy and replaces the damaged file, and also the manifest row if
it was wrong. The output of a compaction that has a damaged input here is copied as well, because the other
members no longer have its inputs. Nothing is logged: the repair only restores the state that the log already
defines.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.host.data_replica import DataReplica
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.repair_areas import RepairAreas
from nodeagent.host.suspects import request_hashes
from nodeagent.model.errors import InvariantBroken
from nodeagent.model.files import FileMeta
from nodeagent.model.jobs import (
    CompactFiles,
    Failed,
    FileReplaced,
    FilesStaged,
    JobResult,
    ReplaceFile,
    StagedFile,
    StageFiles,
    repair_area,
)
from nodeagent.model.limits import REPAIR_SOURCES_MAX
from nodeagent.model.requests import FileRepaired, RepairFile


@dataclass(slots=True)
class _Repair:
    token: int
    replica: DataReplica
    wanted: FileMeta
    is_answered: bool = False


class Repairs:
    """Repairs of this node; every token is answered once."""

    def __init__(self, effects: EffectQueue, areas: RepairAreas) -> None:
        self._effects = effects
        self._areas = areas

    def start(self, token: int, replica: DataReplica, request: RepairFile) -> None:
        if self._areas.is_taken(request.group):
            return self._effects.refuse(
                token, "busy", f"another file of {request.group} is being repaired or copied here"
            )
        if not 0 < len(request.sources) <= REPAIR_SOURCES_MAX:
            return self._effects.refuse(
                token, "invalid_input", f"a repair names 1 to {REPAIR_SOURCES_MAX} sources"
            )
        refusal = _why_not(replica, request.wanted)
        if refusal:
            return self._effects.refuse(token, "refused", refusal, "iotctl verify")
        self._areas.take(request.group)
        repair = _Repair(token, replica, request.wanted)
        job = StageFiles(
            repair_area(request.group), request.group, (StagedFile(request.wanted, request.sources),)
        )
        return self._effects.job(job, self._part_of(repair, lambda r: self._on_staged(repair, r)))

    def _part_of(self, repair: _Repair, then: Callable[..., None]) -> Callable[..., None]:
        """`then`, as a part of this repair: an exception in it ends this repair, and the next may begin."""
        return self._effects.isolated("a repair", then, lambda why: self._fail(repair, "error", why))

    def _on_staged(self, repair: _Repair, result: JobResult) -> None:
        group = repair.replica.group
        if isinstance(result, Failed):
            return self._fail(repair, result.code, result.what)
        assert isinstance(result, FilesStaged)
        request_hashes(self._effects, {}, group, result.suspects)
        if result.failed:
            return self._fail(repair, "unavailable", f"no intact copy was received: {result.failed[0][1]}")
        refusal = _why_not(repair.replica, repair.wanted)  # the state may have changed during the pull
        if refusal:
            return self._fail(repair, "refused", refusal)
        # From here on no snapshot may be installed: a running job of the replica prevents that.
        then = self._part_of(repair, lambda r: self._on_replaced(repair, r))
        return repair.replica.job(ReplaceFile(group, repair.wanted), then)

    def _on_replaced(self, repair: _Repair, result: JobResult) -> None:
        replica, wanted = repair.replica, repair.wanted
        if not isinstance(result, FileReplaced):
            what = result.what if isinstance(result, Failed) else "unexpected result"
            return self._fail(repair, getattr(result, "code", "error"), what)
        self._effects.note(
            "file_repaired", group=replica.group, file=wanted.name, quarantined=result.quarantined
        )
        known = replica.state.files.manifest.get(wanted.name)
        replica.damaged_files.forget(wanted.name)
        owed = replica.state_jobs.owed(wanted) if known is None else None
        if known is None and owed is None:  # it was compacted during the repair
            replica.removals.drop_unnamed(wanted)
        if known == wanted or (known is None and owed is None):
            return self._done(repair, result)
        _name(replica, wanted, owed)
        done = self._part_of(repair, lambda: self._done(repair, result))
        return replica.when_saved(done, self._part_of(repair, lambda: self._removed(repair)))

    def _done(self, repair: _Repair, result: FileReplaced) -> None:
        if repair.is_answered:
            return
        repair.is_answered = True
        self._areas.leave(repair.replica.group, is_clear=not result.left)
        self._effects.reply(repair.token, FileRepaired(result.quarantined))

    def _removed(self, repair: _Repair) -> None:
        self._fail(repair, "outcome_unknown", f"the replica of {repair.replica.group} was removed or stopped")

    def _fail(self, repair: _Repair, code: str, what: str) -> None:
        if repair.is_answered:
            return
        repair.is_answered = True
        self._effects.refuse(repair.token, code, what)
        self._areas.leave(repair.replica.group, is_clear=False)


def _name(replica: DataReplica, wanted: FileMeta, owed: CompactFiles | None) -> None:
    """Enter the file, now in place, in the manifest: as the output of a compaction or in its own row."""
    try:
        if owed is not None:
            replica.state_jobs.take_output(owed, wanted)
        else:
            replica.state.files.manifest.replace([wanted.name], [wanted])
    except Exception as error:
        raise InvariantBroken(f"the repair of {wanted.name} stopped half way") from error


def _why_not(replica: DataReplica, wanted: FileMeta) -> str:
    """Why this file may not be put in place here now, "" if it may."""
    if replica.removed:
        return f"the replica of {replica.group} is being removed"
    if not replica.is_whole:
        return f"the replica of {replica.group} is not complete yet: it is installing or recovering"
    known = replica.state.files.manifest.get(wanted.name)
    if known is None and replica.state_jobs.owed(wanted) is not None:
        return ""
    if known is None:
        return f"{wanted.name} is not in this replica's manifest"
    if known.place != wanted.place:
        return f"{wanted.name} has another slot, partition, table or order in this replica's manifest"
    return ""

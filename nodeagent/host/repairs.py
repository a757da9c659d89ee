"""Single files of this node's replicas that come from other members: repairs, as an operator orders them
(`RepairFile`), and what fails to be made here again and again.

Who decides on a repair is `iotctl verify --repair`: it compared the replicas and knows what their majority
holds. Here the copy is fetched and verified, put in the place of the damaged one, and the manifest row
replaced where it was forged too. What a compaction was to make here of a damaged file comes as a copy too,
for the other members do not have its inputs any more. The log has no part in it: afterwards this replica is
what its log says it should be.

What a worker here cannot make (a library that is broken on this machine alone, too little memory) is what the
log says it should be on every member (law 6), so the file of one that could is taken, if it has the name and
the age of the one wanted; its bytes are checked against what that member's manifest says of them.

One file per group at a time. What is staged for it lies where only this module looks.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.data.state import DataState
from nodeagent.host.data_replica import Copied, DataReplica
from nodeagent.host.desk import Desk
from nodeagent.host.suspects import have_checked
from nodeagent.model.errors import InvariantBroken
from nodeagent.model.files import CloseSpec, FileMeta, FileRef
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.model.jobs import (
    CompactFiles,
    DeleteFiles,
    DropStaging,
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
from nodeagent.model.requests import ExportFiles, FileRepaired, RepairFile, Reply, SourceOpened


@dataclass(slots=True)
class _Repair:
    token: int
    replica: DataReplica
    wanted: FileMeta
    is_answered: bool = False


@dataclass(slots=True)
class _Lack:
    replica: DataReplica
    spec: CloseSpec
    state: DataState
    """That asked: one that takes its place asks for what it needs."""

    then: Copied
    is_answered: bool = False

    @property
    def is_current(self) -> bool:
        return _is_whole(self.replica) and self.replica.state is self.state


class Repairs:
    """Repairs of this node; every token is answered once, as is every `then`."""

    def __init__(self, node: NodeId, desk: Desk) -> None:
        self._node = node
        self._desk = desk
        self._busy: set[GroupId] = set()
        self._lacks: dict[GroupId, deque[_Lack]] = {}
        """Of groups that are busy; as many as files fail to be made there."""

    def start(self, token: int, replica: DataReplica, request: RepairFile) -> None:
        if request.group in self._busy:
            return self._desk.refuse(token, "busy", f"another file of {request.group} is being repaired here")
        if not 0 < len(request.sources) <= REPAIR_SOURCES_MAX:
            return self._desk.refuse(
                token, "invalid_input", f"a repair names 1 to {REPAIR_SOURCES_MAX} sources"
            )
        refusal = _why_not(replica, request.wanted)
        if refusal:
            return self._desk.refuse(token, "refused", refusal, "iotctl verify")
        self._busy.add(request.group)
        repair = _Repair(token, replica, request.wanted)
        job = StageFiles(
            repair_area(request.group), request.group, (StagedFile(request.wanted, request.sources),)
        )
        return self._desk.job(job, self._part_of(repair, lambda r: self._on_staged(repair, r)))

    def _part_of(self, repair: _Repair, then: Callable[..., None]) -> Callable[..., None]:
        """`then`, as a part of this repair: an exception in it ends the repair, and the next may begin."""
        return self._desk.isolated("a repair", then, lambda why: self._fail(repair, "error", why))

    # --- what cannot be made here ------------------------------------------------------------------

    def fetch(self, replica: DataReplica, spec: CloseSpec, then: Copied) -> None:
        """Put in place what `spec` describes, from the first member that has made it."""
        self._lacks.setdefault(replica.group, deque()).append(_Lack(replica, spec, replica.state, then))
        self._next(replica.group)

    def _next(self, group: GroupId) -> None:
        if group in self._busy or group not in self._lacks:
            return
        lack = self._lacks[group].popleft()
        if not self._lacks[group]:
            del self._lacks[group]
        self._busy.add(group)
        members = [n for n in lack.replica.raft.log.config.members if n != self._node]
        self._ask(lack, [] if self._desk.space.room or not lack.is_current else members)

    def _end(self, group: GroupId, *, is_clear: bool) -> None:
        """Nothing stays staged; the next file of the group comes after that."""

        def ended() -> None:
            self._busy.discard(group)
            self._next(group)

        if is_clear:
            ended()
        else:
            self._clear(group, ended)

    def _clear(self, group: GroupId, then: Callable[[], None]) -> None:
        self._desk.remove(DropStaging(repair_area(group)), then)

    def _ask(self, lack: "_Lack", members: list[NodeId]) -> None:
        if not members:
            return self._came(lack, None)
        node, *others = members
        spec = lack.spec
        request = ExportFiles(lack.replica.group, ((spec.slot, spec.slot + 1),), (spec.name,))

        def answered(reply: Reply) -> None:
            slots = reply.slots if isinstance(reply, SourceOpened) else ()
            made = next((f for s in slots for f in s.files if _fits(f, spec)), None)
            if made is None or not isinstance(reply, SourceOpened):
                return self._ask(lack, others)
            source = FileRef(node, reply.snapshot, made.name, made.size, made.xxh3)
            staged = (StagedFile(made, (source,)),)
            job = StageFiles(repair_area(lack.replica.group), lack.replica.group, staged)
            then = self._part_of_lack(lack, lambda r: self._on_fetched(lack, made, others, r))
            return self._desk.job(job, then)

        self._desk.call(node, request, self._part_of_lack(lack, answered))

    def _on_fetched(self, lack: "_Lack", made: FileMeta, others: list[NodeId], result: JobResult) -> None:
        group = lack.replica.group
        if isinstance(result, FilesStaged):
            have_checked(self._desk, {}, group, result.suspects)
        if not isinstance(result, FilesStaged) or result.failed:
            return self._clear(group, self._part_of_lack(lack, lambda: self._ask(lack, others)))
        if not lack.is_current:
            return self._came(lack, None, is_clear=False)

        def placed(result: JobResult) -> None:
            is_placed = isinstance(result, FileReplaced)
            is_clear = isinstance(result, FileReplaced) and not result.left
            self._came(lack, made if is_placed else None, is_clear=is_clear)

        return lack.replica.job(ReplaceFile(group, made), self._part_of_lack(lack, placed))

    def _part_of_lack(self, lack: "_Lack", then: Callable[..., None]) -> Callable[..., None]:
        """`then`, as a part of this: an exception in it means that nothing came, and the next may begin."""
        return self._desk.isolated("a copy", then, lambda why: self._came(lack, None, is_clear=False))

    def _came(self, lack: "_Lack", made: FileMeta | None, *, is_clear: bool = True) -> None:
        if lack.is_answered:
            return
        lack.is_answered = True
        try:
            lack.then(made)
        except Exception as error:
            raise InvariantBroken(f"{lack.spec.name} came and was taken half way") from error
        self._end(lack.replica.group, is_clear=is_clear)

    # --- repairs -----------------------------------------------------------------------------------

    def _on_staged(self, repair: _Repair, result: JobResult) -> None:
        group = repair.replica.group
        if isinstance(result, Failed):
            return self._fail(repair, result.code, result.what)
        assert isinstance(result, FilesStaged)
        have_checked(self._desk, {}, group, result.suspects)
        if result.failed:
            return self._fail(repair, "unavailable", f"no good copy came: {result.failed[0][1]}")
        refusal = _why_not(repair.replica, repair.wanted)  # the pull took its time
        if refusal:
            return self._fail(repair, "refused", refusal)
        # From here on no snapshot may be installed: the replica's own job keeps it from that.
        then = self._part_of(repair, lambda r: self._on_replaced(repair, r))
        return repair.replica.job(ReplaceFile(group, repair.wanted), then)

    def _on_replaced(self, repair: _Repair, result: JobResult) -> None:
        replica, wanted = repair.replica, repair.wanted
        if not isinstance(result, FileReplaced):
            what = result.what if isinstance(result, Failed) else "unexpected result"
            return self._fail(repair, getattr(result, "code", "error"), what)
        self._desk.note(
            "file_repaired", group=replica.group, file=wanted.name, quarantined=result.quarantined
        )
        known = replica.state.manifest.get(wanted.name)
        replica.broken.pop(wanted.name, None)
        owed = replica.owed(wanted) if known is None else None
        if known is None and owed is None:  # compacted meanwhile
            self._desk.job(DeleteFiles(replica.group, (wanted,)), lambda _: None)
        if known == wanted or (known is None and owed is None):
            return self._done(repair, result)
        _name(replica, wanted, owed)
        done = self._part_of(repair, lambda: self._done(repair, result))
        return replica.when_saved(done, self._part_of(repair, lambda: self._gone(repair)))

    def _done(self, repair: _Repair, result: FileReplaced) -> None:
        if repair.is_answered:
            return
        repair.is_answered = True
        self._end(repair.replica.group, is_clear=not result.left)
        self._desk.reply(repair.token, FileRepaired(result.quarantined))

    def _gone(self, repair: _Repair) -> None:
        self._fail(repair, "outcome_unknown", f"the replica of {repair.replica.group} was removed")

    def _fail(self, repair: _Repair, code: str, what: str) -> None:
        if repair.is_answered:
            return
        repair.is_answered = True
        self._desk.refuse(repair.token, code, what)
        self._end(repair.replica.group, is_clear=False)


def _name(replica: DataReplica, wanted: FileMeta, owed: CompactFiles | None) -> None:
    """Have the replica name the file that is in place now, as what a compaction owes or in its row."""
    try:
        if owed is not None:
            replica.take_output(owed, wanted)
        else:
            replica.state.manifest.replace([wanted.name], [wanted])
    except Exception as error:
        raise InvariantBroken(f"the repair of {wanted.name} stopped half way") from error


def _why_not(replica: DataReplica, wanted: FileMeta) -> str:
    """Why this file may not be put in place here now; "" when it may."""
    if replica.removed:
        return f"the replica of {replica.group} is being removed"
    if not _is_whole(replica):
        return f"the replica of {replica.group} is not complete yet: it is installing or recovering"
    known = replica.state.manifest.get(wanted.name)
    if known is None and replica.owed(wanted) is not None:
        return ""
    if known is None:
        return f"{wanted.name} is not in this replica's manifest"
    if _place(known) != _place(wanted):
        return f"{wanted.name} has another slot, partition, table or order in this replica's manifest"
    return ""


def _is_whole(replica: DataReplica) -> bool:
    gone = replica.removed or bool(replica.stopped)
    return not (gone or replica.installing or replica.rebasing) and replica.state.recovered


def _fits(made: FileMeta, spec: CloseSpec) -> bool:
    """Whether this is what the log has every member make."""
    wanted = spec.name, spec.slot, spec.partition, spec.schema.table, spec.order, spec.parked
    return (made.name, *_place(made), made.parked) == wanted


def _place(meta: FileMeta) -> tuple[object, ...]:
    """What a repair never changes."""
    return meta.slot, meta.partition, meta.table, meta.order

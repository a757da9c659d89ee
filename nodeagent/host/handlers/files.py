"""Requests for the files of one data group: manifest, hashes, and copies for other nodes."""

from collections.abc import Iterable, Set

from nodeagent.host.data_replica import DataReplica
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.failing import PASSED
from nodeagent.host.handlers.refusals import job_error, not_leader
from nodeagent.host.sources import by_slot, source_slots
from nodeagent.model import limits, requests
from nodeagent.model.files import FileMeta, PulledSlot
from nodeagent.model.jobs import Failed, FilesHashed, HashFiles, JobResult, MakeSnapshot
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import ErrorReply, FilesChecked, ManifestReply, SourceOpened
from nodeagent.partition.ranges import to_slots


def files_of(replica: DataReplica, slots: Ranges) -> tuple[FileMeta, ...]:
    """Files of the open slots (those in `slots`, if given), by slot and name."""
    state = replica.state
    return tuple(f for slot in sorted(_open(replica, slots)) for f in state.files.manifest.of_slot(slot))


def _named(replica: DataReplica, slots: Ranges, names: Iterable[str]) -> tuple[FileMeta, ...]:
    """Files with these names, of the open slots among `slots`. Without `slots`, of any slot: a node that
    pulled a damaged copy names the file, whose slot may have left the group by then."""
    get = replica.state.files.manifest.get
    found = [f for name in sorted(set(names)) if (f := get(name)) is not None]
    if not slots:
        return tuple(found)
    wanted = _open(replica, slots)
    return tuple(f for f in found if f.slot in wanted)


def _open(replica: DataReplica, slots: Ranges) -> Set[int]:
    """The open slots (those in `slots`, if given)."""
    open_ = replica.state.slots.open
    return open_ & set(to_slots(slots)) if slots else open_


def on_manifest(
    effects: EffectQueue, replica: DataReplica, token: int, request: requests.GetManifest
) -> None:
    state = replica.state
    pending = sum(p.count for p in state.rows.memtable.partitions().values()) + len(state.adoptions.waiting)
    pending += len(state.compactions.active)
    files, following = _page_of_files(replica, request)
    effects.reply(
        token,
        ManifestReply(
            replica.group,
            replica.raft.node,
            state.rows.delivered,
            state.materialised,
            pending,
            files,
            damaged=replica.damaged_files.named(),
            next=following,
            at_work=replica.state_jobs.is_making,
        ),
    )


def _page_of_files(
    replica: DataReplica, request: requests.GetManifest
) -> tuple[tuple[FileMeta, ...], int | None]:
    """(the files, the slot at which the next page begins)"""
    if request.first is None:
        return files_of(replica, request.slots), None
    files: list[FileMeta] = []
    for slot in sorted(s for s in _open(replica, request.slots) if s >= request.first):
        if len(files) >= limits.MANIFEST_FILES:
            return tuple(files), slot
        files += replica.state.files.manifest.of_slot(slot)
    return tuple(files), None


def on_close_all(effects: EffectQueue, replica: DataReplica, token: int, request: requests.CloseAll) -> None:
    if not replica.leads:
        return effects.reply(token, not_leader(replica))
    wanted = set(to_slots(request.slots)) if request.slots else replica.state.slots.open
    keys = sorted(k for k, slot in replica.state.rows.slot_of.items() if slot in wanted)
    replica.compared_at = effects.now  # the caller will compare the files closed up to here
    return replica.closer.close(keys, token)


def on_check(effects: EffectQueue, replica: DataReplica, token: int, request: requests.CheckFiles) -> None:
    if request.names:
        files = _named(replica, request.slots, request.names)
    else:
        replica.compared_at = effects.now
        files = files_of(replica, request.slots)
    if request.lists_only:
        return effects.reply(token, FilesChecked(files, ()))

    def done(result: JobResult) -> None:
        if isinstance(result, FilesHashed):
            effects.reply(token, FilesChecked(files, result.found))
        else:
            effects.reply(token, job_error(result))

    replica.files.read(HashFiles(replica.group, files), files, effects.guarded(token, "a check", done))


def on_export(
    effects: EffectQueue, replica: DataReplica, token: int, request: requests.ExportFiles, snapshot: str
) -> None:
    """Offer the replica's files of open slots, or any files by name; the snapshot expires when not read."""
    if request.names:
        found = {n: f for n in request.names if (f := replica.state.files.manifest.get(n)) is not None}
        if len(found) < len(request.names):
            has_passed = all(replica.state.was_removed(n) for n in request.names if n not in found)
            what = "not all of these files are in this manifest"
            return effects.reply(token, ErrorReply("not_found", what, details={PASSED: has_passed}))
        files = tuple(found.values())
    else:
        replica.compared_at = effects.now
        files = files_of(replica, request.slots)
    _offer(effects, replica, token, snapshot, files, by_slot(replica, files, set(to_slots(request.slots))))


def on_open_source(
    effects: EffectQueue, replica: DataReplica, token: int, request: requests.OpenSource, snapshot: str
) -> None:
    """Offer sealed slots to a new member, once all their files are made here."""
    state = replica.state
    sealed = state.slots.sealed.get(request.operation)
    wanted = set(to_slots(request.slots))
    if sealed is None or sealed.metadata_only or not wanted <= sealed.slots:
        return effects.refuse(
            token, "moved", f"group {replica.group} has not sealed these slots for {request.operation} here"
        )
    if not state.is_source_ready(request.operation):
        return effects.refuse(token, "overloaded", "files of the sealed slots are still being made")
    pulled = source_slots(replica, wanted)
    files = tuple(f for s in pulled for f in s.files)
    return _offer(effects, replica, token, snapshot, files, pulled)


def _offer(
    effects: EffectQueue,
    replica: DataReplica,
    token: int,
    snapshot: str,
    files: tuple[FileMeta, ...],
    slots: tuple[PulledSlot, ...],
) -> None:
    node = replica.raft.node

    def done(result: JobResult) -> None:
        if isinstance(result, Failed):
            effects.reply(token, job_error(result))
        else:
            effects.reply(token, SourceOpened(node, snapshot, slots))

    job = MakeSnapshot(snapshot, replica.group, files)
    replica.files.read(job, files, effects.guarded(token, "an offer", done))

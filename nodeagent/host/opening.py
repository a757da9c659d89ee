"""Creates a host from the log and the checkpoints of a data directory."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.data.checkpoint import decode_checkpoint
from nodeagent.data.state import DataState
from nodeagent.host.checkpoints import Images
from nodeagent.host.context import NodeRun
from nodeagent.host.found import Found, Lost, fault_of, foreign, is_blank, is_traceless
from nodeagent.host.host import Host
from nodeagent.host.meta_fetch import MetaFetch
from nodeagent.host.outbox import Outbox
from nodeagent.host.replicas import Replicas
from nodeagent.host.saved import Saved, read_saved
from nodeagent.host.starts import Start, Starts
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import HardState, Rebase
from nodeagent.model.errors import EntryFailed
from nodeagent.model.ids import META, GroupId, Owner
from nodeagent.model.image_format import is_image
from nodeagent.model.jobs import INSTALL
from nodeagent.raft.log import RaftLog


@dataclass(frozen=True, slots=True)
class Held:
    """The contents of a data directory at the start of the node."""

    groups: Mapping[GroupId, tuple[Found, bytes | None]] = field(default_factory=dict)
    """Log and checkpoint payload of every group on this disk."""

    damaged: Sequence[Lost] = ()
    """Groups with unreadable records. They do not run: they neither vote nor acknowledge."""

    staged: Sequence[str] = ()
    """Staging areas left by an earlier process."""

    holding: Collection[GroupId] = ()
    """Groups with files on this disk."""

    starts: Mapping[str, Start] = field(default_factory=dict)
    """The newest known starts of other nodes, by incarnation."""

    left: Mapping[GroupId, HardState] = field(default_factory=dict)
    """Term, vote and held log position that the log stores for groups that this node left."""

    imageless: Collection[GroupId] = ()
    """Groups with images of which none verifies."""

    faults: Mapping[GroupId, str] = field(default_factory=dict)
    """Why the newest image of a group was not read; an older one was."""


def open_host(life: NodeRun, held: Held) -> Host:
    host = Host(life)
    host.peers.starts = Starts(held.starts)
    host.lifecycle.left = dict(held.left)
    replicas, damaged = host.replicas, held.damaged
    replicas.damaged = {d.group: d.message for d in damaged if d.group}
    anybody = next((d.message for d in damaged if not d.group), None)
    if anybody is not None:  # the lost records may be of any group
        replicas.damaged = dict.fromkeys({META, *held.groups}, anybody) | replicas.damaged
    _compare(replicas, held, host.effects.owner)
    if META in held.groups and META not in replicas.damaged:
        _reopen_meta(host, *held.groups[META], held.faults.get(META, ""))
    for group in sorted(set(held.groups) - {META} - set(replicas.damaged) - set(replicas.unlogged)):
        _reopen_data(host, group, *held.groups[group])
    if host.cluster.meta_replica is not None:
        host.admission.stop(host.cluster.first_config)
        host.on_meta()
    if META not in replicas.damaged:
        host.admission.start()
    elif _lacks_image(held, damaged):
        _fetch_meta(host, life, held.groups[META][0])
    for area in held.staged:
        if area.startswith(INSTALL):
            host.lifecycle.drop_install_later(area)
    return host


def _compare(replicas: Replicas, held: Held, me: Owner) -> None:
    """Find groups whose log and checkpoint do not belong together. A group directory without a record in the
    log was left by an interrupted creation or removal, or the log was lost: once the meta state is current,
    it says which (`Lifecycle.sync`)."""
    for group, (found, payload) in held.groups.items():
        fault = fault_of(group, found, payload, me)
        if fault:
            replicas.damaged.setdefault(group, fault)
        elif group != META and group not in replicas.damaged and is_traceless(found):
            replicas.unlogged[group] = is_blank(payload) and group not in held.holding
    replicas.damaged |= {
        g: f"data/groups/{g} holds data, but the log has no record of the group"
        for g, blank in replicas.unlogged.items()
        if not blank
    }


def _lacks_image(held: Held, damaged: Sequence[Lost]) -> bool:
    """Whether the meta group's log is whole, and no image of the state that it continues verifies: all are
    damaged or missing."""
    known = sum(d.group in ("", META) for d in damaged)
    if known or META not in held.groups:
        return META in held.imageless and known == 1  # the images
    found, payload = held.groups[META]
    if payload is None:
        return True  # missing: else the group would not be damaged
    return META in held.faults and read_saved(payload).base.index < found.base.index


def _reopen_meta(host: Host, found: Found, payload: bytes | None, fault: str) -> None:
    saved = read_saved(payload) if payload else None
    levels = host.peers.levels.own
    try:
        state = MetaState.decode(saved.state, levels) if saved else MetaState(levels=levels)
    except Exception as error:  # its hash is right: whatever is raised, another release wrote it
        host.replicas.damaged[META] = foreign(META, error)
        return
    log = _open_log(host.outbox, META, found, saved)
    host.cluster.known_to = log.last_index
    replica = host.builder.meta(log, found.hard, state)
    if fault:
        replica.condition.error = f"{fault}; the image before it and the log are in use"
        host.effects.note("image_damaged", group=META, why=fault)
    if saved is not None:
        replica.checkpoints.continue_from(saved.base.checkpoint)
        if payload is not None and is_image(payload):
            replica.checkpoints.images = Images(saved.base.index)


def _fetch_meta(host: Host, life: NodeRun, found: Found) -> None:
    """Continue with the whole log from an image of another node."""

    def fetched(payload: bytes) -> None:
        del host.replicas.damaged[META]
        _reopen_meta(host, found, payload, "")
        if META in host.replicas.damaged:
            return  # another release wrote the image
        for replica in host.replicas.data.values():
            replica.raft.passive = bool(replica.stopped)  # with the meta state it can serve as a leader
        host.on_meta()

    if len(life.config.seeds) > 1:
        host.replicas.damaged[META] += "; another node is asked for an image"
    MetaFetch(host.effects, life.config.seeds, found.base.index, fetched).start()


def _reopen_data(host: Host, group: GroupId, found: Found, payload: bytes | None) -> None:
    assert payload is not None, group  # else it is damaged
    saved = read_saved(payload)
    log = _open_log(host.outbox, group, found, saved)
    try:
        state = DataState.restore(decode_checkpoint(saved.state), log.base.index)
    except Exception as error:  # as in `_reopen_meta`
        host.replicas.damaged[group] = foreign(group, error)
        return
    failed: EntryFailed | None = None
    known = min(state.rows.recovered_to, log.last_index)
    if (
        known > log.base.index and not saved.sent
    ):  # certainly committed: these rows need not wait for a leader
        entries = log.slice(log.first_index, known, 1 << 62)
        try:
            state.apply(log.first_index, entries, host.effects.now)
        except EntryFailed as error:
            failed = error
    replica = host.builder.data(group, log, found.hard, state, max(state.rows.delivered, log.base.index))
    replica.checkpoints.continue_from(saved.base.checkpoint)
    if failed is not None:
        replica.stop(failed.index, failed.why)


def _open_log(outbox: Outbox, group: GroupId, found: Found, saved: Saved | None) -> RaftLog:
    base = found.base
    if saved is not None and saved.base.index == base.index:
        base = saved.base  # even if no record of the group has reached the log yet
    log = RaftLog(base, found.entries)
    is_fallback_needed = group == META and saved is not None and log.term(saved.base.index) == saved.base.term
    if saved is not None and saved.base.index > base.index and not is_fallback_needed:
        kept = log.reset(saved.base)
        outbox.persist(group, [Rebase(group, saved.base, kept)])
    return log

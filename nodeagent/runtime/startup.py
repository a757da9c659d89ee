"""Opens a node's directory: lock, identity, log, checkpoints. Everything that can refuse a start is checked
here."""

import errno
import random
import secrets
import time
from functools import partial
from pathlib import Path

import msgspec

from nodeagent.host.found import fault_of, is_traceless, lost_meta, unsaid
from nodeagent.host.starts import Start
from nodeagent.log import Damage, GroupLog, Log, LogSettings, NoSpace, Recovered
from nodeagent.log.identity import LOG_DIR, NodeFile, begin_start, known_identity, replace_step
from nodeagent.meta.sections import check_image
from nodeagent.model.config import NodeConfig
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.errors import Damaged
from nodeagent.model.ids import META, GroupId, Owner
from nodeagent.model.space import fitted, reserve, zero_step
from nodeagent.runtime.config import load_config
from nodeagent.runtime.directory import CONFIG_FILE, DATA_DIR
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.offline import known_files
from nodeagent.runtime.peer_starts import load_starts
from nodeagent.storage import layout
from nodeagent.storage.executor import Storage
from nodeagent.storage.worker import WorkerEngine

GroupState = tuple[GroupLog, bytes | None]

IMAGE_PAUSE_S = 0.002
"""Pause of the thread that makes an image after each frame of it. Without pauses, every write of the meta
group would wait for the interpreter lock several times until the image is made."""


class Opened(msgspec.Struct):
    """The recovered contents of a directory. `home` holds the lock until `home.unlock()`."""

    config: NodeConfig
    identity: NodeFile
    home: RealDisk
    data: RealDisk
    log: Log
    storage: Storage
    groups: dict[GroupId, GroupState]
    holding: set[GroupId]
    """Groups that have files."""

    starts: dict[str, Start]
    starts_readable: bool
    """Whether `peers.seen`, the file of `starts`, could be read."""

    left: dict[GroupId, HardState]
    """The hard state, from the log, of the groups that this node left."""

    damaged: list[Damage]
    torn_bytes: int
    swept: int
    seconds: float


def open_directory(directory: Path) -> Opened:
    """Lock the directory and recover its contents.

    Raises:
        InvalidInput: `node.yaml` has a mistake.
        Refused: another process runs on the directory, or it belongs to another node.
        Damaged: `node.id` or the log is missing, unreadable, of another directory or an older copy;
            nothing was deleted.
        OSError: any other error of the disk.
    """
    config = load_config(directory / CONFIG_FILE)
    try:
        return _open(directory, config)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        what = f"{error.filename or directory}: {error.strerror}; {config.node} cannot start without it"
        helps = f"check the disk (dmesg) and start again; or {replace_step(config.node)}"
        raise Damaged(what, next_step=helps) from error


def _open(directory: Path, config: NodeConfig) -> Opened:
    start = time.monotonic()
    home = RealDisk(directory)
    home.lock()
    try:
        known = known_identity(home, config.node, f"{DATA_DIR}/{layout.GROUPS}")
        data = RealDisk(directory / DATA_DIR)
        config = fitted(config, min(home.total_bytes(), data.total_bytes()))
        log, recovered = Log.open(home, LOG_DIR, _log_settings(config, home.total_bytes()))
        identity = begin_start(home, log, config.node, known, partial(secrets.token_hex, 8))
        engine = WorkerEngine(data.root, config.worker_timeout_ms / 1000)
        pause = partial(time.sleep, IMAGE_PAUSE_S)
        storage = Storage(data, engine, partial(check_image, pause=pause), pause)
        storage.prepare()
        groups, unreadable = _groups(recovered, storage)
        holding = {g for g in storage.groups() if any(storage.files.names(g).values())}
        damaged = [*recovered.damaged, *unreadable]
        lost = lost_meta(groups, holding)
        damaged += [Damage(0, 0, META, 0, 0, lost)] if lost else []
        damaged += [Damage(0, 0, "", 0, 0, identity.damaged)] if identity.damaged else []
        starts, starts_readable = load_starts(home)
        owner = Owner(identity.node, identity.incarnation, identity.start)
        swept = _sweep(storage, log, groups, damaged, owner)
    except BaseException:
        home.unlock()
        raise
    return Opened(
        config=config,
        identity=identity,
        home=home,
        data=data,
        log=log,
        storage=storage,
        groups=groups,
        holding=holding,
        starts=starts,
        starts_readable=starts_readable,
        damaged=damaged,
        swept=len(swept),
        torn_bytes=recovered.torn_bytes,
        seconds=time.monotonic() - start,
        left=recovered.left,
    )


def _log_settings(config: NodeConfig, total: int) -> LogSettings:
    return LogSettings(config.segment_bytes, zero_step(total), reserve(total))


def fresh_random() -> random.Random:
    """A random source seeded by the system: nodes must not draw the same election timeouts."""
    return random.Random(random.SystemRandom().getrandbits(64))


def _sweep(
    storage: Storage, log: Log, groups: dict[GroupId, GroupState], damaged: list[Damage], owner: Owner
) -> list[str]:
    """Remove the files that no manifest names, but only of groups whose log and checkpoint are whole and
    belong together. Remove none if the disk is too full to log which checkpoints the log needs from then
    on."""
    broken = {damage.group for damage in damaged}
    if "" in broken:
        return []
    whole = {
        group: payload
        for group, (found, payload) in groups.items()
        if payload is not None
        and group not in broken
        and group != META
        and not is_traceless(found)
        and not fault_of(group, found, payload, owner)
    }
    try:
        log.write(unsaid({group: groups[group] for group in whole}))
        log.sync()
    except NoSpace:
        return []
    return storage.sweep(known_files(whole))


def _groups(recovered: Recovered, storage: Storage) -> tuple[dict[GroupId, GroupState], list[Damage]]:
    """Every group that has a log or a directory, with its checkpoint. An unreadable checkpoint counts as
    damage of the group, never as an empty state."""
    groups: dict[GroupId, GroupState] = {}
    unreadable: list[Damage] = []
    for group in sorted({*recovered.groups, *storage.groups()}):
        log = recovered.groups.get(group) or GroupLog(Base(0, 0, Config()), HardState(), [])
        checkpoint: bytes | None = None
        try:
            checkpoint = storage.checkpoint(group)
        except Damaged as error:
            unreadable.append(Damage(0, 0, group, 0, 0, error.what))
        groups[group] = (log, checkpoint)
    return groups, unreadable

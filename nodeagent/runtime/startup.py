"""Opening a node's directory: lock, identity, log, checkpoints. Everything that may refuse a start."""

import random
import time
from pathlib import Path

import msgspec

from nodeagent.log import Damage, GroupLog, Log, LogSettings, Recovered
from nodeagent.model.config import NodeConfig
from nodeagent.model.entries import Base, Config, HardState
from nodeagent.model.errors import Damaged
from nodeagent.model.ids import META, GroupId
from nodeagent.runtime.config import load_config
from nodeagent.runtime.directory import CONFIG_FILE, DATA_DIR, LOG_DIR, open_incarnation
from nodeagent.runtime.disk import RealDisk
from nodeagent.runtime.offline import known_files
from nodeagent.storage.executor import Storage
from nodeagent.storage.worker import WorkerEngine

GroupState = tuple[GroupLog, bytes | None]


class Opened(msgspec.Struct):
    """What a start found. `home` holds the lock until `home.unlock()`."""

    config: NodeConfig
    incarnation: str
    home: RealDisk
    data: RealDisk
    log: Log
    storage: Storage
    groups: dict[GroupId, GroupState]
    damaged: list[Damage]
    torn_bytes: int
    swept: int
    seconds: float


def open_directory(directory: Path) -> Opened:
    """Lock the directory and recover what it holds.

    Raises:
        InvalidInput: `node.yaml` has a mistake.
        Refused: another process runs here, or the directory is another node's.
        Damaged: the identity file is not to be trusted.
        OSError: the disk refuses.
    """
    start = time.monotonic()
    config = load_config(directory / CONFIG_FILE)
    home = RealDisk(directory)
    home.lock()
    try:
        incarnation = open_incarnation(home, config.node)
        log, recovered = Log.open(home, LOG_DIR, LogSettings(segment_bytes=config.segment_bytes))
        data = RealDisk(directory / DATA_DIR)
        engine = WorkerEngine(data.root, config.worker_timeout_ms / 1000)
        storage = Storage(data, engine)
        storage.prepare()
        groups, unreadable = _groups(recovered, storage)
        damaged = [*recovered.damaged, *unreadable]
        swept = _sweep(storage, groups, damaged)
    except BaseException:
        home.unlock()
        raise
    return Opened(
        config=config,
        incarnation=incarnation,
        home=home,
        data=data,
        log=log,
        storage=storage,
        groups=groups,
        damaged=damaged,
        swept=len(swept),
        torn_bytes=recovered.torn_bytes,
        seconds=time.monotonic() - start,
    )


def fresh_random() -> random.Random:
    """Seeded by the system: nodes must not draw the same election timeouts."""
    return random.Random(random.SystemRandom().getrandbits(64))


def _sweep(storage: Storage, groups: dict[GroupId, GroupState], damaged: list[Damage]) -> list[str]:
    """Remove files that no manifest names, of whole groups with a checkpoint only."""
    broken = {damage.group for damage in damaged}
    if "" in broken:
        return []
    whole = {
        group: payload
        for group, (_, payload) in groups.items()
        if payload is not None and group not in broken and group != META
    }
    return storage.sweep(known_files(whole))


def _groups(recovered: Recovered, storage: Storage) -> tuple[dict[GroupId, GroupState], list[Damage]]:
    """Every group in the log or with a directory, with its checkpoint. An unreadable checkpoint is
    damage of that group, never an empty state."""
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

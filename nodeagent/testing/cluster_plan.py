"""The plan that a seed of `ClusterSwarm` draws, and the names of its operations."""

import random
from dataclasses import dataclass, field

from nodeagent.model.config import RaftSettings
from nodeagent.testing.injector import WHOLE_KINDS
from nodeagent.testing.nemesis import draw_kinds
from nodeagent.testing.volume import ENDLESS_BYTES
from nodeagent.testing.workload import PLAIN_HABITS, WriteProfile

KINDS_OF = {
    "add_one": "add-node",
    "remove_one": "remove-node",
    "remove_dead": "remove-node",
    "replace_one": "replace-node",
    "replace_dead": "replace-node",
    "spoil_one": "replace-node",
    "restore_one": "replace-node",
    "rebalance_some": "rebalance",
}
"""The kind of operation that each of `ClusterSwarm.choices` begins."""

STEPS = (*KINDS_OF, "kill_one", "restart_one", "rot_one", "return_one")
"""All operations of `ClusterSwarm.choices`."""

BURST_MS_MIN = 500
"""The shortest burst of faults."""


@dataclass
class Plan:
    """The parameters that a seed draws; times in ms, sizes in bytes."""

    nodes: int
    replicas: int
    slots: int
    groups: int
    """Number of storage groups."""

    operations: int
    raft: RaftSettings
    segment_bytes: int
    disk_bytes: int
    kinds: dict[str, int]
    """Kinds of faults and their weights."""

    gap_ms: int
    """Average time between two faults of a burst."""

    back_ms: int
    """Maximum time that a process is down or suspended."""

    burst_ms: int
    """Maximum length of a burst of faults."""

    node: dict[str, int] = field(default_factory=dict)
    """Settings of the nodes."""

    limits: dict[str, int] = field(default_factory=dict)
    """Values for limits in the code, by the name that the code reads."""

    restores: bool = False
    """Whether data directories are restored from older copies."""

    habits: WriteProfile = PLAIN_HABITS
    """How the writers write."""

    staleness_ms: int = 0
    """Age bound of bounded reads; 0 for a run without bounded and weak reads."""

    steps: tuple[str, ...] | None = None
    """Operations of `STEPS` to run in this order; None to draw them."""

    @classmethod
    def draw(cls, rng: random.Random) -> "Plan":
        replicas = rng.choice([1, 2, 3, 3, 3, 3, 5])
        inputs = rng.choice([2, 256])
        heartbeat = rng.choice([30, 50, 100])
        timeout = heartbeat * rng.choice([6, 8, 10])
        return cls(
            nodes=replicas + rng.choice([1, 1, 2, 3]),
            replicas=replicas,
            slots=rng.choice([8, 24, 24, 60]),
            groups=rng.choice([1, 3, 6]),
            operations=rng.choice([2, 4, 6]),
            raft=RaftSettings(heartbeat, timeout, rng.choice([0, 0, 5, 30])),
            segment_bytes=rng.choice([16 << 10, 64 << 10, 1 << 18]),
            disk_bytes=rng.choice([ENDLESS_BYTES, ENDLESS_BYTES, 16 << 20]),
            kinds=draw_kinds(rng, WHOLE_KINDS),
            gap_ms=timeout * rng.choice([1, 2, 4]) // 4,
            back_ms=timeout * rng.choice([1, 3, 8]),
            burst_ms=rng.choice([2_000, 6_000, 15_000]),
            node={
                "memtable_bytes_max": rng.choice([1 << 12, 1 << 16]),
                "partition_bytes_max": rng.choice([1 << 11, 1 << 14]),
                "idle_close_ms": rng.choice([300, 1_500, 4_000]),
                "compact_files_min": rng.choice([2, 2, 4]),
                "compact_files_min_in_change": rng.choice([2, 4]),
                # Compactions of two files each must finish before the time limit for coming to rest.
                "compact_every_ms": rng.choice([200, 400, 1_500] if inputs > 2 else [200, 400]),
                "compact_deletes_ms": rng.choice([300, 1_000, 5_000]),
                "expire_every_ms": rng.choice([300, 700, 2_000]),
            },
            limits={
                "nodeagent.raft.appends.APPEND_ENTRIES_MAX": rng.choice([2, 5, 4096]),
                "nodeagent.raft.appends.APPEND_BYTES_MAX": rng.choice([1 << 10, 1 << 20]),
                "nodeagent.raft.progress.INFLIGHT_APPENDS_MAX": rng.choice([1, 4, 64]),
                "nodeagent.raft.reads.READS_PENDING_MAX": rng.choice([3, 4096]),
                "nodeagent.host.checkpoints.CHECKPOINT_MIN_MS": rng.choice([50, 500]),
                "nodeagent.host.log_start.LOG_KEEP_MS_MAX": rng.choice([300, 2_000, 600_000]),
                "nodeagent.host.log_start.KEEP_LOG_MS": rng.choice([50, 1_000]),
                "nodeagent.host.closer.CLOSE_PARTITIONS_MAX": rng.choice([1, 3, 256]),
                "nodeagent.host.file_deltas.DELTA_FILES_MIN": rng.choice([0, 64]),
                "nodeagent.host.compactor.DELETES_KEPT_MAX": rng.choice([1, 64]),
                "nodeagent.host.compactor.EXPIRIES_PER_TURN_MAX": rng.choice([1, 256]),
                "nodeagent.data.compaction.COMPACT_INPUTS_MAX": inputs,
                "nodeagent.data.slot_migration.SESSIONS_PART_BYTES": rng.choice([64, 1 << 20]),
                "nodeagent.scaling.moving.UNIT_SLOTS": rng.choice([1, 3, 32]),
                "nodeagent.storage.executor.UNITS_PER_CALL_MAX": rng.choice([1, 256]),
                "nodeagent.model.limits.PAGE_PARTITIONS": rng.choice([1, 2, 256]),
                # Not drawn, so that the draws after it stay the same.
                "nodeagent.model.limits.DIRECT_LEARNERS_MAX": 0 if inputs > 2 else 16,
            },
        )


def draw_habits(rng: random.Random) -> WriteProfile:
    return WriteProfile(
        rng.choice([1, 1, 4, 30]), rng.choice([2, 2, 8]), rng.choice([1, 1, 3]), rng.choice([2, 2, 6])
    )

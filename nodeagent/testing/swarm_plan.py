"""The plan that a seed of `swarm` draws."""

import random
from dataclasses import dataclass

from nodeagent.model.config import RaftSettings
from nodeagent.testing.injector import KINDS
from nodeagent.testing.nemesis import draw_kinds
from nodeagent.testing.volume import ENDLESS_BYTES


@dataclass
class Plan:
    """The parameters that a seed draws; times in ms, sizes in bytes."""

    machines: int
    voters: int
    groups: int
    clients: int
    window: int
    """Maximum number of requests that a client has in progress."""

    settings: RaftSettings
    segment_bytes: int
    disk_bytes: int
    kinds: dict[str, int]
    """Kinds of faults and their weights."""

    gap_ms: int
    """Average time between two faults."""

    back_ms: int
    """Maximum time that a process is down or suspended."""

    length_ms: int
    limits: dict[str, int]
    """Values for limits in the code, by the name that the code reads."""

    relays: bool = False
    """Whether followers relay entries to learners."""

    @classmethod
    def draw(cls, rng: random.Random) -> "Plan":
        voters = rng.choice([1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 7])
        heartbeat = rng.choice([10, 30, 50, 50, 100, 1_000, 10_000])
        timeout = heartbeat * rng.choice([4, 8, 10])
        settings = RaftSettings(heartbeat, timeout, rng.choice([0, 0, 5, 30, heartbeat]))
        limits = {
            "nodeagent.raft.appends.APPEND_ENTRIES_MAX": rng.choice([1, 2, 5, 4096]),
            "nodeagent.raft.appends.APPEND_BYTES_MAX": rng.choice([64, 1 << 20]),
            "nodeagent.raft.progress.INFLIGHT_APPENDS_MAX": rng.choice([1, 2, 4, 64]),
            "nodeagent.raft.leader.UNCOMMITTED_BYTES_MAX": rng.choice([400, 1 << 26]),
            "nodeagent.raft.reads.READS_PENDING_MAX": rng.choice([1, 3, 4096]),
            "nodeagent.host.checkpoints.CHECKPOINT_MIN_MS": rng.choice([20, 100, 500]),
            "nodeagent.host.log_start.LOG_KEEP_MS_MAX": rng.choice([300, 2_000, 600_000]),
            "nodeagent.host.log_start.KEEP_LOG_MS": rng.choice([50, 1_000]),
        }
        kinds = draw_kinds(rng, KINDS)
        return cls(
            machines=voters + rng.choice([1, 1, 2, 3]),
            voters=voters,
            groups=rng.choice([1, 1, 2, 3]),
            clients=rng.choice([1, 2, 4]),
            window=rng.choice([1, 2, 5]),
            settings=settings,
            segment_bytes=rng.choice([4 << 10, 16 << 10, 64 << 10, 1 << 18]),
            disk_bytes=rng.choice([ENDLESS_BYTES, 4 << 20]),
            kinds=kinds,
            gap_ms=timeout * rng.choice([1, 2, 4]) // 2,
            back_ms=timeout * rng.choice([1, 3, 8]),
            length_ms=timeout * 200,
            limits=limits,
        )

    def hasten(self) -> None:
        """Depose leaders often while they append entries, and purge logs early: members then return with a
        log suffix that no other node has, and a snapshot replaces it."""
        self.kinds |= {"deposed": 6, "straggle": 2}
        self.limits |= {
            "nodeagent.host.checkpoints.CHECKPOINT_MIN_MS": 20,
            "nodeagent.host.log_start.LOG_KEEP_MS_MAX": 50,
            "nodeagent.host.log_start.KEEP_LOG_MS": 20,
        }

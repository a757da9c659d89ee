"""The plan that a seed of `log_swarm` draws."""

import random
from dataclasses import dataclass

from nodeagent.log import LogSettings
from nodeagent.testing.volume import ENDLESS_BYTES

CALLS = ("sync", "write", "truncate", "create", "rename", "unlink", "sync_dir")
"""Disk calls that can fail."""

ENDS = ("close", "kill", "power", *CALLS)
"""How a life can end."""

HURTS = ("flip", "wipe", "stray", "lose")
"""Kinds of corruption between two lives."""


@dataclass
class Plan:
    """The parameters that a seed draws; sizes in bytes."""

    groups: int
    slower: float
    batches: int
    """Maximum number of batches in a life."""

    ops: int
    """Maximum number of operations in a batch."""

    text: int
    settings: LogSettings
    capacity: int
    chances: dict[str, float]
    """Probability of each action after a batch."""

    ends: list[str]
    hurts: list[str]
    hurt: float
    """Probability of corruption after a life, however it ended."""

    full: float
    """Probability that writes fail for lack of disk space during a life."""

    dark: float
    """Probability of a power cut after a life that ended in another way."""

    cut_starts: float

    @classmethod
    def draw(cls, rng: random.Random) -> "Plan":
        segment = rng.choice([700, 700, 2_048, 8_192, 65_536])
        hurts = rng.sample(HURTS, rng.choice([0, 0, 1, 2, 4]))
        settings = LogSettings(
            segment_bytes=segment,
            zero_step_bytes=rng.choice([512, 1_024, segment]),
            reserve_bytes=rng.choice([0, 0, 4_096]),
            copy_bytes_max=rng.choice([0, segment // 5, segment // 2, segment]),
        )
        return cls(
            groups=rng.randint(1, 8),
            slower=rng.choice([0.5, 0.8, 1.0]),
            batches=rng.choice([2, 5, 20, 60]),
            ops=rng.choice([1, 3, 3]),
            text=rng.choice([0, 10, 60, 400]),
            settings=settings,
            capacity=rng.choice([ENDLESS_BYTES, ENDLESS_BYTES, 20 * segment + 16_384]),
            chances={
                "sync": rng.choice([0.02, 0.1, 0.5, 1.0]),
                "reclaim": rng.choice([0.05, 0.3]),
                "mark": rng.choice([0.0, 0.1]),
                "purge": rng.choice([0.0, 0.02, 0.1]),
                "repair": 0.3,
            },
            ends=[
                *rng.sample(ENDS, rng.randint(2, len(ENDS))),
                *["power"] * rng.choice([0, 0, 5]),
                *["close"] * (3 if hurts else 0),
            ],
            hurts=hurts,
            hurt=rng.choice([0.1, 0.5]),
            full=rng.choice([0.0, 0.3]),
            dark=rng.choice([0.0, 0.3]),
            cut_starts=rng.choice([0.0, 0.2, 0.5]),
        )

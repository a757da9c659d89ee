"""What a host is started with, and what its parts share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodeagent.host.clocks import Clocks
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.levels import PeerLevels
from nodeagent.host.outbox import Outbox
from nodeagent.model.config import NodeConfig
from nodeagent.model.features import SPOKEN, Levels
from nodeagent.model.ids import NodeId, Owner

if TYPE_CHECKING:
    import random

CLOCK_TIMEOUTS = 5
"""A member's clock counts for this many election timeouts after its last heartbeat reply."""


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One run of a node on its directory; `now` and `wall` are the times at its start."""

    config: NodeConfig
    incarnation: str
    rng: "random.Random"
    now: int
    wall: int
    start: int = 0
    """Number of this start of the node, from 1; 0 if starts are not counted."""

    levels: Levels = SPOKEN
    """Feature levels that this node supports."""

    writer: str = ""
    """The TsFile library that makes the node's files, with its version."""


class Context:
    """The parts of a host work for one node: they share its configuration, its effect queue and outbox, the
    clocks and feature levels of its peers, and its source of randomness."""

    def __init__(self, life: NodeRun) -> None:
        config = life.config
        self.config = config
        self.node: NodeId = config.node
        self.incarnation = life.incarnation
        self.random = life.rng
        self.effects = EffectQueue(life.now, life.wall, Owner(config.node, life.incarnation, life.start))
        self.outbox = Outbox()
        self.clocks = Clocks(config.node, self.effects, CLOCK_TIMEOUTS * config.raft.election_timeout_ms)
        self.levels = PeerLevels(config.node, life.levels)

    def new_id(self) -> str:
        """An opaque id for a snapshot or a cluster."""
        return f"{self.random.getrandbits(128):032x}"

"""First start and join.

A seed asks every other seed until all have the same configuration. Then all create the same meta group, and
its first leader writes the first entry, which fixes the cluster id. A seed that has created the group refuses
a `node.yaml` with other first voters, and the other seeds refuse that seed, until the cluster exists. A seed
that creates it later takes the first voters from the cluster.

A joining node asks the seeds whether its parameters fit, follows the answer of the seed with the newest
meta state, and follows the meta group as soon as it is added. An empty directory is refused if the cluster
knows the node under another incarnation: a voter that lost its memory must not return under its old name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TypeGuard

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.members import members_of
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings, NodeConfig, Seed
from nodeagent.model.entries import Config
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import CheckStatus, ErrorReply, NodeRecord, Reply, StatusChecked
from nodeagent.partition.ring import Ring, initial_ring
from nodeagent.scaling.membership import spread

ASK_AGAIN_MS = 300
ASK_SELDOM_MS = 2_000
"""The interval once a meta replica exists and waits for its cluster."""

ASKED_AT_ONCE = 4
"""Questions without an answer at a time. Each is a TLS connection of its own: if twenty seeds on a small
machine ask all others again and again, no handshake ends in time."""


_OR_BEGIN_AGAIN = "or, if no node reports a cluster, stop all seeds and begin again with empty directories"


@dataclass(frozen=True, slots=True)
class _Answer:
    """The last answer of a seed. `why`: the reason why this node cannot take part, "" if it may. `reply` is
    None if the seed refuses to talk to this node."""

    reply: StatusChecked | None
    why: str = ""


class Admission:
    """Runs until the node knows its cluster.

    Args:
        create: creates the meta replica with the given first configuration.
    """

    def __init__(
        self, config: NodeConfig, incarnation: str, effects: EffectQueue, create: Callable[[Config], None]
    ) -> None:
        self.config = config
        self.incarnation = incarnation
        self.effects = effects
        self._create = create
        self._answers: dict[NodeId, _Answer] = {}
        self._asked: dict[NodeId, None] = {}
        """Seeds that were asked, in the order of their last question."""

        self._open: set[NodeId] = set()
        """Seeds that have not answered the last question."""

        self.waiting_for: tuple[str, ...] = ()
        self._differs = ""
        """Why the meta replica on the disk does not belong to `node.yaml`."""

        self._done = False
        self._ended = False

    @property
    def refused(self) -> str:
        """Why this node cannot take part, by the seeds' current answers; it then serves nothing. A joining
        node follows the seed with the newest meta state: the others may lag, or may have lost theirs."""
        if self._ended:
            return ""
        if not self.config.join:
            answers = self._answers.values()
            of_cluster = [a.why for a in answers if a.reply is None or _is_formed(a.reply)]
            differs = "" if of_cluster else self._differs  # a cluster knows more than this directory
            return next(filter(None, [*of_cluster, differs, *(a.why for a in answers)]), "")
        formed = [(a.reply.applied, not a.why, a.why) for a in self._answers.values() if _is_formed(a.reply)]
        if formed:
            return max(formed)[2]
        return next((a.why for a in self._answers.values() if a.reply is None), "")

    def start(self) -> None:
        """Ask the seeds repeatedly until `end`."""
        if self._ended:
            return
        self._ask(self._others())
        self._decide()
        self.effects.later(ASK_SELDOM_MS if self._done else ASK_AGAIN_MS, self.start)

    def _others(self) -> list[Seed]:
        return [s for s in self.config.seeds if s.node != self.config.node]

    def _ask(self, seeds: list[Seed]) -> None:
        """Ask as many of the seeds as allowed: first those that do not fit yet, then in turn."""
        last = {node: number for number, node in enumerate(self._asked)}
        waiting = [s for s in seeds if s.node not in self._open]
        waiting.sort(key=lambda s: (self._fits(s), last.get(s.node, -1)))
        question = status_question(self.config, self.incarnation)
        for seed in waiting[: ASKED_AT_ONCE - len(self._open)]:
            self._asked.pop(seed.node, None)
            self._asked[seed.node] = None
            self._open.add(seed.node)
            self.effects.call((seed.host, seed.port), question, partial(self._on_answer, seed))

    def _on_answer(self, seed: Seed, reply: Reply) -> None:
        self._open.discard(seed.node)
        if isinstance(reply, StatusChecked):
            self._answers[seed.node] = _Answer(reply, self._why_not(seed, reply))
            self._decide()
        elif isinstance(reply, ErrorReply) and reply.code == "forbidden":
            self._answers[seed.node] = _Answer(None, f"{seed.node}: {reply.what}")

    def _why_not(self, seed: Seed, reply: StatusChecked) -> str:
        if reply.conflicts:
            return (
                f"{seed.node} is configured differently: {', '.join(reply.conflicts)}; "
                "make node.yaml equal on all nodes and restart them"
            )
        if reply.known:
            return (
                f"cluster {reply.cluster_id} knows {self.config.node} with another data directory; "
                "an empty one may not take its place: use `iotctl cluster replace-node`"
            )
        if self.config.join:
            return ""
        if reply.node != seed.node and not reply.cluster_id:  # the first entry takes its incarnation
            return (
                f"{reply.node} answers at {seed.host}:{seed.port}, which node.yaml gives as {seed.node}; "
                "correct `seeds` in node.yaml and restart the nodes"
            )
        if reply.cluster_id and not reply.member:
            return (
                f"cluster {reply.cluster_id} exists already; set `join: true` and run "
                "`iotctl cluster add-node`"
            )
        if reply.first is not None and not reply.cluster_id and self._begins_otherwise(reply.first):
            return (
                f"{seed.node} began a cluster with other first members; restore `seeds` and `meta_voters` in "
                f"node.yaml, {_OR_BEGIN_AGAIN}"
            )
        return ""

    def _decide(self) -> None:
        if self._done or self.refused:
            return
        if self.config.join:
            if any(_is_formed(a.reply) for a in self._answers.values()):
                self._finish(Config())
            return
        self.waiting_for = tuple(sorted(s.node for s in self._others() if not self._fits(s)))
        if not self.waiting_for:
            self._finish(self._first_of_cluster() or first_config(self.config))

    def _fits(self, seed: Seed) -> bool:
        answer = self._answers.get(seed.node)
        return answer is not None and not answer.why

    def _first_of_cluster(self) -> Config | None:
        """What the newest log of an existing cluster begins with; the log of a node that joined may begin
        without members."""
        formed = [a.reply for a in self._answers.values() if _is_formed(a.reply)]
        known = [(r.applied, r.first) for r in formed if r.first is not None and r.first.voters]
        return max(known, key=itemgetter(0))[1] if known else None

    def _begins_otherwise(self, first: Config) -> bool:
        """Whether a replica with this first configuration does not belong to `node.yaml`."""
        mine = first_config(self.config)
        return set(first.voters) != set(mine.voters) or set(first.learners) != set(mine.learners)

    def _finish(self, config: Config) -> None:
        self._done = True
        self._create(config)

    def stop(self, first: Config | None = None) -> None:
        """The disk holds a meta replica, so none is to be created. `first`: the configuration with
        which its log begins."""
        self._done = True
        if first is None or not self._begins_otherwise(first):
            return
        if not first.voters:
            self._differs = "this directory waits to join a cluster; set `join: true` and restart"
            return
        self._differs = (
            f"this directory began a cluster with the voters {', '.join(first.voters)} and "
            f"{len(first.learners)} other nodes, but node.yaml gives others; restore `seeds` and "
            f"`meta_voters`, {_OR_BEGIN_AGAIN}"
        )

    def end(self) -> None:
        """This node knows its cluster: from now on the meta state says what it may do."""
        self._done = self._ended = True

    def ask_missing(self) -> bool:
        """Ask the seeds that have not answered, or whose answer says why this node cannot take part; the
        first entry needs the incarnations of all.

        Returns:
            Whether there are none.
        """
        if self._differs:
            return False  # this node would name other seeds than its group has
        missing = [s for s in self._others() if not self._fits(s)]
        self._ask(missing)
        return not missing

    def records(self) -> tuple[NodeRecord, ...]:
        """The nodes of the first entry, on evenly spaced ring positions in the order of the seeds."""
        c = self.config
        ring = first_ring(c)
        out = []
        for seed in c.seeds:
            mine = seed.node == c.node
            known = self._answers.get(seed.node)
            answer = known.reply if known else None
            out.append(
                NodeRecord(
                    seed.node,
                    seed.host,
                    seed.port,
                    c.http_port if mine else (answer.http_port if answer else 0),
                    self.incarnation if mine else (answer.incarnation if answer else ""),
                    ring.nodes[ring.index(seed.node)].position,
                    seed.weight,
                    zone=seed.zone,
                )
            )
        return tuple(out)


def _is_formed(reply: StatusChecked | None) -> TypeGuard[StatusChecked]:
    """Whether the node that answered belongs to a cluster."""
    return reply is not None and bool(reply.cluster_id)


def first_ring(config: NodeConfig) -> Ring:
    """The seeds in their order."""
    return initial_ring([s.node for s in config.seeds], [s.weight for s in config.seeds])


def first_config(config: NodeConfig) -> Config:
    """`meta_voters` seeds vote, as evenly over the zones as possible; of equal ones, the first. The others
    observe."""
    names = [s.node for s in config.seeds]
    voters = spread(names, {s.node: s.zone for s in config.seeds}, config.cluster.meta_voters)
    return Config(voters, tuple(n for n in names if n not in voters))


def status_question(config: NodeConfig, incarnation: str) -> CheckStatus:
    c = config
    return CheckStatus(c.node, incarnation, c.host, c.port, c.http_port, c.cluster, c.seeds, c.join)


def check_status(
    config: NodeConfig,
    incarnation: str,
    meta: MetaState,
    ready: bool,
    asked: CheckStatus,
    first: Config | None = None,
) -> StatusChecked:
    """Compare the parameters of the asking node with those of this node, field by field. `first`: the
    configuration with which the log of the meta replica begins."""
    conflicts = [f for f in ClusterSettings.__struct_fields__ if _differs(config, asked, f)]
    nodes = {(n.host, n.port) for n in meta.image.nodes.values()}
    if asked.join:
        known_here = _addresses(config.seeds) | nodes
        # Without a cluster, it is not known which nodes are members.
        if meta.cluster_id and not _addresses(asked.seeds) <= known_here:
            conflicts.append("seeds")
    elif asked.seeds != config.seeds:
        # In the same order too: it determines who votes first (`first_config`), so two orders of six seeds
        # could form two clusters.
        conflicts.append("seeds")
    known = meta.image.nodes.get(asked.node)
    return StatusChecked(
        config.node,
        incarnation,
        tuple(conflicts),
        meta.cluster_id,
        known is not None and known.incarnation != asked.incarnation,
        ready,
        config.http_port,
        known is not None and known.incarnation == asked.incarnation,
        members_of(meta.image),
        meta.applied,
        first,
    )


def _differs(config: NodeConfig, asked: CheckStatus, field: str) -> bool:
    return bool(getattr(config.cluster, field) != getattr(asked.settings, field))


def _addresses(seeds: tuple[Seed, ...]) -> set[tuple[str, int]]:
    return {(s.host, s.port) for s in seeds}

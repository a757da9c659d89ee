"""First start and join (architecture 2, seed-facts 1.5).

A seed asks every other seed until all are configured alike, then all make the same meta group; the
first leader writes the first entry, which fixes the cluster id. A joiner asks the seeds whether its
parameters fit and then follows the meta group as soon as it is added. A directory that is empty while
the cluster knows the node under another incarnation is refused: a voter that lost its memory must not
come back as itself.
"""

from collections.abc import Callable

from nodeagent.host.desk import Desk
from nodeagent.host.members import members_of
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings, NodeConfig, Seed
from nodeagent.model.entries import Config
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import CheckStatus, ErrorReply, NodeRecord, Reply, StatusChecked
from nodeagent.partition.ring import Ring, initial_ring

ASK_AGAIN_MS = 300


class Admission:
    """Runs until there is a meta replica. `create` makes it with the given first configuration."""

    def __init__(
        self, config: NodeConfig, incarnation: str, desk: Desk, create: Callable[[Config], None]
    ) -> None:
        self.config = config
        self.incarnation = incarnation
        self.desk = desk
        self._create = create
        self.answers: dict[NodeId, StatusChecked] = {}
        self.refused = ""
        """Why this node cannot take part; it keeps saying so and serves nothing."""

        self.waiting_for: tuple[str, ...] = ()
        self._done = False

    def start(self) -> None:
        if not self._done and not self.refused:
            others = [s for s in self.config.seeds if s.node != self.config.node]
            for seed in others:
                self._ask(seed)
            self._decide()
            if not self._done:
                self.desk.later(ASK_AGAIN_MS, self.start)

    def _ask(self, seed: Seed) -> None:
        question = status_question(self.config, self.incarnation)
        self.desk.call((seed.host, seed.port), question, lambda r: self._on_answer(seed, r))

    def _on_answer(self, seed: Seed, reply: Reply) -> None:
        if isinstance(reply, ErrorReply):
            if reply.code == "forbidden":
                self.refused = f"{seed.node}: {reply.what}"
            return
        if not isinstance(reply, StatusChecked):
            return
        if reply.conflicts:
            self.refused = (
                f"{seed.node} is configured differently: {', '.join(reply.conflicts)}; "
                "make node.yaml equal on all nodes and start again"
            )
        elif reply.known:
            self.refused = (
                f"cluster {reply.cluster_id} knows {self.config.node} with another data directory; "
                "an empty one may not take its place: use `iotctl cluster replace-node`"
            )
        elif reply.cluster_id and not self.config.join and not reply.member:
            self.refused = (
                f"cluster {reply.cluster_id} exists already; set `join: true` and run "
                "`iotctl cluster add-node`"
            )
        else:
            self.answers[seed.node] = reply
            self._decide()

    def _decide(self) -> None:
        if self._done or self.refused:
            return
        if self.config.join:
            if any(a.cluster_id for a in self.answers.values()):
                self._finish(Config())
            return
        others = {s.node for s in self.config.seeds} - {self.config.node}
        self.waiting_for = tuple(sorted(others - set(self.answers)))
        if not self.waiting_for:
            self._finish(first_config(self.config))

    def _finish(self, config: Config) -> None:
        self._done = True
        self._create(config)

    def stop(self) -> None:
        """There is a meta replica on disk."""
        self._done = True

    def ask_again(self) -> bool:
        """A leader that must write the first entry needs every seed's incarnation; whether it has them."""
        others = [s for s in self.config.seeds if s.node != self.config.node]
        missing = [s for s in others if s.node not in self.answers]
        for seed in missing:
            self._ask(seed)
        return not missing

    def records(self) -> tuple[NodeRecord, ...]:
        """The nodes of the first entry, on evenly spaced ring positions in the order of the seeds."""
        c = self.config
        ring = first_ring(c)
        out = []
        for seed in c.seeds:
            mine = seed.node == c.node
            answer = self.answers.get(seed.node)
            out.append(
                NodeRecord(
                    seed.node,
                    seed.host,
                    seed.port,
                    c.http_port if mine else (answer.http_port if answer else 0),
                    self.incarnation if mine else (answer.incarnation if answer else ""),
                    ring.nodes[ring.index(seed.node)].position,
                    seed.weight,
                )
            )
        return tuple(out)


def first_ring(config: NodeConfig) -> Ring:
    """The seeds in their order."""
    return initial_ring([s.node for s in config.seeds], [s.weight for s in config.seeds])


def first_config(config: NodeConfig) -> Config:
    """The first `meta_voters` seeds vote, the others observe."""
    names = tuple(s.node for s in config.seeds)
    n = config.cluster.meta_voters
    return Config(names[:n], names[n:])


def status_question(config: NodeConfig, incarnation: str) -> CheckStatus:
    c = config
    return CheckStatus(c.node, incarnation, c.host, c.port, c.http_port, c.cluster, c.seeds, c.join)


def check_status(
    config: NodeConfig, incarnation: str, meta: MetaState, ready: bool, asked: CheckStatus
) -> StatusChecked:
    """Compare the asker's parameters with ours, field by field."""
    conflicts = [f for f in ClusterSettings.__struct_fields__ if _differs(config, asked, f)]
    mine, theirs = _addresses(config.seeds), _addresses(asked.seeds)
    nodes = {(n.host, n.port) for n in meta.image.nodes.values()}
    if asked.join:
        if not theirs <= mine | nodes:
            conflicts.append("seeds")
    elif theirs != mine or _weights(config.seeds) != _weights(asked.seeds):
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
    )


def _differs(config: NodeConfig, asked: CheckStatus, field: str) -> bool:
    return bool(getattr(config.cluster, field) != getattr(asked.settings, field))


def _weights(seeds: tuple[Seed, ...]) -> dict[NodeId, float]:
    return {s.node: s.weight for s in seeds}


def _addresses(seeds: tuple[Seed, ...]) -> set[tuple[str, int]]:
    return {(s.host, s.port) for s in seeds}

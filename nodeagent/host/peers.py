"""The other nodes, as this node knows them: their addresses, when they last sent Raft messages, whether
they are members."""

from nodeagent.host.admission import status_question
from nodeagent.host.context import Context
from nodeagent.host.members import Members
from nodeagent.host.replicas import Replicas
from nodeagent.host.starts import Starts, older_sentence
from nodeagent.model.ids import NodeId
from nodeagent.model.membership import MembershipStatus


class Peers:
    """See the module. `starts` are the newest known starts of the other nodes."""

    def __init__(self, context: Context, replicas: Replicas) -> None:
        self._config = context.config
        self._node = context.node
        self._effects = context.effects
        self._clocks = context.clocks
        self.levels = context.levels
        self._replicas = replicas
        self._cluster = cluster = replicas.cluster
        self.addresses: dict[NodeId, tuple[str, int]] = {}
        """(host, port) of every node that this node may have to reach; replaced as a whole on a change."""

        self.heard: dict[NodeId, int] = {}
        """When a peer's last Raft messages came (ms), or a follower reported that it heard the peer; requests
        and replies do not count."""

        self.starts = Starts({})
        self.skewed: dict[NodeId, int] = {}
        """Voters of the groups led here whose clocks are wrong, and by how many ms each is ahead, negative if
        behind."""

        self._members = Members(
            self._effects,
            context.random,
            image=lambda: cluster.meta.image,
            named=self._named,
            known=lambda: self.addresses,
            question=status_question(context.config, context.incarnation),
        )

    def membership_status(self, node: NodeId, incarnation: str) -> MembershipStatus:
        status = self._members.membership_status(node, incarnation)
        is_older = status is MembershipStatus.MEMBER and incarnation in self.starts.older
        return MembershipStatus.OLDER if is_older else status

    def _named(self) -> set[NodeId]:
        """Nodes that are members by name alone (`members.membership_status`)."""
        seeds = set() if self._cluster.id else {s.node for s in self._config.seeds}
        meta = self._cluster.meta_replica
        return seeds | set(meta.raft.log.config.members if meta else ())

    def update_addresses(self) -> None:
        """Take the addresses from the meta state, or those of the seeds while it names no node."""
        addresses = {s.node: (s.host, s.port) for s in self._config.seeds}
        nodes = self._cluster.meta.image.nodes
        if nodes:
            addresses = {n.node: (n.host, n.port) for n in nodes.values()}
        addresses.pop(self._node, None)
        self.addresses = addresses

    def watch_clocks(self) -> None:
        """Note every voter with a wrong clock in the groups led here; those groups delete nothing by age."""
        skewed: dict[NodeId, int] = {}
        for replica in self._replicas:
            if replica.leads:
                skewed |= self._clocks.skewed(replica.raft.log.config.voters)
        for node in skewed.keys() - self.skewed.keys():
            self._effects.note("clock_skew", node=node, ahead_ms=skewed[node])
        self.skewed = skewed

    def look_for_older(self) -> None:
        """Refuse followers that lost entries that they acknowledged: their directory is an older copy."""
        nodes = self._cluster.meta.image.nodes
        members = {n.incarnation for n in nodes.values()}
        self.starts.prune(members)
        self.levels.prune(members)
        for replica in self._replicas:
            for node in replica.raft.lost_acknowledged():
                record = nodes.get(node)
                if record is not None and record.incarnation not in self.starts.older:
                    evidence = f"{replica.group} there lacks entries that it acknowledged to {self._node}"
                    self.starts.older[record.incarnation] = why = older_sentence(node, evidence)
                    self._effects.note("older_copy", node=node, why=why)

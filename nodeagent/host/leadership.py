"""Which node should lead each group.

If possible, a group is led by its group owner. A draining or stopping node transfers the leadership of
every group that another node can lead. A node that is short of disk space transfers leadership to nodes
that have space. A node that cannot send a snapshot that a member needs transfers leadership to one that can.

Nothing here is needed for safety; every leadership transfer is Raft's own (thesis 3.10), to a voter that is
caught up and was just heard from, so that it costs no election timeout.
"""

from nodeagent.host.context import Context
from nodeagent.host.peers import Peers
from nodeagent.host.replica import Replica
from nodeagent.host.replicas import Replicas
from nodeagent.model.ids import META, GroupId, NodeId, owner_of
from nodeagent.raft.progress import ProgressState

PREFER_OWNER_MS = 3_000
RETRY_MS = 10_000
"""A node that did not take over a group is not asked again for this long. The group takes no writes during a
transfer, and a node may be caught up and respond, and still not become leader, because its disk is stuck."""

SHORT_MS = 60_000
"""A group owner that was short of disk space is not preferred for this long, because free space fluctuates
while disks fill."""


class Leadership:
    """`keep` runs at every housekeeping, `transfer_leadership` before the node stops."""

    def __init__(self, context: Context, replicas: Replicas, peers: Peers) -> None:
        self._node = context.node
        self._effects = context.effects
        self._random = context.random
        self._replicas = replicas
        self._cluster = replicas.cluster
        self._peers = peers
        self._prefer_at = context.effects.now + PREFER_OWNER_MS
        self._led_before: set[GroupId] = set()
        self._short_at: dict[NodeId, int] = {}
        """When a voter of a group that is led here was last short of disk space."""

        self._stopping = False
        self._led_in: dict[GroupId, int] = {}
        """The first term in which this node led a group after it began to stop."""

        self._asked_at: dict[tuple[GroupId, NodeId], int] = {}
        """When a node was asked to take over a group. Forgotten when this node no longer leads the group, or
        after `RETRY_MS`, but never while this node stops."""

    @property
    def avoids_leadership(self) -> bool:
        """Whether this node avoids leadership: it stops, it drains, or its meta replica is stopped, so that
        it learns of no new partition table."""
        meta = self._cluster.meta_replica
        return self._stopping or self._is_draining(self._node) or (meta is not None and bool(meta.stopped))

    def timeout_share(self, group: GroupId) -> float:
        """Draw the place of an election timeout in [t, 2t), where the group owner tends to be first. A node
        that avoids leadership draws from [2t, 3t): it leads only groups that no other node can lead."""
        value = self._random.random()
        if self.avoids_leadership:
            return 1.0 + value
        if group == META:
            return value
        is_first = owner_of(group) == self._node and not self._effects.space.is_low
        return value * 0.3 if is_first else 0.4 + value * 0.6

    def keep(self) -> None:
        """Called at every housekeeping."""
        if self._stopping:
            return  # `transfer_leadership` does it
        now = self._effects.now
        led = {r.group for r in self._replicas if r.leads}
        self._asked_at = {k: at for k, at in self._asked_at.items() if k[0] in led and now - at < RETRY_MS}
        self._note_low_space(now)
        self._transfer_to_sources()
        if self.avoids_leadership:
            self._transfer_all()
        elif self._effects.space.is_low:
            self._transfer_for_space()
        elif now >= self._prefer_at:
            self._prefer_at = now + PREFER_OWNER_MS
            self._prefer_owners()

    def transfer_leadership(self) -> bool:
        """Transfer the leadership of every group led here, because this node stops.

        No node is asked twice for the same group, and a group whose leadership returns is kept, because the
        other nodes are stopping too.

        Returns:
            Whether a transfer is in progress or can still be tried.
        """
        self._stopping = True
        busy = False
        for replica in self._replicas:
            if not replica.leads:
                continue
            if self._led_in.setdefault(replica.group, replica.raft.term) != replica.raft.term:
                continue
            if replica.raft.can_change():
                busy = self._transfer_if_possible(replica) or busy
            else:
                asked = any(group == replica.group for group, _ in self._asked_at)
                busy = busy or asked or self._successor(replica) is not None
        return busy

    def _transfer_all(self) -> None:
        for replica in self._replicas:
            if replica.leads:
                self._transfer_if_possible(replica)

    def _note_low_space(self, now: int) -> None:
        self._short_at = {n: at for n, at in self._short_at.items() if now - at < SHORT_MS}
        for replica in self._replicas.data.values():
            if replica.leads:
                self._short_at |= dict.fromkeys(replica.raft.voters_low_on_space(), now)

    def _transfer_for_space(self) -> None:
        """Transfer the leadership of each group that would accept rows under another leader: a majority of
        its voters has disk space, and one of them can lead it. Without such a majority, another leader would
        reject rows too."""
        for replica in self._replicas.data.values():
            if not replica.leads:
                continue
            most_have_room = (
                len(replica.raft.voters_low_on_space()) < (len(replica.raft.log.config.voters) - 1) // 2
            )
            target = self._successor(replica)
            if most_have_room and target is not None and replica.raft.has_room(target):
                self._transfer_if_possible(replica)

    def _transfer_to_sources(self) -> None:
        """Transfer the leadership of each group with a member that needs a snapshot and holds files of sealed
        slots that this node lacks: until the change ends, only a leader with those files can send one."""
        for replica in self._replicas.data.values():
            if not replica.leads or not any(s.metadata_only for s in replica.state.slots.sealed.values()):
                continue
            progress = replica.raft.status().progress
            waiting = {
                n
                for n, p in progress.items()
                if p.state is ProgressState.SNAPSHOT and replica.for_peers.lacks_files_of(n)
            }
            others = (v for v in replica.raft.log.config.voters if v not in waiting)
            target = next(
                (v for v in others if replica.for_peers.lacks_files_of(v) and self._fits(replica, v)), None
            )
            if waiting and target is not None and replica.raft.can_change():
                self._effects.note("handing_over", group=replica.group, to=target)
                self.transfer(replica, target)

    def _prefer_owners(self) -> None:
        """Transfer the leadership of each group to its owner, so that leaders spread over the ring.

        A group that was not led here at the last call is skipped: this node may just have taken it over from
        an owner that is stopping but was heard from a moment ago.
        """
        led = {g for g, r in self._replicas.data.items() if r.leads}
        for group in sorted(led & self._led_before):
            owner = owner_of(group)
            replica = self._replicas.data[group]
            may_lead = owner != self._node and owner not in self._short_at
            if may_lead and self._fits(replica, owner) and replica.raft.can_change():
                self.transfer(replica, owner)
        self._led_before = led

    def _transfer_if_possible(self, replica: Replica) -> bool:
        target = self._successor(replica)
        if target is None or not replica.raft.can_change():
            return False
        self.transfer(replica, target)
        self._effects.note("handing_over", group=replica.group, to=target)
        return True

    def transfer(self, replica: Replica, target: NodeId) -> None:
        """As `Raft.transfer`."""
        replica.raft.transfer(target, self._effects.now)
        self._asked_at[replica.group, target] = self._effects.now

    def may_take_over(self, replica: Replica, node: NodeId) -> bool:
        """Whether `node` is caught up, was just heard from, and did not just fail to take over the group."""
        if node == self._node:
            return replica.leads
        heard = self._effects.now - self._peers.heard.get(node, -PREFER_OWNER_MS)
        asked = (replica.group, node) in self._asked_at
        return heard < PREFER_OWNER_MS and not asked and replica.raft.caught_up(node)

    def _successor(self, replica: Replica) -> NodeId | None:
        """Another voter that may lead: preferably one with disk space, then the group owner."""
        voters = sorted(replica.raft.log.config.voters)
        if replica.group != META:
            voters.sort(key=lambda v: (not replica.raft.has_room(v), v != owner_of(replica.group)))
        return next((v for v in voters if v != self._node and self._fits(replica, v)), None)

    def _fits(self, replica: Replica, node: NodeId) -> bool:
        op = self._cluster.meta.operations.open()
        leaving = op is not None and op.leaving == node
        votes = node in replica.raft.log.config.voters
        return votes and not leaving and not self._is_draining(node) and self.may_take_over(replica, node)

    def _is_draining(self, node: NodeId) -> bool:
        record = self._cluster.meta.image.nodes.get(node)
        return record is not None and record.draining

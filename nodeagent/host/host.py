"""All groups of one node, driven by events and one `take()`.

Contract for the shell (runtime or simulator):
    1. feed events: messages, requests, completions, time;
    2. call `take()`; repeat 1 and 2;
    3. make `persist` durable, then call `on_persisted`; batches complete in order;
    4. send `sends` and `replies`, run `jobs` and `calls`, in any order, and feed their results back.
Nothing taken may be dropped, but sends may be lost and jobs and calls may fail.
"""

from collections.abc import Collection

from nodeagent.host.admission import Admission
from nodeagent.host.bootstrap import Bootstrap
from nodeagent.host.budget import Budget
from nodeagent.host.builder import ReplicaBuilder
from nodeagent.host.cluster import Cluster
from nodeagent.host.compactor import Compactor
from nodeagent.host.context import Context, NodeRun
from nodeagent.host.copies import Copies
from nodeagent.host.data_replica import Helpers
from nodeagent.host.effect_queue import Effects
from nodeagent.host.handlers.data import DataRequests
from nodeagent.host.handlers.dispatch import Handlers
from nodeagent.host.handlers.leading import MetaLeader
from nodeagent.host.handlers.meta import MetaRequests
from nodeagent.host.handlers.meta_recovery import MetaRecovery
from nodeagent.host.handlers.node import NodeRequests
from nodeagent.host.leadership import Leadership
from nodeagent.host.lifecycle import Lifecycle
from nodeagent.host.meta_role import RoleWatch
from nodeagent.host.operations import Operations
from nodeagent.host.own_membership import OwnMembership
from nodeagent.host.peers import Peers
from nodeagent.host.repair_areas import RepairAreas
from nodeagent.host.repairs import Repairs
from nodeagent.host.replica import Replica
from nodeagent.host.replicas import Replicas
from nodeagent.host.session_parts import SealWaits
from nodeagent.host.status import Status
from nodeagent.host.writer import FileWriter
from nodeagent.model.features import Feature
from nodeagent.model.ids import NodeId
from nodeagent.model.jobs import JobResult
from nodeagent.model.limits import APPLY_BYTES_PER_TURN, APPLY_ENTRIES_PER_TURN
from nodeagent.model.membership import MembershipStatus
from nodeagent.model.raft_messages import HeartbeatReply, RelayReport, Routed, VoteRequest
from nodeagent.model.requests import Reply, Request

DRIVE_MS = 100
HOUSEKEEPING_MS = 200
EXPIRE_MS = 60_000
META_WAIT_MS = 60_000
"""After a start whose known feature level is below `FILE_WRITER`, files are made only once the meta state is
current, or after this time: without a leader of the meta group it may never become current."""

QUIET_MS = 1_000
"""After every start but a directory's first, no vote is given for this long, or for 2/3 of the election
timeout if that is less."""


class Host:
    """See the module. It assembles the parts and passes events to them."""

    def __init__(self, life: NodeRun) -> None:
        self.context = context = Context(life)
        config, node, effects = context.config, context.node, context.effects
        self.effects = effects
        self.outbox = context.outbox
        self.cluster = cluster = Cluster(context)
        self.replicas = Replicas(cluster)
        self.own_membership = OwnMembership(context, cluster)
        self.role = RoleWatch(effects)
        self.peers = Peers(context, self.replicas)
        self.leadership = Leadership(context, self.replicas, self.peers)
        self.writer = FileWriter(
            life.writer,
            lambda: cluster.level,
            lambda: cluster.meta.image.unnamed_writer,
            lambda: cluster.is_current or effects.now - life.now > META_WAIT_MS,
        )
        areas = RepairAreas(effects)
        self.copies = Copies(node, effects, areas)
        helpers = Helpers(config, context.new_id, cluster.is_source, self.copies.fetch, self.writer)
        self.builder = ReplicaBuilder(
            context, self.replicas, self.leadership.timeout_share, helpers, self.on_meta
        )
        self.lifecycle = Lifecycle(context, self.replicas, self.builder, self.own_membership, self.on_meta)
        self.admission = Admission(config, context.incarnation, effects, self.lifecycle.create_meta)
        self._bootstrap = Bootstrap(context, cluster, self.admission, self.on_meta)
        self.operations = Operations(context, self.replicas, self.lifecycle, self.leadership, self.writer)
        self.compactor = Compactor(context, self.replicas, self.peers, self.writer)
        self.seal_waits = SealWaits(effects)
        leader = MetaLeader(context, self.replicas, self.peers, self.writer)
        self.handlers = Handlers(
            effects,
            self.admission,
            self.own_membership,
            MetaRequests(context, self.replicas, self.admission, leader, MetaRecovery(context, self.peers)),
            DataRequests(context, self.replicas, Repairs(effects, areas), self.seal_waits),
            NodeRequests(context, cluster, self.admission, self.operations),
        )
        self.status = Status(
            context, self.replicas, self.admission, self.own_membership, self.peers, self.role
        )
        quiet_ms = min(QUIET_MS, config.raft.election_timeout_ms * 2 // 3) if life.start > 1 else 0
        self._votes_from = life.now + quiet_ms
        """No vote is given before this time, so that peers can report that this directory is an older
        copy."""

        self._turn = 0
        self._drive_at = self._housekeeping_at = life.now
        self._expire_at = life.now + EXPIRE_MS
        self.peers.update_addresses()

    # --- events ------------------------------------------------------------------------------------

    def membership_status(self, node: NodeId, incarnation: str, now: int) -> MembershipStatus:
        """The membership status of a peer, to be checked before each of its frames is passed on.

        Effects may follow: members are asked about a node that this node does not know.
        """
        self.effects.now = now
        return self.peers.membership_status(node, incarnation)

    def on_raft(self, sender: NodeId, messages: list[Routed], now: int) -> None:
        """Receive Raft messages; `sender` is a member (`membership_status`)."""
        self.effects.now = now
        self.peers.heard[sender] = now
        for routed in messages:
            if isinstance(routed.message, HeartbeatReply) and routed.message.wall:
                self.context.clocks.heard(sender, routed.message.wall)
            if now < self._votes_from and isinstance(routed.message, VoteRequest):
                continue
            replica = self.replicas.of(routed.group)
            if replica is not None:
                replica.step(sender, routed.message)
                if isinstance(routed.message, RelayReport) and replica.leads:
                    self._heard_by_relay(replica, routed.message, now)

    def _heard_by_relay(self, replica: Replica, report: RelayReport, now: int) -> None:
        if report.term == replica.raft.term:
            self.peers.heard |= {n: now for n in report.matches if n in self.peers.addresses}

    def on_request(self, token: int, request: Request, now: int, wall: int) -> None:
        self.effects.now, self.effects.wall = now, wall
        self.handlers.on_request(token, request)

    def on_persisted(self, batch: int, now: int) -> None:
        self.effects.now = now
        self.outbox.completed(batch)

    def on_job(self, number: int, result: JobResult, now: int) -> None:
        self.effects.now = now
        self.effects.on_job(number, result)
        self._drive_at = now

    def on_snapshots_expired(self, names: Collection[str], now: int) -> None:
        """The shell dropped these snapshots: no member has read them for a long time."""
        self.effects.now = now
        for replica in self.replicas:
            replica.snapshots.on_expired(names)

    def on_disk(self, free: int, total: int, now: int) -> None:
        """The free and total bytes of the disk with log and data, measured several times a second."""
        self.effects.now = now
        data, space = self.replicas.data, self.effects.space
        before = space.is_low
        space.measured(free, total, sum(r.state.rows.memtable.nbytes for r in data.values()))
        for replica in data.values():
            replica.raft.room = space.room
        if space.is_low != before:
            self.effects.note("writes_refused" if space.is_low else "writes_taken_again", why=space.why)

    def on_retired(self, why: str, now: int) -> None:
        """A peer refuses this node because its incarnation was retired."""
        self.effects.now = now
        self.own_membership.retired(why)

    def on_older_copy(self, why: str, now: int) -> None:
        """A peer knows a later start of this directory, or entries that this node acknowledged and lacks.

        From now on this node neither votes nor acknowledges nor serves. The shell stores that on disk.
        """
        self.effects.now = now
        if not self.own_membership.older_copy:
            self.own_membership.older_copy = why
            self.lifecycle.stop_all(why)
            self.effects.note("older_copy", node=self.context.node, why=why)

    def on_reply(self, call: int, reply: Reply, now: int) -> None:
        self.effects.now = now
        self.effects.on_reply(call, reply)

    def on_meta(self) -> None:
        """Meta entries were applied: addresses, groups and next actions may have changed."""
        self._drive_at = self.effects.now
        if self._bootstrap.is_due:
            self._bootstrap.propose()
        if self.cluster.meta_replica is not None:
            self.cluster.meta_replica.raft.relays = self.cluster.level >= Feature.RELAY
        self.peers.update_addresses()
        if self.cluster.id:
            self.admission.end()
            self.lifecycle.sync()

    def tick(self, now: int, wall: int) -> None:
        self.effects.now, self.effects.wall = now, wall
        for replica in self.replicas:
            replica.tick()
        self.effects.fire()
        if now >= self._housekeeping_at:
            self._housekeeping_at = now + HOUSEKEEPING_MS
            self._housekeeping()

    def _housekeeping(self) -> None:
        for replica in self.replicas:
            # A meta checkpoint claims that the files of the groups it no longer names are removed.
            if not self.lifecycle.is_removing or replica is not self.cluster.meta_replica:
                replica.checkpoints.maybe_save()
        for replica in self.replicas:
            replica.snapshots.drop_taken()
            replica.checkpoints.keep_log()
        data = self.replicas.data
        for held in data.values():
            held.closer.maybe_close()
            held.freshness.refresh(self.context.config.staleness_max_ms // 2)
        if self.cluster.meta_replica is not None:
            self.cluster.meta_replica.freshness.refresh(self.context.config.meta_confirm_every_ms)
        self.peers.watch_clocks()
        self.leadership.keep()
        self.peers.look_for_older()
        self.own_membership.ask(self.peers.addresses)
        self.compactor.keep()
        if self.effects.now >= self._expire_at:
            self._expire_at = self.effects.now + EXPIRE_MS
            for held in data.values():
                held.sessions.expire()

    def transfer_leadership(self, now: int) -> bool:
        """The node is about to stop: transfer its leaderships. Call repeatedly until it returns False."""
        self.effects.now = now
        return self.leadership.transfer_leadership()

    def deadline(self) -> int:
        """When to call `tick`, in the monotonic time that the events carry."""
        times = [r.raft.deadline() for r in self.replicas]
        times += [self._housekeeping_at, self._drive_at]
        of_effects = self.effects.deadline
        if of_effects is not None:
            times.append(of_effects)
        return min(times)

    @property
    def no_room(self) -> str:
        """Why no files may be copied here for now, "" if they may."""
        return self.effects.space.why if self.effects.space.is_low else ""

    @property
    def requests_failed(self) -> int:
        """Requests, pulls, copies and repairs that ended with an exception: each is a bug."""
        return self.effects.failures

    # --- effects -----------------------------------------------------------------------------------

    def take(self) -> Effects:
        """Everything to do now, except entries to apply beyond the turn's budget, which the next call takes.
        There is one persist batch, and one frame per peer, however much happened."""
        budget = Budget()
        self._turn += 1
        replicas = self.replicas.in_turn(self._turn)
        for _ in range(16):
            worked = [r.drain(budget) for r in replicas if r.raft.stirred]
            if self._drive_at <= self.effects.now or self.operations.is_due():
                self._drive_at = self.effects.now + DRIVE_MS
                self.operations.drive()
                worked.append(True)
                replicas = self.replicas.in_turn(self._turn)  # replicas may have been created or removed
            if not any(worked):
                break
        self.seal_waits.check()
        self.role.look(self.cluster.meta_replica)
        persist = self.outbox.take_persist()
        effects = Effects(
            persist=persist,
            sends=self.outbox.take_sends(),
            replies=self.effects.replies,
            jobs=self.effects.jobs,
            calls=self.effects.calls,
            notes=self.effects.notes,
            applied=APPLY_ENTRIES_PER_TURN - budget.entries,
            applied_bytes=APPLY_BYTES_PER_TURN - budget.nbytes,
        )
        self.effects.replies, self.effects.jobs, self.effects.calls, self.effects.notes = [], [], [], []
        return effects

    @property
    def idle(self) -> bool:
        effects = self.effects
        if effects.replies or effects.jobs or effects.calls or not self.outbox.idle:
            return False
        return not any(r.raft.has_ready for r in self.replicas if r.raft.stirred)

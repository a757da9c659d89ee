"""One node's groups behind six events and one `take()`.

Contract for the shell (runtime or simulator):
    1. feed events: messages, requests, completions, time;
    2. call `take()`; repeat 1 and 2;
    3. make `persist` durable and say so with `on_persisted`; batches complete in order;
    4. send `sends` and `replies`, run `jobs` and `calls`, in any order, and feed their results back.
Nothing taken may be dropped, but sends may be lost and jobs and calls may fail.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nodeagent import __version__
from nodeagent.data.checkpoint import decode_checkpoint, encode_checkpoint
from nodeagent.data.state import DataState, initial
from nodeagent.host.admission import Admission, first_ring, status_question
from nodeagent.host.budget import Budget
from nodeagent.host.clocks import Clocks
from nodeagent.host.compactor import Compactor
from nodeagent.host.copies import Copies
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.desk import Desk, Effects
from nodeagent.host.found import Found, Lost, fault_of, foreign, is_blank, is_traceless
from nodeagent.host.handlers import Handlers
from nodeagent.host.leadership import Leadership
from nodeagent.host.levels import PeerLevels
from nodeagent.host.members import Members
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.mover import Mover
from nodeagent.host.operations import Operations
from nodeagent.host.outbox import Outbox
from nodeagent.host.repair_areas import RepairAreas
from nodeagent.host.repairs import Repairs
from nodeagent.host.replica import INSTALL_KEEP_MS, Replica, Saved
from nodeagent.host.session_parts import SealWaits
from nodeagent.host.starts import Start, Starts, older_sentence
from nodeagent.host.writer import FileWriter
from nodeagent.meta import commands as meta_commands
from nodeagent.meta.state import MetaState
from nodeagent.model.config import NodeConfig
from nodeagent.model.entries import Base, Config, Forget, HardState, Rebase
from nodeagent.model.errors import EntryFailed, retired_sentence
from nodeagent.model.features import SPOKEN, Levels
from nodeagent.model.ids import META, GroupId, NodeId, Owner, header_of
from nodeagent.model.jobs import INSTALL, DropStaging, Failed, JobResult, RemoveGroup, SaveCheckpoint
from nodeagent.model.limits import APPLY_BYTES_PER_TURN, APPLY_ENTRIES_PER_TURN
from nodeagent.model.raft_messages import HeartbeatReply, Routed, VoteRequest
from nodeagent.model.requests import GroupStatus, NodeStatus, Reply, Request
from nodeagent.model.standing import Standing
from nodeagent.partition.table import initial_table
from nodeagent.raft.core import Raft
from nodeagent.raft.log import RaftLog

if TYPE_CHECKING:
    import random

DRIVE_MS = 100
HOUSEKEEPING_MS = 200
EXPIRE_MS = 60_000
CREATE_AGAIN_MS = 1_000
META_WAIT_MS = 60_000
"""After a start files are not made before the meta state is current, but for this long at most: without a
leader of the meta group it may never be."""

CLOCK_TIMEOUTS = 5
"""What a member's clock said so many election timeouts ago does not count any more."""

QUIET_MS = 1_000
"""After a start no vote is given for this long, which is less than any election timeout."""

RETIRED_MS = 10_000
"""A retired node dials again, and is told again, more often than this."""


class Host:
    """See the module. `addresses` are those of every node it may have to reach."""

    def __init__(
        self,
        config: NodeConfig,
        incarnation: str,
        rng: "random.Random",
        now: int,
        wall: int,
        start: int = 0,
        levels: Levels = SPOKEN,
        writer: str = "",
    ) -> None:
        self.config = config
        self.node: NodeId = config.node
        self.incarnation = incarnation
        self.random = rng
        self._started = now
        self.desk = Desk(now, wall, Owner(self.node, incarnation, start))
        self.clocks = Clocks(config.node, self.desk, CLOCK_TIMEOUTS * config.raft.election_timeout_ms)
        self.outbox = Outbox()
        self.meta_replica: MetaReplica | None = None
        self.data: dict[GroupId, DataReplica] = {}
        self.damaged: dict[GroupId, str] = {}
        """These do not run: they neither vote nor acknowledge, and nothing of them is removed."""

        self._unlogged: dict[GroupId, bool] = {}
        """Data groups with a directory that the log knows nothing of, and whether there is nothing in it."""

        self._creating: set[GroupId] = set()
        self._removing: set[GroupId] = set()
        self._left: dict[GroupId, HardState] = {}
        """What the log remembers of groups that this node left."""

        self._joined: dict[GroupId, str] = {}
        """Groups this node is joining, and for which operation."""

        self._meta_known = 0
        """End of the meta log at the start; up to there groups came and went that this state knows not of."""

        self._retired_until, self._retired_why = now, ""
        self._bootstrap_due = False
        self.addresses: dict[NodeId, tuple[str, int]] = {}
        self.heard: dict[NodeId, int] = {}
        self.starts = Starts({})
        self.older_copy = ""
        """Why this node's directory is an older copy, when a peer said so."""

        quiet_ms = min(QUIET_MS, config.raft.election_timeout_ms * 2 // 3) if start > 1 else 0
        self._votes_from = now + quiet_ms
        """Until then the peers have the time to say that this directory is an older copy."""

        self.skewed: dict[NodeId, int] = {}
        """Voters of groups led here whose clocks are wrong, in ms ahead of the others'."""

        self.levels = PeerLevels(config.node, levels)
        self.writer = FileWriter(
            writer,
            lambda: self.level,
            lambda: self.meta.image.unnamed_writer,
            lambda: self.is_current or self.desk.now - now > META_WAIT_MS,
        )
        self._empty = MetaState(levels=levels)
        self._turn = 0
        self._drive_at = now
        self._house_at = now
        self._expire_at = now + EXPIRE_MS
        self.admission = Admission(config, incarnation, self.desk, self._create_meta)
        self.members = Members(
            self.desk,
            rng,
            image=lambda: self.meta.image,
            named=self._named,
            known=lambda: self.addresses,
            question=status_question(config, incarnation),
        )
        self.mover = Mover(self.node, incarnation, self.desk, self.data, self._report)
        areas = RepairAreas(self.desk)
        self.repairs = Repairs(self.desk, areas)
        self.copies = Copies(self.node, self.desk, areas)
        self.seal_waits = SealWaits(self.desk)
        self.operations = Operations(self)
        self.handlers = Handlers(self)
        self.leadership = Leadership(self)
        self.compactor = Compactor(self)
        self._update_addresses()

    # --- opening -----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        config: NodeConfig,
        incarnation: str,
        groups: Mapping[GroupId, tuple[Found, bytes | None]],
        damaged: Sequence[Lost],
        rng: "random.Random",
        now: int,
        wall: int,
        staged: Sequence[str] = (),
        *,
        start: int = 0,
        holding: Collection[GroupId] = (),
        starts: Mapping[str, Start] | None = None,
        left: Mapping[GroupId, HardState] | None = None,
        levels: Levels = SPOKEN,
        writer: str = "",
    ) -> "Host":
        """From what the log and the checkpoints held.

        Args:
            groups: log and checkpoint payload of every group on this disk.
            damaged: such groups do not run: they neither vote nor acknowledge.
            staged: staging areas that an earlier life has left.
            start: number of this start of the node, counted from 1; 0 where nobody counts.
            holding: groups with files on this disk.
            starts: the newest starts of other nodes that were seen, by incarnation.
            left: what the log remembers of groups that this node left.
            levels: feature levels that this node speaks.
            writer: the library, with its version, that makes its files.
        """
        host = cls(config, incarnation, rng, now, wall, start, levels, writer)
        host.starts = Starts(starts or {})
        host._left = dict(left or {})
        host.damaged = {d.group: d.message for d in damaged if d.group}
        anybody = next((d.message for d in damaged if not d.group), None)
        if anybody is not None:  # it may be any of them
            host.damaged = dict.fromkeys({META, *groups}, anybody) | host.damaged
        host._compare(groups, holding)
        if META in groups and META not in host.damaged:
            host._reopen_meta(*groups[META])
        for group in sorted(set(groups) - {META} - set(host.damaged) - set(host._unlogged)):
            host._reopen_data(group, *groups[group])
        if host.meta_replica is not None:
            host.admission.stop()
            host._on_meta()
        if META not in host.damaged:
            host.admission.start()
        for area in staged:
            if area.startswith(INSTALL):
                host.desk.later(INSTALL_KEEP_MS, partial(host._drop_install, area))
        return host

    def _drop_install(self, area: str) -> None:
        """A snapshot half fetched by an earlier life goes, unless its leader offered it again."""
        self.desk.remove(
            DropStaging(area), still=lambda: not any(r.is_installing(area) for r in self.replicas())
        )

    def _compare(
        self, groups: Mapping[GroupId, tuple[Found, bytes | None]], holding: Collection[GroupId]
    ) -> None:
        """Find what does not belong together. A directory of a group that the log knows nothing of is what a
        creation or a removal has left that was cut short, or the log was lost: the meta state tells, when it
        is current (`_sync_groups`)."""
        for group, (found, payload) in groups.items():
            fault = fault_of(group, found, payload, self.desk.owner)
            if fault:
                self.damaged.setdefault(group, fault)
            elif group != META and group not in self.damaged and is_traceless(found):
                self._unlogged[group] = is_blank(payload) and group not in holding
        self.damaged |= {
            g: f"data/groups/{g} holds data that the log knows nothing of"
            for g, blank in self._unlogged.items()
            if not blank
        }

    def _reopen_meta(self, found: Found, payload: bytes | None) -> None:
        saved = msgspec.msgpack.decode(payload, type=Saved) if payload else None
        try:
            levels = self.levels.own
            state = MetaState.decode(saved.state, levels) if saved else MetaState(levels=levels)
        except Exception as error:  # its bytes are whole: whatever is raised, another release wrote them
            self.damaged[META] = foreign(META, error)
            return
        log = self._open_log(META, found, saved)
        self._meta_known = log.last_index
        raft = self._raft(META, log, found.hard, state.applied)
        self.meta_replica = MetaReplica(raft, self.desk, self.outbox, state, self._on_meta, self.new_id)
        if saved is not None:
            self.meta_replica.number = self.meta_replica.number_needed = saved.base.checkpoint

    def _reopen_data(self, group: GroupId, found: Found, payload: bytes | None) -> None:
        assert payload is not None, group  # else it is damaged
        saved = msgspec.msgpack.decode(payload, type=Saved)
        log = self._open_log(group, found, saved)
        try:
            state = DataState.restore(decode_checkpoint(saved.state), log.base.index)
        except Exception as error:  # as in `_reopen_meta`
            self.damaged[group] = foreign(group, error)
            return
        failed: EntryFailed | None = None
        known = min(state.rows.recovered_to, log.last_index)
        if (
            known > log.base.index and not saved.sent
        ):  # committed for sure: rows return without waiting for a leader
            entries = log.slice(log.first_index, known, 1 << 62)
            try:
                state.apply(log.first_index, entries, self.desk.now)
            except EntryFailed as error:
                failed = error
        raft = self._raft(group, log, found.hard, max(state.rows.delivered, log.base.index))
        replica = self._add_data(group, raft, state)
        replica.number = replica.number_needed = saved.base.checkpoint
        if failed is not None:
            replica.stop(failed.index, failed.why)

    def _open_log(self, group: GroupId, found: Found, saved: Saved | None) -> RaftLog:
        base = found.base
        if saved is not None and saved.base.index == base.index:
            base = saved.base  # also when nothing of the group reached the log yet
        log = RaftLog(base, found.entries)
        if saved is not None and saved.base.index > base.index:
            kept = log.reset(saved.base)
            self.outbox.persist(group, [Rebase(group, saved.base, kept)])
        return log

    def _raft(self, group: GroupId, log: RaftLog, hard: HardState, applied: int) -> Raft:
        draw = partial(self.leadership.timeout_share, group)
        settings = self.config.raft
        if group == META:
            # Every node acts on what it reads there.
            settings = msgspec.structs.replace(settings, commit_news_ms=0)
        return Raft(self.node, log, hard, settings, draw, self.desk.now, applied)

    def _add_data(self, group: GroupId, raft: Raft, state: DataState) -> DataReplica:
        replica = DataReplica(
            *(group, raft, self.desk, self.outbox, state, self.config, self.new_id),
            self._is_source,
            self.copies.fetch,
            self.writer,
        )
        raft.passive = META in self.damaged  # it could serve nothing that it leads
        raft.room = self.desk.space.room
        self.data[group] = replica
        replica.start_jobs()
        return replica

    def _create(self, group: GroupId, base: Base) -> Raft:
        return self._raft(group, RaftLog(base, []), self._left.pop(group, HardState()), base.index)

    def _found(self, replica: Replica) -> None:
        """Write the first records of a replica just made into the log."""

        def founded() -> None:
            replica.founding = False

        replica.founding = True
        self.outbox.persist(replica.group, replica.first_records(), founded)

    def _create_meta(self, config: Config) -> None:
        raft = self._create(META, Base(0, 0, config))
        state = MetaState(levels=self.levels.own)
        self.meta_replica = MetaReplica(raft, self.desk, self.outbox, state, self._on_meta, self.new_id)
        self._found(self.meta_replica)

    def _create_data(self, group: GroupId, config: Config, state: DataState) -> None:
        """The first slots are in no log entry, so the checkpoint comes before the first promise."""
        base = Base(state.applied, 0, config, checkpoint=1)
        saved = Saved(base, encode_checkpoint(state.checkpoint()), group=group, owner=self.desk.owner)
        self._creating.add(group)

        def created(result: JobResult) -> None:
            self._creating.discard(group)
            if self.older_copy:
                return  # the group may have been here before
            if isinstance(result, Failed):
                self.desk.later(CREATE_AGAIN_MS, self._on_meta)
                return
            raft = self._create(group, base)
            replica = self._add_data(group, raft, state)
            replica.number = replica.number_needed = base.checkpoint
            self._found(replica)
            if self.node == header_of(group):
                raft.hurry(self.desk.now)
            self._on_meta()

        self.desk.job(SaveCheckpoint(group, msgspec.msgpack.encode(saved)), created)

    # --- what others look at -----------------------------------------------------------------------

    @property
    def meta(self) -> MetaState:
        return self.meta_replica.state if self.meta_replica is not None else self._empty

    @property
    def cluster_id(self) -> str:
        return self.meta.cluster_id

    @property
    def table_version(self) -> int:
        return self.meta.placement.version

    @property
    def level(self) -> int:
        """The cluster's feature level; 0 while there is no cluster."""
        return self.meta.image.level if self.cluster_id else 0

    @property
    def retired(self) -> Collection[str]:
        """Incarnations that are heard no more. Looked at for every frame, so nothing is copied."""
        return self.meta.image.retired

    @property
    def audit(self) -> Sequence[tuple[int, str, str]]:
        """(ms, who, what) of the meta group, oldest first, as far as it is applied here."""
        return self.meta.image.audit

    @property
    def meta_applied(self) -> int:
        return self.meta.applied

    @property
    def record_now(self) -> int:
        """The time to write into the meta group's records: its voters' where this node leads it."""
        replica = self.meta_replica
        if replica is None or not replica.leads:
            return self.desk.wall
        return self.clocks.record(replica.raft.log.config.voters)

    def _watch_clocks(self) -> None:
        """Name every voter whose clock is wrong, of the groups led here: nothing of those goes by its age."""
        skewed: dict[NodeId, int] = {}
        for replica in self.replicas():
            if replica.leads:
                skewed |= self.clocks.skewed(replica.raft.log.config.voters)
        for node in skewed.keys() - self.skewed.keys():
            self.desk.note("clock_skew", node=node, ahead_ms=skewed[node])
        self.skewed = skewed

    def _named(self) -> set[NodeId]:
        """Members by name alone, where the meta state does not know them (`members.standing`)."""
        seeds = set() if self.cluster_id else {s.node for s in self.config.seeds}
        return seeds | set(self.meta_replica.raft.log.config.members if self.meta_replica else ())

    @property
    def requests_failed(self) -> int:
        """Requests that ended with an exception: each is a bug."""
        return self.desk.failures

    def new_id(self) -> str:
        """An opaque id for a snapshot."""
        return f"{self.random.getrandbits(128):032x}"

    def _is_source(self, operation: str, group: GroupId, node: NodeId) -> bool:
        op = self.meta.operations.find(operation)
        return op is None or any(m.source == group and node in m.source_members for m in op.moves)

    # --- events ------------------------------------------------------------------------------------

    def standing(self, node: NodeId, incarnation: str, now: int) -> Standing:
        """Whether a peer is heard; to be asked before each of its frames is handed in.

        Effects may follow: other members are asked about a node that this one does not know.
        """
        self.desk.now = now
        standing = self.members.standing(node, incarnation)
        is_older = standing is Standing.MEMBER and incarnation in self.starts.older
        return Standing.OLDER if is_older else standing

    def on_raft(self, sender: NodeId, messages: list[Routed], now: int) -> None:
        """`sender` is a member (`standing`)."""
        self.desk.now = now
        self.heard[sender] = now
        for routed in messages:
            if isinstance(routed.message, HeartbeatReply) and routed.message.wall:
                self.clocks.heard(sender, routed.message.wall)
            if now < self._votes_from and isinstance(routed.message, VoteRequest):
                continue
            replica = self.replica(routed.group)
            if replica is not None:
                replica.step(sender, routed.message)

    def on_request(self, token: int, request: Request, now: int, wall: int) -> None:
        self.desk.now, self.desk.wall = now, wall
        self.handlers.on_request(token, request)

    def on_persisted(self, batch: int, now: int) -> None:
        self.desk.now = now
        self.outbox.completed(batch)

    def on_job(self, number: int, result: JobResult, now: int) -> None:
        self.desk.now = now
        self.desk.on_job(number, result)
        self._drive_at = now

    def on_snapshots_expired(self, names: Collection[str], now: int) -> None:
        """The shell dropped these snapshots: nobody read from them for long."""
        self.desk.now = now
        for replica in self.replicas():
            replica.snapshots_expired(names)

    def on_disk(self, free: int, total: int, now: int) -> None:
        """What the disk with log and data has, in bytes; told every fraction of a second."""
        self.desk.now = now
        space = self.desk.space
        before = space.is_low
        space.measured(free, total, sum(r.state.rows.memtable.nbytes for r in self.data.values()))
        for replica in self.data.values():
            replica.raft.room = space.room
        if space.is_low != before:
            self.desk.note("writes_refused" if space.is_low else "writes_taken_again", why=space.why)

    def on_retired(self, why: str, now: int) -> None:
        """A peer will not hear this node, because its incarnation was retired.

        Several that were given up together may still be a majority among themselves: what they let a client
        write would be lost, so they serve nobody. Not for ever: a removal that is cancelled takes it back.
        """
        self.desk.now = now
        self._retired_until, self._retired_why = now + RETIRED_MS, why

    def on_older_copy(self, why: str, now: int) -> None:
        """A peer knows of a later start of this directory, or of entries that this node forgot.

        From now on it neither votes nor acknowledges nor serves. The shell keeps that on disk.
        """
        self.desk.now = now
        if self.older_copy:
            return
        self.older_copy = why
        replicas = list(self.replicas())
        self.damaged |= dict.fromkeys([META, *(r.group for r in replicas)], why)
        self.meta_replica = None
        self.data.clear()
        for replica in replicas:
            self.outbox.forget(replica.group)
            replica.abandon()
        self.desk.note("older_copy", node=self.node, why=why)

    def _look_for_older(self) -> None:
        """Followers that forgot what they acknowledged are not heard any more, which they are told."""
        members = {n.incarnation for n in self.meta.image.nodes.values()}
        self.starts.prune(members)
        self.levels.prune(members)
        for replica in self.replicas():
            for node in replica.raft.forgetful():
                record = self.meta.image.nodes.get(node)
                if record is not None and record.incarnation not in self.starts.older:
                    evidence = f"{replica.group} there lacks entries that it acknowledged to {self.node}"
                    self.starts.older[record.incarnation] = why = older_sentence(node, evidence)
                    self.desk.note("older_copy", node=node, why=why)

    @property
    def outcast(self) -> str:
        """Why this node serves nobody for now; "" when it does.

        It may read in its own log that it was retired before a peer tells it so.
        """
        if self.incarnation in self.retired:
            return retired_sentence(self.incarnation, self.node)
        return self._retired_why if self.desk.now < self._retired_until else ""

    @property
    def no_room(self) -> str:
        """Why no files may be copied here for now, "" when they may."""
        return self.desk.space.why if self.desk.space.is_low else ""

    def on_reply(self, call: int, reply: Reply, now: int) -> None:
        self.desk.now = now
        self.desk.on_reply(call, reply)

    def tick(self, now: int, wall: int) -> None:
        self.desk.now, self.desk.wall = now, wall
        for replica in self.replicas():
            replica.tick()
        self.desk.fire()
        if now >= self._house_at:
            self._house_at = now + HOUSEKEEPING_MS
            self._keep_house()

    def hand_over(self, now: int) -> bool:
        """The node is about to stop: others take over what it leads. Call again until it is False."""
        self.desk.now = now
        return self.leadership.hand_over()

    def deadline(self) -> int:
        """When `tick` is due, in the monotonic time the events carry."""
        due = [r.raft.deadline() for r in self.data.values()]
        due += [self._house_at, self._drive_at]
        if self.meta_replica is not None:
            due.append(self.meta_replica.raft.deadline())
        of_desk = self.desk.deadline
        if of_desk is not None:
            due.append(of_desk)
        return min(due)

    # --- effects -----------------------------------------------------------------------------------

    def take(self) -> Effects:
        """Everything to do now, but for entries to apply past the turn's budget: the next call goes on with
        those. One persist batch and one frame per peer, however much happened."""
        budget = Budget()
        self._turn += 1
        replicas = self._in_turn()
        for _ in range(16):
            worked = [r.drain(budget) for r in replicas if r.raft.stirred]
            if self._drive_at <= self.desk.now or self.operations.is_due():
                self._drive_at = self.desk.now + DRIVE_MS
                self.operations.drive()
                worked.append(True)
                replicas = self._in_turn()  # others may be there now
            if not any(worked):
                break
        self.seal_waits.look()
        persist = self.outbox.take_persist()
        effects = Effects(
            persist=persist,
            sends=self.outbox.take_sends(),
            replies=self.desk.replies,
            jobs=self.desk.jobs,
            calls=self.desk.calls,
            notes=self.desk.notes,
            applied=APPLY_ENTRIES_PER_TURN - budget.entries,
            applied_bytes=APPLY_BYTES_PER_TURN - budget.nbytes,
        )
        self.desk.replies, self.desk.jobs, self.desk.calls, self.desk.notes = [], [], [], []
        return effects

    @property
    def idle(self) -> bool:
        desk = self.desk
        if desk.replies or desk.jobs or desk.calls or not self.outbox.idle:
            return False
        return not any(r.raft.has_ready for r in self.replicas() if r.raft.stirred)

    def replica(self, group: GroupId) -> Replica | None:
        return self.meta_replica if group == META else self.data.get(group)

    def replicas(self) -> Iterable[Replica]:
        if self.meta_replica is not None:
            yield self.meta_replica
        yield from self.data.values()

    def _in_turn(self) -> list[Replica]:
        """The meta group, then the data groups: each turn another is first at what may be applied."""
        data: list[Replica] = list(self.data.values())
        if len(data) > 1:
            first = self._turn % len(data)
            data = data[first:] + data[:first]
        return data if self.meta_replica is None else [self.meta_replica, *data]

    # --- the meta group says -----------------------------------------------------------------------

    def _report(self, command: meta_commands.Command) -> None:
        self.operations.report(command)

    def _on_meta(self) -> None:
        """Meta entries were applied: addresses, groups and due work may have changed."""
        self._drive_at = self.desk.now
        if self.meta_replica is not None and self.meta_replica.leads and not self.cluster_id:
            self._maybe_bootstrap()
        self._update_addresses()
        if self.cluster_id:
            self.admission.end()
            self._sync_groups()

    def _maybe_bootstrap(self) -> None:
        """The first leader of a new meta group writes the first entry."""
        assert self.meta_replica is not None
        if not self.admission.ask_again():
            if not self._bootstrap_due:
                self._bootstrap_due = True
                self.desk.later(HOUSEKEEPING_MS, self._bootstrap_again)
            return
        settings = self.config.cluster
        table = initial_table(first_ring(self.config), settings.slots)
        nodes = self.admission.records()
        level = self.levels.common(nodes)
        command = meta_commands.Bootstrap(
            self.desk.wall, self.new_id(), settings, nodes, table.to_wire(), level
        )
        self.meta_replica.propose([meta_commands.encode(command)])

    def _bootstrap_again(self) -> None:
        self._bootstrap_due = False
        self._on_meta()

    def _update_addresses(self) -> None:
        addresses = {s.node: (s.host, s.port) for s in self.config.seeds}
        if self.meta.image.nodes:
            addresses = {n.node: (n.host, n.port) for n in self.meta.image.nodes.values()}
        addresses.pop(self.node, None)
        self.addresses = addresses

    @property
    def unsettled(self) -> Collection[GroupId]:
        """Groups with a directory that the log knows nothing of, while the meta state is too old to tell
        whether this node left them. What it left goes then by itself."""
        return () if self.is_current else self._unlogged.keys()

    @property
    def is_current(self) -> bool:
        """Whether the meta state is as new as it ever was here.

        After a start it is that of its checkpoint: it may not know of a group that was made later, or believe
        in one that this node has left.
        """
        replica = self.meta_replica
        return replica is not None and self.meta.applied >= min(self._meta_known, replica.raft.log.last_index)

    def _sync_groups(self) -> None:
        """Create and remove replicas so that they are what the meta state says (and only that)."""
        if not self.is_current:
            return
        op = self.meta.operations.open()
        joining = {c.group for c in op.changes if c.joins == self.node} if op else set()
        if op is not None and op.stage in ("PLANNED", "CANCELLING"):
            joining = set()
        needed = set(joining)
        if op is not None:
            needed |= {c.group for c in op.changes if self.node in c.before}
            needed |= {m.source for m in op.moves if self.node in m.source_members}
        groups = self.meta.image.groups
        self._settle_unlogged(joining, needed)
        for group, record in groups.items():
            if group in self.data or group in self.damaged or group in self._creating | self._removing:
                continue
            if self.node in record.members and self.node in record.initial_members:
                slots = initial(group, record.initial_slots)
                self._create_data(group, Config(record.initial_members), slots)
            elif group in joining or self.node in record.members:
                self._create_data(group, Config(), DataState(group))
        for group, operation in list(self._joined.items()):
            replaced = op is None or op.id != operation or group not in joining
            known = groups.get(group)
            if replaced and group in self.data and (known is None or self.node not in known.members):
                self._remove(group)  # what it got was for an operation that was cancelled
        self._joined = {g: op.id for g in joining} if op is not None else {}
        for group in joining & set(self.data):
            sealed = self.data[group].state.slots.sealed
            is_ready = op is not None and (group, self.node) in op.joined  # what it promised must stay
            if not is_ready and any(s.hollow and name != self._joined[group] for name, s in sealed.items()):
                self._remove(group)  # the same, when the cancel came while this node was down
        for group in list(self.data):
            current = groups.get(group)
            if current is None or (self.node not in current.members and group not in needed):
                self._remove(group)
        for group in self._left.keys() - groups.keys():  # gone for good: no group has its id again
            del self._left[group]
            self.outbox.persist(group, [Forget(group)])

    def _settle_unlogged(self, joining: Collection[GroupId], needed: Collection[GroupId]) -> None:
        """What the log knows nothing of goes when the committed meta state says that this node has no part in
        the group. If it has, an empty directory is made use of; one with data stays damaged."""
        op = self.meta.operations.open()
        for group, blank in list(self._unlogged.items()):
            record = self.meta.image.groups.get(group)
            promised = op is not None and (group, self.node) in op.joined
            is_member = record is not None and self.node in record.members
            if is_member or promised or (group in needed and group not in joining):
                if blank:
                    del self._unlogged[group]
                continue
            del self._unlogged[group]
            self.damaged.pop(group, None)
            self._removing.add(group)
            self._remove_files(group)

    def joined(self, operation: str) -> set[GroupId]:
        """Replicas here that were made to join their group by `operation`."""
        return {g for g, op in self._joined.items() if op == operation and g in self.data}

    def _remove(self, group: GroupId) -> None:
        replica = self.data.pop(group)
        self._removing.add(group)  # not again before its files are gone
        self.outbox.forget(group)
        forget = Forget(group)
        if group in self.meta.image.groups:
            memory = self._left[group] = replica.raft.memory()
            forget = Forget(group, memory)
        # The log first: a log without a checkpoint would look like damage.
        self.outbox.persist(group, [forget], lambda: replica.remove(lambda: self._remove_files(group)))
        replica.abandon()
        self.desk.note("replica_removed", group=group)

    def _remove_files(self, group: GroupId) -> None:
        def gone() -> None:
            self._removing.discard(group)
            self._on_meta()

        self.desk.remove(RemoveGroup(group), gone)

    # --- now and then ------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        for replica in self.replicas():
            # A meta checkpoint says that what it takes away is gone.
            if not self._removing or replica is not self.meta_replica:
                replica.maybe_checkpoint()
        for replica in self.replicas():
            replica.drop_taken()
            replica.keep_log()
        for replica in self.data.values():
            replica.maybe_close()
            replica.freshness.refresh(self.config.staleness_max_ms // 2)
        self._watch_clocks()
        self.leadership.keep()
        self._look_for_older()
        self.compactor.keep()
        if self.desk.now >= self._expire_at:
            self._expire_at = self.desk.now + EXPIRE_MS
            for replica in self.data.values():
                replica.expire_sessions()

    # --- status ------------------------------------------------------------------------------------

    def state(self) -> str:
        if self.admission.refused:
            return "refused"
        if META in self.damaged:
            return "damaged"
        if self.meta_replica is None or not self.cluster_id:
            return "joining" if self.config.join else "forming"
        record = self.meta.image.nodes.get(self.node)
        if self.outcast:
            return "removed"
        if record is None:
            return "joining"
        return "draining" if record.draining and record.state == "active" else record.state

    def _why(self) -> str:
        """Why this node does not serve; "" when nothing is known to be in the way."""
        if self.admission.refused or META in self.damaged or self.outcast:
            return self.admission.refused or self.damaged.get(META, "") or self.outcast
        waits = ", ".join(self.admission.waiting_for) if self.meta_replica is None else ""
        return f"it waits for {waits}" if waits else ""

    def node_status(self, now: int, wall: int) -> NodeStatus:
        """What only the shell knows (disk, certificates, pulled bytes) it fills in itself."""
        members = self.meta.image.nodes
        groups = [self._group_status(r) for r in self.replicas()]
        groups += [self._damaged_status(g, why) for g, why in self.damaged.items()]
        return NodeStatus(
            node=self.node,
            incarnation=self.incarnation,
            cluster_id=self.cluster_id,
            cluster=self.config.cluster.name,
            version=__version__,
            state=self.state(),
            now_ms=wall,
            started_ms=wall - (now - self._started),
            table_version=self.table_version,
            groups=tuple(groups),
            room=self.desk.space.room.name.lower(),
            heard_ms={n: now - at for n, at in self.heard.items() if n in members or not members},
            clock_skew_ms=dict(self.skewed),
            why=self._why(),
            unremoved=dict(self.desk.unremoved),
            level=self.level,
            oldest_level=self.levels.own.oldest,
            newest_level=self.levels.own.newest,
        )

    def _damaged_status(self, group: GroupId, why: str) -> GroupStatus:
        hint = f"iotctl cluster replace-node {self.node} NEW"
        if group in self.unsettled:
            hint = f"wait until {self.node} has the newest meta state: a group that it left goes by itself"
        return GroupStatus(group, "damaged", None, 0, (), (), 0, 0, 0, state="damaged", error=why, hint=hint)

    def _hint(self, replica: DataReplica) -> str:
        if replica.is_lost:
            return f"iotctl verify --repair; if that fails: iotctl cluster replace-node {self.node} NEW"
        return "iotctl verify --repair" if replica.leads and replica.damaged else ""

    def _group_status(self, replica: Replica) -> GroupStatus:
        status, pin = replica.raft.status(), replica.log_pin
        base = GroupStatus(
            group=replica.group,
            role=status.role.value,
            leader=status.leader,
            term=status.term,
            voters=status.config.voters,
            learners=status.config.learners,
            commit=status.commit,
            applied=replica.seen,
            last=status.last,
            lag={n: max(0, status.last - p.match) for n, p in status.progress.items()},
            error=replica.stopped or replica.error,
            last_term=replica.raft.log.last_term,
            state="stopped" if replica.stopped else "running",
            hint=f"iotctl cluster upgrade {self.node}" if replica.stopped else "",
            log_bytes=replica.log_bytes(),
            log_held_by=str(pin) if pin is not None else "",
            log_pin=pin,
        )
        if not isinstance(replica, DataReplica):
            return base
        state = replica.state
        return msgspec.structs.replace(
            base,
            slots=len(state.slots.open),
            files=len(state.files.manifest),
            bytes=state.files.manifest.nbytes,
            rows=state.files.manifest.rows + state.rows.memtable.rows,
            memtable_bytes=state.rows.memtable.nbytes,
            materialised=state.materialised,
            compacting=len(state.compactions.under_way),
            files_most=state.files.manifest.most_files(),
            error=replica.stopped or replica.trouble,
            hint=self._hint(replica) or base.hint,
            state=base.state if replica.stopped else "running" if state.rows.recovered else "recovering",
        )

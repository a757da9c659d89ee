"""Creates and removes replicas, so that this node has exactly those that the meta state names."""

from collections.abc import Callable, Collection

import msgspec

from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.data.state import DataState, initial
from nodeagent.host.builder import ReplicaBuilder
from nodeagent.host.context import Context
from nodeagent.host.installs import INSTALL_KEEP_MS
from nodeagent.host.own_membership import OwnMembership
from nodeagent.host.replica import Replica
from nodeagent.host.replicas import Replicas
from nodeagent.host.saved import Saved
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Base, Config, Forget, HardState
from nodeagent.model.ids import META, GroupId, owner_of
from nodeagent.model.jobs import DropStaging, Failed, JobResult, RemoveGroup, SaveCheckpoint
from nodeagent.model.operation import Operation, order_of
from nodeagent.raft.log import RaftLog

CREATE_AGAIN_MS = 1_000


class Lifecycle:
    """The replicas of this node follow the meta state.

    Args:
        on_meta: checks the meta state again, after a replica was created or removed here.
    """

    def __init__(
        self,
        context: Context,
        replicas: Replicas,
        builder: ReplicaBuilder,
        own_membership: OwnMembership,
        on_meta: Callable[[], None],
    ) -> None:
        self._node = context.node
        self._effects = context.effects
        self._outbox = context.outbox
        self._levels = context.levels
        self._replicas = replicas
        self._cluster = replicas.cluster
        self._builder = builder
        self._own_membership = own_membership
        self._on_meta = on_meta
        self._creating: set[GroupId] = set()
        self._removing: set[GroupId] = set()
        self.left: dict[GroupId, HardState] = {}
        """Term, vote and held log position that the log stores for groups that this node left."""

        self._joined: dict[GroupId, str] = {}
        """Groups that this node is joining -> the operation."""

    @property
    def is_removing(self) -> bool:
        """Whether files of a removed replica may still be on disk."""
        return bool(self._removing)

    def joined(self, operation: str) -> set[GroupId]:
        """Groups whose replica here was created to join by `operation`."""
        op = self._cluster.meta.operations.find(operation)
        return {
            g
            for g, name in self._joined.items()
            if name == operation
            and g in self._replicas.data
            and (op is None or not self._is_from_before_recovery(op, g))
        }

    # --- creating ----------------------------------------------------------------------------------

    def create_meta(self, config: Config) -> None:
        log = RaftLog(Base(0, 0, config), [])
        state = MetaState(levels=self._levels.own)
        self._record_new(self._builder.meta(log, self.left.pop(META, HardState()), state))

    def _create_data(self, group: GroupId, config: Config, state: DataState) -> None:
        """The initial slots are in no log entry, so the checkpoint is written before the first promise."""
        base = Base(state.applied, 0, config, checkpoint=1)
        saved = Saved(base, encode_checkpoint(state.checkpoint()), group=group, owner=self._effects.owner)
        self._creating.add(group)

        def created(result: JobResult) -> None:
            self._creating.discard(group)
            if self._own_membership.older_copy:
                return  # the group may have had a replica here before
            if isinstance(result, Failed):
                self._effects.later(CREATE_AGAIN_MS, self._on_meta)
                return
            hard = self.left.pop(group, HardState())
            replica = self._builder.data(group, RaftLog(base, []), hard, state, base.index)
            replica.checkpoints.continue_from(base.checkpoint)
            self._record_new(replica)
            if self._node == owner_of(group):
                replica.raft.campaign_soon(self._effects.now)
            self._on_meta()

        self._effects.job(SaveCheckpoint(group, msgspec.msgpack.encode(saved)), created)

    def _record_new(self, replica: Replica) -> None:
        """Write the first records of a new replica into the log."""

        def recorded() -> None:
            replica.condition.is_unlogged = False

        replica.condition.is_unlogged = True
        self._outbox.persist(replica.group, replica.first_records(), recorded)

    # --- following the meta state ------------------------------------------------------------------

    def sync(self) -> None:
        """Create and remove replicas so that they are those that the meta state names."""
        if not self._cluster.is_current:
            return
        data, groups = self._replicas.data, self._cluster.meta.image.groups
        op = self._cluster.meta.operations.open()
        joining = self._joining(op)
        needed = joining | self._leaving(op)
        self._resolve_unlogged(op, joining, needed)
        self._create_missing(joining)
        for group, operation in list(self._joined.items()):
            replaced = op is None or op.id != operation or group not in joining
            known = groups.get(group)
            if replaced and group in data and (known is None or self._node not in known.members):
                self._remove(group)  # it was created for an operation that was cancelled
        self._joined = {g: op.id for g in joining} if op is not None else {}
        for group in joining & set(data):
            if op is not None and self._is_from_before_recovery(op, group):
                self._remove(group)
                continue
            sealed = data[group].state.slots.sealed
            # A reported join must not be undone.
            is_ready = op is not None and (group, self._node) in op.joined
            if not is_ready and any(
                s.metadata_only and name != self._joined[group] for name, s in sealed.items()
            ):
                self._remove(group)  # created for an operation that was cancelled while this node was down
        for group in list(data):
            current = groups.get(group)
            if current is None or (self._node not in current.members and group not in needed):
                self._remove(group)
        for group in self.left.keys() - groups.keys():  # removed; group ids are never reused
            del self.left[group]
            self._outbox.persist(group, [Forget(group)])

    def _is_from_before_recovery(self, op: Operation, group: GroupId) -> bool:
        """Whether the replica here was filled by the group as it was before it lost its majority. It may have
        entries that the group has lost, so it is made again before this node joins."""
        recovery = op.recovered.get(group)
        record = self._cluster.meta.image.groups.get(group)
        is_member = record is not None and self._node in record.members
        if recovery is None or is_member or (group, self._node) in op.joined:
            return False
        replica = self._replicas.data[group]
        config = replica.raft.log.config
        is_filled = bool(config.members) or replica.installing
        return is_filled and order_of(config.operation) < order_of(recovery)

    def _joining(self, op: Operation | None) -> set[GroupId]:
        """Groups that this node is to join now."""
        if op is None or op.stage in ("PLANNED", "CANCELLING"):
            return set()
        return {c.group for c in op.changes if c.joins == self._node}

    def _leaving(self, op: Operation | None) -> set[GroupId]:
        """Groups that change members or lose slots and of which this node was a member before; the operation
        needs their data on this node."""
        if op is None:
            return set()
        members = {c.group for c in op.changes if self._node in c.before}
        return members | {m.source for m in op.moves if self._node in m.source_members}

    def _create_missing(self, joining: Collection[GroupId]) -> None:
        replicas = self._replicas
        for group, record in self._cluster.meta.image.groups.items():
            if (
                group in replicas.data
                or group in replicas.damaged
                or group in self._creating | self._removing
            ):
                continue
            if self._node in record.members and self._node in record.initial_members:
                slots = initial(group, record.initial_slots)
                self._create_data(group, Config(record.initial_members), slots)
            elif group in joining or self._node in record.members:
                self._create_data(group, Config(), DataState(group))

    def _resolve_unlogged(
        self, op: Operation | None, joining: Collection[GroupId], needed: Collection[GroupId]
    ) -> None:
        """Remove directories without a record in the log if the committed meta state does not name this node
        in their group. If it does, an empty directory is reused, and one with data stays damaged."""
        replicas = self._replicas
        for group, blank in list(replicas.unlogged.items()):
            record = self._cluster.meta.image.groups.get(group)
            promised = op is not None and (group, self._node) in op.joined
            is_member = record is not None and self._node in record.members
            if is_member or promised or (group in needed and group not in joining):
                if blank:
                    del replicas.unlogged[group]
                continue
            del replicas.unlogged[group]
            replicas.damaged.pop(group, None)
            self._removing.add(group)
            self._remove_files(group)

    # --- removing ----------------------------------------------------------------------------------

    def _remove(self, group: GroupId) -> None:
        replica = self._replicas.data.pop(group)
        self._removing.add(group)  # no new replica before its files are removed
        self._outbox.forget(group)
        forget = Forget(group)
        if group in self._cluster.meta.image.groups:
            memory = self.left[group] = replica.raft.memory()
            forget = Forget(group, memory)
        # The log first: a group in the log without a checkpoint would count as damaged.
        self._outbox.persist(group, [forget], lambda: replica.remove(lambda: self._remove_files(group)))
        replica.abandon()
        self._effects.note("replica_removed", group=group)

    def _remove_files(self, group: GroupId) -> None:
        def removed() -> None:
            self._removing.discard(group)
            self._on_meta()

        self._effects.remove(RemoveGroup(group), removed)

    def drop_install_later(self, area: str) -> None:
        """Remove the files of a snapshot that an earlier process began to pull, unless the leader offers it
        again."""

        def is_unused() -> bool:
            return not any(r.installs.is_in(area) for r in self._replicas)

        self._effects.later(INSTALL_KEEP_MS, lambda: self._effects.remove(DropStaging(area), still=is_unused))

    def stop_all(self, why: str) -> None:
        """Stop all replicas; the disk stays as it is."""
        stopped = list(self._replicas)
        self._replicas.damaged |= dict.fromkeys([META, *(r.group for r in stopped)], why)
        self._cluster.meta_replica = None
        self._replicas.data.clear()
        for replica in stopped:
            self._outbox.forget(replica.group)
            replica.abandon()

"""Raft groups without data on simulated machines: the real `raft`, `log`, `outbox`, `replica` and
checkpoints.

The state of a group is a `Tally`: a number for each client and a digest of all applied entries. So a run with
many faults takes a second, and replicas can be compared after every entry.
"""

import random
import zlib
from collections.abc import Callable, Collection, Iterable
from functools import partial

import msgspec

from nodeagent.host.budget import Budget
from nodeagent.host.effect_queue import EffectQueue, Effects
from nodeagent.host.found import fault_of, is_traceless
from nodeagent.host.group_context import GroupContext
from nodeagent.host.outbox import Outbox
from nodeagent.host.replica import Replica
from nodeagent.host.saved import Saved
from nodeagent.host.state_machine import StateMachine
from nodeagent.log import GroupLog, Recovered
from nodeagent.model.config import RaftSettings
from nodeagent.model.entries import Base, Config, Entry, EntryKind, Forget, HardState, Rebase
from nodeagent.model.errors import Damaged
from nodeagent.model.ids import GroupId, NodeId, Owner
from nodeagent.model.jobs import Failed, JobResult, RemoveGroup, SaveCheckpoint
from nodeagent.model.raft_messages import Routed
from nodeagent.model.requests import ErrorReply, Reply, Request, Written
from nodeagent.raft import Raft, RaftLog
from nodeagent.storage import layout
from nodeagent.testing.machine import Machine
from nodeagent.testing.process import UPKEEP_MS
from nodeagent.testing.sim import Sim

HOUSE_MS = 50
"""Interval of the groups' maintenance, unless half a heartbeat is longer."""

NOTHING = GroupLog(Base(0, 0, Config()), HardState(), [])


class Count(msgspec.Struct, array_like=True, frozen=True):
    """A command: client `who` counted to `number`. `mark` is unique to each proposal of it."""

    who: str
    number: int
    mark: str


class Tally(msgspec.Struct):
    """A group's state: equal on all members at equal `applied`."""

    applied: int = 0
    digest: int = 0
    numbers: dict[str, int] = {}


_encode_count = msgspec.msgpack.Encoder().encode
decode_count = msgspec.msgpack.Decoder(Count).decode


class TallyMachine(StateMachine):
    def __init__(self, group: GroupId, state: Tally) -> None:
        self._group = group
        self.state = state

    @property
    def applied_index(self) -> int:
        return self.state.applied

    @property
    def state_index(self) -> int:
        return self.state.applied

    def apply_entries(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        state = self.state
        assert first == state.applied + 1, f"S4: {self._group} applies {first} after {state.applied}"
        replies: list[tuple[int, Reply]] = []
        for index, entry in enumerate(entries, first):
            state.digest = zlib.crc32(entry.data, state.digest ^ entry.kind ^ entry.term)
            if entry.kind == EntryKind.COMMAND:
                count = decode_count(entry.data)
                if count.number > state.numbers.get(count.who, 0):
                    state.numbers[count.who] = count.number
                replies.append((index, Written(index)))
        state.applied += len(entries)
        return replies

    def log_needed_after(self) -> int:
        return self.state.applied

    def encode_state(self, peer: NodeId | None) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def restore(self, payload: bytes, base: int) -> None:
        self.state = msgspec.msgpack.decode(payload, type=Tally)
        assert self.state.applied == base, (
            f"S16: the state at {self.state.applied} was sent as the state at {base}"
        )


class TallyReplica(Replica):
    def __init__(
        self,
        group: GroupId,
        raft: Raft,
        effects: EffectQueue,
        outbox: Outbox,
        state: Tally,
        new_id: Callable[[], str],
    ) -> None:
        self._machine = TallyMachine(group, state)
        super().__init__(GroupContext(group, raft, effects, outbox), self._machine, new_id)

    @property
    def state(self) -> Tally:
        return self._machine.state


class Groups:
    """The replicas of one machine: the part of `host.host.Host` that all groups share."""

    no_room = ""

    def __init__(
        self, owner: Owner, rng: random.Random, now: int, settings: RaftSettings, *, relays: bool = False
    ) -> None:
        self.relays = relays
        self.effects = EffectQueue(now, 0, owner)
        self.outbox = Outbox()
        self.data: dict[GroupId, TallyReplica] = {}
        self.damaged: dict[GroupId, str] = {}
        self.left: dict[GroupId, HardState] = {}
        self._rng = rng
        self._settings = settings
        self._house_at = now
        self._busy: set[GroupId] = set()
        """Groups that are being created or removed."""

    # --- replicas ----------------------------------------------------------------------------------

    def reopen(self, group: GroupId, found: GroupLog, payload: bytes | None) -> None:
        """Reopen a replica as a starting host does."""
        fault = fault_of(group, found, payload, self.effects.owner)
        if fault:
            self.damaged.setdefault(group, fault)
        if group in self.damaged or payload is None:
            return
        if is_traceless(found):  # left by an interrupted creation or removal
            self._drop(group)
            return
        saved = msgspec.msgpack.decode(payload, type=Saved)
        log = RaftLog(saved.base if saved.base.index == found.base.index else found.base, found.entries)
        if saved.base.index > log.base.index:
            kept = log.reset(saved.base)
            self.outbox.persist(group, [Rebase(group, saved.base, kept)])
        state = msgspec.msgpack.decode(saved.state, type=Tally)
        replica = self._add(group, log, found.hard, state)
        replica.checkpoints.continue_from(saved.base.checkpoint)

    def _add(self, group: GroupId, log: RaftLog, hard: HardState, state: Tally) -> TallyReplica:
        node = self.effects.owner.node
        raft = Raft(node, log, hard, self._settings, self._rng.random, self.effects.now, state.applied)
        raft.room = self.effects.space.room
        raft.relays = self.relays
        replica = self.data[group] = TallyReplica(
            group, raft, self.effects, self.outbox, state, lambda: f"{self._rng.getrandbits(128):032x}"
        )
        return replica

    def create(self, group: GroupId, config: Config, founded: Callable[[], None]) -> None:
        """Create an empty replica: first its checkpoint, then its first log record."""
        if group in self._busy or group in self.data or group in self.damaged:
            return
        self._busy.add(group)
        base = Base(0, 0, config, checkpoint=1)
        payload = Saved(base, msgspec.msgpack.encode(Tally()), group=group, owner=self.effects.owner)

        def created(result: JobResult) -> None:
            self._busy.discard(group)
            if isinstance(result, Failed):
                return
            replica = self._add(group, RaftLog(base, []), self.left.pop(group, HardState()), Tally())
            replica.checkpoints.continue_from(base.checkpoint)
            replica.condition.is_unlogged = True

            def durable() -> None:
                replica.condition.is_unlogged = False
                founded()

            self.outbox.persist(group, replica.first_records(), durable)

        self.effects.job(SaveCheckpoint(group, msgspec.msgpack.encode(payload)), created)

    def remove(self, group: GroupId) -> None:
        """Forget the group and delete its files; it may be created again with an empty log."""
        replica = self.data.pop(group)
        self._busy.add(group)
        self.outbox.forget(group)
        memory = self.left[group] = replica.raft.memory()
        self.outbox.persist(
            group, [Forget(group, memory)], lambda: replica.remove(partial(self._drop, group))
        )
        replica.abandon()

    def _drop(self, group: GroupId) -> None:
        self._busy.add(group)
        self.effects.remove(RemoveGroup(group), lambda: self._busy.discard(group))

    # --- events ------------------------------------------------------------------------------------

    def on_raft(self, sender: NodeId, messages: list[Routed], now: int) -> None:
        self.effects.now = now
        for routed in messages:
            replica = self.data.get(routed.group)
            if replica is not None:
                replica.step(sender, routed.message)

    def on_persisted(self, batch: int, now: int) -> None:
        self.effects.now = now
        self.outbox.completed(batch)

    def on_job(self, number: int, result: JobResult, now: int) -> None:
        self.effects.now = now
        self.effects.on_job(number, result)

    def on_reply(self, call: int, reply: Reply, now: int) -> None:
        self.effects.now = now
        self.effects.on_reply(call, reply)

    def on_snapshots_expired(self, names: Collection[str], now: int) -> None:
        self.effects.now = now
        for replica in self.data.values():
            replica.snapshots.on_expired(names)

    def on_disk(self, free: int, total: int, now: int) -> None:
        self.effects.now = now
        self.effects.space.measured(free, total, 0)
        for replica in self.data.values():
            replica.raft.room = self.effects.space.room

    def tick(self, now: int, wall: int) -> None:
        self.effects.now = now
        for replica in self.data.values():
            replica.tick()
        self.effects.fire()
        if now >= self._house_at:
            self._house_at = now + max(HOUSE_MS, self._settings.heartbeat_ms // 2)
            for replica in self.data.values():
                replica.checkpoints.maybe_save()
                replica.snapshots.drop_taken()
                replica.checkpoints.keep_log()

    def deadline(self) -> int:
        due = [self._house_at, *(r.raft.deadline() for r in self.data.values())]
        if self.effects.deadline is not None:
            due.append(self.effects.deadline)
        return min(due)

    def take(self) -> Effects:
        budget = Budget()
        for _ in range(16):
            if not any([r.drain(budget) for r in self.data.values() if r.raft.stirred]):
                break
        effects = self.effects
        out = Effects(
            self.outbox.take_persist(),
            self.outbox.take_sends(),
            effects.replies,
            effects.jobs,
            effects.calls,
            effects.notes,
        )
        effects.replies, effects.jobs, effects.calls, effects.notes = [], [], [], []
        return out

    @property
    def idle(self) -> bool:
        effects = self.effects
        if effects.replies or effects.jobs or effects.calls or not self.outbox.idle:
            return False
        return not any(r.raft.has_ready for r in self.data.values() if r.raft.stirred)


class GroupNode(Machine):
    """A machine that runs only Raft groups. Clients use `count` and `read`."""

    host: Groups

    def __init__(self, sim: "Sim[GroupNode]", node: NodeId, settings: RaftSettings) -> None:
        super().__init__(sim, node)
        self.settings = settings
        self.relays = False
        """Whether followers relay entries to learners."""

        self.upkeep_ms = max(UPKEEP_MS, 2 * settings.heartbeat_ms)
        self.founded: set[GroupId] = set()
        """Groups for which it has made promises: they are not created again, whatever is lost."""

    def _open_host(self, recovered: Recovered) -> None:
        owner = Owner(self.node, self.incarnation, self.identity.start)
        rng = random.Random(self.sim.rng.getrandbits(64))
        host = self.host = Groups(owner, rng, self.now, self.settings, relays=self.relays)
        host.damaged = {d.group: d.message for d in recovered.damaged}
        host.left = dict(recovered.left)
        known = self.disk.listdir(layout.GROUPS) if self.disk.exists(layout.GROUPS) else []
        found = {*recovered.groups, *known}
        if "" in host.damaged:
            host.damaged = dict.fromkeys({*found, *self.founded}, host.damaged[""])
        self.later(self.upkeep_ms, self._upkeep)
        for group in sorted(found):
            try:
                host.reopen(group, recovered.groups.get(group, NOTHING), self.storage.checkpoint(group))
            except Damaged as error:
                host.damaged[group] = error.what
        assert self.lossy or not host.damaged, (self.node, host.damaged)
        self.founded &= {*host.damaged, *(g for g, f in recovered.groups.items() if not is_traceless(f))}
        self.founded |= host.data.keys()
        self.sim.note(f"{self.node} starts, life {self.life}, groups {sorted(host.data)}")

    def create(self, group: GroupId, config: Config) -> None:
        """Create a replica, unless it exists or existed and was lost."""
        if self.alive and group not in self.founded:
            self.host.effects.now = self.now
            self.host.create(group, config, lambda: self.founded.add(group))
            self.wake()

    def remove(self, group: GroupId) -> None:
        self.host.effects.now = self.now
        self.founded.discard(group)
        self.host.remove(group)
        self.wake()

    # --- replicas ----------------------------------------------------------------------------------

    def replicas(self) -> Iterable[TallyReplica]:
        return self.host.data.values()

    def replica(self, group: GroupId) -> TallyReplica | None:
        return self.host.data.get(group)

    def damage(self, group: GroupId) -> str:
        return self.host.damaged.get(group, "")

    # --- arrivals ----------------------------------------------------------------------------------

    def on_raft(self, sender: NodeId, messages: list[Routed]) -> None:
        self.host.on_raft(sender, messages, self.now)
        self.wake()

    def serve(self, peer: NodeId, request: Request, answer: Callable[[Reply], None]) -> None:
        answer(ErrorReply("refused", f"{self.node} runs only Raft groups"))

    def count(
        self, group: GroupId, who: str, numbers: list[int], answer: Callable[[Reply], None]
    ) -> list[str]:
        """Propose to count these numbers; returns the marks of the commands."""
        replica = self.host.data.get(group)
        if replica is None:
            answer(ErrorReply("not_leader", f"{self.node} does not hold {group}"))
            return []
        self.host.effects.now = self.now
        token = self.token(answer)
        marks = [f"{self.node}.{self.life}.{token}.{n}" for n in numbers]
        replica.propose([_encode_count(Count(who, n, m)) for n, m in zip(numbers, marks, strict=True)], token)
        self.wake()
        return marks

    def read(self, group: GroupId, who: str, answer: Callable[[int | None], None]) -> None:
        """Read one number with a strong read; None if the read is refused."""
        replica = self.host.data.get(group)
        if replica is None:
            answer(None)
            return
        self.host.effects.now = self.now
        replica.read(lambda: answer(replica.state.numbers.get(who, 0)), lambda why: answer(None))
        self.wake()

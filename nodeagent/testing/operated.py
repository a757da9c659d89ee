"""A simulated cluster and its operator: requests, changes, and forced recovery."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from nodeagent.data.commands import DeleteRange, WriteRows, decode
from nodeagent.model import requests as q
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.ids import META
from nodeagent.model.operation import Options, order_of
from nodeagent.model.requests import ErrorReply, OperationReply, Reply
from nodeagent.partition.ranges import from_slots
from nodeagent.partition.recovery import recovery_leader_of
from nodeagent.testing.node import SimNode
from nodeagent.testing.sim import CLIENT
from nodeagent.testing.simulated import LIMIT_MS, SimulatedCluster
from nodeagent.testing.workload import EXPIRING, TTL_MS, schema_of

PLAIN = Options()


class OperatedCluster(SimulatedCluster):
    """A cluster with an operator who begins and controls its changes."""

    def request(self, request: q.Request, accept: type[Reply]) -> Reply:
        """Send an operator's request to the meta leader until a reply is final; returns that reply."""
        got: list[Reply] = []
        refusals: list[ErrorReply] = []
        target = [self.sim.rng.choice(self.view.nodes)]

        def on_reply(reply: Reply) -> None:
            if isinstance(reply, accept):
                got.append(reply)
                return
            assert isinstance(reply, ErrorReply), reply
            early = any(why in reply.what for why in ("is not dead", "no live quorum"))
            if (
                isinstance(request, q.ControlOperation)
                and reply.code in ("refused", "not_found")
                and not early
            ):
                got.append(reply)
                return
            if reply.code == "busy" and isinstance(request, q.BeginChange):
                operation = reply.details.get("operation")
                assert isinstance(operation, str)
                got.append(reply)
                return
            begun = self.begun_as(request) if isinstance(request, q.BeginChange) else ""
            if begun:  # a reply was lost, and the change may even have ended
                got.append(ErrorReply("busy", "it was begun before", details={"operation": begun}))
                return
            if isinstance(request, q.DropLock) and reply.code == "not_found":  # a reply was lost
                got.append(reply)
                return
            refusals.append(reply)
            leader = reply.details.get("leader")
            target[0] = leader if isinstance(leader, str) else self.sim.rng.choice(self.view.nodes)
            self.sim.at(100, send)

        def send() -> None:
            self.sim.call(CLIENT, target[0], request, on_reply)

        send()
        accepted = self.sim.run(lambda: bool(got), LIMIT_MS)
        assert accepted, f"liveness: {type(request).__name__} is not accepted: {refusals[-2:]}"
        return got[0]

    def begun_as(self, request: q.BeginChange) -> str:
        """The name of the change that `request` began; "" if no living node knows it."""
        records = [
            op for n in self.sim.nodes.values() if n.alive for op in n.host.cluster.meta.image.operations
        ]
        wanted = (request.kind, request.node)
        return next(
            (
                op.id
                for op in records
                if (op.kind, op.node) == wanted and order_of(op.id) > (self.begun_after,)
            ),
            "",
        )

    def schemas(self) -> None:
        for group in self.storage_groups:
            self.request(q.PutSchema(schema_of(group)), q.SchemaInForce)
        self.request(q.PutSchema(schema_of(EXPIRING), TTL_MS), q.SchemaInForce)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cluster lock while a change begins, as iotctl does: a duplicate of the request that
        arrives after the change was cancelled must not begin a second change.
        """
        taken = self.request(q.TakeLock("sim", "a change", "sim", LIMIT_MS), q.LockReply)
        assert isinstance(taken, q.LockReply)
        self.lock = taken.lock.serial
        yield
        self.request(q.DropLock(self.lock, "sim", "begun"), q.Accepted)
        self.lock = 0

    def change(
        self, kind: str, node: str, options: Options = PLAIN, *, replaces: str = "", after: str | None = None
    ) -> str:
        return self._begin(self.change_of(kind, node, options, replaces=replaces, after=after))

    def change_of(
        self, kind: str, node: str, options: Options = PLAIN, *, replaces: str = "", after: str | None = None
    ) -> q.BeginChange:
        target = self.sim.nodes[node]
        return q.BeginChange(
            kind,
            node,
            "sim",
            options,
            after=after,
            host=node,
            port=1,
            http_port=2,
            incarnation=target.incarnation,
            replaces=replaces,
        )

    def move_slots(self, *wanted: int) -> str:
        """Begin a rebalance of `wanted` and random slots; most groups both lose and gain slots."""
        return self._begin(self.moves_of(*wanted))

    def moves_of(self, *wanted: int) -> q.BeginChange:
        table = self.newest().placement.table
        assert table is not None
        rng = self.sim.rng
        gains: dict[str, list[int]] = {}
        slots = rng.sample(range(table.slots), rng.randint(1, table.slots // 2))
        for slot in dict.fromkeys((*slots, *wanted)):
            others = [n for n in table.ring.names if n != table.route(slot)]
            gains.setdefault(rng.choice(others), []).append(slot)
        moved = tuple((owner, from_slots(slots)) for owner, slots in sorted(gains.items()))
        return q.BeginChange("rebalance", "", "sim", gains=moved)

    def _begin(self, begin: q.BeginChange) -> str:
        reply = self.request(self.asked(begin), OperationReply)
        if isinstance(reply, OperationReply):
            name = reply.operation.id
        else:
            assert isinstance(reply, ErrorReply)
            name = str(reply.details["operation"])
        return self.begun(name, begin)

    def asked(self, begin: q.BeginChange) -> q.BeginChange:
        """Note that the change is requested from now on; returns the request with the lock."""
        self.history.change_began = self.sim.now
        self.begun_after = self.newest().applied
        return msgspec.structs.replace(begin, lock=self.lock)

    def begun(self, name: str, begin: q.BeginChange) -> str:
        """Note the name of the change; returns it as soon as a node knows the change."""
        self.operations.append(f"{begin.kind} {begin.node}".rstrip())
        self.operation = name
        self.until(lambda: self.record(name) is not None, f"{name} is known")
        record = self.record(name)
        assert record is not None
        self.history.note_moves(record)
        return name

    def recover(self, *nodes: str) -> int:
        """Force the recovery of all groups that lost their majority with the dead `nodes`.

        The history forgets only what the recovery leaders lack: all that they have must survive.
        Returns the number of acknowledged values, one per cell of a write, that were lost.
        """
        meta, heirs = self.newest(), self.recovery_leaders(*nodes)
        lost: set[tuple[str, int, int]] = set()
        for heir in heirs:
            members = self.newest().recovery.lost(nodes)[heir.group].survivors
            joining = [n.node for n in self.sim.nodes.values() if n.alive and n.node not in members]
            lost |= self._lost(heir.group, self.sim.nodes[heir.head], [*nodes, *joining])
        gone = self.history.lose(sorted(lost))
        self.request(q.ForceRecover(nodes, tuple(heirs), meta.placement.version, "sim"), q.Accepted)
        return gone

    def recovery_leaders(self, *nodes: str) -> list[q.RecoveryLeader]:
        """The recovery leaders of all groups that lost their majority with the dead `nodes`."""
        alive = {n.node: n.host.status.of_node(0, 0).groups for n in self.sim.nodes.values() if n.alive}
        heirs = []
        for group, found in self.newest().recovery.lost(nodes).items():
            said = {n: g for n, groups in alive.items() for g in groups if g.group == group}
            if found.is_certain or all(g.role != "leader" for g in said.values()):
                heirs.append(recovery_leader_of(group, {n: said[n] for n in found.survivors}))
        return heirs

    def recover_meta(self, *nodes: str) -> int:
        """Force the recovery of the meta group, which lost its majority with the dead `nodes`, from the
        living node with the newest journal.

        Returns:
            the number of journal entries that only the dead nodes had applied.
        """
        head, request = self.meta_recovery(*nodes)
        newest = head.host.cluster.meta_replica
        assert newest is not None
        gone = self.safety.forget(META, newest.raft.log, list(nodes))
        got: list[Reply] = []

        def on_reply(reply: Reply) -> None:
            assert isinstance(reply, q.Accepted), reply
            got.append(reply)

        self.sim.call(CLIENT, head.node, request, on_reply)
        assert self.sim.run(lambda: bool(got), LIMIT_MS), "liveness: the meta group is not recovered"
        return len(gone)

    def meta_recovery(self, *nodes: str) -> tuple[SimNode, q.RecoverMeta]:
        """The living node with the newest journal, and what an operator asks of it."""
        alive = [n for n in self.sim.nodes.values() if n.alive and n.host.cluster.meta_replica is not None]
        statuses = {
            n.node: next(g for g in n.host.status.of_node(0, 0).groups if g.group == META) for n in alive
        }
        head = recovery_leader_of(META, statuses)
        status = statuses[head.head]
        request = q.RecoverMeta(nodes, head.term, status.last, status.last_term, "sim")
        return self.sim.nodes[head.head], request

    def _lost(self, group: str, head: SimNode, dead: list[str]) -> set[tuple[str, int, int]]:
        """Writes of `group` that some of `dead`, or a node that was joining, applied and `head` does not
        have."""
        replica = head.host.replicas.data[group]
        log = replica.raft.log
        lost: set[tuple[str, int, int]] = set()
        for index, entry in self.safety.forget(group, log, dead).items():
            lost |= self._write_in(entry)
            self.history.lost_sessions.add(f"{group}:{index}.{entry.term}")
        for entry in log.slice(log.first_index, log.last_index, 1 << 60):
            lost -= self._write_in(entry)
        sessions = replica.state.sessions
        return {(s, slot, n) for s, slot, n in lost if not sessions.has(s, slot, n)}

    @staticmethod
    def _write_in(entry: Entry) -> set[tuple[str, int, int]]:
        command = decode(entry.data) if entry.kind == EntryKind.COMMAND else None
        if isinstance(command, WriteRows | DeleteRange):
            return {(command.session, command.slot, command.sequence)}
        return set()

    def recovered(self) -> bool:
        """Whether all living nodes know that every forced recovery is completed."""
        alive = [n.host.cluster.meta for n in self.sim.nodes.values() if n.alive]
        return not any(g.recovery for m in alive for g in m.image.groups.values())

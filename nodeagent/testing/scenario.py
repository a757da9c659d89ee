"""One seeded run of a whole cluster: bootstrap, writers and readers, an add and a remove under faults.

Every third seed also moves slots between the groups at the end. This is not drawn, so that the runs of the
other seeds stay the same.

`python -m nodeagent.testing.scenario FIRST [COUNT]` prints one line per seed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from nodeagent.data.commands import DeleteRange, WriteRows, decode
from nodeagent.host.desk import Effects
from nodeagent.meta.state import MetaState
from nodeagent.model import requests as q
from nodeagent.model.config import ClusterSettings, NodeConfig
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.operation import Operation, Options
from nodeagent.model.requests import ErrorReply, OperationReply, Reply
from nodeagent.partition.ranges import from_slots
from nodeagent.partition.recovery import heir_of
from nodeagent.scaling.groups import op_number
from nodeagent.testing.checks import Changes, Tables, check_converged
from nodeagent.testing.node import SimNode, configs
from nodeagent.testing.parallel import run_command
from nodeagent.testing.raft_checks import RaftSafety
from nodeagent.testing.readers import Reader
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.sim import CLIENT, Sim
from nodeagent.testing.workload import EXPIRING, PLAIN_HABITS, TTL_MS, Habits, History, View, schema_of
from nodeagent.testing.writers import ExpiringWriter, Widener, Writer

LIMIT_MS = 120_000
SILENT_MS = 6_000
"""Time after which all nodes know that a node is silent."""

PLAIN = Options()


class Report(msgspec.Struct):
    """Results of one run."""

    seed: int
    trace: int
    events: int
    simulated_ms: int
    writes: int
    reads: int
    kills: int
    operations: list[str]
    longest_write_ms: int
    compactions: int
    """Compactions on all members."""

    expired: int
    """Rows observed to have expired by their TTL."""


class Scenario:
    rest_ms = LIMIT_MS
    """Time limit for flushing and merging all files at the end."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 4,
        slots: int = 40,
        groups: int = 6,
        spares: int = 2,
        replicas: int = 3,
        habits: Habits = PLAIN_HABITS,
    ) -> None:
        self.sim: Sim[SimNode] = Sim(seed)
        self.seed = seed
        settings = ClusterSettings(
            name="sim", replicas=replicas, slots=slots, shards=1, meta_voters=max(5, 2 * replicas - 3)
        )
        names = [f"node{i}" for i in range(1, nodes + spares + 1)]
        self.newcomers = names[nodes:]
        for config in configs(names, settings, nodes):
            self.sim.nodes[config.node] = self.machine(config)
        self.history = History()
        self.view = View(self.sim, names[:nodes])
        self.storage_groups = [f"root.g{i}" for i in range(groups)]
        self.writers = [
            Writer(self.sim, f"w{i}", self.view, self.history, self.storage_groups, habits)
            for i in range(habits.writers)
        ]
        self.writers.append(ExpiringWriter(self.sim, f"w{habits.writers}", self.view, self.history, []))
        self.reader = Reader(self.sim, self.view, self.history, self.storage_groups)
        self.widener = Widener(self.sim, self.view, self.history, self.storage_groups, habits.fields)
        self.kills = 0
        self.kills_at: list[tuple[str, str]] = []
        """(killed node, stage of the newest operation at that time)"""

        self.operation = ""
        self.begun_after = 0
        """Index of the meta group when the newest change was requested; the change has a greater number."""

        self.dead: list[SimNode] = []
        """Nodes that are permanently lost."""

        self.operations: list[str] = []
        self.lock = 0
        """Serial of the cluster lock under which changes begin; 0 for none."""

        self.safety = RaftSafety(self.sim, by_scaling=True)
        self._stages: set[tuple[str, str]] = set()
        """Each (operation, stage) that some node has reached."""

        self.sim.checks += [self.safety, Tables(), Changes(self.safety), self._note_stage]

    def machine(self, config: NodeConfig) -> SimNode:
        """A new machine, which does not run yet."""
        return SimNode(self.sim, config)

    # --- steps -------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], what: str, limit_ms: int = LIMIT_MS) -> None:
        assert self.sim.run(condition, limit_ms), f"liveness: {what} within {limit_ms} ms"

    def form(self) -> None:
        first = [n for n in self.sim.nodes.values() if n.node not in self.newcomers]
        for node in first:
            node.start()
        if self.sim.rng.random() < 0.3:  # a seed goes down while the cluster forms
            self.sim.pause(self.sim.rng.randint(0, 1500))
            self.kill(self.sim.rng.choice(first).node, self.sim.rng.randint(50, 1000), power=True)
        self.until(lambda: self._ask_meta() is not None, "the cluster forms")

    def begin(self, *, reads: bool = True) -> None:
        """Form the cluster and start the writers and, with `reads`, the reader."""
        self.form()
        self.schemas()
        for writer in self.writers:
            writer.start()
        self.widener.start()
        if reads:
            self.reader.start()

    def _ask_meta(self) -> object:
        if self.view.meta is None:
            self.view.refresh()
        return self.view.meta

    def request(self, request: q.Request, accept: type[Reply]) -> Reply:
        """Send an operator's request to the meta leader until it is accepted or decided; returns the
        reply."""
        got: list[Reply] = []
        refusals: list[ErrorReply] = []
        target = [self.sim.rng.choice(self.view.nodes)]

        def on_reply(reply: Reply) -> None:
            if isinstance(reply, accept):
                got.append(reply)
                return
            assert isinstance(reply, ErrorReply), reply
            early = any(why in reply.what for why in ("is not dead", "no live quorum"))
            if isinstance(request, q.Steer) and reply.code in ("refused", "not_found") and not early:
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
            (op.id for op in records if (op.kind, op.node) == wanted and op_number(op.id) > self.begun_after),
            "",
        )

    def schemas(self) -> None:
        for group in self.storage_groups:
            self.request(q.PutSchema(schema_of(group)), q.SchemaInForce)
        self.request(q.PutSchema(schema_of(EXPIRING), TTL_MS), q.SchemaInForce)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the cluster lock while a change begins, as iotctl does: a duplicate of the request that
        arrives after the change was cancelled must not begin another.
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
        moved = tuple((header, from_slots(slots)) for header, slots in sorted(gains.items()))
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

    def _note_stage(self, node: SimNode, effects: Effects) -> None:
        """Count each stage that an operation reaches, for `coverage`."""
        operations = node.host.cluster.meta.image.operations
        op = operations[-1] if operations else None
        if op is not None and (op.id, op.stage) not in self._stages:
            self._stages.add((op.id, op.stage))
            self.sim.seen["operation", f"{op.kind} {op.stage}"] += 1

    def stage(self, operation: str) -> str:
        found = self.record(operation)
        return found.stage.value if found is not None else ""

    def record(self, operation: str) -> Operation | None:
        """The operation as the most advanced node has it."""
        found = [
            (n.host.cluster.meta.applied, op)
            for n in self.sim.nodes.values()
            if n.alive and (op := n.host.cluster.meta.operations.find(operation)) is not None
        ]
        return max(found, key=lambda f: f[0])[1] if found else None

    def hold(self, *points: str) -> None:
        """Hold operations at these points, on all nodes, including those that start later."""
        for node in self.sim.nodes.values():
            node.holds = points
            if node.alive:
                assert node.host.operations.hold_points.set(points) is None
                node.wake()

    def kill(self, node: str, back_after_ms: int, *, power: bool) -> None:
        victim = self.sim.nodes[node]
        if victim.alive:
            self.kills += 1
            self.kills_at.append((node, self.stage(self.operation)))
            victim.stop(power=power)
            self.sim.at(back_after_ms, lambda: None if victim.alive else victim.start())

    def die(self, *nodes: str) -> None:
        """Take `nodes` down permanently, and wait until all nodes know that they are silent."""
        for node in nodes:
            self.sim.nodes[node].stop(power=True)
            self.dead.append(self.sim.nodes[node])
        self.sim.pause(SILENT_MS)

    def recover(self, *nodes: str) -> int:
        """Force the recovery of all groups that lost their majority with the dead `nodes`.

        The history forgets only what no living node has, so that everything on a living node must survive.
        Returns the number of acknowledged writes that were lost.
        """
        meta = self.newest()
        heirs = []
        lost: set[tuple[str, int, int]] = set()
        for group, left in meta.recovery.lost(nodes).items():
            said = {n: self.sim.nodes[n].host.status.of_node(0, 0).groups for n in left}
            heirs.append(heir_of(group, {n: next(g for g in said[n] if g.group == group) for n in left}))
            lost |= self._lost(group, self.sim.nodes[heirs[-1].head], list(nodes))
        gone = self.history.lose(sorted(lost))
        self.request(q.GiveUp(nodes, tuple(heirs), meta.placement.version, "sim"), q.Accepted)
        return gone

    def _lost(self, group: str, head: SimNode, dead: list[str]) -> set[tuple[str, int, int]]:
        """Writes of `group` that some of `dead` applied and that `head` does not have."""
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

    def harass(self, names: list[str], operation: str) -> None:
        """Kill one node after the other at random times while the operation is open."""
        rng = self.sim.rng
        for _ in range(rng.randint(1, 4)):
            self.sim.pause(rng.randint(10, 1500))
            if self.stage(operation) in ("DONE", "CANCELLED"):
                return
            if rng.random() < 0.5:
                self.sim.faults.drop = rng.choice([0, 0.02, 0.1])
                self.sim.faults.duplicate = rng.choice([0, 0.05])
                self.sim.faults.delay_ms = rng.choice([(1, 3), (1, 30), (5, 80)])
                self.sim.faults.sync_ms = rng.choice([(1, 3), (1, 40)])
                self.sim.faults.job_ms = rng.choice([(1, 10), (1, 10), (20, 900)])
                self.sim.faults.compact_ms = rng.choice([None, (500, 4_000)])
            if rng.random() < 0.3:
                self.cut(names)
            if rng.random() < 0.3:
                self.sim.nodes[rng.choice(names)].fill_disk()
            if rng.random() < 0.3:
                self.sim.nodes[rng.choice(names)].cut_power_soon()
            if rng.random() < 0.2:
                for name in names:  # the whole cluster loses power
                    self.kill(name, rng.randint(50, 3000), power=True)
            if all(self.sim.nodes[n].alive for n in names):
                self.kill(rng.choice(names), rng.randint(50, 4000), power=rng.random() < 0.6)

    def cut(self, names: list[str]) -> None:
        """Cut one link in one direction, or all links to a node, from it, or both, for a while."""
        rng = self.sim.rng
        node, other = rng.sample(names, 2)
        kind = rng.randrange(4)
        into, out = {(n, node) for n in names}, {(node, n) for n in names}
        pairs = ({(node, other)}, into, out, into | out)[kind]
        self.sim.faults.cut |= pairs
        self.sim.at(rng.randint(300, 5000), lambda: self.sim.faults.cut.difference_update(pairs))

    def heal(self) -> None:
        """End all faults."""
        self.sim.faults.heal()

    def finish(self, operation: str, *, cancelled: bool = False) -> bool:
        """End all faults and wait for the end of the operation; returns whether it was done rather than
        cancelled."""
        self.heal()
        ends = ("DONE", "CANCELLED") if cancelled else ("DONE",)
        self.until(
            lambda: (
                self.stage(operation) in ends and all(n.alive for n in self._members() if n not in self.dead)
            ),
            f"{operation} has ended",
        )
        done = self.stage(operation) == "DONE"
        if not done:
            self.history.forget_moves(operation)
        return done

    def maybe_cancel(self, operation: str) -> bool:
        """Cancel at a random time, which may be too late; returns whether the change was done
        nevertheless."""
        rng = self.sim.rng
        self.sim.pause(rng.randint(0, 400))
        if rng.random() < 0.3:
            self.kill(rng.choice(list(self.sim.nodes)), rng.randint(50, 2000), power=True)
        self.request(q.Steer(operation, "cancel", "sim"), OperationReply)
        return self.finish(operation, cancelled=True)

    def add_plainly(self, newcomer: str) -> None:
        self.sim.nodes[newcomer].start()
        self.finish(self.change("add-node", newcomer))

    def add(self, newcomer: str) -> None:
        """Add a node, often after a cancelled attempt."""
        self.sim.nodes[newcomer].start()
        self.sim.pause(self.sim.rng.randint(0, 700))
        for _ in range(self.sim.rng.choice([0, 1, 1, 2])):
            if self.maybe_cancel(self.change("add-node", newcomer)):
                return
        operation = self.change("add-node", newcomer)
        self.harass(self._names(), operation)
        self.finish(operation)

    def remove(self) -> None:
        leaver = self.sim.rng.choice(self._names())
        if self.sim.rng.random() < 0.3 and self.maybe_cancel(self.change("remove-node", leaver)):
            self.sim.nodes[leaver].alive = False
            return
        operation = self.change("remove-node", leaver)
        self.harass(self._names(), operation)
        self.finish(operation)
        self.sim.nodes[leaver].alive = False

    def rebalance(self) -> None:
        for _ in range(self.sim.rng.choice([0, 1])):
            self.maybe_cancel(self.move_slots())
        operation = self.move_slots()
        self.harass(self._names(), operation)
        self.finish(operation)

    def _names(self) -> list[str]:
        return sorted(n.node for n in self._members())

    def _members(self) -> list[SimNode]:
        return [self.sim.nodes[n] for n in self.newest().image.nodes]

    def newest(self) -> MetaState:
        """The meta state of the most advanced living node."""
        return max((n.host.cluster.meta for n in self.sim.nodes.values() if n.alive), key=lambda m: m.applied)

    def quiet(self) -> None:
        """Stop the clients and wait until all replicas are at rest."""
        for writer in self.writers:
            writer.stopping = True
        self.reader.stopping = self.widener.stopping = True
        self.until(lambda: all(w.idle for w in self.writers), "every write is acknowledged")
        self.until(self._at_rest, "every replica has flushed and merged its files", self.rest_ms)
        self.until(lambda: not any(self._staged(n) for n in self._members()), "staging is empty")
        self.until(lambda: not any(n.unanswered for n in self._members()), "every request is answered")
        self.sim.pause(2_000)

    def _staged(self, node: SimNode) -> bool:
        return bool(node.storage.staging.operations())

    def _at_rest(self) -> bool:
        return all(
            not r.state.rows.slot_of
            and not r.state.closes.pending
            and not r.state.adoptions.waiting
            and not r.state.compactions.under_way
            and not r.leaving
            and not (r.leads and r.state.files.changed)
            and not any(f.partition.storage_group == EXPIRING for f in r.state.files.manifest.files())
            and not r.state.slots.sealed
            and r.seen == r.raft.log.last_index == r.raft.commit
            for n in self._members()
            for r in n.host.replicas.data.values()
        )

    def read_everything(self) -> None:
        self.view.refresh()
        left = self.reader.partitions()
        done: list[bool] = []
        for group, week in left:
            self.reader.read(group, week, done.append, retry=True)
        self.until(lambda: len(done) == len(left), "every slot can be read")

    # --- the run -----------------------------------------------------------------------------------

    def run(self) -> Report:
        self.begin()
        self.sim.faults.duplicate = 0.05
        self.sim.faults.sync_ms = self.sim.rng.choice([(1, 3), (1, 60)])
        self.sim.faults.job_ms = self.sim.rng.choice([(1, 10), (1, 200), (50, 900)])
        self.sim.pause(self.sim.rng.randint(500, 4000))
        self.add(self.newcomers[0])
        self.remove()
        if self.sim.rng.random() < 0.3:
            self.add(self.newcomers[1])
        if self.seed % 3 == 1:
            self.rebalance()
        self.quiet()
        check_converged(self.sim)
        self.read_everything()
        return Report(
            self.seed,
            self.sim.trace,
            self.sim.events,
            self.sim.now,
            self.history.writes,
            self.history.reads,
            self.kills,
            self.operations,
            self.history.longest_gap_ms,
            self.sim.jobs["CompactFiles"],
            len(self.history.expired),
        )


def run(seed: int) -> Report:
    """Run a seed."""
    scenario = Scenario(seed)
    with replayable(seed, f"nodeagent.testing.scenario {seed}", scenario.sim):
        return scenario.run()


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

"""A simulated cluster with its clients: it forms, and its nodes are killed and cut off."""

from collections.abc import Callable

from nodeagent.host.effect_queue import Effects
from nodeagent.meta.state import MetaState
from nodeagent.model.config import ClusterSettings, NodeConfig
from nodeagent.model.operation import Operation
from nodeagent.testing.checks import Changes, Tables
from nodeagent.testing.node import SimNode, configs
from nodeagent.testing.raft_checks import RaftSafety
from nodeagent.testing.readers import Reader
from nodeagent.testing.sim import Sim
from nodeagent.testing.workload import PLAIN_HABITS, History, View, WriteProfile
from nodeagent.testing.writers import ExpiringWriter, Widener, Writer

LIMIT_MS = 120_000

SILENT_MS = 6_000
"""Time after which all nodes know that a node does not respond."""


class SimulatedCluster:
    """The nodes of a cluster, and the clients that write and read."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 4,
        slots: int = 40,
        groups: int = 6,
        spares: int = 2,
        replicas: int = 3,
        meta_voters: int = 0,
        habits: WriteProfile = PLAIN_HABITS,
    ) -> None:
        self.sim: Sim[SimNode] = Sim(seed)
        self.seed = seed
        voters = meta_voters or max(5, 2 * replicas - 3)
        settings = ClusterSettings(name="sim", replicas=replicas, slots=slots, shards=1, meta_voters=voters)
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

    def _ask_meta(self) -> object:
        if self.view.meta is None:
            self.view.refresh()
        return self.view.meta

    def _note_stage(self, node: SimNode, effects: Effects) -> None:
        """Count each stage that an operation reaches, for `coverage`."""
        operations = node.host.cluster.meta.image.operations
        op = operations[-1] if operations else None
        if op is not None and (op.id, op.stage) not in self._stages:
            self._stages.add((op.id, op.stage))
            self.sim.seen["operation", f"{op.kind} {op.stage}"] += 1

    def record(self, operation: str) -> Operation | None:
        """The operation as the most advanced living node that knows it has it; None if none knows it."""
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
                assert node.host.operations.failpoints.set(points) is None
                node.wake()

    def kill(self, node: str, back_after_ms: int, *, power: bool) -> None:
        victim = self.sim.nodes[node]
        if victim.alive:
            self.kills += 1
            self.kills_at.append((node, self.stage(self.operation)))
            victim.stop(power=power)
            self.sim.at(back_after_ms, lambda: None if victim.alive else victim.start())

    def die(self, *nodes: str) -> None:
        """Take `nodes` down permanently, and wait until all nodes know that they do not respond."""
        for node in nodes:
            self.sim.nodes[node].stop(power=True)
            self.dead.append(self.sim.nodes[node])
        self.sim.pause(SILENT_MS)

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

    def _names(self) -> list[str]:
        return sorted(n.node for n in self._members())

    def _members(self) -> list[SimNode]:
        return [self.sim.nodes[n] for n in self.newest().image.nodes]

    def newest(self) -> MetaState:
        """The meta state of the most advanced living node."""
        return max((n.host.cluster.meta for n in self.sim.nodes.values() if n.alive), key=lambda m: m.applied)

    def stage(self, operation: str) -> str:
        found = self.record(operation)
        return found.stage.name if found is not None else ""

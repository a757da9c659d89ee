"""A cluster whose seed draws its plan, with bursts of faults during its operations."""

import random
from collections.abc import Callable
from dataclasses import replace

import msgspec

from nodeagent.host.replica import Replica
from nodeagent.meta.state import MetaState
from nodeagent.model.config import NodeConfig
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import Reply, Request
from nodeagent.testing.cluster_plan import BURST_MS_MIN, Plan, draw_habits
from nodeagent.testing.cluster_script import ClusterScript
from nodeagent.testing.file_repair import Operator
from nodeagent.testing.injector import Focus, Pace
from nodeagent.testing.machine import Machine
from nodeagent.testing.nemesis import Nemesis, draw_stragglers, focus_kinds
from nodeagent.testing.node import SimNode
from nodeagent.testing.random_ops import ENDED, RandomOps
from nodeagent.testing.readers import StaleReader
from nodeagent.testing.sim import CLIENT


class FaultyCluster(RandomOps):
    """Operations of `RandomOps` under bursts of the faults that a plan names."""

    def __init__(self, seed: int, focus: Focus = (), script: ClusterScript | None = None) -> None:
        plan = self.drawn(random.Random(f"plan {seed}"))
        plan.kinds |= focus_kinds(focus)
        noise = ""
        if script is not None:
            plan = replace(plan, **script.plan.changed())
            noise = f" noise {script.noise}" if script.noise else ""
        self.plan = plan
        wanted = [member.split() for name, member in focus if name == "operation"]
        self._wanted_kinds = {kind for kind, _ in wanted}
        self._wants_cancel = any(stage.startswith("CANCEL") for _, stage in wanted)
        super().__init__(
            seed,
            nodes=plan.nodes,
            slots=plan.slots,
            groups=plan.groups,
            replicas=plan.replicas,
            operations=plan.operations if plan.steps is None else len(plan.steps),
            habits=plan.habits,
        )
        if noise:
            self.sim.rng.seed(f"run {seed}{noise}")
        self.stale = StaleReader(self.sim, self.view, self.history, self.storage_groups, plan.staleness_ms)
        self.sim.may_err = True
        self.operator = Operator(self._asked)
        # Messages to a suspended process wait.
        self.grave_ms += plan.back_ms + 2 * plan.raft.election_timeout_ms
        self.nemesis = Nemesis(
            self.sim,
            random.Random(f"faults {seed}{noise}"),
            plan.kinds,
            Pace(plan.gap_ms, plan.back_ms, plan.raft.election_timeout_ms),
            led=self._led,
            focus=focus,
        )

    def drawn(self, rng: random.Random) -> Plan:
        # Drawn here, not in `Plan.draw`: what `single_node` draws after `Plan.draw` must stay the same.
        plan = replace(
            Plan.draw(rng),
            restores=rng.random() < 0.3,
            habits=draw_habits(rng),
            staleness_ms=rng.choice([0, 300, 1_500]),
        )
        plan.kinds |= draw_stragglers(rng)
        return plan

    def machine(self, config: NodeConfig) -> SimNode:
        plan, rng = self.plan, self.sim.rng
        settings = plan.node | ({"staleness_max_ms": plan.staleness_ms} if plan.staleness_ms else {})
        node = super().machine(msgspec.structs.replace(config, raft=plan.raft, **settings))
        node.segment_bytes = plan.segment_bytes
        node.disk.capacity_bytes = plan.disk_bytes
        if "drift" in plan.kinds:
            node.pace = rng.choice([0.8, 1.0, 1.0, 1.25])
        return node

    def _led(self, rng: random.Random) -> tuple[Machine, Replica] | None:
        found = [(n, r) for n in self.sim.nodes.values() if n.alive for r in n.host.replicas if r.leads]
        return rng.choice(found) if found else None

    def newest(self) -> MetaState:
        """The meta state of the most advanced node, running or not: all running nodes may be behind."""
        ran = (n for n in self.sim.nodes.values() if n.life and not n.gone)
        return max((n.host.cluster.meta for n in ran), key=lambda m: m.applied)

    def newcomer(self) -> str:
        """Wait for a meta leader first, which knows the members to use as seeds: other nodes may lag after a
        restart, and a node whose join was cancelled considers itself a member."""
        self.until(self._is_led, "the meta group has a leader")
        return super().newcomer()

    def _is_led(self) -> bool:
        replicas = (n.host.cluster.meta_replica for n in self.sim.nodes.values() if n.alive)
        return any(
            r is not None and r.leads and r.applied_index == r.raft.commit == r.raft.log.last_index
            for r in replicas
        )

    def begin(self, *, reads: bool = True) -> None:
        super().begin(reads=reads)
        if self.plan.staleness_ms:
            self.stale.start()

    def quiet(self) -> None:
        self.stale.stopping = True
        super().quiet()

    def burst(self) -> None:
        self.nemesis.begin()
        self.sim.at(self.sim.rng.randint(BURST_MS_MIN, self.plan.burst_ms), self.nemesis.heal)

    def heal(self) -> None:
        self.nemesis.heal()

    def disturb(self) -> None:
        super().disturb()
        if self.sim.rng.random() < 0.8:
            self.burst()
            self.sim.pause(self.sim.rng.randint(0, 2_000))

    def harass(self, names: list[str], operation: str) -> None:
        """Inject a burst of faults, often longer than the operation takes."""
        self.burst()
        to_end = self.sim.rng.random() < 0.5
        self.sim.run(
            lambda: self.nemesis.calm or (not to_end and self.stage(operation) in ENDED), self.plan.burst_ms
        )

    def steered(self, begin: Callable[[], str], *, may_cancel: bool = True) -> bool:
        """If the run looks for cancelled changes, hold half of the changes while they can be cancelled."""
        if not (may_cancel and self._wants_cancel and self.sim.rng.random() < 0.5):
            return super().steered(begin, may_cancel=may_cancel)
        self.hold("before:OPEN")
        operation = begin()
        self.burst()
        done = self.maybe_cancel(operation)
        self.hold()
        return done

    def _maybe_burst(self, spoiled: SimNode) -> None:
        """With probability 1/2, inject more faults and then restart all nodes that can run."""
        rng = self.sim.rng
        if rng.random() < 0.5:
            self.burst()
            self.sim.pause(rng.randint(0, self.plan.burst_ms))
            self._all_up(spoiled=spoiled)

    def _asked(self, node: NodeId, request: Request) -> Reply:
        got: list[Reply] = []
        self.sim.call(CLIENT, node, request, got.append)
        self.until(lambda: bool(got), f"{type(request).__name__} is answered")
        return got[0]

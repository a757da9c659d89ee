"""Raft groups under a swarm of faults: each seed draws its own kinds, rates, sizes and limits.

`python -m nodeagent.testing.swarm FIRST [COUNT]` prints one line per seed. At the end all faults are healed,
and the groups must come to rest (L1, L3).
"""

import random
from collections import Counter
from dataclasses import replace

import msgspec

from nodeagent.host.effect_queue import Effects
from nodeagent.model.entries import Config, EntryKind
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.ids import GroupId, NodeId
from nodeagent.testing.groups import GroupNode, TallyReplica, decode_count
from nodeagent.testing.injector import Pace
from nodeagent.testing.nemesis import Nemesis, bounded, draw_stragglers
from nodeagent.testing.parallel import run_command
from nodeagent.testing.raft_checks import RaftSafety
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.script import Script
from nodeagent.testing.sim import Sim
from nodeagent.testing.swarm_clients import Client, Histories
from nodeagent.testing.swarm_plan import Plan

EVENTS_MAX = 20_000
"""Number of events after which a run is healed."""


class Report(msgspec.Struct):
    """Results of one run."""

    seed: int
    trace: int
    events: int
    simulated_ms: int
    counted: int
    reads: int
    unknown: int
    refused: int
    faults: dict[str, int]
    odd: dict[str, int]
    """Rare events that happened; a run without them does not test them."""


class Swarm:
    """One seeded run, with the faults of the seed or of a script."""

    def __init__(self, seed: int, script: Script | None = None) -> None:
        self.seed = seed
        self.script = script
        self.sim: Sim[GroupNode] = Sim(seed)
        rng = self.rng = self.sim.rng
        plan = self.drawn()
        if script is not None:
            plan = replace(plan, **script.plan.changed())
            if script.noise:
                rng.seed(f"noise {script.noise}")
        self.plan = plan
        self.sim.may_err = True
        names = [f"m{i}" for i in range(1, plan.machines + 1)]
        for name in names:
            self._new_machine(name)
        self.first = {f"g{i}": rng.sample(names, plan.voters) for i in range(1, plan.groups + 1)}
        self.histories = Histories()
        self.safety = RaftSafety(self.sim)
        self.sim.checks += [self.safety, self._note]
        self.clients = [
            Client(self.sim, plan, self.histories, (group, f"c{i}"), lambda: self.nemesis.calm)
            for group in self.first
            for i in range(plan.clients)
        ]
        self.nemesis = Nemesis(
            self.sim,
            random.Random(f"faults {seed}"),
            plan.kinds,
            Pace(plan.gap_ms, plan.back_ms, plan.settings.election_timeout_ms),
            led=lambda rng: self.leader(rng.choice(sorted(self.first))),
            may_spoil=self.may_spoil,
        )
        self.spoiled = self.nemesis.spoiled
        self.odd: Counter[str] = Counter()
        self.left: set[tuple[GroupId, NodeId]] = set()
        """Machines that were removed from a group."""

        self._seen: dict[tuple[NodeId, int, GroupId], int] = {}
        self._last: dict[tuple[NodeId, int, GroupId], int] = {}
        """By process and group: its applied index and its last log index at the last check."""

    def drawn(self) -> Plan:
        plan = Plan.draw(self.rng)
        # Another generator, so that the draws of the first stay the same.
        rng = random.Random(f"haste {self.seed}")
        plan.kinds |= draw_stragglers(rng)
        if rng.random() < 0.5:
            plan.hasten()
        direct = plan.limits["nodeagent.model.limits.DIRECT_LEARNERS_MAX"] = rng.choice([0, 16])
        plan.relays = direct == 0 and rng.random() < 0.5
        return plan

    def _new_machine(self, name: str) -> GroupNode:
        node = self.sim.nodes[name] = GroupNode(self.sim, name, self.plan.settings)
        node.relays = self.plan.relays
        node.segment_bytes = self.plan.segment_bytes
        node.disk.capacity_bytes = self.plan.disk_bytes
        if "drift" in self.plan.kinds:
            node.pace = self.rng.choice([0.8, 1.0, 1.0, 1.25])
        return node

    # --- notes -------------------------------------------------------------------------------------

    def _note(self, node: GroupNode, effects: Effects) -> None:
        """Note what this process applied since its last turn, and rare events."""
        for event, _ in effects.notes:
            if event != "role":
                self.odd[event] += 1
        for replica in node.replicas():
            key = (node.node, node.life, replica.group)
            log, seen = replica.raft.log, replica.applied_index
            self.odd["suffix cut off"] += log.last_index < self._last.get(key, 0)
            self._last[key] = log.last_index
            first = max(self._seen.get(key, 0), log.base.index) + 1
            self._seen[key] = seen
            if first > min(seen, log.last_index):
                continue
            for entry in log.slice(first, min(seen, log.last_index), 1 << 60):
                if entry.kind == EntryKind.COMMAND:
                    mark = decode_count(entry.data).mark
                    self.histories.applied.add(mark)
                    assert mark not in self.histories.never, (
                        f"S18: {mark} was definitely refused and is applied"
                    )

    # --- leaders and configs -----------------------------------------------------------------------

    def alive(self) -> list[GroupNode]:
        return [n for n in self.sim.nodes.values() if n.alive]

    def leader(self, group: GroupId) -> tuple[GroupNode, TallyReplica] | None:
        """The leader of the highest term and its replica; None if there is no leader."""
        found = [
            (replica.raft.term, node, replica)
            for node in self.alive()
            if (replica := node.host.data.get(group)) is not None and replica.leads
        ]
        if not found:
            return None
        _, node, replica = max(found, key=lambda f: f[0])
        return node, replica

    def configs(self, group: GroupId) -> list[Config]:
        """Every config that a node may use, now or after a restart."""
        found = [c for n in self.sim.nodes.values() for c in n.durable.configs(group)]
        found += [n.host.data[group].raft.log.config for n in self.alive() if group in n.host.data]
        return [c for c in found if c.voters] or [Config(tuple(self.first[group]))]

    def may_spoil(self, name: NodeId) -> bool:
        """Whether every group, by any config, has a quorum of unspoiled members without this machine."""
        gone = self.spoiled | {name}
        for group in self.first:
            for config in self.configs(group):
                if sum(v not in gone for v in config.voters) < config.quorum:
                    return False
        return True

    # --- membership --------------------------------------------------------------------------------

    def steward(self) -> None:
        """Act as the operator: create missing replicas, replace spoiled machines, and sometimes change
        members."""
        for group, first in self.first.items():
            for name in first:
                if (group, name) not in self.left:
                    self.sim.nodes[name].create(group, Config(tuple(first)))
            led = self.leader(group)
            if led is not None:
                self._steer(group, *led)
        slower = max(1, self.plan.settings.heartbeat_ms // 50)
        self.sim.at(slower * self.rng.randint(20, 120), self.steward)

    def _steer(self, group: GroupId, node: GroupNode, replica: TallyReplica) -> None:
        raft = replica.raft
        config = raft.log.config
        for name in config.members:  # a learner begins empty
            if name not in self.first[group] or (group, name) in self.left:
                self.sim.nodes[name].create(group, Config())
        if not raft.can_change():
            return
        if raft.log.config_index <= raft.commit:
            self._clear(group, config, raft.commit)
        step = self._next_config(group, replica)
        if step is not None:
            try:
                raft.change(step, node.now)
            except NodeAgentError:
                return
            self.nemesis.faults["config"] += 1
            node.wake()

    def _clear(self, group: GroupId, config: Config, commit: int) -> None:
        """Remove the replicas on machines that left the group."""
        for node in self.alive():
            replica = node.host.data.get(group)
            if node.node in config.members or replica is None or replica.installing or replica.rebasing:
                continue
            if (
                replica.condition.is_unlogged
                or (group, node.node) not in self.left
                or "member" not in self.plan.kinds
            ):
                continue
            node.remove(group)
            self.odd["replica removed"] += 1

    def _next_config(self, group: GroupId, replica: TallyReplica) -> Config | None:
        """The next config, one step away: needed steps first, then a random one; None for no step."""
        raft = replica.raft
        voters, learners = list(raft.log.config.voters), list(raft.log.config.learners)
        bad = [v for v in (*voters, *learners) if v in self.spoiled]
        ready = [n for n in learners if n not in self.spoiled and raft.caught_up(n)]
        if bad and bad[0] in learners:
            learners.remove(bad[0])
        elif bad and len(voters) > max(1, self.plan.voters - 1):
            voters.remove(bad[0])
            self.left.add((group, bad[0]))
        elif ready and (bad or self.rng.random() < (0.05 if self.plan.relays else 0.5)):
            learners.remove(ready[0])
            voters.append(ready[0])
        elif bad or ("member" in self.plan.kinds and self.rng.random() < 0.3):
            if not self._any_step(group, voters, learners, bad):
                return None
        else:
            return None
        return Config(tuple(voters), tuple(learners))

    def _any_step(
        self, group: GroupId, voters: list[NodeId], learners: list[NodeId], bad: list[NodeId]
    ) -> bool:
        rng = self.rng
        taken = {*voters, *learners, *self.spoiled}
        spares = [n for n in self.sim.nodes if n not in taken and self._may_join(group, n)]
        is_short = not set(learners) - self.spoiled
        if is_short and not spares and bad:
            spares.append(self._new_machine(f"m{len(self.sim.nodes) + 1}").node)
            self.sim.nodes[spares[0]].start()
        if spares and is_short and (bad or rng.random() < 0.5):
            learners.append(rng.choice(spares))
        elif len(voters) > max(2, self.plan.voters - 1) and not bad:
            gone = rng.choice(voters)
            voters.remove(gone)
            if rng.random() < 0.3:
                learners.append(gone)
            else:
                self.left.add((group, gone))
        else:
            return False
        return True

    def _may_join(self, group: GroupId, name: NodeId) -> bool:
        """Whether a machine may join: one that left may return with an empty log once its files are
        deleted."""
        node = self.sim.nodes[name]
        if (group, name) not in self.left:
            return name not in self.first[group]
        return node.alive and group not in node.host.data and group not in node.founded

    # --- a run -------------------------------------------------------------------------------------

    def run(self) -> Report:
        with bounded(self.plan.limits):
            for node in list(self.sim.nodes.values()):
                node.start()
            self.steward()
            length_ms = self.plan.length_ms
            if self.script is None:
                self.nemesis.begin(self.nemesis.rng.randint(0, 200))
            else:
                self.nemesis.follow(self.script.faults)
                length_ms = self.script.length_ms or length_ms
            for client in self.clients:
                self.sim.at(self.rng.randint(0, 300), client.step)
            self.sim.run(lambda: self.sim.events >= EVENTS_MAX, length_ms)
            self.nemesis.heal()
            self.rest()
        h = self.histories
        return Report(
            self.seed,
            self.sim.trace,
            self.sim.events,
            self.sim.now,
            h.counted,
            h.reads,
            h.unknown,
            h.refused,
            dict(sorted(self.nemesis.faults.items())),
            dict(sorted(self.odd.items())),
        )

    def rest(self) -> None:
        """Check L1 and L3: every group has a leader, its members are equal, and all clients are answered."""
        timeout = self.plan.settings.election_timeout_ms
        settled = self.sim.run(self._at_rest, 100 * timeout + 20_000)
        assert settled, f"liveness: {self._why_not()}"
        for group, who in [c.key for c in self.clients]:
            acked = self.histories.acked.get((group, who), 0)
            for node in self._members(group):
                held = node.host.data[group].state.numbers.get(who, 0)
                assert held >= acked, (
                    f"S6: {node.node} {group}: {who} counted to {acked}, the replica has {held}"
                )

    def _members(self, group: GroupId) -> list[GroupNode]:
        """Unspoiled members of the group, by the config of its leader."""
        led = self.leader(group)
        names = led[1].raft.log.config.members if led else ()
        nodes = (self.sim.nodes[n] for n in names if n not in self.spoiled)
        return [n for n in nodes if n.alive and group in n.host.data]

    def _at_rest(self) -> bool:
        return not self._why_not()

    def _why_not(self) -> str:
        for client in self.clients:
            if client.waiting:
                return f"client {client.key} was not answered"
        for group in self.first:
            led = self.leader(group)
            if led is None:
                return f"{group} has no leader"
            replica = led[1]
            last = replica.raft.log.last_index
            if replica.raft.commit != last:
                return f"{group}: only {replica.raft.commit} of {last} entries are committed"
            wanted = [n for n in replica.raft.log.config.members if n not in self.spoiled]
            members = self._members(group)
            if len(members) < len(wanted):
                return f"{group}: only {[n.node for n in members]} of {wanted} run"
            behind = {
                n.node: n.host.data[group].applied_index
                for n in members
                if n.host.data[group].applied_index != last
            }
            if behind:
                return f"{group}: {behind} applied, {last} committed"
        waiting = {n.node: n.unanswered for n in self.alive() if n.unanswered}
        return f"{waiting} requests are never answered" if waiting else ""


def ran(seed: int) -> tuple[Swarm, Report]:
    """Run a seed; returns its world and its report."""
    swarm = Swarm(seed)
    shorter = f"shorter: python -m nodeagent.testing.shrink {seed}"
    with replayable(seed, f"nodeagent.testing.swarm {seed}", swarm.sim, lambda: f"{swarm.plan}\n{shorter}"):
        return swarm, swarm.run()


def run(seed: int) -> Report:
    return ran(seed)[1]


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

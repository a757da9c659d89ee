"""Whole clusters under a swarm of faults: the operations of `random_ops`, with faults in bursts.

Each seed draws its own kinds of faults, sizes and limits.
`python -m nodeagent.testing.cluster_swarm FIRST [COUNT]` prints one line per seed.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from nodeagent.log.identity import ID_FILE, LOG_DIR
from nodeagent.model import requests as q
from nodeagent.model.errors import InvalidInput
from nodeagent.model.ids import META
from nodeagent.model.operation import Options
from nodeagent.model.requests import ErrorReply
from nodeagent.storage import layout
from nodeagent.storage.leftovers import QUARANTINED
from nodeagent.testing.cluster_plan import KINDS_OF
from nodeagent.testing.faulty import FaultyCluster
from nodeagent.testing.file_repair import spoil
from nodeagent.testing.injector import Focus
from nodeagent.testing.nemesis import bounded
from nodeagent.testing.node import SimNode
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.simulated import LIMIT_MS, SILENT_MS

RETRY_MS = 500
"""Time between two attempts of an operator."""

COPY_MS = (0, 6_000)
"""Range of the time from copying a directory to the kill of its node."""


class Report(msgspec.Struct):
    """Results of one run."""

    seed: int
    trace: int
    events: int
    simulated_ms: int
    writes: int
    reads: int
    operations: list[str]
    faults: dict[str, int]


class ClusterSwarm(FaultyCluster):
    """One seeded run, with the changes of a script."""

    # --- permanent losses --------------------------------------------------------------------------

    def choices(self) -> list[Callable[[], bool]]:
        choices = super().choices() + (
            [self.spoil_one, self.spoil_one, self.rot_one] if self.survives else []
        )
        if self.survives and self.plan.restores:
            choices += [self.restore_one, self.restore_one]
        if self.departed():
            choices += [self.return_one]
        choices += 3 * [c for c in choices if KINDS_OF.get(c.__name__) in self._wanted_kinds]
        return choices if self.plan.steps is None else self._written(self.plan.steps, choices)

    def _written(self, steps: tuple[str, ...], choices: list[Callable[[], bool]]) -> list[Callable[[], bool]]:
        """The script's next step, repeated so that the draw uses the generator as usual.

        Raises:
            InvalidInput: the step is not possible now.
        """
        step = steps[len(self.steps)]
        written = [c for c in choices if c.__name__ == step]
        if not written:
            raise InvalidInput(f"{step} is not possible after {self.steps}")
        return written[:1] * len(choices)

    def spoil_one(self) -> bool:
        """Delete or corrupt a part of a node's data directory while it is down. It starts without that part,
        with damaged groups, or not at all; then it is replaced."""
        rng = self.sim.rng
        victim, new = rng.choice(self._names()), self.newcomer()
        self._all_up()
        node = self.sim.nodes[victim]
        node.stop(power=rng.random() < 0.5)
        self._spoil(node)
        node.start()
        self.sim.pause(rng.randint(0, 3_000))
        self._maybe_burst(node)
        return self._replaced(node, new)

    def restore_one(self) -> bool:
        """Start a node from an older copy of its data directory. Its peers refuse it, so it runs no replica;
        then it is replaced.

        No other fault is injected before the node knows that the copy is older: the copy and another fault
        together could lose acknowledged entries.
        """
        rng = self.sim.rng
        victim, new = rng.choice(self._names()), self.newcomer()
        self._all_up()
        node = self.sim.nodes[victim]
        older = node.disk.copied()
        self.sim.pause(rng.randint(*COPY_MS))
        self.kill(victim, rng.randint(50, 1_000), power=rng.random() < 0.5)
        self._all_up()
        self.until(lambda: node.alive and self._is_known(node), f"the peers know that {victim} restarted")
        node.stop(power=rng.random() < 0.5)
        node.put_back(older)
        node.start()
        self.until(lambda: bool(node.identity.damaged), f"{victim} knows that its directory is an older copy")
        self._maybe_burst(node)
        assert node.identity.damaged and not list(node.host.replicas), (
            f"{victim} runs replicas from an older copy"
        )
        return self._replaced(node, new)

    def departed(self) -> list[SimNode]:
        """Machines that left or were removed as dead, and still have their directory."""
        retired = self.newest().image.retired
        return [n for n in self.sim.nodes.values() if n.gone and not n.damaged and n.incarnation in retired]

    def return_one(self) -> bool:
        """Start a machine that left with its old directory and request to add it; this must be refused."""
        rng = self.sim.rng
        self._all_up()
        node = rng.choice(self.departed())
        node.gone = False
        node.start()
        self.sim.pause(rng.randint(0, 3_000))
        ask = q.BeginChange(
            "add-node", node.node, "sim", host=node.node, port=1, http_port=2, incarnation=node.incarnation
        )
        began = self.sim.now
        while True:
            reply = self._asked(rng.choice(self._names()), ask)
            assert isinstance(reply, ErrorReply), f"S13: {node.node} was retired and is added: {reply}"
            if "retired" in reply.what:
                break
            assert self.sim.now - began < LIMIT_MS, f"liveness: {node.node} is not refused: {reply}"
            self.sim.pause(RETRY_MS)
        if node.alive:
            node.stop(power=rng.random() < 0.5)
        node.gone = True
        return True

    def _is_known(self, node: SimNode) -> bool:
        """Whether all members of its groups know its last start."""
        peers = {p for r in node.host.replicas for p in r.raft.log.config.members} - {node.node}
        heard = (self.sim.nodes[p].host.peers.starts.newest.get(node.incarnation) for p in peers)
        return all(start is not None and start.number == node.identity.start for start in heard)

    def _replaced(self, node: SimNode, new: str) -> bool:
        """Replace the node, as a dead one if it does not start."""
        if node.damaged:
            self.dead.append(node)
            self.sim.pause(SILENT_MS)
        options = Options(dead=bool(node.damaged))
        begin = partial(self.change, "replace-node", new, options, replaces=node.node)
        return self._left(node.node, self.steered(begin, may_cancel=False))

    def _spoil(self, node: SimNode) -> None:
        rng = self.sim.rng
        groups = [layout.group_dir(g) for g in node.host.replicas.data]
        checkpoints = [layout.checkpoint_path(g) for g in (*node.host.replicas.data, META)]
        logs = node.segments()
        if rng.random() < 0.5:
            node.lose(rng.choice([LOG_DIR, ID_FILE, layout.GROUPS, *logs, *groups, *checkpoints]))
            return
        node.lossy = True
        places = [p for p in (ID_FILE, *logs, *checkpoints) if node.disk.exists(p) and node.disk.written(p)]
        path = rng.choice(places)
        node.disk.flip(path, rng.randrange(node.disk.written(path)), rng.randrange(8))

    def rot_one(self) -> bool:
        """Make a file of a replica unreadable. Later, perhaps after its slot moved, an operator verifies the
        groups and repairs the differences."""
        rng = self.sim.rng
        self._all_up()
        node = self.sim.nodes[rng.choice(self._names())]
        file = spoil(node, rng)
        if file is None:
            return True
        self.sim.note(f"{node.node}: {file.name} turns over")
        if rng.random() < 0.5:
            self.burst()
        self.sim.pause(rng.randint(0, 3_000))
        done = rng.random() < 0.3 or self.steered(lambda: self.move_slots(file.slot))
        self._all_up()
        self.leftovers = (QUARANTINED,)
        began = self.sim.now
        while not self._is_repaired():
            assert self.sim.now - began < LIMIT_MS, f"liveness: {node.node} {file.name} is not repaired"
            self.sim.pause(RETRY_MS)
        return done

    def _is_repaired(self) -> bool:
        groups = [g for g in self.newest().image.groups.values() if not g.dissolving]
        return all([self.operator.repair(g.group, g.members) for g in groups])

    # --- the run -----------------------------------------------------------------------------------

    def report(self) -> Report:
        with bounded(self.plan.limits):
            self.run_operations()
        return Report(
            self.seed,
            self.sim.trace,
            self.sim.events,
            self.sim.now,
            self.history.writes,
            self.history.reads,
            self.done,
            dict(sorted(self.nemesis.faults.items())),
        )


def ran(seed: int, focus: Focus = (), command: str = "") -> tuple[ClusterSwarm, Report]:
    """Run a seed; returns its world and its report.

    Args:
        command: repeats the run if the seed alone does not.
    """
    swarm = ClusterSwarm(seed, focus)
    shorter = "" if focus else f"\nshorter: python -m nodeagent.testing.shrink_cluster {seed}"
    return swarm, reported(swarm, command or f"nodeagent.testing.cluster_swarm {seed}", shorter)


def reported(swarm: ClusterSwarm, command: str, more: str = "") -> Report:
    """Run `swarm`; the message of a failure contains `command`, which repeats the run, and `more`."""
    with replayable(swarm.seed, command, swarm.sim, lambda: f"{swarm.plan}\n{swarm.so_far}{more}"):
        return swarm.report()


def run(seed: int) -> Report:
    return ran(seed)[1]


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

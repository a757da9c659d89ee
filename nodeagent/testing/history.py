"""Print the history of one group, slot or operation of a seed, on every machine, change by change.

`python -m nodeagent.testing.history RUN [SEED] (group|slot|operation) NAME [LINES]`: RUN is `swarm`,
`cluster_swarm` or `scenario`, or a script file, which names its seed. The seed is run again with an observer
that is called after every turn of every machine; a run without it has no overhead.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from nodeagent.host.effect_queue import Effects
from nodeagent.model.errors import InvalidInput
from nodeagent.model.operation import Operation
from nodeagent.testing.cluster_script import ClusterScript
from nodeagent.testing.cluster_swarm import ClusterSwarm
from nodeagent.testing.machine import Machine
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.script import Script
from nodeagent.testing.sim import Sim
from nodeagent.testing.swarm import Swarm

LINES = 200
WHATS = ("group", "slot", "operation")


class Story:
    """A check of the simulator that only observes. `lines` are the last changes, each with its time in ms."""

    def __init__(self, sim: Sim[Any], what: str, name: str, lines: int = LINES) -> None:
        """Raises `LookupError` if `what` is not one of `WHATS`."""
        if what not in WHATS:
            raise LookupError(f"{what} has no history; choose one of {', '.join(WHATS)}")
        self.lines: deque[str] = deque(maxlen=lines)
        self._sim = sim
        self._look: Callable[[Machine], Iterator[tuple[str, str, str]]] = getattr(self, f"_{what}")
        self._name = name
        self._known: dict[str, str] = {}
        """The last observed state, by place."""

        sim.checks.append(self)

    def __call__(self, machine: Machine, effects: Effects) -> None:
        for where, now, more in self._look(machine):
            if self._known.get(where) != now:
                self._known[where] = now
                self.lines.append(f"{self._sim.now:>8} {where}: {now}{more}")

    def _group(self, machine: Machine) -> Iterator[tuple[str, str, str]]:
        replica = machine.replica(self._name)
        where = machine.node
        if replica is None:
            why = machine.damage(self._name)
            yield where, f"life {machine.life}, {f'damaged: {why}' if why else 'no replica'}", ""
            return
        raft = replica.raft
        config = raft.log.config
        words = [f"life {machine.life}, term {raft.term}, {raft.role}", f"hears {raft.leader or 'nobody'}"]
        words.append(f"voters {' '.join(config.voters)}")
        words += [f"learners {' '.join(config.learners)}"] if config.learners else []
        words += ["installs a snapshot"] if replica.installing or replica.rebasing else []
        words += [f"stopped: {replica.stopped}"] if replica.stopped else []
        log = raft.log
        applied = replica.applied_index
        ends = f" (log {log.base.index}..{log.last_index}, {raft.commit} committed, {applied} applied)"
        yield where, ", ".join(words), ends

    def _slot(self, machine: Machine) -> Iterator[tuple[str, str, str]]:
        slot = int(self._name)
        for group, replica in machine.host.replicas.data.items():
            slots = replica.state.slots
            words = ["open"] if slot in slots.open else []
            words += [f"sealed by {op}" for op, s in slots.sealed.items() if slot in s.slots]
            words += [f"waits for rows by {op}" for op, a in slots.arriving.items() if slot in a.slots]
            where = f"{machine.node} {group}"
            if words or where in self._known:
                yield where, ", ".join(words) or "not here", f" (applied {replica.applied_index})"

    def _operation(self, machine: Machine) -> Iterator[tuple[str, str, str]]:
        op: Operation | None = machine.host.cluster.meta.operations.find(self._name)
        if op is None:
            return
        words = [f"{op.title} {op.stage}"]
        for name in ("sealed", "opened", "formed", "joined", "adopted", "released", "unsealed", "dead"):
            found = [" ".join(f) if isinstance(f, tuple) else f for f in getattr(op, name)]
            words += [f"{name} {', '.join(sorted(found))}"] if found else []
        copies = sorted(f"{c.node} {c.target}" for c in op.copies)
        words += [f"copies {', '.join(copies)}"] if copies else []
        for name in ("meta_ready", "group_ready", "paused", "migrate_go", "signed_off", "release_go"):
            words += [name] if getattr(op, name) else []
        yield machine.node, "; ".join(words), f" (applied {machine.host.cluster.meta.applied})"


def history(run: str, seed: int, what: str, name: str, lines: int = LINES) -> tuple[list[str], str]:
    """(the changes, why the run failed or ""). `run` as on the command line.

    Raises:
        LookupError: there is no such run, or it has no such history.
        InvalidInput: the script file is invalid.
    """
    world, go = _run(run, seed)
    if what != "group" and isinstance(world, Swarm):
        raise LookupError(f"{run} runs only Raft groups and has no {what}s; name a group")
    story = Story(world.sim, what, name, lines)
    try:
        go()
    except Exception as error:
        return list(story.lines), str(error) or repr(error)
    return list(story.lines), ""


def _run(run: str, seed: int) -> tuple[Swarm | ClusterSwarm | Scenario, Callable[[], msgspec.Struct]]:
    """A world, and the function that runs it."""
    match run:
        case "swarm":
            swarm = Swarm(seed)
            return swarm, swarm.run
        case "cluster_swarm":
            cluster = ClusterSwarm(seed)
            return cluster, cluster.report
        case "scenario":
            scenario = Scenario(seed)
            return scenario, scenario.run
        case _:
            return _scripted(run)


def _scripted(run: str) -> tuple[Swarm | ClusterSwarm | Scenario, Callable[[], msgspec.Struct]]:
    """The world of a script file, and the function that runs it."""
    if not Path(run).is_file():
        raise LookupError(f"{run} is not swarm, cluster_swarm, scenario or a script file")
    text = Path(run).read_text()
    try:
        of_cluster = ClusterScript.from_text(text)
    except InvalidInput:
        script = Script.from_text(text)
        scripted = Swarm(script.seed, script)
        return scripted, scripted.run
    cluster = ClusterSwarm(of_cluster.seed, script=of_cluster)
    return cluster, cluster.report


def main(words: Sequence[str]) -> int:
    run, *rest = words
    seed = int(rest.pop(0)) if rest[0].isdecimal() else 0
    what, name, *lines = rest
    found, failed = history(run, seed, what, name, *map(int, lines))
    print(*found, sep="\n")
    print(failed or "the run passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

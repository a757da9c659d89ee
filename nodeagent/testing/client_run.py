"""The real client under the simulator: it reads what it wrote, in small pages, while slots move, nodes are
killed and connections break. The changes are begun by a client, too.

`python -m nodeagent.testing.client_run FIRST [COUNT]` prints one line of evidence per seed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine

import msgspec

from nodeagent.model.requests import BeginChange
from nodeagent.testing.client import ODD, SimCluster, SimLoop, client_of, run_in
from nodeagent.testing.client_work import CellsClient, Changes, RowsClient
from nodeagent.testing.nemesis import bounded
from nodeagent.testing.parallel import print_evidence
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.scenario import Scenario

LOOK_S = 0.01
"""What the clients know is looked at so often."""


class Report(msgspec.Struct):
    """Evidence of one run."""

    seed: int
    trace: int
    events: int
    simulated_ms: int
    done: dict[str, int]


class ClientRun:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = scenario.sim.rng
        self.done: Counter[str] = Counter()
        self.over = False
        self.so_far = ""
        self.odd = self.rng.choice([0.0, ODD])

    async def disturb(self) -> None:
        sim = self.scenario.sim
        while not self.over:
            await asyncio.sleep(0.5 + 4 * self.rng.random())
            name = self.rng.choice(sorted(n for n, node in sim.nodes.items() if node.alive))
            if self.rng.random() < 0.3:
                self.scenario.cut(sorted(sim.nodes))
            else:
                self.scenario.kill(name, self.rng.randint(50, 1_500), power=self.rng.random() < 0.5)

    def _client(self) -> SimCluster:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        timeout_s = self.rng.choice([0.5, 2.0, 10.0])
        return client_of(self.scenario.sim, loop, self.scenario.view.nodes, timeout_s, self.odd)

    async def look(self, clients: list[SimCluster]) -> None:
        while not self.over:
            for client in clients:
                client.look()
            await asyncio.sleep(LOOK_S)

    async def run(self) -> None:
        scenario, rng = self.scenario, self.rng
        clients = [self._client(), self._client()]
        rows, cells = RowsClient(clients[0], rng, self.done), CellsClient(clients[0], rng, self.done)
        changes = Changes(scenario, clients[1], self.done)
        work: list[Callable[[], Coroutine[object, object, None]]] = [
            rows.write,
            rows.read,
            rows.read,
            cells.write,
            cells.read,
            changes.widen,
            self.disturb,
            lambda: self.look(clients),
        ]
        tasks = [asyncio.create_task(w()) for w in work]
        newcomer = scenario.newcomers[0]
        scenario.sim.nodes[newcomer].start()
        wanted: list[Callable[[], BeginChange]] = [
            lambda: scenario.change_of("add-node", newcomer),
            scenario.moves_of,
            lambda: scenario.change_of("remove-node", "node2"),
        ]
        faults = scenario.sim.faults
        faults.drop, faults.duplicate, faults.delay_ms = rng.choice([0.0, 0.01, 0.05]), 0.05, (1, 20)
        try:
            for want in wanted:
                may_cancel = rng.random() < 0.3
                while True:
                    await asyncio.sleep(3)
                    scenario.hold("before:FORMAL")  # the older rows are with the groups before
                    operation = self.so_far = await changes.begin(want())
                    await asyncio.sleep(rng.random() if may_cancel else 6)
                    if may_cancel:
                        before, faults.drop = faults.drop, 0.4
                        await changes.cancel(operation)
                        faults.drop = before
                    scenario.hold()
                    done = await changes.ended(operation)
                    for task in tasks:
                        if task.done():
                            task.result()
                    if done:
                        break
                    may_cancel = False
        finally:
            self.over = rows.over = cells.over = changes.over = True
            faults.heal()
        await asyncio.gather(*tasks)


def run(seed: int) -> Report:
    """S6 and S18, for what one client writes, deletes, reads and changes."""
    scenario = Scenario(seed, nodes=4, spares=1)
    rng = random.Random(f"pages {seed}")
    limits = {
        "nodeagent.model.limits.PAGE_BYTES": rng.choice([1, 200, 1_000, 1 << 23]),
        "nodeagent.model.limits.PAGE_PARTITIONS": rng.choice([1, 2, 256]),
    }
    window = rng.choice([2, 512])
    limits["nodeagent.client.sessions.WINDOW"] = window
    limits["nodeagent.model.limits.SESSION_WINDOW"] = 2 * window
    running = ClientRun(scenario)
    command = f"nodeagent.testing.client_run {seed}"
    with bounded(limits), replayable(seed, command, scenario.sim, lambda: f"{limits} {running.so_far}"):
        scenario.form()
        run_in(scenario.sim, running.run())
    sim = scenario.sim
    return Report(seed, sim.trace, sim.events, sim.now, dict(sorted(running.done.items())))


def evidence(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    print_evidence(evidence)

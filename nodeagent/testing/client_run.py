"""The real client in the simulator: it reads what it wrote, in small pages, while slots move, nodes are
killed and connections break. A client also begins the changes.

`python -m nodeagent.testing.client_run FIRST [COUNT]` prints one line per seed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence

import msgspec

from nodeagent.model.errors import NotFound, Unavailable
from nodeagent.model.requests import BeginChange
from nodeagent.testing.checks import check_converged
from nodeagent.testing.client import ODD, SimCluster, SimLoop, client_of, run_in
from nodeagent.testing.client_work import CELLS, ROWS, CellsClient, Changes, RowsClient, Shared
from nodeagent.testing.nemesis import bounded
from nodeagent.testing.parallel import run_command
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.scenario import Scenario

LEAVER = "node2"
GROUPS, ROWS_TABLES = 3, 2
CELLS_WRITERS = 2

SESSION_TTL_MS = 300
"""Session TTL in some runs, so short that sessions expire between two attempts of a write."""

PATIENT_S, AT_ONCE_S = 10.0, 1.0

LOOK_S = 0.01
"""How often the clients' knowledge of the cluster is checked."""


class Report(msgspec.Struct):
    """Results of one run."""

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
        self.calm = False
        """Whether no new faults are injected."""

        self.so_far = ""
        self.odd = self.rng.choice([0.0, ODD])

    async def disturb(self, shared: Shared) -> None:
        sim = self.scenario.sim
        while not shared.over:
            await asyncio.sleep(0.5 + 4 * self.rng.random())
            if self.calm:
                continue
            name = self.rng.choice(sorted(n for n, node in sim.nodes.items() if node.alive))
            if self.rng.random() < 0.3:
                self.scenario.cut(sorted(sim.nodes))
            else:
                self.scenario.kill(name, self.rng.randint(50, 1_500), power=self.rng.random() < 0.5)

    def _client(self, timeout_s: float, odd: float = 0.0) -> SimCluster:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        return client_of(self.scenario.sim, loop, self.scenario.view.nodes, timeout_s, odd)

    async def look(self, clients: list[SimCluster], shared: Shared) -> None:
        while not shared.over:
            for client in clients:
                client.look()
            await asyncio.sleep(LOOK_S)

    async def run(self) -> None:
        scenario, rng = self.scenario, self.rng
        clients = [self._client(rng.choice([0.5, 1.0, PATIENT_S]), self.odd) for _ in range(3)]
        groups = [
            f"root.c{number}" for number in rng.sample(range(1_000), GROUPS)
        ]  # different slots per seed
        shared = Shared(groups, clients[0], clients[1], clients[2], rng, self.done)
        rows = [RowsClient(shared, f"{ROWS}{i}") for i in range(ROWS_TABLES)]
        cells, changes = CellsClient(shared, CELLS), Changes(scenario, shared)
        work: list[Callable[[], Coroutine[object, object, None]]] = [
            *(task for one in rows for task in (one.write, one.read)),
            *CELLS_WRITERS * [cells.write],
            cells.read,
            changes.widen,
            changes.watch,
            lambda: self.disturb(shared),
            lambda: self.look(clients, shared),
        ]
        tasks = [asyncio.create_task(w()) for w in work]
        newcomer = scenario.newcomers[0]
        scenario.sim.nodes[newcomer].start()
        wanted: list[Callable[[], BeginChange]] = [
            lambda: scenario.change_of("add-node", newcomer),
            scenario.moves_of,
            lambda: scenario.change_of("remove-node", LEAVER),
        ]
        faults = scenario.sim.faults
        faults.drop, faults.duplicate, faults.delay_ms = rng.choice([0.0, 0.02, 0.1]), 0.05, (1, 20)
        try:
            for want in wanted:
                may_cancel = rng.random() < 0.5
                while True:
                    await asyncio.sleep(3)
                    scenario.hold("before:RECONFIGURING")  # the older rows are still in the source groups
                    operation = self.so_far = await changes.begin(want())
                    await asyncio.sleep(rng.random() if may_cancel else 6)
                    if may_cancel:
                        before, faults.drop = faults.drop, 0.4
                        await changes.cancel(operation)
                        faults.drop = before
                    else:
                        await self.read_in_peace(groups)
                    scenario.hold()
                    done = await changes.ended(operation)
                    for task in tasks:
                        if task.done():
                            task.result()
                    if done:
                        break
                    may_cancel = False
        finally:
            shared.over = True
            faults.heal()
        await asyncio.gather(*tasks)
        await changes.rejoin(LEAVER)
        scenario.quiet()
        check_converged(scenario.sim)
        await self.outage()

    async def read_in_peace(self, groups: Sequence[str]) -> None:
        """Check that reads complete while a slot migration is in progress."""
        sim = self.scenario.sim
        self.calm = True
        before, sim.faults.drop = sim.faults.drop, 0.0
        # Each fault ends on its own.
        while sim.faults.cut or not all(node.alive for node in sim.nodes.values()):
            await asyncio.sleep(LOOK_S)
        client = self._client(PATIENT_S)
        for group in groups:
            try:
                async with asyncio.timeout(3 * PATIENT_S):
                    await client.scan(group, CELLS)
            except NotFound:
                pass
            except TimeoutError:
                raise AssertionError(f"liveness: {CELLS} of {group} cannot be read") from None
        sim.faults.drop, self.calm = before, False

    async def outage(self) -> None:
        """Check that a client reports immediately that no node runs, and waits for nodes that restart."""
        sim = self.scenario.sim
        nodes = [node for node in sim.nodes.values() if node.alive]
        for node in nodes:
            node.stop(power=True)
        client, loop = self._client(PATIENT_S), asyncio.get_running_loop()
        began = loop.time()
        try:
            view = await client.meta()
        except Unavailable:
            assert loop.time() - began < AT_ONCE_S, (
                f"liveness: the outage is not reported within {AT_ONCE_S} s"
            )
        else:
            raise AssertionError(f"S18: {view.node} answered although it does not run")
        for node in nodes:
            node.start()
        await client.meta(strong=True)


def run(seed: int) -> Report:
    """Run a seed: checks S6 and S18 for writes, deletes, reads and changes, and L3 and L4 at the end."""
    scenario = Scenario(seed, nodes=4, spares=1)
    rng = random.Random(f"pages {seed}")
    limits = {
        "nodeagent.model.limits.PAGE_BYTES": rng.choice([1, 200, 1_000, 1 << 23]),
        "nodeagent.model.limits.PAGE_PARTITIONS": rng.choice([1, 2, 256]),
    }
    window = rng.choice([2, 512])
    limits["nodeagent.client.sessions.WINDOW"] = window
    limits["nodeagent.model.limits.SESSION_WINDOW"] = 2 * window
    sessions_end = rng.random() < 0.5
    if sessions_end:
        limits["nodeagent.host.host.EXPIRE_MS"] = SESSION_TTL_MS
    running = ClientRun(scenario)
    command = f"nodeagent.testing.client_run {seed}"
    with bounded(limits), replayable(seed, command, scenario.sim, lambda: f"{limits} {running.so_far}"):
        if sessions_end:
            for node in scenario.sim.nodes.values():
                node.config = msgspec.structs.replace(node.config, session_ttl_ms=SESSION_TTL_MS)
        scenario.form()
        run_in(scenario.sim, running.run())
    sim = scenario.sim
    return Report(seed, sim.trace, sim.events, sim.now, dict(sorted(running.done.items())))


def result_line(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    run_command(result_line)

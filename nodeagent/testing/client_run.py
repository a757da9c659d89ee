"""The real client under the simulator: it reads what it wrote, in small pages, while slots move and nodes are
killed.

`python -m nodeagent.testing.client_run FIRST [COUNT]` prints one line of evidence per seed.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable

import msgspec
import pyarrow as pa

from nodeagent.client.cluster import Cluster
from nodeagent.model.errors import NodeAgentError, OutcomeUnknown, Unavailable
from nodeagent.testing.client import SimLoop, client_of, run_in
from nodeagent.testing.nemesis import bounded
from nodeagent.testing.parallel import print_evidence
from nodeagent.testing.replay import replayable, timed
from nodeagent.testing.scenario import Scenario

GROUPS, TABLE = ("root.c0", "root.c1", "root.c2"), "m"
WEEK_MS = 604_800_000
OPERATION_S = 120.0


class Report(msgspec.Struct):
    """Evidence of one run."""

    seed: int
    trace: int
    events: int
    simulated_ms: int
    done: dict[str, int]


class Clients:
    """One writer, whose rows all have keys of their own and which deletes some of them, and readers that look
    for all of them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = scenario.sim.rng
        self.asked: set[tuple[str, int]] = set()
        self.acked: set[tuple[str, int]] = set()
        self.never: set[tuple[str, int]] = set()
        """Of writes that were refused for good."""

        self.gone: set[tuple[str, int]] = set()
        """Acknowledged, and then deleted, which was acknowledged too."""

        self.done: Counter[str] = Counter()
        self.over = False
        self.client: Cluster
        self.so_far = ""

    async def write(self) -> None:
        at = 0
        while not self.over:
            group, week = self.rng.choice(GROUPS), self.rng.randrange(3)
            times = [week * WEEK_MS + at + i for i in range(self.rng.randint(1, 6))]
            at += len(times)
            keys = {(group, t) for t in times}
            self.asked |= keys
            rows = pa.table({"time": times, "d": ["a"] * len(times), "v": [float(t) for t in times]})
            try:
                await self.client.write(group, TABLE, rows, tags=["d"])
                self.acked |= keys
                self.done["writes"] += 1
            except OutcomeUnknown:
                self.done["unknown"] += 1
            except NodeAgentError:
                self.never |= keys
                self.done["refused"] += 1
            if self.rng.random() < 0.15:
                await self.delete()
            await asyncio.sleep(self.rng.random() * 0.2)

    async def delete(self) -> None:
        """Some rows in a row of one partition."""
        if not self.acked:
            return
        group, first = self.rng.choice(sorted(self.acked))
        last = first + self.rng.randrange(20)
        keys = {(g, t) for g, t in self.acked if g == group and first <= t <= last}
        self.acked -= keys
        try:
            await self.client.delete(group, TABLE, time_from=first, time_to=last)
            self.gone |= keys
            self.done["deletes"] += 1
        except NodeAgentError:
            self.done["deletes that failed"] += 1

    async def read(self) -> None:
        while not self.over:
            await asyncio.sleep(self.rng.random() * 0.5)
            group = self.rng.choice(GROUPS)
            before = {t for g, t in self.acked if g == group}
            gone = {t for g, t in self.gone if g == group}
            if not before:
                continue
            limit = self.rng.choice([None, None, 5])
            try:
                if self.rng.random() < 0.3:
                    (counted,) = await self.client.count(group, TABLE)
                    found = None
                else:
                    found = (await self.client.scan(group, TABLE, limit=limit)).column("time").to_pylist()
            except (Unavailable, OutcomeUnknown):
                self.done["unread"] += 1
                continue
            self.done["reads"] += 1
            before &= {t for g, t in self.acked if g == group}  # without what was deleted meanwhile
            known = {t for g, t in self.asked - self.never if g == group} - gone
            if found is None:
                assert len(before) <= int(str(counted["rows"])) <= len(known), (
                    f"S6: {counted['rows']} rows of {group}, {len(before)} were acknowledged"
                )
                continue
            assert len(found) == len(set(found)), f"a row of {group} twice"
            assert set(found) <= known, f"S8, S18: {group} has {sorted(set(found) - known)}"
            missing = sorted(before - set(found))
            if limit is None:
                assert not missing, f"S6: {group} lost {missing}"
            else:
                assert min(limit, len(before)) <= len(found) <= limit, f"S6: {len(found)} rows of {group}"
                over = [t for t in missing if t < found[-1]]
                assert found == sorted(found) and not over, f"S6: the first of {group} without {over}"

    async def disturb(self) -> None:
        sim = self.scenario.sim
        while not self.over:
            await asyncio.sleep(0.5 + 4 * self.rng.random())
            name = self.rng.choice(sorted(n for n, node in sim.nodes.items() if node.alive))
            self.scenario.kill(name, self.rng.randint(50, 1_500), power=self.rng.random() < 0.5)

    async def ended(self, operation: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + OPERATION_S
        while (record := self.scenario.record(operation)) is None or not record.ended:
            assert loop.time() < until, f"liveness: {operation} in {self.scenario.stage(operation)}"
            await asyncio.sleep(0.1)

    async def run(self) -> None:
        scenario, loop = self.scenario, asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        timeout_s = self.rng.choice([0.5, 2.0, 10.0])
        self.client = client_of(scenario.sim, loop, scenario.view.nodes, timeout_s)
        tasks = [asyncio.create_task(w()) for w in (self.write, self.read, self.read, self.disturb)]
        newcomer = scenario.newcomers[0]
        scenario.sim.nodes[newcomer].start()
        begins: list[Callable[[], str]] = [
            lambda: scenario.change("add-node", newcomer),
            scenario.move_slots,
            lambda: scenario.change("remove-node", "node2"),
        ]
        faults = scenario.sim.faults
        faults.drop, faults.duplicate, faults.delay_ms = self.rng.choice([0.0, 0.01]), 0.05, (1, 20)
        try:
            for begin in begins:
                await asyncio.sleep(3)
                scenario.hold("before:FORMAL")  # the older rows are with the groups before
                with scenario.locked():
                    operation = self.so_far = begin()
                await asyncio.sleep(6)
                scenario.hold()
                await self.ended(operation)
                for task in tasks:
                    if task.done():
                        task.result()
        finally:
            self.over = True
            faults.heal()
        await asyncio.gather(*tasks)


def run(seed: int) -> Report:
    """S6 and S18, for what one client writes, deletes and reads."""
    scenario = Scenario(seed, nodes=4, spares=1)
    rng = random.Random(f"pages {seed}")
    pages = {
        "nodeagent.model.limits.PAGE_BYTES": rng.choice([1, 200, 1_000, 1 << 23]),
        "nodeagent.model.limits.PAGE_PARTITIONS": rng.choice([1, 2, 256]),
    }
    clients = Clients(scenario)
    command = f"nodeagent.testing.client_run {seed}"
    with bounded(pages), replayable(seed, command, scenario.sim, lambda: f"{pages} {clients.so_far}"):
        scenario.form()
        run_in(scenario.sim, clients.run())
    sim = scenario.sim
    return Report(seed, sim.trace, sim.events, sim.now, dict(sorted(clients.done.items())))


def evidence(seed: int) -> str:
    return timed(run, seed)


if __name__ == "__main__":
    print_evidence(evidence)

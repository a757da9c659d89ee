"""Aggregates that the groups compute: the real client in a simulated cluster, and combined parts."""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Collection, Iterable
from decimal import Decimal

import pyarrow as pa
import pytest
from msgspec.structs import replace

from nodeagent.client.cluster import Cluster
from nodeagent.model import limits
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import CloseAll, Reply, Request, RowsScanned, ScanRows
from nodeagent.model.schema import TYPES, Column, TableSchema
from nodeagent.table.aggregate import aggregate, combine
from nodeagent.table.arrow import arrow_schema, decode
from nodeagent.testing.client import SimLink, SimLoop, run_in
from nodeagent.testing.scenario import Scenario

SG, TABLE = "root.plant", "t"
SLOTS = 40
WEEKS, WEEK_MS = 8, 604_800_000
BIG = 1 << 62
"""Values whose sum exceeds 64 bits."""

Cells = dict[tuple[str, int], int | None]
"""(tag, time) -> the newest value"""


class Link(SimLink):
    """Collects the pages. The nodes `earlier` ignore `ScanSpec.aggregate`, as an earlier release does."""

    def __init__(self, scenario: Scenario, loop: SimLoop, earlier: Collection[NodeId]) -> None:
        super().__init__(scenario.sim, loop)
        self._earlier = earlier
        self.pages: list[RowsScanned] = []

    async def call(self, target: str, request: Request, timeout_s: float) -> Reply:
        if isinstance(request, ScanRows) and target in self._earlier:
            request = replace(request, spec=replace(request.spec, aggregate=False))
        reply = await super().call(target, request, timeout_s)
        if isinstance(reply, RowsScanned) and reply.rows:
            self.pages.append(reply)
        return reply


class Run:
    """A cluster with rows in several weeks. `cells` has what a strong read must return."""

    def __init__(self, seed: int) -> None:
        self.scenario = Scenario(seed, nodes=4, spares=0, slots=SLOTS)
        self.scenario.form()
        self.rng = random.Random(seed)
        self.cells: Cells = {}

    def go(self, work: Callable[[Cluster], Awaitable[None]], earlier: Collection[NodeId] = ()) -> Link:
        """Run `work` with a new client; returns the client's link."""

        async def main() -> Link:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimLoop)
            link = Link(self.scenario, loop, earlier)
            for node in self.scenario.view.nodes:
                link.learn(node, node, 1)
            await work(Cluster(link, timeout_s=10.0, rng=self.rng))
            return link

        return run_in(self.scenario.sim, main())

    async def change(self, cluster: Cluster) -> None:
        """Write new and existing cells, some of them null, then delete the cells of some times."""
        rng = self.rng
        keys = [(d, WEEK_MS * w + t) for w in range(WEEKS) for d in "ab" for t in rng.sample(range(30), 8)]
        values = [None if rng.random() < 0.2 else rng.randrange(-BIG, BIG) for _ in keys]
        given = pa.table(
            {
                "time": [t for _, t in keys],
                "d": [d for d, _ in keys],
                "v": pa.array(values, pa.int64()),
                "text": ["x" * 50] * len(keys),
            }
        )
        await cluster.write(SG, TABLE, given, tags=["d"])
        for key, value in zip(keys, values, strict=True):
            self.cells[key] = self.cells.get(key) if value is None else value
        first = WEEK_MS * rng.randrange(WEEKS) + rng.randrange(25)
        await cluster.delete(SG, TABLE, tags={"d": "a"}, time_from=first, time_to=first + 4)
        self.cells = {k: v for k, v in self.cells.items() if k[0] != "a" or not first <= k[1] <= first + 4}

    async def close(self, cluster: Cluster) -> None:
        for record in (await cluster.meta()).groups:
            await cluster.call_group(record.group, CloseAll(record.group))

    async def check(self, cluster: Cluster) -> None:
        for d, first, last in (
            ("ab", None, None),
            ("b", None, None),
            ("ab", 7, WEEK_MS + 11),
            ("ab", WEEKS * WEEK_MS, None),
        ):
            tags = {"d": d} if d == "b" else {}
            found = await cluster.aggregate(SG, TABLE, "V", tags=tags, time_from=first, time_to=last)
            values = [
                value
                for (tag, time), value in self.cells.items()
                if tag in d and (first is None or first <= time) and (last is None or time <= last)
            ]
            assert found.to_pylist() == [_expected(values)]


def _expected(values: Iterable[int | None]) -> dict[str, object]:
    known = [v for v in values if v is not None]
    total = Decimal(sum(known)) if known else None
    least, greatest = min(known, default=None), max(known, default=None)
    return {"count": len(known), "min": least, "max": greatest, "sum": total}


def _is_one_row(page: RowsScanned) -> bool:
    return page.is_aggregate and decode(page.ipc).num_rows == 1


@pytest.mark.parametrize(("seed", "page_bytes"), [(1, 600), (2, 600), (3, limits.PAGE_BYTES)])
def test_aggregates_count_the_newest_values_before_during_and_after_a_migration(
    seed: int, page_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: overwritten and deleted values do not count, wherever the older rows are. A page has one row unless
    the client has to merge it with rows of a previous holder."""
    monkeypatch.setattr(limits, "PAGE_BYTES", page_bytes)
    run = Run(seed)
    scenario = run.scenario
    for work in (run.change, run.change, run.close, run.change):
        run.go(work)
    before = run.go(run.check).pages
    assert before and all(_is_one_row(page) for page in before)

    scenario.hold("before:RECONFIGURING")  # the older rows are still in the source groups
    operation = scenario.move_slots(*range(SLOTS))
    scenario.until(lambda: scenario.stage(operation) == "OPEN", "the slots are open in their new groups")
    run.go(run.check)
    run.go(run.change)
    during = run.go(run.check).pages
    assert any(page.handover for page in during)
    assert not any(page.is_aggregate for page in during if page.handover)

    scenario.hold()
    scenario.finish(operation)
    after = run.go(run.check).pages
    assert after and all(_is_one_row(page) for page in after)


@pytest.mark.parametrize("earlier", [("node1", "node3"), ("node1", "node2", "node3", "node4")])
def test_nodes_of_an_earlier_release_return_rows_that_the_client_aggregates(earlier: tuple[str, ...]) -> None:
    run = Run(4)
    run.go(run.change)
    run.go(run.change)
    pages = run.go(run.check, earlier).pages
    assert any(not page.is_aggregate for page in pages)
    assert any(page.is_aggregate for page in pages) == (len(earlier) < 4)


SAMPLES: dict[str, list[object]] = {
    "BOOLEAN": [True, False],
    "INT32": [-(1 << 31), 7, (1 << 31) - 1],
    "INT64": [-(1 << 63), 7, (1 << 63) - 1],
    "FLOAT": [float("nan"), -1.5, 2.25],
    "DOUBLE": [float("nan"), -1.5, 2.25],
    "TEXT": ["", "z"],
    "STRING": ["", "z"],
    "TIMESTAMP": [-1, 1],
    "DATE": [-1, 1],
    "BLOB": [b"", b"\xff"],
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("rows", [0, 1, 9])
def test_aggregates_of_parts_combine_into_those_of_all_rows(kind: str, rows: int) -> None:
    """With parts that are empty or have only nulls or NaN. Texts and blobs are only counted."""
    schema = TableSchema(SG, TABLE, 1, (Column("d", "STRING", True), Column("v", kind, False)))
    for seed in range(20):
        rng = random.Random(seed)
        given = {"time": range(rows), "d": ["a"] * rows, "v": rng.choices([None, *SAMPLES[kind]], k=rows)}
        form = arrow_schema(schema)
        table = pa.table([pa.array(given[f.name], f.type) for f in form], form)
        cuts = [0, *sorted(rng.choices(range(rows + 1), k=3)), rows]
        parts = [aggregate(table.slice(a, b - a), schema) for a, b in itertools.pairwise(cuts)]
        whole = aggregate(table, schema)
        assert whole.column_names == ["v"] and str(combine(parts).to_pydict()) == str(whole.to_pydict())

        (found,) = whole.column("v").to_pylist()
        values = [v for v in table.column("v").to_pylist() if v is not None]
        assert found["count"] == len(values)
        known = [v for v in values if v == v]
        if kind in ("TEXT", "STRING", "BLOB") or not values:
            assert [found["min"], found["max"], found["sum"]] == [None] * 3
        elif known:
            assert (found["min"], found["max"]) == (min(known), max(known))
        if kind in ("INT32", "INT64"):
            assert found == _expected(values)
        if kind in ("FLOAT", "DOUBLE") and values and len(known) == len(values):
            assert found["sum"] == sum(values)

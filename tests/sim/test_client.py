"""The real client under the simulator. A failure prints the command that replays it."""

import asyncio
import math

import pytest

from nodeagent.testing.client import run_in
from nodeagent.testing.client_run import run
from nodeagent.testing.sim import Sim
from tests.sim.spread import SPREAD, spread


@pytest.mark.parametrize("seed", spread([3, 1, 2, 4, 5, 6, 7, 8]))
def test_the_client_reads_what_it_wrote_while_slots_move(seed: int) -> None:
    """S6 and S18, with pages of a few rows: acknowledged rows are read, deleted and refused ones are not."""
    done = run(seed).done
    assert done["writes"] > 15 and done["reads"] > 3, done


@SPREAD
def test_a_seed_of_the_client_repeats_its_run() -> None:
    """This holds whatever ran before in the same process."""
    first = run(8)
    run(6)
    assert run(8) == first


def test_deadlines_within_a_clock_tick_pass() -> None:
    """The clock advances only while the loop waits; it never advanced while two tasks woke each other in
    turn."""

    async def wait(until: float, rounds: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(rounds):
            await asyncio.sleep(0)
        for _ in range(1_000):
            if loop.time() >= until:
                return
            await asyncio.sleep(until - loop.time())
        raise AssertionError(f"the clock stays at {loop.time()} and does not reach {until}")

    async def both() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(16.115)
        until = math.nextafter(loop.time(), math.inf)
        await asyncio.gather(wait(until, 0), wait(until, 1))
        return loop.time()

    assert run_in(Sim(1), both()) == 16.116

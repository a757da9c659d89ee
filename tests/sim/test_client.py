"""The real client under the simulator. A failure prints the command that replays it."""

import pytest

from nodeagent.testing.client_run import run
from tests.sim.spread import SPREAD, spread


@pytest.mark.parametrize("seed", spread([3, 1, 2, 4, 5, 6, 7, 8]))
def test_the_client_reads_what_it_wrote_while_slots_move(seed: int) -> None:
    """S6, S18 with pages of some rows: what was acknowledged is read, what was deleted or refused is not."""
    done = run(seed).done
    assert done["writes"] > 15 and done["reads"] > 3, done


@SPREAD
def test_a_seed_of_the_client_is_a_run() -> None:
    """Whatever ran before it in the process: seed 8 has calls that end at the same time."""
    first = run(8)
    run(6)
    assert run(8) == first

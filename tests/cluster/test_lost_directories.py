"""Real agents detect directories without a log, a checkpoint or an identity."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.lost_directories import GROUP, LOG, META, NODE_ID, Case, check, make_world
from tests.cluster.world import World

pytestmark = pytest.mark.real

ONE, TWO = ("node2",), ("node2", "node3")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = make_world(Path(tmp_path_factory.mktemp("lost")))
    yield world
    world.close()


@pytest.mark.parametrize(
    "case", [Case(ONE, (LOG,)), Case(TWO, (LOG,)), Case(ONE, (NODE_ID, META)), Case(ONE, (META, GROUP))]
)
def test_an_agent_with_an_incomplete_directory_deletes_nothing_and_gives_no_wrong_answer(
    world: World, case: Case
) -> None:
    """The agent does not start (exit 7, with the location and the next command) or the group is damaged.

    No file is deleted, a strong count is correct or refused, and restoring the part repairs everything.
    """
    check(world, case)

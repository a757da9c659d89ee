"""Directories that lost a part, on real agents: a log, a checkpoint or a name that is gone is noticed."""

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
def test_a_directory_that_lost_a_part_deletes_nothing_and_answers_nothing_wrong(
    world: World, case: Case
) -> None:
    """The agent does not start (exit 7, the place, the next command) or the group is damaged; no file goes,
    a strong count is right or refused, and with the part back all is well."""
    check(world, case)

"""Some cases of the kill matrix on real agents; `make matrix` runs all of them."""

from collections.abc import Iterator

import pytest

from iotctl.fleet.local import LocalFleet
from nodeagent.scaling.holds import POINTS
from tests.cluster import matrix
from tests.cluster.matrix import Case, Fleet, run_case
from tests.cluster.world import copy_of

pytestmark = pytest.mark.real

CHOSEN = (
    Case("add-node", "before:OPEN", "meta leader", "late"),
    Case("remove-node", "after:SEALED", "losing leader", "early"),
    Case("add-node", "before:FORMAL", "losing leader", "late"),
    Case("remove-node", "after:OPEN", "leaver", "early"),
    Case("add-node", "before:MOVING", "overlapping member", "early"),
    Case("remove-node", "after:FORMAL", "meta leader", "early"),
    Case("add-node", "after:MOVING", "iotctl", "early"),
    Case("remove-node", "before:MOVING", "leaver", "late"),
    Case("add-node", "after:RELEASED", "newcomer", "late"),
    Case("remove-node", "before:RELEASED", "iotctl", "early"),
)


@pytest.fixture(scope="module")
def fleet(template: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(copy_of(template, tmp_path_factory.mktemp("matrix") / "fleet").directory)
    try:
        made.world.up()
        yield made
    finally:
        made.world.close()


@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: f"{c.kind}-{c.point}-{c.role}-{c.back}")
def test_a_kill_at_a_point(fleet: Fleet, case: Case) -> None:
    """The operation is DONE, no acknowledged row is lost, replicas are equal."""
    try:
        run_case(fleet, case)
    finally:
        fleet.hold()  # after a failure the next case must not find agents that wait


def test_the_matrix_has_every_point() -> None:
    assert matrix.POINTS == POINTS and all(c in matrix.cases() and not c.skipped for c in CHOSEN)

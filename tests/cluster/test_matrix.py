"""A dozen cases of the kill matrix on real agents; `make matrix` runs all of them."""

from collections.abc import Iterator

import pytest

from iotctl.fleet.local import LocalFleet
from nodeagent.scaling.failpoints import POINTS
from tests.cluster import matrix
from tests.cluster.matrix import Case, Lane

pytestmark = [pytest.mark.long, pytest.mark.real]

CHOSEN = (
    Case("add-node", "before:OPEN", "meta leader", "late"),
    Case("remove-node", "after:SEALED", "losing leader", "early"),
    Case("add-node", "before:RECONFIGURING", "losing leader", "late"),
    Case("remove-node", "after:OPEN", "leaving node", "early"),
    Case("add-node", "before:COPYING", "overlapping member", "early"),
    Case("remove-node", "after:RECONFIGURING", "meta leader", "early"),
    Case("add-node", "after:COPYING", "iotctl", "early"),
    Case("remove-node", "before:COPYING", "leaving node", "late"),
    Case("add-node", "after:CLEANUP", "joining node", "late"),
    Case("remove-node", "before:CLEANUP", "iotctl", "early"),
    Case("add-node", "after:RECONFIGURING", "joining node", "early"),
    Case("remove-node", "before:CLEANUP", "Spark driver", "early"),
)


@pytest.fixture(scope="module")
def lane(template: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lane]:
    made = Lane(template, tmp_path_factory.mktemp("matrix"))
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: f"{c.kind}-{c.point}-{c.role}-{c.back}")
def test_an_operation_completes_after_a_kill_at_a_failpoint(lane: Lane, case: Case) -> None:
    """The operation is DONE, no acknowledged row is lost, replicas are equal."""
    lane.run(case)


def test_the_matrix_has_every_failpoint() -> None:
    assert matrix.POINTS == POINTS and all(c in matrix.cases() and not c.skipped for c in CHOSEN)

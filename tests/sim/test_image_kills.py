"""The power of a node is cut at each disk operation while an image is made, sent or received: the same state
is served afterwards, and every acknowledged entry is in it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from nodeagent.host import log_start
from nodeagent.model.ids import META
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from tests.sim.spread import spread
from tests.sim.test_images import (
    change,
    flip_each_section,
    indexes,
    is_whole,
    leading,
    meta_of,
    nodes,
    serves_the_newest_state,
    with_images,
)

PARTS = 6
"""Each test cuts the power at every sixth step."""


@dataclass
class Transfer:
    """A node whose power is cut, and the work during which this happens. `work` returns when it is done, or
    after the cut."""

    scenario: Scenario
    node: SimNode
    work: Callable[[], None]

    def __post_init__(self) -> None:
        self.crashes = self.node.disk.crashes


def made() -> Transfer:
    """The node makes images, and purges its log and older images."""
    scenario = with_images(3)

    def work() -> None:
        for _ in range(3):
            change(scenario)

    return Transfer(scenario, nodes(scenario)[1], work)


def fetched() -> Transfer:
    """The node has no valid image and fetches one from another node."""
    scenario = with_images(3)
    node = nodes(scenario)[1]
    for index in indexes(node):
        flip_each_section(node, index)
    node.lossy = True
    node.stop(power=True)

    def work() -> None:
        node.start()
        life = node.life
        scenario.until(
            lambda: not node.alive or node.life > life or META not in node.host.replicas.damaged,
            "the image is fetched, or the power is off",
        )

    return Transfer(scenario, node, work)


def received() -> Transfer:
    """The node is too far behind, so the leader sends it an image."""
    scenario, _, behind = far_behind()

    def work() -> None:
        behind.start()
        catch_up(scenario, behind)

    return Transfer(scenario, behind, work)


def far_behind() -> tuple[Scenario, SimNode, SimNode]:
    """A cluster, the leader of its meta group, and a stopped node that lacks entries which the leader has
    purged from its log."""
    scenario = with_images(3)
    (leader,) = (n for n in nodes(scenario) if n.host.cluster.meta_replica in leading(scenario))
    behind = next(n for n in nodes(scenario) if n is not leader)
    last = meta_of(behind).raft.log.last_index
    behind.stop(power=True)
    while meta_of(leader).raft.log.base.index <= last:
        change(scenario)
    return scenario, leader, behind


def catch_up(scenario: Scenario, node: SimNode) -> None:
    wanted = scenario.newest().applied
    scenario.until(lambda: node.alive and node.host.cluster.applied >= wanted, "the node is up to date")


def meta_steps(transfer: Transfer) -> list[int]:
    """The numbers of the disk operations of the work that concern the meta state or remove log files, counted
    from the first operation of the work."""
    disk = transfer.node.disk
    before = disk.operations
    transfer.work()
    assert disk.crashes == transfer.crashes, "without a cut, the work is done"
    steps = enumerate(disk.trace[before - disk.operations :], 1)
    return [number for number, what in steps if META in what or what.startswith("unlink log/")]


@pytest.mark.parametrize(
    ("case", "part"),
    spread([(case, part) for part in range(PARTS) for case in (made, fetched, received)], 3),
)
def test_a_power_cut_at_any_step_of_an_image_loses_nothing(
    case: Callable[[], Transfer], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_start, "LOG_KEEP_MS_MAX", 2_000)
    steps = meta_steps(case())
    assert len(steps) >= PARTS
    for cut in steps[part::PARTS]:
        transfer = case()
        scenario, node = transfer.scenario, transfer.node
        node.lossy = True
        node.disk.cut_power_at = node.disk.operations + cut
        transfer.work()
        assert node.disk.crashes == transfer.crashes + 1
        scenario.until(
            partial(is_whole, node), f"after cut {cut}, {node.node} runs and its meta state is whole"
        )
        serves_the_newest_state(scenario, node)


@pytest.mark.parametrize("part", spread(range(PARTS)))
def test_a_leader_that_loses_power_while_it_sends_an_image_loses_nothing(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending changes nothing on its disk, so the power is cut at times after the start of the receiver."""
    monkeypatch.setattr(log_start, "LOG_KEEP_MS_MAX", 2_000)
    for delay_ms in range(10 * part, 600, 10 * PARTS):
        scenario, leader, behind = far_behind()
        scenario.sim.at(delay_ms, partial(scenario.kill, leader.node, 1_000, power=True))
        behind.start()
        scenario.sim.pause(700)
        scenario.until(partial(is_whole, leader), f"{leader.node} runs again")
        catch_up(scenario, behind)
        serves_the_newest_state(scenario, behind)

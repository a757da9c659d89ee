"""The log frees its space, whichever member lags and whether or not clients write."""

import pytest

from nodeagent.host import log_start
from nodeagent.host.data_replica import DataReplica
from nodeagent.model.requests import GroupStatus, LogPin
from nodeagent.testing.checks import check_converged
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario

KEEP_MS = 40_000
"""Longer than a writer may take to find the leader that follows the victim."""


def leaders(scenario: Scenario) -> list[DataReplica]:
    nodes = scenario.sim.nodes.values()
    return [r for n in nodes if n.alive for r in n.host.replicas.data.values() if r.leads]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_dead_follower_pins_the_log_of_an_idle_group_for_a_while_only(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the status names the follower. A timer, not a write, ends the pin; the follower catches up by
    a snapshot."""
    monkeypatch.setattr(log_start, "LOG_KEEP_MS_MAX", KEEP_MS)
    scenario = Scenario(seed, nodes=4, spares=0)
    scenario.begin(reads=False)
    scenario.sim.pause(3_000)
    victim = scenario.sim.nodes["node4"]
    victim.stop(power=False)
    scenario.sim.pause(6_000)
    for writer in scenario.writers:
        writer.stopping = True
    scenario.until(lambda: all(w.idle for w in scenario.writers), "every write is acknowledged")

    def held() -> list[DataReplica]:
        return [r for r in leaders(scenario) if r.log_start.pin == LogPin("follower", "node4")]

    scenario.sim.pause(6_000)  # closes are entries too
    scenario.until(lambda: bool(held()), "a checkpoint waits for the follower alone", KEEP_MS)
    pinned = held()
    assert all(r.raft.log.base.index < r.machine.log_needed_after() for r in pinned)
    told = [g.log_held_by for n in scenario.sim.nodes.values() if n.alive for g in status_of(n)]
    assert "follower node4" in told
    last = {r.group: r.raft.log.last_index for r in pinned}
    scenario.until(
        lambda: all(r.raft.log.base.index >= r.machine.log_needed_after() for r in leaders(scenario)),
        "every log is purged to its checkpoint",
        KEEP_MS + 5_000,
    )
    idle = [r.group for r in leaders(scenario) if last.get(r.group) == r.raft.log.last_index]
    assert idle, "none was purged by the timer alone"
    victim.start()
    scenario.quiet()
    assert scenario.sim.jobs["InstallSnapshot"]
    check_converged(scenario.sim)


def status_of(node: SimNode) -> tuple[GroupStatus, ...]:
    return node.host.status.of_node(node.sim.now, node.wall).groups

"""A node leaves a group and is killed before the group's directory is deleted."""

import pytest

from nodeagent.model.jobs import Job, RemoveGroup
from nodeagent.storage import layout
from nodeagent.testing.checks import check_converged
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario


class Ends:
    """Stops each node once, when its log says that it left a group whose directory still exists."""

    def __init__(self, scenario: Scenario, *, power: bool, halved: bool) -> None:
        self.scenario, self.power, self.halved = scenario, power, halved
        self.left: list[tuple[SimNode, str]] = []
        self.waited = 0
        for node in scenario.sim.nodes.values():
            self._listen(node)

    def _listen(self, node: SimNode) -> None:
        run = node._run

        def heard(number: int, job: Job) -> None:
            if not isinstance(job, RemoveGroup) or any(n is node for n, _ in self.left):
                return run(number, job)
            self.left.append((node, job.group))
            if self.halved:
                node.disk.unlink(layout.checkpoint_path(job.group))
                node.disk.sync_dir(layout.group_dir(job.group))
            self.scenario.kill(node.node, 50, power=self.power)
            return self.scenario.sim.at(51, lambda: self._look(node, job.group))

        node._run = heard  # type: ignore[method-assign]

    def _look(self, node: SimNode, group: str) -> None:
        """Check that the status, if it names the group, does not ask an operator to replace the node."""
        told = [g for g in node.host.status.of_node(0, 0).groups if g.group == group and g.state == "damaged"]
        assert all("wait until" in g.hint for g in told), told
        self.waited += len(told)


@pytest.mark.parametrize("seed,halved", [(1, False), (2, False), (2, True)])
def test_leftovers_of_a_group_that_a_node_left_are_deleted(seed: int, halved: bool) -> None:
    """Its log does not mention the group; the current meta state shows that it is not a member."""
    scenario = Scenario(seed, nodes=4, spares=1)
    scenario.begin()
    ends = Ends(scenario, power=seed % 2 == 0, halved=halved)
    newcomer = scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    operation = scenario.change("add-node", newcomer)
    scenario.finish(operation)
    scenario.until(lambda: bool(ends.left), "a node left a group")
    scenario.sim.pause(3_000)
    assert ends.waited
    for node, group in ends.left:
        assert not node.host.replicas.damaged, (node.node, node.host.replicas.damaged)
        assert group not in node.storage.groups() or group in node.host.replicas.data
    scenario.quiet()
    check_converged(scenario.sim)


def test_foreign_directories_beside_the_groups_stay() -> None:
    """Such a directory may be the only copy that a repair needs. It is not taken for a group of this node."""
    scenario = Scenario(3, nodes=3)
    scenario.begin()
    node = scenario.sim.nodes["node2"]
    aside = [f"groups/{name}/slots/00001/rows.tsfile" for name in ("node2.1.bak", "old", "old/node2.1")]
    scenario.kill("node2", 50, power=False)
    for path in aside:
        node.disk.mkdirs(path.rpartition("/")[0])
        node.disk.write_atomic(path, b"rows")
    scenario.until(lambda: node.alive, "node2 is back")
    scenario.sim.pause(10_000)
    assert not node.host.replicas.damaged
    assert all(node.disk.read(path) == b"rows" for path in aside)

"""Nodes start with parts of their data directory missing, on whole simulated clusters."""

import pytest

from nodeagent.model.operation import Options
from nodeagent.storage import layout
from nodeagent.testing.checks import check_converged
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from tests.sim.spread import spread

pytestmark = pytest.mark.long

RUN_MS = 6_000


def written(seed: int) -> Scenario:
    scenario = Scenario(seed)
    scenario.begin()
    scenario.sim.pause(RUN_MS)
    return scenario


def files_of(node: SimNode) -> set[str]:
    """All data files in the directory of a node."""
    return {
        f"{group}/{slot}/{name}"
        for group in node.storage.groups()
        for slot, names in node.storage.files.names(group).items()
        for name in names
    }


def take_away(scenario: Scenario, name: str, parts: tuple[str, ...]) -> set[str]:
    """Kill a node, remove parts of its directory and start it again. Return the files it still has."""
    node = scenario.sim.nodes[name]
    if node.alive:
        node.stop(power=False)
    group = max(node.host.replicas.data, key=lambda g: len(node.host.replicas.data[g].state.files.manifest))
    node.lose(
        *(part.format(group=f"{layout.GROUPS}/{group}", meta=f"{layout.GROUPS}/meta") for part in parts)
    )
    left = files_of(node)
    node.start()
    scenario.sim.pause(RUN_MS)
    return left


def replace(scenario: Scenario, victim: str) -> None:
    """Do `iotctl cluster replace-node VICTIM NEW`, with `--dead` if it does not run; check that all replicas
    are equal again."""
    node, newcomer = scenario.sim.nodes[victim], scenario.newcomers[0]
    scenario.sim.nodes[newcomer].start()
    scenario.sim.pause(RUN_MS)
    options = Options(dead=not node.alive)
    if not node.alive:
        scenario.dead.append(node)
    scenario.finish(scenario.change("replace-node", newcomer, options, replaces=victim))
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()


STOPS = [
    ("log",),
    ("node.id",),
    ("log/log.id",),
    ("log", "{group}/checkpoint"),
    ("node.id", "{meta}/checkpoint"),
]
DAMAGES = [("{group}/checkpoint",), ("{group}",), ("{meta}/checkpoint", "{group}/checkpoint")]


@pytest.mark.parametrize("seed,parts", spread([(i, parts) for i, parts in enumerate(STOPS, 1)], 3))
def test_a_node_without_its_log_or_name_does_not_start_and_keeps_its_files(
    seed: int, parts: tuple[str, ...]
) -> None:
    """No acknowledged row is missing while the node is down (the reader checks this), and it can be
    replaced."""
    scenario = written(seed)
    victim = "node2"
    left = take_away(scenario, victim, parts)
    node = scenario.sim.nodes[victim]
    assert not node.alive and node.damaged
    assert left and files_of(node) == left
    replace(scenario, victim)


@pytest.mark.parametrize("seed,parts", spread([(i, parts) for i, parts in enumerate(DAMAGES, 11)], 2))
def test_a_group_without_its_checkpoint_is_damaged_and_the_others_run(
    seed: int, parts: tuple[str, ...]
) -> None:
    """The replica neither votes nor leads, keeps its files, and is not recreated from its first members."""
    scenario = written(seed)
    victim = "node2"
    left = take_away(scenario, victim, parts)
    node = scenario.sim.nodes[victim]
    damaged = set(node.host.replicas.damaged)
    assert node.alive and damaged and damaged.isdisjoint(node.host.replicas.data)
    assert {f for f in left if f.partition("/")[0] in damaged} <= files_of(node)
    if "meta" in damaged:
        assert node.host.status.state() == "damaged"
        assert not any(r.leads for r in node.host.replicas)
    else:
        assert node.host.replicas.data, "groups that are whole run"
    replace(scenario, victim)


@pytest.mark.parametrize("seed", spread([21, 22, 23]))
def test_two_nodes_without_their_logs_elect_no_leader_and_lose_nothing(seed: int) -> None:
    """The majority of a group has lost its logs: reads of acknowledged rows are refused and return no result
    without them. Once the logs are restored, every row is there."""
    scenario = written(seed)
    victims = [scenario.sim.nodes[n] for n in ("node2", "node3")]
    for node in victims:
        node.stop(power=False)
    kept = [
        {p: node.disk.read(p) for p in ("log/" + n for n in node.disk.listdir("log"))} for node in victims
    ]
    for node in victims:
        left = take_away(scenario, node.node, ("log",))
        assert not node.alive and files_of(node) == left
    for node, log in zip(victims, kept, strict=True):
        node.disk.mkdirs("log")
        for path, content in log.items():
            node.disk.write_atomic(path, content)
        node.damaged, node.lossy = "", False
        node.start()
    scenario.quiet()
    check_converged(scenario.sim)
    scenario.read_everything()


def rolled_back(seed: int, victim: str, *, while_running: bool) -> tuple[Scenario, SimNode]:
    """A node that runs on an older copy of its directory, taken while it ran or between two starts."""
    scenario = written(seed)
    node = scenario.sim.nodes[victim]
    if while_running:
        older = node.disk.copied()
        scenario.sim.pause(RUN_MS)
    else:
        node.stop(power=False)
        older = node.disk.copied()
        node.start()
        scenario.sim.pause(RUN_MS)
    node.stop(power=False)
    node.put_back(older)
    node.start()
    return scenario, node


@pytest.mark.parametrize("seed,while_running", spread([(33, True), (31, False), (32, False), (34, True)]))
def test_a_node_on_an_older_copy_never_votes_and_is_replaced(seed: int, while_running: bool) -> None:
    """Its peers know a later start, or entries that it acknowledged and lacks. It learns this from them and
    reports it permanently; `replace-node` replaces it."""
    scenario, node = rolled_back(seed, "node2", while_running=while_running)
    scenario.until(
        lambda: bool(node.host.own_membership.older_copy),
        "it learns that its directory is an older copy",
        40_000,
    )
    assert not list(node.host.replicas) and node.host.status.state() == "damaged"
    assert "runs on an older copy of its directory" in node.host.status.of_node(0, 0).why
    node.stop(power=True)
    node.start()
    scenario.sim.pause(RUN_MS)
    assert not list(node.host.replicas) and node.host.status.state() == "damaged", "also after a restart"
    replace(scenario, "node2")


def saved_parts(node: SimNode) -> dict[str, bytes]:
    """The checkpoints of all groups of a node, with what changed since them."""
    paths = [p for g in node.storage.groups() for p in (layout.checkpoint_path(g), layout.delta_path(g))]
    return {path: node.disk.read(path) for path in paths if node.disk.exists(path)}


def put_back(node: SimNode, group: str, older: dict[str, bytes]) -> None:
    """Replace the checkpoint of a group by the older one; the log does not change."""
    for path in (layout.checkpoint_path(group), layout.delta_path(group)):
        if path in older:
            node.disk.write_atomic(path, older[path])
        elif node.disk.exists(path):
            node.disk.unlink(path)
    node.lossy = True


@pytest.mark.parametrize("seed", spread([41, 45, 42], 2))
def test_an_older_checkpoint_is_noticed_or_replays_to_the_same_state(seed: int) -> None:
    """If files were unlinked since the checkpoint, the group is damaged and keeps its files. If the log has
    all later entries and every file exists, the replica becomes equal to the others."""
    scenario = written(seed)
    node = scenario.sim.nodes["node2"]
    scenario.until(lambda: node.alive, "it is up")
    older = saved_parts(node)
    scenario.sim.pause(scenario.sim.rng.randint(50, 2_500))
    node.stop(power=False)
    for group in node.storage.groups():
        put_back(node, group, older)
    left = files_of(node)
    node.start()
    damaged = set(node.host.replicas.damaged)
    assert {f for f in left if f.partition("/")[0] in damaged} <= files_of(node)
    if damaged:
        replace(scenario, "node2")
    else:
        scenario.quiet()
        check_converged(scenario.sim)
        scenario.read_everything()

"""Damaged images of the meta state in a running cluster: the same state is served, and the damage is
reported."""

from functools import partial

import pytest

from nodeagent.host import log_start
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.meta.sections import image_of
from nodeagent.model import requests as q
from nodeagent.model.features import SPOKEN
from nodeagent.model.ids import META
from nodeagent.model.image_format import FRAME_HEAD_BYTES, ImageBytes
from nodeagent.model.limits import CHUNK_BYTES
from nodeagent.model.requests.files import PAYLOAD
from nodeagent.storage import layout
from nodeagent.storage.images import image_indexes, read_image
from nodeagent.testing.node import SimNode
from nodeagent.testing.scenario import Scenario
from nodeagent.testing.sim import CLIENT
from tests.sim.spread import SPREAD
from tests.sim.test_cases import formed


def with_images(seed: int) -> Scenario:
    """A cluster whose nodes have two images each."""
    scenario = formed(seed)
    for _ in range(10):
        if all(len(indexes(n)) == 2 for n in nodes(scenario)):
            break
        change(scenario)
    return scenario


def change(scenario: Scenario) -> int:
    """Add an entry that changes the state; return its index."""
    draining = scenario.newest().image.nodes["node1"].draining
    reply = scenario.request(q.Drain("node1", not draining, "sim"), q.Accepted)
    assert isinstance(reply, q.Accepted)
    scenario.sim.pause(1_500)
    return reply.index


def nodes(scenario: Scenario) -> list[SimNode]:
    return [n for n in scenario.sim.nodes.values() if n.alive]


def indexes(node: SimNode) -> list[int]:
    return image_indexes(node.disk, META)


def flip_each_section(node: SimNode, index: int) -> None:
    path = layout.image_path(META, index)
    for frame in ImageBytes(node.disk.read(path)).frames():
        node.disk.flip(path, frame.offset + FRAME_HEAD_BYTES)


def restart(node: SimNode, *, power: bool = True) -> None:
    node.lossy = True
    node.stop(power=power)
    node.start()


def restart_all(scenario: Scenario) -> None:
    running = nodes(scenario)
    for node in running:
        node.lossy = True
        node.stop(power=True)
    for node in running:
        node.start()


def is_whole(node: SimNode) -> bool:
    return node.alive and META not in node.host.replicas.damaged


def meta_files(node: SimNode) -> dict[str, bytes]:
    directory = layout.group_dir(META)
    return {name: node.disk.read(f"{directory}/{name}") for name in node.disk.listdir(directory)}


def write(node: SimNode, name: str, content: bytes) -> None:
    path = f"{layout.group_dir(META)}/{name}"
    if node.disk.exists(path):
        node.disk.unlink(path)
    with node.disk.create(path) as file:
        file.pwrite(0, content)
        file.sync()


def meta_status(node: SimNode) -> q.GroupStatus:
    (found,) = (g for g in node.host.status.of_node(0, 0).groups if g.group == META)
    return found


def serves_the_newest_state(scenario: Scenario, node: SimNode) -> None:
    newest = change(scenario)
    scenario.until(lambda: node.host.cluster.meta.applied >= newest, f"{node.node} applies entry {newest}")
    digests = {n.host.cluster.meta.encode() for n in nodes(scenario) if n.host.cluster.applied == newest}
    assert len(digests) <= 1
    scenario.quiet()
    scenario.read_everything()


@pytest.mark.parametrize("seed", [3, 5])
def test_after_damage_of_the_newest_image_the_one_before_is_loaded(seed: int) -> None:
    """No other node is asked; the status names the damage until two new images exist, and the damaged one is
    in quarantine then."""
    scenario = with_images(seed)
    node = nodes(scenario)[seed % 2]
    newest = indexes(node)[-1]
    flip_each_section(node, newest)
    restart(node)
    assert META not in node.host.replicas.damaged
    assert f"image.{newest}" in meta_status(node).error
    assert scenario.sim.seen["note", "meta_fetched"] == 0
    for _ in range(3):
        change(scenario)
    assert meta_status(node).error == "" and newest not in indexes(node) and len(indexes(node)) == 2
    assert f"image.{newest}" in node.disk.listdir(layout.quarantine_dir(META))
    serves_the_newest_state(scenario, node)


@pytest.mark.parametrize("seed", [3, 4])
def test_after_damage_of_both_images_the_state_comes_from_another_node(seed: int) -> None:
    """The log is whole: the node votes and acknowledges again without a lost promise."""
    scenario = with_images(seed)
    node = nodes(scenario)[seed % 2]
    for index in indexes(node):
        flip_each_section(node, index)
    restart(node)
    assert "another node is asked" in node.host.replicas.damaged[META]
    assert node.host.status.state() == "damaged"
    scenario.until(lambda: META not in node.host.replicas.damaged, "the image is fetched")
    assert scenario.sim.seen["note", "meta_fetched"] == 1
    read_image(node.disk, META, indexes(node)[-1]).verified()
    serves_the_newest_state(scenario, node)


def test_after_damage_of_the_newest_image_on_every_node_the_ones_before_are_loaded() -> None:
    scenario = with_images(3)
    for node in nodes(scenario):
        flip_each_section(node, indexes(node)[-1])
    restart_all(scenario)
    for node in nodes(scenario):
        assert META not in node.host.replicas.damaged and meta_status(node).error
    assert scenario.sim.seen["note", "meta_fetched"] == 0
    serves_the_newest_state(scenario, nodes(scenario)[0])


@pytest.mark.parametrize("whole", [0, 1, 2])
def test_after_damage_of_all_images_but_one_the_state_comes_from_it(whole: int) -> None:
    """Both images of all nodes but one are damaged, and the newest of that one. No majority can vote until
    the image is fetched."""
    scenario = with_images(3)
    for number, node in enumerate(nodes(scenario)):
        for index in indexes(node)[number == whole and -1 or 0 :]:
            flip_each_section(node, index)
    restart_all(scenario)
    damaged = [n.node for n in nodes(scenario) if META in n.host.replicas.damaged]
    assert len(damaged) == len(nodes(scenario)) - 1
    for node in nodes(scenario):
        scenario.until(partial(is_whole, node), f"{node.node} has fetched the image")
    serves_the_newest_state(scenario, nodes(scenario)[whole])


def test_after_damage_of_both_images_on_every_node_nothing_is_served_and_nothing_deleted() -> None:
    """A node whose files are restored continues, and the others fetch its image."""
    scenario = with_images(3)
    before, intact = {}, {n.node: meta_files(n) for n in nodes(scenario)}
    for node in nodes(scenario):
        for index in indexes(node):
            flip_each_section(node, index)
        before[node.node] = meta_files(node)
    restart_all(scenario)
    scenario.sim.pause(20_000)
    for node in nodes(scenario):
        assert "another node is asked" in node.host.replicas.damaged[META]
        assert node.host.status.state() == "damaged" and meta_files(node) == before[node.node]
    repaired = nodes(scenario)[1]
    for name, content in intact[repaired.node].items():
        write(repaired, name, content)
    restart(repaired)
    for node in nodes(scenario):
        scenario.until(partial(is_whole, node), f"{node.node} has an image")
    serves_the_newest_state(scenario, repaired)


def test_missing_images_are_fetched_too() -> None:
    """Nothing is created in their place, and nothing else is deleted."""
    scenario = with_images(3)
    node = nodes(scenario)[1]
    groups = set(node.host.replicas.data)
    for index in indexes(node):
        node.disk.unlink(layout.image_path(META, index))
    restart(node, power=False)
    assert "is missing" in node.host.replicas.damaged[META]
    scenario.until(lambda: META not in node.host.replicas.damaged, "the image is fetched")
    assert scenario.sim.seen["note", "meta_fetched"] == 1
    read_image(node.disk, META, indexes(node)[-1]).verified()
    assert set(node.host.replicas.data) == groups
    serves_the_newest_state(scenario, node)


@pytest.mark.parametrize("changes", [72, pytest.param(720, marks=SPREAD)])
def test_a_dead_observer_does_not_let_the_journal_grow(changes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """720 changes are one an hour for a month; the times are shorter by as much as the pauses between them.
    The journals retain what lies between two images. The observer comes back by an image."""
    monkeypatch.setattr(log_start, "LOG_KEEP_MS_MAX", 2_000)
    scenario = Scenario(3, nodes=6, spares=0)
    scenario.form()
    scenario.until(lambda: bool(leading(scenario)), "the meta group has a leader")
    (observer,) = (scenario.sim.nodes[n] for n in leading(scenario)[0].raft.log.config.learners)
    observer.stop(power=True)
    retained: list[int] = []
    for number in range(changes):
        scenario.request(q.Drain("node1", number % 2 == 0, "sim"), q.Accepted)
        logs = [meta_of(n).raft.log for n in nodes(scenario)]
        retained.append(max(log.last_index - log.base.index for log in logs))
    assert max(retained[40:]) <= 20, "two images are some six changes apart"
    newest, began = scenario.newest().applied, scenario.sim.now
    observer.start()
    scenario.until(lambda: observer.host.cluster.applied >= newest, "the observer is up to date")
    assert scenario.sim.now - began <= observer.config.raft.election_timeout_ms
    assert meta_of(observer).raft.log.base.index > newest - 20, "it came back by an image"


def meta_of(node: SimNode) -> MetaReplica:
    replica = node.host.cluster.meta_replica
    assert replica is not None
    return replica


def leading(scenario: Scenario) -> list[MetaReplica]:
    found = [n.host.cluster.meta_replica for n in nodes(scenario)]
    return [r for r in found if r is not None and r.leads]


def test_a_node_without_an_image_waits_for_a_node_that_has_one() -> None:
    """All other nodes are down at first. Neither its log nor its files are changed meanwhile."""
    scenario = with_images(3)
    node, *others = nodes(scenario)
    for index in indexes(node):
        flip_each_section(node, index)
    for other in others:
        other.stop(power=True)
    restart(node)
    scenario.sim.pause(10_000)
    assert META in node.host.replicas.damaged
    for other in others:
        other.start()
    scenario.until(lambda: META not in node.host.replicas.damaged, "the image is fetched")
    serves_the_newest_state(scenario, node)


@pytest.mark.parametrize("starts", [1, 2])
def test_the_older_image_is_still_one_to_start_from_after_restarts(starts: int) -> None:
    """A start from the newest image leaves the log that follows the older one in place."""
    scenario = with_images(3)
    node = nodes(scenario)[1]
    older, newest = indexes(node)
    for _ in range(starts):
        restart(node)
        scenario.sim.pause(400)
    assert indexes(node) == [older, newest], "nothing changed since"
    flip_each_section(node, newest)
    restart(node)
    assert META not in node.host.replicas.damaged
    assert f"image.{newest}" in meta_status(node).error
    assert scenario.sim.seen["note", "meta_fetched"] == 0
    serves_the_newest_state(scenario, node)


def test_an_older_image_that_the_log_does_not_continue_is_not_used() -> None:
    """As after an installation, if the newest image is damaged later. An image is fetched."""
    scenario = with_images(3)
    node = nodes(scenario)[1]
    old = indexes(node)[0]
    kept = node.disk.read(layout.image_path(META, old))
    for _ in range(6):
        change(scenario)
    middle, newest = indexes(node)
    replica = node.host.cluster.meta_replica
    assert replica is not None and old < replica.raft.log.base.index
    write(node, f"image.{old}", kept)
    for index in (middle, newest):
        flip_each_section(node, index)
    restart(node)
    assert "another node is asked for an image" in node.host.replicas.damaged[META]
    scenario.until(lambda: META not in node.host.replicas.damaged, "an image is fetched")
    assert scenario.sim.seen["note", "meta_fetched"] == 1
    serves_the_newest_state(scenario, node)


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_a_backup_has_everything_acknowledged_before_it(seed: int) -> None:
    """On every node, also on one that lags: it waits for the entry, or it answers that it cannot know."""
    scenario = with_images(seed)
    sim, behind = scenario.sim, nodes(scenario)[seed % 2]
    sim.faults.cut |= {(n.node, behind.node) for n in nodes(scenario)}
    draining = not scenario.newest().image.nodes["node1"].draining
    reply = scenario.request(q.Drain("node1", draining, "sim"), q.Accepted)
    assert isinstance(reply, q.Accepted)
    answers: dict[str, q.Reply] = {}
    for node in nodes(scenario):
        sim.call(CLIENT, node.node, q.BackUpMeta(), partial(answers.__setitem__, node.node))
    scenario.until(lambda: answers.keys() == {n.node for n in nodes(scenario)}, "all nodes answer")
    offered = {n: a for n, a in answers.items() if isinstance(a, q.StateOffered)}
    assert behind.node not in offered and len(offered) >= len(answers) // 2, answers
    for name, offer in offered.items():
        content = sim.nodes[name].storage.read_chunk(offer.snapshot, PAYLOAD, 0, CHUNK_BYTES)
        assert offer.index >= reply.index
        assert image_of(ImageBytes(content), SPOKEN).nodes["node1"].draining is draining
    scenario.heal()
    serves_the_newest_state(scenario, behind)

"""Fleets for the tests of this directory: data is loaded once into a stopped fleet, which each test
copies."""

from collections.abc import Callable, Iterator

import pytest

from iotctl.demo.generate import TAG, generate
from iotctl.fleet.local import LocalFleet
from nodeagent.model.config import ClusterSettings
from tests.cluster.world import DATA, NONEMPTY_MIN, World, copy_of

MakeWorld = Callable[[str], World]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> LocalFleet:
    """Five stopped nodes, R = 3, 10 000 slots, of which at least 1 500 hold rows; all rows in files."""
    fleet = LocalFleet(tmp_path_factory.mktemp("template") / "fleet")
    fleet.create(ClusterSettings(name="plant"), 5, node_settings={})
    world = World(fleet)
    try:
        world.up()
        done = world.cluster.write_many(generate(DATA), tags=[TAG])
        assert done.rows == DATA.rows
        world.close_memtables()
        assert world.nonempty_slots() >= NONEMPTY_MIN
        world.fleet.stop()
    finally:
        world.close()
    return fleet


@pytest.fixture(scope="module")
def make_world(template: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeWorld]:
    """A running copy of the template. Only one copy runs at a time; all are closed at the end of the
    module."""
    made: list[World] = []

    def make(name: str) -> World:
        for world in made:
            world.close()
        made.append(World(copy_of(template, tmp_path_factory.mktemp(name) / "fleet")))
        made[-1].up()
        return made[-1]

    try:
        yield make
    finally:
        for world in made:
            world.close()

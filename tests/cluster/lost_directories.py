"""Remove parts of stopped nodes' directories, individually and in pairs.

The only consequences may be an agent that refuses to start, a damaged group, or an image that is fetched.

`python -m tests.cluster.lost_directories` runs every case. Each case restores the parts, so one fleet serves
all.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from iotctl.demo.generate import TAG, Fleet, generate
from iotctl.fleet.local import LocalFleet
from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import NodeAgentError
from nodeagent.model.requests import GroupStatus
from tests.cluster.world import World
from tests.waiting import until

DATA = Fleet(storage_groups=6, weeks=6, step_ms=12 * 3_600_000)
EXIT_DAMAGED = 7

LOG, LOG_ID, NODE_ID, NEWEST = "log", "log/log.id", "node.id", "log/newest"
META, GROUP, FILES = "data/groups/meta/image.*", "data/groups/{group}/checkpoint", "data/groups/{group}"
PARTS = (LOG, LOG_ID, NODE_ID, NEWEST, META, GROUP, FILES)
STOPS = (LOG, LOG_ID, NODE_ID)
"""An agent does not start without these parts."""

HARMLESS = (NEWEST,)


@dataclass(frozen=True, slots=True)
class Case:
    nodes: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def stops(self) -> bool:
        return any(part in STOPS for part in self.parts)


CASES = [
    Case(nodes, parts)
    for nodes in (("node2",), ("node2", "node3"))
    for parts in [*((p,) for p in PARTS), *combinations(PARTS, 2)]
]


def make_world(directory: Path) -> World:
    """Three running nodes, three replicas, all rows in files."""
    fleet = LocalFleet(directory / "fleet")
    fleet.create(ClusterSettings(name="lost"), 3, node_settings={})
    world = World(fleet, data=DATA)
    world.up()
    assert world.cluster.write_many(generate(DATA), tags=[TAG]).rows == DATA.rows
    world.close_memtables()
    world.rows_before = world.rows()
    return world


def check(world: World, case: Case) -> None:
    """Remove the parts, start the nodes, check them, restore the parts; the cluster is healthy before and
    after."""
    group = world.group_of(case.nodes[0])
    with lost(world, case, group):
        for name in case.nodes:
            files = _files(world, name)
            if case.stops:
                _check_refused(world, name)
                assert _files(world, name) == files, f"{name} changed files"
            else:
                world.fleet.start([name])
                _check_damaged(world, name, case, group)
                assert {f for f in files if f"/{group}/" in f} <= _files(world, name), f"{name} lost files"
        _check_rows(world)
        if case.parts != HARMLESS:
            assert not world.status().healthy
    world.up()
    assert world.rows() == world.rows_before


@contextmanager
def lost(world: World, case: Case, group: str) -> Iterator[None]:
    """Stop the nodes and remove the parts; at the end, stop the nodes again and restore the parts."""
    homes = [world.fleet.directory / name for name in case.nodes]
    kept = (
        world.fleet.directory.parent / "kept"
    )  # outside the fleet's directory, because the fleet starts every node in it
    for name in case.nodes:
        assert world.fleet.stop([name])
    for home in homes:
        shutil.copytree(home, kept / home.name)
        for part in case.parts:
            for path in home.glob(part.format(group=group)):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
    try:
        yield
    finally:
        for home in homes:
            world.fleet.kill(home.name)
            if case.stops:
                shutil.rmtree(home)
                (kept / home.name).rename(home)
                continue
            # The node was started, so its other parts are newer; restoring all parts would be refused.
            for part in sorted(
                (p.format(group=group) for p in case.parts), key=len
            ):  # a directory before its files
                for path in (kept / home.name).glob(part):
                    place = home / path.relative_to(kept / home.name)
                    if not place.exists():
                        path.rename(place)
            shutil.rmtree(kept / home.name)


def _files(world: World, name: str) -> set[str]:
    root = world.fleet.directory / name / "data" / "groups"
    return {str(p) for p in root.rglob("slots/*/*")}


def _check_refused(world: World, name: str) -> None:
    """Check that the agent exits with 7 and names the location and the next command."""
    home = world.fleet.directory / name
    run = [sys.executable, "-m", "nodeagent", "run", str(home)]
    said = subprocess.run(run, capture_output=True, text=True, timeout=30)
    assert said.returncode == EXIT_DAMAGED, (said.returncode, said.stderr)
    assert "error: " in said.stderr and ("log/" in said.stderr or "node.id" in said.stderr), said.stderr
    assert f"iotctl cluster replace-node {name} NEW" in said.stderr, said.stderr


def _check_damaged(world: World, name: str, case: Case, group: str) -> None:
    """Check that the affected data groups are damaged, and that the status suggests a command. The meta group
    gets an image from another node, because its log is whole."""
    until(lambda: name in world.statuses(), 30.0, lambda: world.fleet.log_tail(name))
    if case.parts == HARMLESS:
        return
    wanted = {group} if GROUP in case.parts or FILES in case.parts else set()

    def damaged() -> dict[str, GroupStatus]:
        return {g.group: g for g in world.statuses()[name].groups if g.state == "damaged"}

    if META in case.parts:
        until(lambda: "meta" not in damaged(), 30.0, damaged)
    assert damaged().keys() == wanted, (damaged(), wanted)
    assert all(f"replace-node {name}" in g.hint and g.error for g in damaged().values())


def _check_rows(world: World) -> None:
    """Check that a strong count is correct or refused."""
    try:
        rows = world.rows()
    except NodeAgentError:
        return
    assert rows == world.rows_before, f"{rows} rows of {world.rows_before}"


def main(words: Sequence[str]) -> None:
    first, count = [int(w) for w in words] or (0, len(CASES))
    with tempfile.TemporaryDirectory(prefix="lost-") as directory:
        world = make_world(Path(directory))
        try:
            for number, case in enumerate(CASES[first : first + count], first):
                check(world, case)
                print(number, " ".join(case.nodes), "without", " and ".join(case.parts), flush=True)
        finally:
            world.close()


if __name__ == "__main__":
    main(sys.argv[1:])

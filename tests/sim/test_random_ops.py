"""After ten random operations all replicas are equal and no disk has leftover files."""

import pytest

from nodeagent.model.files import FileMeta
from nodeagent.storage import layout
from nodeagent.testing.checks import check_clean, check_converged
from nodeagent.testing.node import SimNode
from nodeagent.testing.parallel import whys
from nodeagent.testing.random_ops import RandomOps, run
from tests.sim.spread import SPREAD


@SPREAD
@pytest.mark.parametrize("seeds", [[6], [10, 11]])
def test_nothing_is_left_after_ten_random_operations(seeds: list[int]) -> None:
    """This holds after a power cut of all nodes, too. `python -m nodeagent.testing.random_ops` runs more."""
    failed = [why for why in whys(run, [(seed,) for seed in seeds], 2) if why]
    assert not failed, "\n\n".join(failed)


def formed(seed: int) -> RandomOps:
    scenario = RandomOps(seed)
    scenario.begin(reads=False)
    scenario.sim.pause(2_000)
    return scenario


def files_of(node: SimNode) -> dict[str, tuple[FileMeta, ...]]:
    return {g: r.state.files.manifest.files() for g, r in node.host.replicas.data.items()}


def test_every_kind_of_leftover_is_reported() -> None:
    """One disk of a clean cluster gets each leftover of a forgotten clean-up in turn."""
    scenario = formed(1)
    scenario.quiet()
    scenario.check()
    node = next(n for n in scenario.sim.nodes.values() if n.alive and any(files_of(n).values()))
    group, file = next((g, f) for g, files in files_of(node).items() for f in files)
    path = layout.file_path(group, file.slot, file.name)
    plants = [
        ("foreign", "notes.txt"),
        ("foreign", "groups/node9.9/slots/00001/x.tsfile"),
        ("staged", f"staging/op-9/{group}/00001-x.tsfile"),
        ("snapshot", "snapshots/0ff/files/x.tsfile"),
        ("temporary", "tmp/worker-1-1"),
        ("quarantined", f"quarantine/{group}/x"),
        ("orphan", f"{layout.slots_dir(group)}/00001/x.tsfile"),
    ]
    for kind, place in plants:
        node.disk.mkdirs(place.rpartition("/")[0])
        node.disk.create(place).close()
        with pytest.raises(AssertionError, match=rf"{node.node} has leftover files .*{place}.*\({kind}\)"):
            check_clean(scenario.sim)
        node.disk.unlink(place)
        if kind not in ("orphan", "temporary"):
            node.disk.rmtree("/".join(place.split("/")[:2]))
    check_clean(scenario.sim)
    node.disk.link(path, "tmp/again")
    with pytest.raises(AssertionError, match=r"\(linked\)"):
        check_clean(scenario.sim, ("temporary",))
    node.disk.unlink("tmp/again")
    node.disk.unlink(path)
    with pytest.raises(AssertionError, match="is missing"):
        check_clean(scenario.sim)


def test_a_member_that_does_not_delete_released_files_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = formed(2)
    lazy = scenario.sim.nodes["node2"]
    operation = scenario.move_slots()
    monkeypatch.setattr(lazy.storage.files, "delete", lambda *_: None)
    scenario.finish(operation)
    scenario.quiet()
    with pytest.raises(AssertionError, match=r"L4: node2 has leftover files .*\(orphan\)"):
        check_converged(scenario.sim)

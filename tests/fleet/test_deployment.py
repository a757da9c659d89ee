"""The changes that a machine needs, decided without a machine; and the wheel of the node's code."""

import ast
import getpass
import io
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

import nodeagent
from iotctl.errors import RefusedProblem, Unreachable
from iotctl.fleet.deployment import Found, Wanted, changes, link, machines, make_dirs, prune
from iotctl.fleet.host import Ran, ThisHost
from iotctl.fleet.removal import archive, clear
from iotctl.fleet.service import SUPERVISED, SYSTEMD, Service, kind_of
from iotctl.fleet.upload import File
from iotctl.fleet.wheelhouse import NEEDS, Platform, _canonical, _wheel, software
from iotctl.lifecycle.machines import look
from iotctl.spec.cluster import load_cluster

WANTED = Wanted(
    "node1",
    "nodeagent-plant-node1.service",
    "/data",
    "/soft",
    "1+a",
    SUPERVISED,
    "me",
    (File("node.yaml", b"new"),),
)
DONE = Found(
    user="me",
    sudo=False,
    libc="2.36",
    app="/soft/1+a",
    installed=("1+a",),
    files={"node.yaml": b"new"},
    unit=b"",
    key=True,
    running="",
    systemd=False,
    ready=("/data", "/soft"),
    makeable=(),
    supervised=False,
    unreadable=(),
    kept=(),
)


def kinds(wanted: Wanted = WANTED, **found: object) -> list[str]:
    return [c.what for c in changes(wanted, msgspec.structs.replace(DONE, **found))]


def test_without_a_difference_there_is_no_change() -> None:
    assert kinds() == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"installed": ("1+b",)}, ["software"]),
        ({"files": {"node.yaml": b"old"}}, ["files"]),
        ({"files": {}}, ["files"]),
        ({"app": "/soft/1+b"}, ["version"]),
        ({"app": ""}, ["version"]),
        ({"ready": ("/soft",)}, ["dirs"]),
    ],
)
def test_each_difference_is_one_change(found: dict[str, object], expected: list[str]) -> None:
    assert kinds(WANTED, **found) == expected


def test_a_unit_is_compared_if_systemd_runs_the_agent() -> None:
    wanted = msgspec.structs.replace(WANTED, service=SYSTEMD)
    assert kinds(wanted) == ["unit"] and kinds(wanted, unit=wanted.unit.encode()) == []


def test_systemd_is_used_if_we_may_control_it() -> None:
    assert kind_of(True, "root", False) == kind_of(True, "me", True) == SYSTEMD
    assert kind_of(True, "me", False) == kind_of(False, "root", True) == SUPERVISED


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        ({"unit": b"[Unit]"}, SYSTEMD),  # although we may not control systemd, systemd restarts the agent
        ({"supervised": True, "systemd": True, "sudo": True}, SUPERVISED),
        ({"systemd": True, "sudo": True}, SYSTEMD),
        ({"systemd": True}, SUPERVISED),
    ],
)
def test_an_agent_is_stopped_through_its_present_supervisor(found: dict[str, object], kind: str) -> None:
    assert msgspec.structs.replace(DONE, **found).kind == kind


def test_unreadable_files_are_not_taken_for_absent(tmp_path: Path) -> None:
    """Otherwise a live node of another user would get new certificates and lose its directory."""
    (tmp_path / "cluster.yaml").write_text(
        "apiVersion: iotctl/v1\ncluster: {name: plant}\nnodes:\n  - {name: node1, host: 10.0.0.1}\n"
    )
    source = load_cluster(tmp_path / "cluster.yaml")

    class Closed(ThisHost):
        def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 1.0) -> Ran:
            said = b"end=0\nuser=bob\nsudo=yes\nunreadable=/var/lib/nodeagent alice\nend=1\n"
            return Ran(0, said, b"")

    with pytest.raises(RefusedProblem, match="belongs to alice and bob may not read it"):
        look(source, source.file.nodes[0], Closed())


def test_a_directory_with_files_of_another_user_is_refused(tmp_path: Path) -> None:
    """`install -d -o` would take the directory from a running agent."""
    me = getpass.getuser()
    wanted = msgspec.structs.replace(
        WANTED, user=me, home=str(tmp_path / "home"), install_dir=str(tmp_path / "soft")
    )
    make_dirs(ThisHost(), wanted, sudo=False)
    assert {p.name for p in tmp_path.iterdir()} == {"home", "soft"}
    (tmp_path / "home" / "node.yaml").touch()
    make_dirs(ThisHost(), wanted, sudo=False)
    with pytest.raises(Unreachable, match="directories") as caught:
        make_dirs(ThisHost(), msgspec.structs.replace(wanted, user="nobody"), sudo=False)
    assert "not empty" in caught.value.why and (tmp_path / "home").owner() == me


def test_nodes_on_one_machine_share_an_installation() -> None:
    wanted = {n: WANTED for n in ("a", "b", "c")}
    assert machines(wanted, {"a": "m1", "b": "m2", "c": "m1"}) == [["a", "c"], ["b"]]
    assert machines(wanted, {"a": "", "b": "", "c": ""}) == [["a"], ["b"], ["c"]]


def test_files_of_a_removed_node_are_archived_completely_even_after_an_interruption(tmp_path: Path) -> None:
    """Each removal archives to a new place; a directory without a node is left alone."""
    home = tmp_path / "home"
    home.mkdir()
    assert archive(ThisHost(), str(home)) == "" and list(home.iterdir()) == []
    for number in (1, 2):
        for name in ("node.yaml", "agent.log", "data/groups/g/f.tsfile"):
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{number} {name}")
        if number == 2:  # killed after the first rename
            (home / "removing").mkdir()
            (home / "node.yaml").rename(home / "removing" / "node.yaml")
        assert archive(ThisHost(), str(home)) == str(home / f"removed-{number}")
    for number in (1, 2):
        kept = home / f"removed-{number}"
        found = {str(p.relative_to(kept)): p.read_text() for p in kept.rglob("*") if p.is_file()}
        names = ("node.yaml", "agent.log", "data/groups/g/f.tsfile")
        assert found == {n: f"{number} {n}" for n in names}
    assert sorted(p.name for p in home.iterdir()) == ["removed-1", "removed-2"]


def test_a_file_never_shows_its_content() -> None:
    assert "secret" not in repr(File("tls/node.key", b"secret"))


def test_the_node_gets_every_package_it_imports() -> None:
    """This includes imports inside functions, and packages whose distributions have other names."""
    named = {"yaml": "pyyaml", "prometheus_client": "prometheus-client"}
    imported = set()
    for path in Path(nodeagent.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {a.name.partition(".")[0] for a in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported.add(node.module.partition(".")[0])
    import sys

    foreign = {named.get(i, i) for i in imported if i not in sys.stdlib_module_names and i != "nodeagent"}
    assert foreign == set(NEEDS)


def test_the_wheel_has_the_code_and_pins_its_dependencies() -> None:
    made = software()
    wheel = zipfile.ZipFile(io.BytesIO(_wheel(made)))
    assert wheel.read("nodeagent/cli.py") == (Path(nodeagent.__file__).parent / "cli.py").read_bytes()
    (metadata,) = [n for n in wheel.namelist() if n.endswith("METADATA")]
    needs = {line.split()[1] for line in wheel.read(metadata).decode().splitlines() if "Requires" in line}
    assert {_canonical(n.partition("==")[0]) for n in needs} == set(NEEDS) and all("==" in n for n in needs)
    assert not [n for n in wheel.namelist() if n.startswith("iotctl")]
    assert _wheel(made) == _wheel(software())


def test_another_line_of_code_is_another_version() -> None:
    made = software()
    assert made.version == software().version and made.version.startswith(nodeagent.__version__ + "+")


def test_a_machine_with_an_older_libc_gets_wheels_for_it() -> None:
    tags = Platform("3.11", "x86_64", "2.28").tags
    assert tags[0] == "manylinux_2_28_x86_64" and "manylinux2014_x86_64" in tags
    assert not [t for t in tags if "2_29" in t]


@pytest.mark.parametrize("listens", [True, False])
def test_a_reload_does_not_end_an_agent_that_has_just_started(tmp_path: Path, listens: bool) -> None:
    """SIGHUP ends a process that does not catch it; an agent that ends loads the certificate at its start."""
    told = tmp_path / "told"
    late = f"trap 'touch {told}; exit' HUP; while :; do sleep 0.05; done" if listens else "exit"
    words = ["sh", "-c", f"sleep 0.5; {late}", "nodeagent", "run", str(tmp_path)]
    # A shell cannot trap a signal that it inherited as ignored, as under `nohup`.
    agent = subprocess.Popen(words, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
    try:
        service = Service(ThisHost(), SUPERVISED, "node1", "", str(tmp_path), False)
        assert service.reload() is listens
        assert agent.wait(10) == 0 and told.exists() is listens
    finally:
        agent.kill()
    assert service.reload() is False


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory for software, which also has a second path."""
    (tmp_path / "soft").mkdir()
    (tmp_path / "alias").symlink_to("soft")
    return tmp_path / "soft"


def installed(place: Path) -> Path:
    (place / "bin").mkdir(parents=True)
    (place / ".nodes").mkdir()
    (place / ".complete").touch()
    return place


def linked(home: Path, *places: Path) -> None:
    home.mkdir(exist_ok=True)
    for place in places:
        link(ThisHost(), str(home), str(place))


def test_unused_versions_are_deleted_except_the_last_one_used(base: Path, tmp_path: Path) -> None:
    """Versions count in the order in which they were linked, not installed: the last serves a rollback."""
    good, bad, unused, now = (installed(base / v) for v in ("good", "bad", "unused", "now"))
    installed(base / "broken")
    (base / "broken" / ".complete").unlink()  # being installed
    (base / "notes").mkdir()
    linked(tmp_path / "a", good, bad, good, now)
    os.utime(unused / ".nodes", (1, 1))
    assert prune(ThisHost(), str(base), "now") == ["bad", "unused"]
    assert prune(ThisHost(), str(base), "now") == []
    assert {p.name for p in base.iterdir()} - {".lock"} == {"now", "good", "broken", "notes"}
    with pytest.raises(Unreachable, match="version") as caught:
        linked(tmp_path / "a", bad)
    assert "no longer installed" in caught.value.why and (tmp_path / "a" / "app").resolve() == now


def test_a_version_that_may_be_in_use_stays(base: Path, tmp_path: Path) -> None:
    """It may be in use by a stopped node, through another path, on an unmounted disk, or by a process."""
    now, down, named, away, runs, before = (
        installed(base / v) for v in ("now", "down", "named", "away", "runs", "before")
    )
    linked(tmp_path / "down", down)
    linked(tmp_path / "named", tmp_path / "alias" / "named")
    linked(tmp_path / "away", away)
    linked(tmp_path / "a", runs, before, now)
    (tmp_path / "away").rename(tmp_path / "elsewhere")
    sleep = tmp_path / "alias" / "runs" / "bin" / "sleep"
    shutil.copy(shutil.which("sleep") or "", sleep)
    process = subprocess.Popen([base / "runs" / "bin" / "sleep", "60"])
    try:
        assert prune(ThisHost(), str(base), "now") == []
        assert prune(ThisHost(), str(tmp_path / "alias"), "now") == []
    finally:
        process.kill()
        process.wait()
    assert prune(ThisHost(), str(base), "now") == ["runs"]
    assert all(p.is_dir() for p in (down, named, away, before))


def test_clear_deletes_our_files_and_none_of_another_cluster(tmp_path: Path) -> None:
    """This includes a linked disk; remaining files are named, and a repeated call deletes nothing more."""
    home, disk, version = tmp_path / "home", tmp_path / "disk", installed(tmp_path / "soft" / "1")
    home.mkdir()
    disk.mkdir()
    linked(home, version)
    (home / "data").symlink_to(disk)
    for name in ("node.yaml", "agent.log", "data/a.tsfile", ".incoming.x", "app.new"):
        (home / name).touch()
    for number, cluster in ((1, "plant"), (2, "prod")):
        (home / f"removed-{number}").mkdir()
        (home / f"removed-{number}" / "node.yaml").write_text(f"cluster:\n  name: {cluster}\n  slots: 9\n")
    assert clear(ThisHost(), str(home), "plant") == "removed-2"
    assert [p.name for p in home.iterdir()] == ["removed-2"] and not list(disk.iterdir())
    assert not list((version / ".nodes").iterdir())
    (home / "data").mkdir()
    (home / "tls").mkdir()
    assert clear(ThisHost(), str(home), "plant") == "data removed-2", "without node.yaml there was no node"
    shutil.rmtree(home / "removed-2")
    (home / "data").rmdir()
    assert clear(ThisHost(), str(home), "plant") == "" and not home.exists()
    assert clear(ThisHost(), str(home), "plant") == ""

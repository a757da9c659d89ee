"""The current build reads the stored and sent data of earlier releases (`golden`)."""

import ast
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import iotctl
import nodeagent
from tests.compat import formats, golden, shapes

RELEASES = golden.releases()
KEPT = [pytest.param(p, id=f"{r.name} {p.stem}") for r in RELEASES for p in sorted(r.glob("*.json"))]

ONE_BUILD = {
    "nodeagent/storage/packets.py: _Head": "sent to a worker process of the same build",
    "iotctl/pipeline/content.py: CompareUnit": "within one Spark job",
    "iotctl/pipeline/content.py: UnitOutcome": "within one Spark job",
    "iotctl/pipeline/migrate.py: list[PullResult]": "within one Spark job",
    "iotctl/pipeline/migrate.py: Bundle": "within one Spark job",
    "nodeagent/storage/checkpoint.py: dict[str, msgspec.Raw]": "the names of a checkpoint's parts",
    "nodeagent/storage/checkpoint.py: bytes": "one part of a checkpoint",
    "nodeagent/model/image_format.py: list[kind]": "records of an image (`image.*`, `meta.image`)",
}
"""Decoded types that are no format, because they are neither stored nor sent to another build."""


def decoded(root: Path) -> Iterator[str]:
    """`file: type` of every call in the package that decodes msgpack or JSON."""
    for path in sorted(root.rglob("*.py")):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            where = path.relative_to(root.parent)
            if called.endswith("pack.Decoder"):
                yield f"{where}: {ast.unparse(node.args[0])}"
            elif called.endswith(("msgpack.decode", "json.decode")):
                yield from (f"{where}: {ast.unparse(k.value)}" for k in node.keywords if k.arg == "type")


def _name(kind: str) -> str:
    return kind.removeprefix("list[").removesuffix("]").rpartition(".")[2]


def contains(new: Any, old: Any) -> bool:
    """Return whether `new` contains everything in `old`; it may contain more."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(k in new and contains(new[k], v) for k, v in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) >= len(old) and all(map(contains, new, old))
    return type(new) is type(old) and bool(new == old)


def test_there_is_a_release() -> None:
    assert RELEASES


def test_every_format_that_is_decoded_is_listed() -> None:
    """Compared by name, because a format may be decoded as a list of its structs."""
    tree = ast.parse(Path(formats.__file__).read_text())
    table = next(n for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "FORMATS")
    assert isinstance(table.value, ast.Dict)
    listed = {_name(ast.unparse(value)) for value in table.value.values}
    found = {d for root in (nodeagent, iotctl) for d in decoded(Path(str(root.__file__)).parent)}
    assert {d for d in found if _name(d.partition(": ")[2]) not in listed} == set(ONE_BUILD)


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.name)
def test_every_format_of_a_release_is_still_listed(release: Path) -> None:
    assert {p.stem for p in release.glob("*.json")} <= set(formats.FORMATS)


@pytest.mark.parametrize("path", KEPT)
def test_a_format_only_grows(path: Path) -> None:
    old, new = golden.load(path).shapes, shapes.shapes_of(formats.FORMATS[path.stem])
    assert list(shapes.differences(old, new)) == []


@pytest.mark.parametrize("path", KEPT)
def test_the_bytes_of_a_release_decode_to_its_values(path: Path) -> None:
    for tag, sample in golden.load(path).samples.items():
        found = formats.decode(path.stem, base64.b64decode(sample.content))
        assert contains(shapes.plain(found), sample.value), tag


@pytest.mark.parametrize("path", KEPT)
def test_a_format_that_did_not_grow_has_the_same_bytes(path: Path) -> None:
    """Renamed classes do not matter."""
    kept, made = golden.load(path), golden.golden(path.stem)
    if not list(shapes.differences(made.shapes, kept.shapes)):
        assert made.samples == kept.samples


@pytest.mark.parametrize("release", RELEASES, ids=lambda r: r.name)
def test_a_node_starts_on_the_directory_of_a_release(release: Path, tmp_path: Path) -> None:
    with golden.fleet_of(tmp_path / "fleet", release / golden.DIRECTORY) as world:
        for kept in release.glob("*.arrow"):
            with pa.memory_map(str(kept)) as source:
                wanted = pa.ipc.open_file(source).read_all()
            assert world.cluster.scan(golden.STORAGE_GROUP, kept.stem).equals(wanted), kept.stem
        before = world.rows()
        world.cluster.write(golden.STORAGE_GROUP, "pump", golden.rows(1_000), tags=["device"])
        world.close_memtables()
        assert world.iotctl("verify", "--depth", "hash").code == 0
        world.restart(golden.NODE)
        world.wait_healthy()
        assert world.rows() == before + golden.DEVICES * golden.STEPS

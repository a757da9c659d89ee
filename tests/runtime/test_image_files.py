"""`nodeagent image`: checks, dumps and compares images, whole and damaged ones."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nodeagent.cli import app
from nodeagent.meta import commands as c
from nodeagent.meta.sections import KINDS, check_image, sections_of
from nodeagent.model.ids import META
from nodeagent.model.image_format import END, FRAME_HEAD_BYTES, HEADER, ImageBytes
from nodeagent.runtime.disk import RealDisk
from nodeagent.storage import layout
from nodeagent.storage.images import Images
from tests.meta.test_changes import Meta
from tests.storage.test_images import grow, header, rich_meta


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The directory of a node with two images; the second has a node drained and an operation advanced."""
    (tmp_path / "node.yaml").write_text("")
    disk, meta = RealDisk(tmp_path / "data"), rich_meta()
    disk.mkdirs(layout.TMP)
    save(disk, meta)
    grow(meta)
    meta.do(c.MetaReady(4, meta.op.id))
    save(disk, meta)
    return tmp_path


def save(disk: RealDisk, meta: Meta) -> None:
    Images(disk, check_image).save(header(meta.state), sections_of(meta.state.image))


def images_of(node: Path) -> list[Path]:
    return sorted((node / "data" / "groups" / META).iterdir(), key=lambda p: int(p.suffix[1:]))


def run(*words: object) -> tuple[int, list[dict[str, Any]], str]:
    said = CliRunner().invoke(app, ["image", *map(str, words)])
    return said.exit_code, [json.loads(line) for line in said.stdout.splitlines()], said.stderr


def test_check_reports_every_image_of_a_node(node: Path) -> None:
    code, lines, _ = run("check", node)
    assert code == 0 and [line["image"] for line in lines] == [str(p) for p in images_of(node)]
    assert all(line["valid"] and line["node"] == "a" and line["group"] == META for line in lines)
    assert lines[0]["index"] < lines[1]["index"] and lines[0]["digest"] != lines[1]["digest"]
    flip(images_of(node)[0], 90)
    code, lines, _ = run("check", node)
    assert (
        code == 7 and [line["valid"] for line in lines] == [False, True] and "checksum" in lines[0]["error"]
    )


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)


def test_dump_names_every_record_and_field(node: Path) -> None:
    code, lines, _ = run("dump", node)
    assert code == 0 and all(line["valid"] for line in lines)
    assert list(dict.fromkeys(line["section"] for line in lines)) == [HEADER, *KINDS, END]
    nodes = [line["fields"] for line in lines if line["section"] == "nodes"]
    assert [n["node"] for n in nodes] == ["a", "b", "c", "d", "e"] and nodes[0]["draining"] is True
    code, lines, _ = run("dump", node, "--section", "schemas")
    assert code == 0 and [line["fields"]["table"] for line in lines] == ["t"]
    code, _, err = run("dump", node, "--section", "shemas")
    assert code == 2 and "schemas" in err


def test_dump_continues_after_damage(node: Path) -> None:
    """Any bit flipped and any end cut off: the damage is reported with its place, all other frames are
    printed, and no exception is raised."""
    path = images_of(node)[1]
    whole, rng = path.read_bytes(), random.Random(7)
    frames = list(ImageBytes(whole).frames())
    for _ in range(60):
        offset = rng.randrange(len(whole))
        flip(path, offset)
        code, lines, _ = run("dump", path)
        (hit,) = [f for f in frames if f.offset <= offset < f.offset + FRAME_HEAD_BYTES + len(f.payload)]
        (bad,) = [line for line in lines if not line["valid"]]
        assert code == 7 and (bad["offset"], bad["bytes"]) == (
            hit.offset,
            FRAME_HEAD_BYTES + len(hit.payload),
        )
        assert {line["section"] for line in lines if line["valid"]} == {f.name for f in frames} - {hit.name}
        flip(path, offset)
    for size in (0, 3, FRAME_HEAD_BYTES, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        code, lines, _ = run("dump", path)
        assert code == (7 if size else 0)
        assert run("check", path)[0] == 7
    path.write_bytes(rng.randbytes(5_000))
    assert run("dump", path)[0] == 7


def test_diff_shows_only_what_differs(node: Path) -> None:
    old, new = images_of(node)
    code, lines, _ = run("diff", old, new)
    found = {(line["section"], line["key"]): line for line in lines}
    assert code == 1
    assert found["nodes", "a"] == {
        "section": "nodes",
        "key": "a",
        "change": "changed",
        "old": {"draining": False},
        "new": {"draining": True},
    }
    (operation,) = [line for line in lines if line["section"] == "operations"]
    assert operation["new"] == {"meta_ready": True}
    assert {line["section"] for line in lines} == {"nodes", "operations", "audit"}
    assert all(line["change"] == "added" for line in lines if line["section"] == "audit")
    assert run("diff", old, old) == (0, [], "")
    back = {(line["section"], line["key"]): line["change"] for line in run("diff", new, old)[1]}
    assert "removed" in back.values() and len(back) == len(found)
    flip(new, 100)
    code, lines, err = run("diff", old, new)
    assert code == 7 and not lines and str(new) in err


def test_a_path_without_an_image_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        for verb in (("check", path), ("dump", path), ("diff", path, path)):
            code, lines, err = run(*verb)
            assert code == 5 and not lines and "next: " in err

"""`iotctl audit`: export lines to a file, and find what is missing or changed in it."""

import fcntl
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from iotctl.errors import Exit
from nodeagent.model.audit_chain import AuditLine, digests
from nodeagent.model.features import Feature
from tests.iotctl.fakes import NOW_MS, SPEC, FakeCluster, iotctl

LINES: list[AuditLine] = [(NOW_MS + i, "ann", f"drain node{i}") for i in range(8)]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "cluster.yaml").write_text(SPEC)
    return tmp_path


def audited(first: int, last: int, lines: list[AuditLine] = LINES) -> FakeCluster:
    """A cluster that retains the lines from `first` to before `last`."""
    every = ["", *digests("", lines)]
    return FakeCluster(
        audit=list(lines[first:last]), audit_first=first, audit_base=every[first], level=Feature.AUDIT_CHAIN
    )


def run(spec: Path, cluster: FakeCluster | None, *words: str) -> Any:
    return iotctl(spec, "audit", *words, cluster=cluster)


def numbers(spec: Path) -> list[int]:
    return [json.loads(line)["number"] for line in (spec / "log.jsonl").read_text().splitlines()]


def test_each_export_appends_what_the_file_lacks(spec: Path) -> None:
    for cluster, expected in ((audited(0, 3), 3), (audited(0, 3), 3), (audited(2, 6), 6), (audited(6, 8), 8)):
        done = run(spec, cluster, "export", "--to", "log.jsonl")
        assert done.code == Exit.DONE, done.err
        assert numbers(spec) == list(range(expected))
    done = run(spec, None, "check", "log.jsonl", "-o", "json")
    assert done.code == Exit.DONE and json.loads(done.out)["lines"] == 8, done.err


def test_lines_that_were_not_exported_in_time_are_named(spec: Path) -> None:
    run(spec, audited(0, 3), "export", "--to", "log.jsonl")
    done = run(spec, audited(5, 8), "export", "--to", "log.jsonl")
    assert done.code == Exit.REFUSED and "lines 3 to 4 were not exported in time" in done.err
    assert numbers(spec) == [0, 1, 2]


@pytest.mark.parametrize("first", [0, 3])
def test_a_file_of_another_cluster_gets_no_lines(spec: Path, first: int) -> None:
    """Also if its last line is no longer retained, and if it is longer than the log."""
    other = [(t, "bob", what) for t, _, what in LINES]
    run(spec, audited(0, 3), "export", "--to", "log.jsonl")
    for cluster in (audited(first, 8, other), audited(0, 2)):
        done = run(spec, cluster, "export", "--to", "log.jsonl")
        assert done.code == Exit.REFUSED and "is not line 2 of this cluster" in done.err
        assert numbers(spec) == [0, 1, 2]


def test_a_cluster_of_the_first_level_has_no_numbers(spec: Path) -> None:
    done = run(spec, FakeCluster(audit=list(LINES)), "export", "--to", "log.jsonl")
    assert done.code == Exit.REFUSED and "finalize-upgrade" in done.err and not (spec / "log.jsonl").exists()


def test_without_a_file_the_lines_are_printed(spec: Path) -> None:
    shown = run(spec, audited(2, 8), "export", "-o", "json")
    found = json.loads(shown.out)
    assert found["kept_from"] == 2 and [r["number"] for r in found["lines"]] == list(range(2, 8))
    table = run(spec, audited(2, 8), "export", "--since", "1s")
    assert "drain node2" not in table.out, "the lines are years old"


def lines_of(spec: Path) -> list[bytes]:
    run(spec, audited(0, 8), "export", "--to", "log.jsonl")
    return (spec / "log.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("damage", ["removed", "twice", "swapped", "changed", "rechained"])
def test_every_change_of_a_file_is_found(spec: Path, number: int, damage: str) -> None:
    """Without the first or the last lines, what is left is still a part of the log."""
    lines = lines_of(spec)
    match damage:
        case "removed":
            del lines[number]
        case "twice":
            lines.insert(number, lines[number])
        case "swapped":
            lines[number], lines[number - 1] = lines[number - 1], lines[number]
        case "changed":
            lines[number] = lines[number].replace(b"drain", b"x")
        case "rechained":  # with a digest that fits the changed line
            row = json.loads(lines[number])
            row["what"] = "x"
            row["digest"] = next(digests(row["previous"], [(row["time_ms"], row["by"], row["what"])]))
            lines[number] = json.dumps(row).encode() + b"\n"
        case _:
            raise AssertionError(damage)
    (spec / "log.jsonl").write_bytes(b"".join(lines))
    done = run(spec, None, "check", "log.jsonl")
    shortened = damage == "removed" and number in (0, 7)
    is_last = damage == "rechained" and number == 7  # only the cluster can tell: see the next export
    assert done.code == (Exit.DONE if shortened or is_last else Exit.VERIFICATION), done.out
    if is_last:
        again = run(spec, audited(0, 8), "export", "--to", "log.jsonl")
        assert again.code == Exit.REFUSED
    if not (shortened or is_last):
        assert "log.jsonl:" in done.err


@pytest.mark.parametrize("content", [b"x\n", b"{}\n", b"[1]\n", b"\xff\n", b"\n"])
def test_a_file_that_is_no_audit_log_is_refused(spec: Path, content: bytes) -> None:
    (spec / "log.jsonl").write_bytes(content)
    for cluster, words in ((None, ("check", "log.jsonl")), (audited(0, 3), ("export", "--to", "log.jsonl"))):
        done = run(spec, cluster, *words)
        assert done.code == Exit.INPUT and "is not a line of an audit log" in done.err, done.err
    assert (spec / "log.jsonl").read_bytes() == content


def test_a_torn_last_line_is_named_and_nothing_is_appended(spec: Path) -> None:
    lines = lines_of(spec)
    (spec / "log.jsonl").write_bytes(b"".join(lines)[:-5])
    assert run(spec, None, "check", "log.jsonl").code == Exit.VERIFICATION
    done = run(spec, audited(0, 8), "export", "--to", "log.jsonl")
    assert done.code == Exit.INPUT and "incomplete line" in done.err


def test_a_missing_or_empty_file(spec: Path) -> None:
    missing = run(spec, None, "check", "log.jsonl")
    assert missing.code == Exit.INPUT and "cannot be read" in missing.err
    (spec / "log.jsonl").write_bytes(b"")
    assert run(spec, None, "check", "log.jsonl").code == Exit.DONE
    assert run(spec, audited(0, 3), "export", "--to", "log.jsonl").code == Exit.DONE


def test_a_place_that_is_no_file_is_named(spec: Path) -> None:
    (spec / "directory").mkdir()
    for words in ("directory", "missing/log.jsonl", "/dev/full"):
        done = run(spec, audited(0, 3), "export", "--to", words)
        assert done.code == Exit.INPUT and words in done.err, done.err


@pytest.mark.parametrize("field", ["number", "time_ms"])
def test_a_number_beyond_64_bits_is_no_audit_line(spec: Path, field: str) -> None:
    row = json.loads(lines_of(spec)[0]) | {field: 1 << 64}
    (spec / "log.jsonl").write_text(json.dumps(row) + "\n")
    assert run(spec, None, "check", "log.jsonl").code == Exit.INPUT


def test_an_export_waits_for_another_one(spec: Path) -> None:
    """Else both append the same lines."""
    run(spec, audited(0, 3), "export", "--to", "log.jsonl")
    with (spec / "log.jsonl").open("a+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waits = threading.Thread(target=run, args=(spec, audited(0, 8), "export", "--to", "log.jsonl"))
        waits.start()
        waits.join(0.3)
        assert waits.is_alive() and numbers(spec) == [0, 1, 2]
    waits.join(10)
    assert numbers(spec) == list(range(8))

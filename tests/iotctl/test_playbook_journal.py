"""The file of a run's journal on a disk that fills up, and after the machine stopped during a write."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from iotctl.playbook.journal import FileJournal
from iotctl.playbook.model import Entry

FIRST, SECOND, THIRD = Entry("begun", 1), Entry("intent", 2, "one"), Entry("outcome", 3, "one")


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def read(path: Path) -> list[Entry]:
    journal = FileJournal(path)
    journal.close()
    return list(journal.entries())


def test_an_entry_that_fits_only_in_part_is_not_appended(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    journal = FileJournal(path)
    journal.append(FIRST)
    with room_for(path.stat().st_size + 10), pytest.raises(OSError):
        journal.append(SECOND)
    assert list(journal.entries()) == [FIRST]
    journal.append(THIRD)
    journal.close()
    assert read(path) == [FIRST, THIRD]


@pytest.mark.parametrize("left", [1, 2, 20])
@pytest.mark.parametrize("before", [[], [FIRST]])
def test_a_line_that_was_not_written_to_its_end_is_cut_off(
    tmp_path: Path, before: list[Entry], left: int
) -> None:
    path = tmp_path / "run.jsonl"
    journal = FileJournal(path)
    for entry in [*before, SECOND]:
        journal.append(entry)
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])
    journal = FileJournal(path)
    assert list(journal.entries()) == before
    journal.append(THIRD)
    journal.close()
    assert read(path) == [*before, THIRD]

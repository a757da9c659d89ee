"""Copies of files that fail to be made here, from other members."""

import msgspec
import pytest

from nodeagent.host import copies
from nodeagent.host.failing import PASSED, Answers
from nodeagent.model.files import CloseSpec, FileMeta, FileRef, PulledSlot
from nodeagent.model.jobs import (
    Done,
    DropStaging,
    Failed,
    FileReplaced,
    FilesStaged,
    ReplaceFile,
    StagedFile,
    StageFiles,
)
from nodeagent.model.requests import CheckFiles, ErrorReply, ExportFiles, SourceOpened
from nodeagent.model.schema import Column, TableSchema
from nodeagent.model.space import Room
from tests.host.test_repairs import GROUP, MINE, Node, broken

SPEC = CloseSpec("g", 3, MINE.partition, (5,), TableSchema("sg", "t", 1, (Column("v", "INT64", False),)))
LACKING = msgspec.structs.replace(MINE, name="g", order=(5,))
OPENED = SourceOpened("b", "5b", (PulledSlot(3, (LACKING,), ()),))
NOT_MADE = ErrorReply("not_found", "not made yet")


class Lacking(Node):
    """A node that asks for files it cannot make."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[FileMeta | None] = []
        self.nowhere: list[bool] = []

    def fetch(self, count: int = 1) -> None:
        for _ in range(count):
            self.host.copies.fetch(self.host.replicas.data[GROUP], (SPEC,), self._take)

    def _take(self, made: FileMeta | None, answers: Answers) -> None:
        self.got.append(made)
        self.nowhere.append(answers.is_nowhere)


@pytest.fixture
def node() -> Lacking:
    """Two files are requested, one after the other."""
    node = Lacking()
    node.fetch(2)
    return node


def test_a_file_that_cannot_be_made_here_comes_from_the_first_member_that_has_it(node: Lacking) -> None:
    """The next file of the group follows, and until then an operator's repair is refused."""
    asked = node.calls()
    assert [(to, type(r), r.names) for _, to, r in asked] == [("b", ExportFiles, ("g",))]
    older = msgspec.structs.replace(LACKING, order=(4,))
    node.answer(asked, SourceOpened("b", "5b", (PulledSlot(3, (older,), ()),)))
    asked = node.calls()
    assert [to for _, to, _ in asked] == ["c"] and not node.jobs, "what b has is another file"
    node.answer(asked, SourceOpened("c", "5c", (PulledSlot(3, (LACKING,), ()),)))
    node.ask()
    assert node.refused()[0] == "busy"
    staged = node.finish(StageFiles, FilesStaged(("g",), (), 10))
    assert isinstance(staged, StageFiles)
    assert staged.files == (StagedFile(LACKING, (FileRef("c", "5c", "g", 10, "0" * 32),)),)
    assert node.finish(ReplaceFile, FileReplaced("")) == ReplaceFile(GROUP, LACKING)
    assert node.got == [LACKING]
    for who in ("b", "c"):
        asked = node.calls()
        assert [to for _, to, _ in asked] == [who]
        node.answer(asked, NOT_MADE)
    assert node.got == [LACKING, None] and not node.jobs
    assert node.nowhere == [False, True]


@pytest.mark.parametrize("code", ["unavailable", "overloaded", "not_found"])
def test_a_file_is_nowhere_if_every_other_member_answered_so(code: str, node: Lacking) -> None:
    """It is not if a member could not be asked: the operator would be advised to replace this node."""
    node.answer(node.calls(), NOT_MADE)
    node.answer(node.calls(), ErrorReply(code, "from c"))
    assert node.got == [None] and node.nowhere == [code == "not_found"]


def test_a_member_that_once_had_the_file_reports_it() -> None:
    """This concerns the file that fails here, not the merged file, which is requested first."""
    node, merged = Lacking(), msgspec.structs.replace(SPEC, name="h")
    got: list[Answers] = []
    had = ErrorReply("not_found", "merged by now", details={PASSED: True})
    for specs in ((merged, SPEC), (SPEC, merged)):
        node.host.copies.fetch(
            node.host.replicas.data[GROUP], specs, lambda made, answers: got.append(answers)
        )
        for _ in range(4):
            asked = node.calls()
            ((_, _, request),) = asked
            node.answer(asked, had if request.names == ("g",) else NOT_MADE)
    assert got == [Answers(is_nowhere=True, has_passed=True), Answers(is_nowhere=True)]


def test_many_waiting_copies_end_one_by_one_if_no_copy_comes(node: Lacking) -> None:
    """A node that is short of space requests none of them; they do not end recursively."""
    node.fetch(1_000)
    for _ in range(2):
        asked = node.calls()
        node.host.effects.space.room = Room.LOW
        node.answer(asked, NOT_MADE)
    node.host.tick(10, 0)
    node.take()
    assert node.got == [None] * 1_002 and not node.calls()
    assert not any(node.nowhere[1:]), "no member was asked"


def test_a_copy_that_comes_during_an_installation_is_not_put_in_place() -> None:
    """The new state names other files, and the state that asked for this file is replaced."""
    node = Lacking()
    node.fetch()
    node.answer(node.calls(), OPENED)
    node.host.replicas.data[GROUP].condition.installing = "5a"
    node.finish(StageFiles, FilesStaged(("g",), (), 10))
    assert [type(job) for _, job in node.jobs] == [DropStaging] and node.got == [None]


def test_a_source_with_a_damaged_copy_is_asked_to_hash_it() -> None:
    """This holds for a repair, a file that cannot be made here, and a snapshot that is installed."""
    node = Lacking()
    node.ask()
    node.asked.clear()
    spoiled = FilesStaged((), (("f", "b: not what it was"),), 11, 1, (("b", "f"),))
    node.finish(StageFiles, spoiled)
    assert [(to, request) for _, to, request in node.asked] == [("b", CheckFiles(GROUP, (), ("f",)))]
    node.finish(DropStaging, Done())
    node.fetch()
    node.answer(node.calls(), OPENED)
    node.asked.clear()
    node.finish(StageFiles, msgspec.structs.replace(spoiled, suspects=(("b", "g"),)))
    for failed in (Failed("not_found", "f: not what it was", "f"), Failed("unavailable", "no contact")):
        node.host.replicas.data[GROUP].installs._on_pulled("c", "5a", failed)
    node.take()
    told = [(to, request.names) for _, to, request in node.asked if isinstance(request, CheckFiles)]
    assert told == [("b", ("g",)), ("c", ("f",))]


@pytest.mark.parametrize("part", ["answered", "fetched", "placed"])
def test_an_exception_in_a_part_of_a_copy_means_that_nothing_came(
    part: str, node: Lacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is called once, and the next file of the group is requested."""
    asked = node.calls()
    with monkeypatch.context() as patched:
        if part == "answered":
            patched.setattr(copies, "_fits", broken)
        node.answer(asked, OPENED)
        if part == "fetched":
            patched.setattr(copies, "request_hashes", broken)
        if part != "answered":
            node.finish(StageFiles, FilesStaged(("g",), (), 10))
        if part == "placed":
            patched.setattr(copies, "FileReplaced", None)
            node.finish(ReplaceFile, FileReplaced(""))
    assert node.got == [None] and node.host.requests_failed == 1
    node.finish(DropStaging, Done())
    assert [to for _, to, _ in node.calls()] == ["b"] and node.got == [None]

"""Repairs as a host sees them: what is refused, and what must be durable before the answer."""

import random

import msgspec
import pytest

from nodeagent.data.state import encode_checkpoint, initial
from nodeagent.host import repairs
from nodeagent.host.desk import To
from nodeagent.host.host import Host
from nodeagent.host.replica import Saved
from nodeagent.log import Damage
from nodeagent.model.entries import Base, Config
from nodeagent.model.errors import InvariantBroken
from nodeagent.model.files import CloseSpec, FileMeta, FileRef, PulledSlot
from nodeagent.model.ids import NodeId, PartitionKey
from nodeagent.model.jobs import (
    Done,
    DropStaging,
    Failed,
    FileReplaced,
    FilesStaged,
    InstallSnapshot,
    Job,
    ReplaceFile,
    SaveCheckpoint,
    StagedFile,
    StageFiles,
)
from nodeagent.model.requests import (
    CheckFiles,
    ErrorReply,
    ExportFiles,
    FileRepaired,
    RepairFile,
    Reply,
    Request,
    SourceOpened,
)
from nodeagent.model.schema import Column, TableSchema
from tests.host.test_host import CONFIG, found

GROUP = "a.1"
MINE = FileMeta("f", 3, PartitionKey("sg", 1, 0), "t", (2,), 10, "0" * 32, 4, 1, 9, (4, 1, 1))
FORGED_AWAY = msgspec.structs.replace(MINE, size=11, xxh3="1" * 32, rows=5, logical=(5, 2, 2))
SOURCES = (FileRef("b", "5a", "f", 11, "1" * 32),)
STAGED = FilesStaged(("f",), (), 11)


class Node:
    """A host that holds `MINE`, with the replies and jobs it asked for."""

    def __init__(self, *damaged: Damage) -> None:
        state = initial(GROUP, ((0, 5),))
        state.manifest.add([MINE])
        saved = Saved(Base(1, 0, Config(("a", "b", "c"))), encode_checkpoint(state.checkpoint()))
        groups = {GROUP: (found(1), msgspec.msgpack.encode(saved))}
        self.host = Host.open(CONFIG, "i", groups, damaged, random.Random(1), 0, 0)
        self.jobs: list[tuple[int, Job]] = []
        self.replies: list[tuple[int, Reply]] = []
        self.asked: list[tuple[int, To, Request]] = []
        self.take()

    def take(self) -> None:
        """What is to be durable is so at once."""
        while True:
            effects = self.host.take()
            self.jobs += effects.jobs
            self.replies += effects.replies
            self.asked += effects.calls
            if effects.persist is None:
                return
            self.host.on_persisted(effects.persist[0], 10)

    def ask(self, wanted: FileMeta = FORGED_AWAY, token: int = 7) -> None:
        self.host.on_request(token, RepairFile(GROUP, wanted, SOURCES), 0, 0)
        self.take()

    def calls(self) -> list[tuple[int, NodeId, ExportFiles]]:
        """What other members are asked for since the last time."""
        self.take()
        found, self.asked = self.asked, []
        return [(n, to, r) for n, to, r in found if isinstance(r, ExportFiles) and isinstance(to, str)]

    def answer(self, asked: list[tuple[int, NodeId, ExportFiles]], reply: Reply) -> None:
        self.host.on_reply(asked[0][0], reply, 10)
        self.take()

    def finish(self, kind: type, result: object) -> Job:
        """End the one job of this kind that is under way."""
        ((number, job),) = [(n, j) for n, j in self.jobs if isinstance(j, kind)]
        self.jobs.remove((number, job))
        self.host.on_job(number, result, 10)  # type: ignore[arg-type]
        self.take()
        return job

    def refused(self) -> tuple[str, str]:
        ((_, reply),) = self.replies
        assert isinstance(reply, ErrorReply)
        return reply.code, reply.what

    @property
    def row(self) -> FileMeta | None:
        return self.host.data[GROUP].state.manifest.get("f")


def test_a_forged_row_is_replaced_and_saved_before_the_answer() -> None:
    """The checkpoint that a restart goes by names the majority's file."""
    node = Node()
    node.ask()
    assert isinstance(node.finish(StageFiles, STAGED), StageFiles) and node.row == MINE
    assert node.finish(ReplaceFile, FileReplaced("quarantine/x")) == ReplaceFile(GROUP, FORGED_AWAY)
    assert node.row == FORGED_AWAY and not node.replies
    saved = node.finish(SaveCheckpoint, Done())
    assert isinstance(saved, SaveCheckpoint)
    assert saved.changes is not None and saved.changes.files == (FORGED_AWAY,)
    assert node.replies == [(7, FileRepaired("quarantine/x"))]
    manifest = node.host.data[GROUP].state.manifest
    assert (manifest.nbytes, manifest.rows) == (11, 5)


def test_a_checkpoint_already_on_its_way_does_not_count() -> None:
    """It was made of the state before the repair."""
    node = Node()
    replica = node.host.data[GROUP]
    replica.unsaved = 1
    replica.maybe_checkpoint(force=True)
    node.take()
    node.ask()
    node.finish(StageFiles, STAGED)
    node.finish(ReplaceFile, FileReplaced(""))
    node.finish(SaveCheckpoint, Done())
    assert not node.replies
    node.host.tick(5_000, 0)
    node.take()
    node.finish(SaveCheckpoint, Failed("overloaded", "no space"))
    assert not node.replies
    node.host.tick(20_000, 0)
    node.take()
    node.finish(SaveCheckpoint, Done())
    assert node.replies == [(7, FileRepaired(""))]


def test_an_equal_row_needs_no_checkpoint() -> None:
    """Only the bytes were damaged."""
    node = Node()
    node.ask(MINE)
    node.finish(StageFiles, STAGED)
    node.finish(ReplaceFile, FileReplaced("quarantine/x"))
    assert node.replies == [(7, FileRepaired("quarantine/x"))] and not node.jobs


@pytest.mark.parametrize("change", [{"slot": 4}, {"order": (3,)}, {"table": "u"}, {"name": "g"}])
def test_only_a_file_of_the_manifest_in_its_own_place_is_taken(change: dict[str, object]) -> None:
    """Name, slot, table and order are what the log made them."""
    node = Node()
    node.ask(msgspec.structs.replace(FORGED_AWAY, **change))
    assert node.refused()[0] == "refused" and not node.jobs


def test_refused_while_the_replica_installs() -> None:
    """Its files are about to be others; also when the install began while the file was pulled."""
    node = Node()
    node.ask()
    node.host.data[GROUP]._installing = "5b"
    node.finish(StageFiles, STAGED)
    assert node.refused()[0] == "refused" and not [j for _, j in node.jobs if isinstance(j, ReplaceFile)]
    node.replies.clear()
    node.finish(DropStaging, Done())
    node.ask()
    assert "installing" in node.refused()[1]


def test_a_group_with_a_damaged_log_is_not_repaired() -> None:
    """Nobody knows what it promised."""
    node = Node(Damage(1, 0, GROUP, 2, 3, "unreadable"))
    node.ask()
    assert node.refused()[0] == "log_corrupt" and not node.jobs


def test_one_repair_per_group_at_a_time_and_again_after_a_failure() -> None:
    """A second one is told to wait; a copy that did not come leaves the group free."""
    node = Node()
    node.ask()
    node.ask(token=8)
    assert node.refused()[0] == "busy"
    node.replies.clear()
    node.finish(StageFiles, FilesStaged((), (("f", "b: no contact"),), 0))
    assert node.refused() == ("unavailable", "no good copy came: b: no contact")
    node.replies.clear()
    assert node.finish(DropStaging, Done()) == DropStaging(f"repair-{GROUP}")
    node.ask()
    assert [type(j) for _, j in node.jobs] == [StageFiles] and not node.replies


def test_a_replica_that_goes_answers_who_waits() -> None:
    """Every request has one reply."""
    node = Node()
    node.ask()
    node.finish(StageFiles, STAGED)
    node.finish(ReplaceFile, FileReplaced(""))
    node.host.data[GROUP].abandon()
    node.take()
    assert node.refused()[0] == "outcome_unknown"
    assert not [j for _, j in node.jobs if isinstance(j, InstallSnapshot)]


def test_the_next_repair_waits_until_the_area_of_the_last_is_gone() -> None:
    """A repair that is done is answered, also when its area cannot be removed; that is tried again."""
    node = Node()
    node.ask(MINE)
    node.finish(StageFiles, STAGED)
    node.finish(ReplaceFile, FileReplaced("", "Input/output error"))
    assert node.replies == [(7, FileRepaired(""))]
    node.replies.clear()
    node.finish(DropStaging, Failed("unavailable", "Input/output error"))
    assert node.host.node_status(10, 0).unremoved == {f"staging/repair-{GROUP}": "Input/output error"}
    node.ask(token=8)
    assert node.refused()[0] == "busy"
    node.replies.clear()
    node.host.tick(1_000, 0)
    node.take()
    node.finish(DropStaging, Done())
    node.ask(token=9)
    assert [type(j) for _, j in node.jobs] == [StageFiles] and not node.replies
    assert not node.host.node_status(10, 0).unremoved


def broken(*args: object) -> None:
    raise KeyError("a bug")


@pytest.mark.parametrize("part", ["staged", "replaced", "saved"])
def test_an_exception_in_a_part_of_a_repair_ends_that_repair(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered once and logged, the group may have another, and the node goes on."""
    node = Node()
    node.ask()
    with monkeypatch.context() as patched:
        if part == "staged":
            patched.setattr(repairs, "_why_not", broken)
        node.finish(StageFiles, STAGED)
        if part == "replaced":
            patched.setattr(repairs, "_name", broken)
        if part == "saved":
            patched.setattr(node.host.data[GROUP], "maybe_checkpoint", broken)
        if part != "staged":
            node.finish(ReplaceFile, FileReplaced(""))
    code, what = node.refused()
    assert code == "error" and "a repair failed in the node" in what and node.host.requests_failed == 1
    node.replies.clear()
    node.finish(DropStaging, Done())
    node.host.tick(5_000, 0)
    node.take()
    while any(isinstance(j, SaveCheckpoint) for _, j in node.jobs):
        node.finish(SaveCheckpoint, Done())
    assert not node.replies, "not a second time"
    node.ask(token=8)
    assert [type(j) for _, j in node.jobs] == [StageFiles] and not node.replies


def test_a_manifest_that_is_half_changed_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would serve less than its log says; a restart has what is durable."""
    node = Node()
    node.ask()
    node.finish(StageFiles, STAGED)
    monkeypatch.setattr(node.host.data[GROUP].state.manifest, "add", broken)
    with pytest.raises(InvariantBroken):
        node.finish(ReplaceFile, FileReplaced(""))


SPEC = CloseSpec("g", 3, MINE.partition, (5,), TableSchema("sg", "t", 1, (Column("v", "INT64", False),)))
LACKING = msgspec.structs.replace(MINE, name="g", order=(5,))


def test_what_fails_to_be_made_here_comes_from_the_first_member_that_has_it() -> None:
    """The next file of the group comes after it, and an operator's repair is refused meanwhile."""
    node = Node()
    got: list[FileMeta | None] = []
    for _ in range(2):
        node.host.repairs.fetch(node.host.data[GROUP], SPEC, got.append)
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
    assert node.finish(ReplaceFile, FileReplaced("")) == ReplaceFile(GROUP, LACKING) and got == [LACKING]
    for who in ("b", "c"):
        asked = node.calls()
        assert [to for _, to, _ in asked] == [who]
        node.answer(asked, ErrorReply("not_found", "not made yet"))
    assert got == [LACKING, None] and not node.jobs


def test_what_comes_while_another_state_is_installed_is_not_put_in_place() -> None:
    """The state that comes names other files; what asked for this one is gone with its own."""
    node = Node()
    got: list[FileMeta | None] = []
    replica = node.host.data[GROUP]
    node.host.repairs.fetch(replica, SPEC, got.append)
    node.answer(node.calls(), SourceOpened("b", "5b", (PulledSlot(3, (LACKING,), ()),)))
    replica._installing = "5a"
    node.finish(StageFiles, FilesStaged(("g",), (), 10))
    assert [type(job) for _, job in node.jobs] == [DropStaging] and got == [None]


def test_a_source_whose_copy_is_damaged_is_told_to_look_at_it() -> None:
    """Of a repair, of a file that cannot be made here, and of a snapshot that is installed."""
    node = Node()
    node.ask()
    node.asked.clear()
    spoiled = FilesStaged((), (("f", "b: not what it was"),), 11, 1, (("b", "f"),))
    node.finish(StageFiles, spoiled)
    assert [(to, request) for _, to, request in node.asked] == [("b", CheckFiles(GROUP, (), ("f",)))]
    node.finish(DropStaging, Done())
    node.host.repairs.fetch(node.host.data[GROUP], SPEC, lambda made: None)
    node.answer(node.calls(), SourceOpened("b", "5b", (PulledSlot(3, (LACKING,), ()),)))
    node.asked.clear()
    node.finish(StageFiles, msgspec.structs.replace(spoiled, suspects=(("b", "g"),)))
    for failed in (Failed("not_found", "f: not what it was", "f"), Failed("unavailable", "no contact")):
        node.host.data[GROUP]._on_pulled("c", "5a", failed)
    node.take()
    told = [(to, request.names) for _, to, request in node.asked if isinstance(request, CheckFiles)]
    assert told == [("b", ("g",)), ("c", ("f",))]


@pytest.mark.parametrize("part", ["answered", "fetched", "placed"])
def test_an_exception_in_a_part_of_a_copy_means_that_nothing_came(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told so once, and the next file of the group is asked for."""
    node = Node()
    got: list[FileMeta | None] = []
    for _ in range(2):
        node.host.repairs.fetch(node.host.data[GROUP], SPEC, got.append)
    asked, opened = node.calls(), SourceOpened("b", "5b", (PulledSlot(3, (LACKING,), ()),))
    with monkeypatch.context() as patched:
        if part == "answered":
            patched.setattr(repairs, "_fits", broken)
        node.answer(asked, opened)
        if part == "fetched":
            patched.setattr(repairs, "have_checked", broken)
        if part != "answered":
            node.finish(StageFiles, FilesStaged(("g",), (), 10))
        if part == "placed":
            patched.setattr(repairs, "FileReplaced", None)
            node.finish(ReplaceFile, FileReplaced(""))
    assert got == [None] and node.host.requests_failed == 1
    node.finish(DropStaging, Done())
    assert [to for _, to, _ in node.calls()] == ["b"] and got == [None]

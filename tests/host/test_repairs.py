"""Repairs on a host: what is refused, and what must be durable before the answer."""

import msgspec
import pytest

from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.data.state import initial
from nodeagent.host import repairs
from nodeagent.host.effect_queue import To
from nodeagent.host.saved import Saved
from nodeagent.log import Damage
from nodeagent.model.entries import Base, Config
from nodeagent.model.errors import InvariantBroken
from nodeagent.model.files import FileMeta, FileRef
from nodeagent.model.ids import NodeId, PartitionKey
from nodeagent.model.jobs import (
    Done,
    DropStaging,
    Failed,
    FileReplaced,
    FilesStaged,
    InstallSnapshot,
    Job,
    JobResult,
    ReplaceFile,
    SaveCheckpoint,
    StageFiles,
)
from nodeagent.model.requests import (
    ErrorReply,
    ExportFiles,
    FileRepaired,
    RepairFile,
    Reply,
    Request,
)
from tests.host.opened import opened
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
        state.files.manifest.add([MINE])
        saved = Saved(Base(1, 0, Config(("a", "b", "c"))), encode_checkpoint(state.checkpoint()))
        groups = {GROUP: (found(1), msgspec.msgpack.encode(saved))}
        self.host = opened(CONFIG, groups, damaged)
        self.jobs: list[tuple[int, Job]] = []
        self.replies: list[tuple[int, Reply]] = []
        self.asked: list[tuple[int, To, Request]] = []
        self.take()

    def take(self) -> None:
        """Take the effects; everything is durable at once."""
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
        """The requests to other members since the last call."""
        self.take()
        found, self.asked = self.asked, []
        return [(n, to, r) for n, to, r in found if isinstance(r, ExportFiles) and isinstance(to, str)]

    def answer(self, asked: list[tuple[int, NodeId, ExportFiles]], reply: Reply) -> None:
        self.host.on_reply(asked[0][0], reply, 10)
        self.take()

    def finish(self, kind: type, result: JobResult) -> Job:
        """End the only running job of this kind."""
        ((number, job),) = [(n, j) for n, j in self.jobs if isinstance(j, kind)]
        self.jobs.remove((number, job))
        self.host.on_job(number, result, 10)
        self.take()
        return job

    def refused(self) -> tuple[str, str]:
        ((_, reply),) = self.replies
        assert isinstance(reply, ErrorReply)
        return reply.code, reply.what

    @property
    def row(self) -> FileMeta | None:
        return self.host.replicas.data[GROUP].state.files.manifest.get("f")


def test_a_forged_row_is_replaced_and_saved_before_the_answer() -> None:
    """The checkpoint that a restart uses names the majority's file."""
    node = Node()
    node.ask()
    assert isinstance(node.finish(StageFiles, STAGED), StageFiles) and node.row == MINE
    assert node.finish(ReplaceFile, FileReplaced("quarantine/x")) == ReplaceFile(GROUP, FORGED_AWAY)
    assert node.row == FORGED_AWAY and not node.replies
    saved = node.finish(SaveCheckpoint, Done())
    assert isinstance(saved, SaveCheckpoint)
    assert saved.changes is not None and saved.changes.files == (FORGED_AWAY,)
    assert node.replies == [(7, FileRepaired("quarantine/x"))]
    manifest = node.host.replicas.data[GROUP].state.files.manifest
    assert (manifest.nbytes, manifest.rows) == (11, 5)


def test_a_checkpoint_already_on_its_way_does_not_count() -> None:
    """It holds the state from before the repair."""
    node = Node()
    replica = node.host.replicas.data[GROUP]
    replica.context.unsaved.changes = 1
    replica.checkpoints.maybe_save(force=True)
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
    """Name, slot, table and order come from the log."""
    node = Node()
    node.ask(msgspec.structs.replace(FORGED_AWAY, **change))
    assert node.refused()[0] == "refused" and not node.jobs


def test_refused_while_the_replica_installs() -> None:
    """Its files are about to be replaced, even if the installation began while the file was pulled."""
    node = Node()
    node.ask()
    node.host.replicas.data[GROUP].condition.installing = "5b"
    node.finish(StageFiles, STAGED)
    assert node.refused()[0] == "refused" and not [j for _, j in node.jobs if isinstance(j, ReplaceFile)]
    node.replies.clear()
    node.finish(DropStaging, Done())
    node.ask()
    assert "installing" in node.refused()[1]


def test_a_group_with_a_damaged_log_is_not_repaired() -> None:
    """Its promises are unknown."""
    node = Node(Damage(1, 0, GROUP, 2, 3, "unreadable"))
    node.ask()
    assert node.refused()[0] == "log_corrupt" and not node.jobs


def test_one_repair_per_group_at_a_time_and_again_after_a_failure() -> None:
    """A second repair is refused as busy; after a failed copy the next repair may begin."""
    node = Node()
    node.ask()
    node.ask(token=8)
    assert node.refused()[0] == "busy"
    node.replies.clear()
    node.finish(StageFiles, FilesStaged((), (("f", "b: no contact"),), 0))
    assert node.refused() == ("unavailable", "no intact copy was received: b: no contact")
    node.replies.clear()
    assert node.finish(DropStaging, Done()) == DropStaging(f"repair-{GROUP}")
    node.ask()
    assert [type(j) for _, j in node.jobs] == [StageFiles] and not node.replies


def test_a_removed_replica_answers_the_waiting_repair() -> None:
    """Every request has one reply."""
    node = Node()
    node.ask()
    node.finish(StageFiles, STAGED)
    node.finish(ReplaceFile, FileReplaced(""))
    node.host.replicas.data[GROUP].abandon()
    node.take()
    assert node.refused()[0] == "outcome_unknown"
    assert not [j for _, j in node.jobs if isinstance(j, InstallSnapshot)]


def test_the_next_repair_waits_until_the_staging_area_of_the_last_is_removed() -> None:
    """A repair is answered once it is done, even if its staging area cannot be removed; that is retried."""
    node = Node()
    node.ask(MINE)
    node.finish(StageFiles, STAGED)
    node.finish(ReplaceFile, FileReplaced("", "Input/output error"))
    assert node.replies == [(7, FileRepaired(""))]
    node.replies.clear()
    node.finish(DropStaging, Failed("unavailable", "Input/output error"))
    assert node.host.status.of_node(10, 0).unremoved == {f"staging/repair-{GROUP}": "Input/output error"}
    node.ask(token=8)
    assert node.refused()[0] == "busy"
    node.replies.clear()
    node.host.tick(1_000, 0)
    node.take()
    node.finish(DropStaging, Done())
    node.ask(token=9)
    assert [type(j) for _, j in node.jobs] == [StageFiles] and not node.replies
    assert not node.host.status.of_node(10, 0).unremoved


def broken(*args: object) -> None:
    raise KeyError("a bug")


@pytest.mark.parametrize("part", ["staged", "replaced", "saved"])
def test_an_exception_in_a_part_of_a_repair_ends_that_repair(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered once and logged, the group may have another repair, and the node continues."""
    node = Node()
    node.ask()
    with monkeypatch.context() as patched:
        if part == "staged":
            patched.setattr(repairs, "_why_not", broken)
        node.finish(StageFiles, STAGED)
        if part == "replaced":
            patched.setattr(repairs, "_name", broken)
        if part == "saved":
            patched.setattr(node.host.replicas.data[GROUP].checkpoints, "maybe_save", broken)
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
    assert not node.replies, "the reply is not sent twice"
    node.ask(token=8)
    assert [type(j) for _, j in node.jobs] == [StageFiles] and not node.replies


def test_a_half_changed_manifest_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would serve less than its log says; a restart reads what is durable."""
    node = Node()
    node.ask()
    node.finish(StageFiles, STAGED)
    monkeypatch.setattr(node.host.replicas.data[GROUP].state.files.manifest, "add", broken)
    with pytest.raises(InvariantBroken):
        node.finish(ReplaceFile, FileReplaced(""))

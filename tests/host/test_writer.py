"""The TsFile library that an entry names, and how a node with another library reacts."""

import msgspec
import pytest

from nodeagent.data import commands as c
from nodeagent.data.state import DataState
from nodeagent.host.failing import Answers
from nodeagent.host.host import META_WAIT_MS
from nodeagent.host.writer import FileWriter
from nodeagent.meta import commands as commands_of_meta
from nodeagent.meta.image import Image
from nodeagent.meta.state import MetaState
from nodeagent.model.entries import Append, Entry, EntryKind
from nodeagent.model.features import FIRST, Feature
from nodeagent.model.files import CloseSpec
from nodeagent.model.jobs import CloseFiles, CompactFiles, FilesClosed
from nodeagent.model.schema import TableSchema
from tests.host.test_closing import made_of, node_with_a_row, opened_session, write_row
from tests.host.test_compactor import FILES, Node, P

OWN, OTHER = "lib 1", "lib 2"


def spec(writer: str) -> CloseSpec:
    return CloseSpec("f", 3, P, (5,), TableSchema("sg", "t", 1, ()), writer=writer)


def at_level(node: Node, level: int) -> Node:
    node.host.writer.own = OWN
    node.host.writer._is_current = lambda: True
    node.host.cluster.meta.image.cluster_id, node.host.cluster.meta.image.level = "c", level
    return node


def commands(node: Node) -> list[c.Command]:
    entries = [e for op in node.logged if isinstance(op, Append) for e in op.entries]
    return [c.decode(e.data) for e in entries if e.kind == EntryKind.COMMAND]


@pytest.mark.parametrize(("level", "named"), [(FIRST, ""), (Feature.FILE_WRITER, OWN)])
def test_entries_name_the_tsfile_library_once_all_nodes_support_it(level: int, named: str) -> None:
    """A node of the previous release would make other bytes without any error."""
    node = at_level(node_with_a_row(), level)
    node.replica.closer.close([P])
    node.take()
    (close,) = [x for x in commands(node) if isinstance(x, c.CloseFile)]
    assert close.writer == named
    (job,) = node.under_way(CloseFiles)
    assert isinstance(job, CloseFiles) and [u.spec.writer for u in job.units] == [named]


def test_a_seal_closes_with_the_library_of_its_leader() -> None:
    node = at_level(node_with_a_row(), Feature.FILE_WRITER)
    node.replica.propose([c.encode(c.Seal("op-1", 1, ((3, 4),), OTHER))])
    node.take()
    assert [p.command.writer for p in node.replica.state.closes.pending] == [OTHER]


def test_a_merge_names_the_tsfile_library() -> None:
    node = at_level(Node(FILES), Feature.FILE_WRITER)
    inputs = tuple((f.name, f.xxh3) for f in FILES[:2])
    node.replica.propose([c.encode(c.Compact(3, P, "t", inputs, writer=OTHER))])
    node.pass_ms(200)
    assert not node.under_way(CompactFiles), "another member makes it"
    node = at_level(Node(FILES), Feature.FILE_WRITER)
    node.replica.propose([c.encode(c.Compact(3, P, "t", inputs, writer=OWN))])
    node.pass_ms(200)
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles) and job.unit.spec.writer == OWN


@pytest.mark.parametrize(
    ("own", "named", "is_refused"),
    [(OWN, OWN, False), (OWN, "", False), (OWN, OTHER, True), ("", OTHER, False), ("", "", False)],
)
def test_a_file_of_another_library_is_not_made_here(own: str, named: str, is_refused: bool) -> None:
    """A node that does not know its own library makes all files, as earlier releases did."""
    why = FileWriter(own, lambda: 2, lambda: "", lambda: True).refusal([spec(""), spec(named)])
    assert bool(why) == is_refused and (not why or (OWN in why and OTHER in why))


def test_a_file_of_another_library_is_copied_from_other_members_without_trouble() -> None:
    """This node does not try to make the file. If no member has it, the rows finally become an Arrow file,
    which any node can make."""
    node = at_level(node_with_a_row(), Feature.FILE_WRITER)
    node.replica.propose([c.encode(c.CloseFile(((3, P),), writer=OTHER))])
    node.pass_ms(3_000)
    assert not node.under_way(CloseFiles) and not node.replica.trouble
    waited = 3_000
    while not node.under_way(CloseFiles):
        node.pass_ms(1_000)
        waited += 1_000
        assert waited < 120_000, node.replica.failures.failing
    (job,) = node.under_way(CloseFiles)
    assert isinstance(job, CloseFiles)
    (unit,) = job.units
    assert unit.spec.parked and not unit.spec.writer and OTHER in unit.spec.parked
    node.finish(CloseFiles, FilesClosed((msgspec.structs.replace(made_of(unit), parked=unit.spec.parked),)))
    assert len(node.replica.state.files.manifest) == len(FILES) + 1 and not node.replica.state.closes.pending


def test_the_rest_of_a_close_is_made_here() -> None:
    """One of its files was parked before. It is an Arrow file, which depends on no library."""
    node = at_level(node_with_a_row(), Feature.FILE_WRITER)
    other = msgspec.structs.replace(P, time_partition=P.time_partition + 1)
    write_row(node, opened_session(node), 1, other)
    node.replica.propose([c.encode(c.CloseFile(((3, P), (3, other)), writer=OTHER))])
    node.take()
    (pending,) = node.replica.state.closes.pending
    name = next(u.spec.name for u in pending.units if u.spec.partition == P)
    schema = pending.units[0].spec.schema
    node.replica.propose([c.encode(c.Park(3, P, schema, pending.index, name, "no memory"))])
    node.pass_ms(200)
    made = [u.spec for j in node.under_way(CloseFiles) if isinstance(j, CloseFiles) for u in j.units]
    assert [(s.partition, s.writer) for s in made] == [(P, "")]


def node_with_a_foreign_close(
    monkeypatch: pytest.MonkeyPatch, answers: Answers, writer: str = OTHER
) -> tuple[Node, str]:
    """The node and the name of the file to make; no member has the file, as `answers` say."""
    node = at_level(node_with_a_row(), Feature.FILE_WRITER)
    monkeypatch.setattr(node.replica.state_jobs, "_copy", lambda specs, then: then(None, answers))
    node.replica.propose([c.encode(c.CloseFile(((3, P),), writer=writer))])
    node.take()
    (pending,) = node.replica.state.closes.pending
    return node, pending.units[0].spec.name


def made_after_ms(node: Node, limit_ms: int) -> int:
    for waited in range(0, limit_ms, 100):
        if node.under_way(CloseFiles):
            return waited
        node.pass_ms(100)
    raise AssertionError(node.replica.failures.failing)


def merge(node: Node, name: str) -> None:
    """Log a compaction of two older files and this file."""
    inputs = (*((f.name, f.xxh3) for f in FILES), (name, "c" * 32))
    node.replica.propose([c.encode(c.Compact(3, P, "t", inputs, writer=OWN))])
    node.take()


def test_a_file_that_the_others_have_already_merged_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """They merged it while this node was down. Its own library makes the file, with different bytes, as input
    of the merge."""
    node, name = node_with_a_foreign_close(monkeypatch, Answers(is_nowhere=True, has_passed=True))
    merge(node, name)
    assert made_after_ms(node, 5_000) < 3_000 and not node.replica.trouble
    (job,) = node.under_way(CloseFiles)
    assert isinstance(job, CloseFiles)
    made = msgspec.structs.replace(made_of(job.units[0]), xxh3="d" * 32)
    node.finish(CloseFiles, FilesClosed((made,)))
    node.pass_ms(200)
    (merging,) = node.under_way(CompactFiles)
    assert isinstance(merging, CompactFiles)
    assert [f.xxh3 for f in merging.unit.inputs] == [*(f.xxh3 for f in FILES), "d" * 32], "it is no damage"
    restored = DataState.restore(node.replica.state.checkpoint(), 0)
    assert restored.files.substitutes == {name}
    output = msgspec.structs.replace(made, name=merging.unit.spec.name, order=merging.unit.spec.order)
    node.finish(CompactFiles, FilesClosed((output,)))
    assert not node.replica.state.checkpoint().substitutes


def test_a_file_that_no_member_made_before_the_upgrade_is_made_here_if_a_merge_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot be parked: the merge was logged, and names it."""
    node, name = node_with_a_foreign_close(monkeypatch, Answers(is_nowhere=True))
    merge(node, name)
    assert made_after_ms(node, 120_000) > 20_000
    (job,) = node.under_way(CloseFiles)
    assert isinstance(job, CloseFiles) and [u.spec.name for u in job.units] == [name]
    assert "parking" not in node.notes


@pytest.mark.parametrize("answers", [Answers(), Answers(is_nowhere=True)])
def test_a_file_that_another_member_may_still_make_is_not_made_here(
    monkeypatch: pytest.MonkeyPatch, answers: Answers
) -> None:
    node, name = node_with_a_foreign_close(monkeypatch, answers)
    node.pass_ms(20_000)
    assert not node.under_way(CloseFiles) and name not in node.replica.state.files.substitutes


def test_an_entry_that_names_no_library_means_the_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry was logged before the feature level was raised; the file is made after a start with another
    library."""
    node, _ = node_with_a_foreign_close(monkeypatch, Answers(), writer="")
    assert node.under_way(CloseFiles), "no entry names a library"
    node = at_level(node_with_a_row(), Feature.FILE_WRITER)
    node.host.cluster.meta.image.unnamed_writer = OTHER
    node.replica.propose([c.encode(c.CloseFile(((3, P),)))])
    node.pass_ms(1_000)
    assert not node.under_way(CloseFiles)


def test_before_the_meta_state_is_current_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a start, the meta state is that of the checkpoint, and the level may have been raised since. But
    the meta group may have lost its majority, and rows in memory pin their log."""
    node = node_with_a_row()
    node.host.writer.own = OWN
    monkeypatch.setattr(type(node.host.cluster), "is_current", False)
    node.replica.propose([c.encode(c.CloseFile(((3, P),)))])
    node.pass_ms(20_000)
    assert not node.under_way(CloseFiles) and not node.replica.trouble
    node.pass_ms(META_WAIT_MS)
    assert node.under_way(CloseFiles)


def test_raising_the_level_says_which_library_made_the_files_before() -> None:
    state = MetaState(Image(cluster_id="c"))
    raised = commands_of_meta.RaiseLevel(7, Feature.FILE_WRITER, "ann", unnamed_writer=OTHER)
    state.apply(1, [Entry(1, EntryKind.COMMAND, commands_of_meta.encode(raised))])
    assert state.image.unnamed_writer == OTHER


def test_a_member_reports_which_files_it_once_had(monkeypatch: pytest.MonkeyPatch) -> None:
    node, name = node_with_a_foreign_close(monkeypatch, Answers())
    state = node.replica.state
    before, later = "00003-000000000001-0000.tsfile", f"00003-{state.applied + 1:012d}-0000.tsfile"
    assert [state.was_removed(n) for n in (before, name, later)] == [True, False, False]
    assert not any(state.was_removed(n) for n in (FILES[0].name, "f", "", "00003-x-0000.tsfile"))
    merge(node, name)
    assert not state.was_removed(f"00003-{state.applied:012d}-0000.tsfile"), "the merge is to make it"

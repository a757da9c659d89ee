"""The library that makes files: named by entries, and what a node does that has another."""

import msgspec
import pytest

from nodeagent.data import commands as c
from nodeagent.host.writer import FileWriter
from nodeagent.model.entries import Append, EntryKind
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
    node.host.meta.image.cluster_id, node.host.meta.image.level = "c", level
    return node


def commands(node: Node) -> list[c.Command]:
    entries = [e for op in node.logged if isinstance(op, Append) for e in op.entries]
    return [c.decode(e.data) for e in entries if e.kind == EntryKind.COMMAND]


@pytest.mark.parametrize(("level", "named"), [(FIRST, ""), (Feature.FILE_WRITER, OWN)])
def test_entries_name_the_library_once_all_nodes_heed_it(level: int, named: str) -> None:
    """A node of the release before would make other bytes without a word."""
    node = at_level(node_with_a_row(), level)
    node.replica.close([P])
    node.take()
    (close,) = [x for x in commands(node) if isinstance(x, c.CloseFile)]
    assert close.writer == named
    (job,) = node.under_way(CloseFiles)
    assert isinstance(job, CloseFiles) and [u.spec.writer for u in job.units] == [named]


def test_a_seal_closes_with_the_library_of_its_leader() -> None:
    node = at_level(node_with_a_row(), Feature.FILE_WRITER)
    node.replica.propose([c.encode(c.Seal("op-1", 1, ((3, 4),), OTHER))])
    node.take()
    assert [p.command.writer for p in node.replica.state.pending] == [OTHER]


def test_a_merge_names_it_too() -> None:
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
    """Who does not know its own library makes everything, as releases before did."""
    why = FileWriter(own, lambda: 2).refusal([spec(""), spec(named)])
    assert bool(why) == is_refused and (not why or (OWN in why and OTHER in why))


def test_what_another_library_makes_is_taken_from_others_and_is_no_trouble() -> None:
    """Nothing is tried here; in the end, if nobody has it, the rows become Arrow, which any node makes."""
    node = at_level(node_with_a_row(), Feature.FILE_WRITER)
    node.replica.propose([c.encode(c.CloseFile(((3, P),), writer=OTHER))])
    node.pass_ms(3_000)
    assert not node.under_way(CloseFiles) and not node.replica.trouble
    waited = 3_000
    while not node.under_way(CloseFiles):
        node.pass_ms(1_000)
        waited += 1_000
        assert waited < 120_000, node.replica.failing
    (job,) = node.under_way(CloseFiles)
    assert isinstance(job, CloseFiles)
    (unit,) = job.units
    assert unit.spec.parked and not unit.spec.writer and OTHER in unit.spec.parked
    node.finish(CloseFiles, FilesClosed((msgspec.structs.replace(made_of(unit), parked=unit.spec.parked),)))
    assert len(node.replica.state.manifest) == len(FILES) + 1 and not node.replica.state.pending


def test_the_rest_of_a_close_is_made_here() -> None:
    """One of its files was parked before: that one is Arrow, which has no library."""
    node = at_level(node_with_a_row(), Feature.FILE_WRITER)
    other = msgspec.structs.replace(P, time_partition=P.time_partition + 1)
    write_row(node, opened_session(node), 1, other)
    node.replica.propose([c.encode(c.CloseFile(((3, P), (3, other)), writer=OTHER))])
    node.take()
    (pending,) = node.replica.state.pending
    name = next(u.spec.name for u in pending.units if u.spec.partition == P)
    schema = pending.units[0].spec.schema
    node.replica.propose([c.encode(c.Park(3, P, schema, pending.index, name, "no memory"))])
    node.pass_ms(200)
    made = [u.spec for j in node.under_way(CloseFiles) if isinstance(j, CloseFiles) for u in j.units]
    assert [(s.partition, s.writer) for s in made] == [(P, "")]

"""What the entries of a data group do to its state."""

import gc

import pytest
from msgspec import to_builtins

from nodeagent.data import commands as c
from nodeagent.data.checkpoint import Checkpoint, decode_checkpoint, encode_checkpoint
from nodeagent.data.sessions import Sessions
from nodeagent.data.slots import Slots
from nodeagent.data.state import DataState, initial
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import EntryFailed
from nodeagent.model.files import FileMeta, Tombstone
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import AdoptFiles, Adoption, CloseFiles, CloseUnit, CompactFiles, DeleteFiles
from nodeagent.model.limits import SESSION_WINDOW
from nodeagent.model.operation import SealResult
from nodeagent.model.requests import ErrorReply, SessionOpened, Written
from nodeagent.model.schema import Column, TableSchema
from tests.compat.samples import sample

P = PartitionKey("root.a", 1, 0)
Q = PartitionKey("root.b", 1, 0)
SLOT = {P: 3, Q: 4}


def schema(partition: PartitionKey, version: int = 1) -> TableSchema:
    fields = [Column("v", "INT64", False), Column("w", "INT64", False)][:version]
    return TableSchema(partition.storage_group, "m", version, (Column("device", "STRING", True), *fields))


class Group:
    """A state with its log; a test decides when jobs return their results."""

    def __init__(self, state: DataState | None = None) -> None:
        self.state = state or initial("g.1", ((0, 10),))
        self.log: list[Entry] = []
        self.first = self.state.applied + 1
        self.session = ""
        self.sequence = 0
        self.deleted: list[DeleteFiles] = []

    def do(self, command: c.Command) -> object:
        entry = Entry(1, int(EntryKind.COMMAND), c.encode(command))
        self.log.append(entry)
        return self.state.apply(self.first + len(self.log) - 1, [entry], 0)[0][1]

    def open_session(self) -> None:
        reply = self.do(c.OpenSession())
        assert isinstance(reply, SessionOpened)
        self.session = reply.session
        for p in (P, Q):
            self.do(c.UseSchema(schema(p)))

    def write(self, p: PartitionKey = P, *, sequence: int = 0, settled: int = 0, session: str = "") -> object:
        self.sequence += 1
        session, sequence, ipc = session or self.session, sequence or self.sequence, memoryview(b"x")
        return self.do(c.WriteRows(session, sequence, settled, SLOT[p], p, "m", 1, 1, 0, 9, ipc))

    def delete(self, p: PartitionKey = P) -> object:
        self.sequence += 1
        return self.do(c.DeleteRange(self.session, self.sequence, 0, SLOT[p], p, "m", (), 0, 9))

    def close(self, *ps: PartitionKey) -> None:
        self.do(c.CloseFile(tuple((SLOT[p], p) for p in ps)))

    def finish(self) -> None:
        """Complete all jobs."""
        while self.state.jobs:
            job = self.state.jobs.pop(0)
            if isinstance(job, CloseFiles):
                self.state.on_closed(
                    job,
                    tuple(meta(u.spec.name, u.spec.slot, u.spec.partition, u.spec.order) for u in job.units),
                )
            elif isinstance(job, AdoptFiles):
                self.state.on_adopted(job)
            elif isinstance(job, DeleteFiles):
                self.deleted.append(job)

    def restart(self, saved: Checkpoint | None = None) -> "Group":
        """Restart from the present checkpoint and the log after its base."""
        saved = saved or self.state.checkpoint()
        base = self.state.base()
        again = Group(DataState.restore(decode_checkpoint(encode_checkpoint(saved)), base))
        again.log, again.first = self.log, self.first
        again.session, again.sequence = self.session, self.sequence
        again.state.apply(base + 1, self.log[base + 1 - self.first :], 0)
        return again


def meta(name: str, slot: int, p: PartitionKey, order: tuple[int, ...]) -> FileMeta:
    return FileMeta(name, slot, p, "m", order, 1, "0" * 32, 1, 0, 9, (1, 1, 1))


@pytest.fixture
def group() -> Group:
    g = Group()
    g.open_session()
    return g


def units(state: DataState) -> list[object]:
    return [
        (u.spec, u.batches, u.tombstones) for j in state.jobs if isinstance(j, CloseFiles) for u in j.units
    ]


def test_a_write_counts_once(group: Group) -> None:
    assert group.write(sequence=1) == Written(group.state.applied)
    assert group.write(sequence=1) == Written(0, duplicate=True)
    assert group.state.rows.memtable.rows == 1


def test_no_write_counts_after_a_seal_until_it_is_cancelled(group: Group) -> None:
    group.write(sequence=1)
    group.do(c.Seal("op", 1, ((3, 4),)))
    refused = group.write()
    assert isinstance(refused, ErrorReply) and refused.code == "moved" and refused.details["wait"]
    assert isinstance(group.write(Q), Written)
    group.do(c.Unseal("op", 1))
    assert group.write(sequence=1) == Written(0, duplicate=True)
    assert isinstance(group.write(), Written)


def test_a_seal_after_its_cancel_has_no_effect_even_if_it_is_the_first(group: Group) -> None:
    group.do(c.Unseal("op", 1))
    group.do(c.Seal("op", 1, ((3, 4),)))
    group.do(c.Open("op", 1, ((20, 21),), ()))
    assert group.state.slots.open == set(range(10)) and not group.state.slots.sealed


def test_the_gaining_group_knows_what_the_losing_group_applied(group: Group) -> None:
    group.write(sequence=1)
    group.do(c.Seal("op", 1, ((3, 4),)))
    sealed = group.state.slots.sealed["op"]
    target = Group(initial("h.1", ()))
    target.do(c.UseSchema(schema(P)))
    target.do(c.Open("op", 1, ((3, 4),), (SealResult("g.1", sealed.index, sealed.sessions),)))
    assert target.write(sequence=1, session=group.session) == Written(0, duplicate=True)
    assert isinstance(target.write(sequence=2, session=group.session), Written)


def test_a_client_with_acknowledged_writes_is_never_past_the_window(group: Group) -> None:
    group.write(sequence=1)
    far = 3 * SESSION_WINDOW
    assert isinstance(group.write(sequence=far, settled=far - 1), Written)
    over = group.write(sequence=5 * SESSION_WINDOW, settled=0)
    assert isinstance(over, ErrorReply) and over.code == "overloaded"


@pytest.mark.parametrize("made", [False, True])
def test_a_restart_restores_exactly_the_unclosed_rows(group: Group, made: bool) -> None:
    group.write()
    group.write(sequence=1)  # a duplicate
    group.close(P)
    if made:
        group.finish()
    group.write()
    group.write(Q)
    again = group.restart()
    assert again.state.rows.memtable.rows == group.state.rows.memtable.rows == (2 if made else 3)
    assert again.state.files.manifest.files() == group.state.files.manifest.files()


def test_a_close_repeated_after_a_restart_makes_the_same_files(group: Group) -> None:
    """The files have the same rows, columns and deletes, although the state has a newer schema and a later
    delete."""
    group.write()
    group.delete()
    group.write()
    group.close(P)
    before = units(group.state)
    group.do(c.UseSchema(schema(P, 2)))
    group.delete()
    assert units(group.restart().state) == before


def test_names_do_not_depend_on_when_files_are_made(group: Group) -> None:
    """One member writes the first file before the next write is applied, another member after it."""
    slow = Group()
    slow.open_session()
    for g in (group, slow):
        g.write(P)
        g.write(Q)
        g.close(P)
        if g is group:
            g.finish()
        g.write(P)
        g.finish()
        g.do(c.Seal("op", 1, ((0, 10),)))
        g.finish()
    assert [f.name for f in group.state.files.manifest.files()] == [
        f.name for f in slow.state.files.manifest.files()
    ]
    assert group.state.files.manifest.files() == slow.state.files.manifest.files()


def test_a_close_drops_no_row_of_an_earlier_close(group: Group) -> None:
    group.write()
    group.close(P)
    group.write()
    group.close(P)
    first, second = group.state.jobs
    group.state.jobs.clear()
    assert isinstance(first, CloseFiles) and isinstance(second, CloseFiles)
    made = [tuple(meta(u.spec.name, 3, P, u.spec.order) for u in j.units) for j in (first, second)]
    group.state.on_closed(second, made[1])
    assert group.state.rows.memtable.rows == 2 and not len(group.state.files.manifest)
    group.state.on_closed(first, made[0])
    assert group.state.rows.memtable.rows == 0 and len(group.state.files.manifest) == 2


def finish_units(group: Group, *of: PartitionKey) -> None:
    """Write only the files of these partitions; the other units stay jobs."""
    jobs = list(group.state.jobs)
    group.state.jobs.clear()
    for job in jobs:
        assert isinstance(job, CloseFiles)
        now = tuple(u for u in job.units if u.spec.partition in of)
        rest = tuple(u for u in job.units if u.spec.partition not in of)
        made = tuple(meta(u.spec.name, u.spec.slot, u.spec.partition, u.spec.order) for u in now)
        group.state.on_closed(CloseFiles(job.group, now), made)
        group.state.jobs.extend([CloseFiles(job.group, rest)] if rest else [])


def test_a_partition_that_cannot_be_closed_delays_no_other(group: Group) -> None:
    """It delays no partition of the same close or of later closes; its own rows stay in memory and in the
    log."""
    first = group.state.applied + 1
    group.write(P)
    group.write(Q)
    group.close(P, Q)
    group.write(P)
    group.write(Q)
    group.close(P, Q)
    finish_units(group, Q)
    assert [f.partition for f in group.state.files.manifest.files()] == [Q, Q]
    assert group.state.rows.memtable.partition(Q) is None and group.state.rows.memtable.rows == 2
    assert group.state.base() == first - 1
    group.finish()
    assert len(group.state.files.manifest) == 4 and group.state.rows.memtable.rows == 0
    assert group.state.base() == group.state.applied and not group.state.closes.pending


def test_the_rest_of_a_close_has_the_same_names_after_a_restart(group: Group) -> None:
    """The first partition is filed, the second is not: its file has the same name as on all members."""
    group.write(P)
    group.write(Q)
    group.write(P)
    group.close(P, Q)
    (job,) = group.state.jobs
    assert isinstance(job, CloseFiles)
    wanted = [u for u in job.units if u.spec.partition == Q]
    finish_units(group, P)
    again = group.restart()
    assert [u for j in again.state.jobs if isinstance(j, CloseFiles) for u in j.units] == wanted
    assert again.state.files.manifest.files() == group.state.files.manifest.files()
    assert again.state.rows.memtable.partition(P) is None
    again.finish()
    assert again.state.rows.memtable.rows == 0 and len(again.state.files.manifest) == 2


def test_a_close_saved_by_a_release_that_filed_whole_closes_is_made(group: Group) -> None:
    """The checkpoint of that release lists no partitions, so all partitions of the close are remaining."""
    group.write(P)
    group.write(Q)
    group.close(P, Q)
    saved = group.state.checkpoint()
    saved.unfiled = []
    again = group.restart(saved)
    assert units(again.state) == units(group.state)


def test_a_failed_close_is_not_retried_for_released_slots(group: Group) -> None:
    """The file is not needed: the close ends without it, and the state counts as materialised."""
    group.write(P)
    group.write(Q)
    group.close(P, Q)
    (job,) = group.state.jobs
    assert isinstance(job, CloseFiles)
    group.do(c.Seal("op", 1, ((3, 4),)))
    group.do(c.Release("op", 1))
    assert [u.spec.partition for u in group.state.units_to_retry(job)] == [Q]
    assert [list(p.parts) for p in group.state.closes.pending] == [[Q]]


def park(group: Group, unit: CloseUnit) -> c.Park:
    spec = unit.spec
    return c.Park(spec.slot, spec.partition, spec.schema, spec.order[0], spec.name, "no")


def only_unit(group: Group) -> CloseUnit:
    (job,) = group.state.jobs
    assert isinstance(job, CloseFiles) and len(job.units) == 1
    return job.units[0]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_parked_unit_is_made_as_arrow(group: Group, restarted: bool) -> None:
    """The Arrow file has the same rows, order and number, also after a restart, and is then treated like any
    other file."""
    group.write(P)
    group.close(P)
    unit = only_unit(group)
    group.state.jobs.clear()
    group.do(park(group, unit))
    if restarted:
        group = group.restart()
    parked = only_unit(group)
    assert parked.spec.name == unit.spec.name.replace(".tsfile", ".arrow") and parked.spec.parked == "no"
    assert (parked.batches, parked.tombstones, parked.spec.order) == (unit.batches, (), unit.spec.order)
    group.finish()
    assert [f.name for f in group.state.files.manifest.files()] == [parked.spec.name]
    assert group.state.rows.memtable.rows == 0 and group.state.base() == group.state.applied


def test_a_tsfile_made_while_its_rows_were_parked_is_deleted(group: Group) -> None:
    """The job was running when its rows were parked: no manifest will ever list its output."""
    group.write(P)
    group.close(P)
    unit = only_unit(group)
    (job,) = group.state.jobs
    group.state.jobs.clear()
    group.do(park(group, unit))
    made = meta(unit.spec.name, 3, P, unit.spec.order)
    assert isinstance(job, CloseFiles)
    group.state.on_closed(job, (made,))
    assert not len(group.state.files.manifest)
    group.finish()
    assert [f for d in group.deleted for f in d.files] == [made]
    assert [f.name[-6:] for f in group.state.files.manifest.files()] == [".arrow"]


def test_a_tsfile_that_waits_for_an_earlier_close_is_deleted_if_parked(group: Group) -> None:
    """The file was written, but no manifest lists it or ever will."""
    for _ in range(2):
        group.write(P)
        group.close(P)
    first, second = group.state.jobs
    assert isinstance(first, CloseFiles) and isinstance(second, CloseFiles)
    (unit,) = second.units
    made = meta(unit.spec.name, 3, P, unit.spec.order)
    group.state.on_closed(second, (made,))
    group.state.jobs[:] = [first]
    group.do(park(group, unit))
    group.finish()
    assert [f for d in group.deleted for f in d.files] == [made]
    assert sorted(f.name[-6:] for f in group.state.files.manifest.files()) == [".arrow", "tsfile"]


def test_a_member_that_has_the_tsfile_makes_the_arrow_file_of_it(group: Group) -> None:
    """If only some members failed, all members end with the same file."""
    group.write(P)
    group.close(P)
    unit = only_unit(group)
    group.finish()
    for _ in range(2):  # it may be logged twice
        group.do(park(group, unit))
    again = group.restart()
    for g in (group, again):
        (job,) = g.state.jobs
        assert isinstance(job, CompactFiles) and job.unit.inputs == g.state.files.manifest.files()
        spec = job.unit.spec
        assert (spec.name[-6:], spec.order, spec.parked) == (".arrow", unit.spec.order, "no")
        g.state.turns.on_compacted(job, meta(spec.name, 3, P, spec.order))
        assert [f.name for f in g.state.files.manifest.files()] == [
            spec.name
        ] and not g.state.compactions.active
        assert [f.name for f in g.state.files.pending_delete] == [unit.spec.name]


def test_an_input_of_a_compaction_is_not_parked(group: Group) -> None:
    """Other members may have merged the TsFile already, so this member must write it too."""
    for _ in range(2):
        group.write(P)
        group.close(P)
    first, second = (j.units[0] for j in group.state.jobs if isinstance(j, CloseFiles))
    names = tuple((u.spec.name, "0" * 32) for u in (first, second))
    group.do(c.Compact(3, P, "m", names))
    group.do(park(group, first))
    assert first in [u for p in group.state.closes.pending for u in p.units]


def adopt(group: Group) -> c.Adopt:
    index = group.state.slots.arriving["op"].index
    file = meta("a", 20, PartitionKey("root.c", 1, 0), (index, 5))
    deletes = (Tombstone((index, 7), file.partition, "m", (), 0, 9),)
    return c.Adopt("op", ((20, 21),), (Adoption("s", file),), deletes)


def test_a_member_that_still_adopts_is_no_source(group: Group) -> None:
    """The next operation seals slots whose files of the previous operation are not in place on this
    member."""
    group.do(c.Open("op", 1, ((20, 21),), ()))
    group.do(adopt(group))
    group.do(c.Seal("op2", 2, ((20, 21),)))
    assert not group.state.is_source_ready("op2") and not group.state.is_source_whole("op2", {20})
    group.finish()
    assert group.state.is_source_ready("op2")


def test_slots_stay_complete_while_other_slots_arrive(group: Group) -> None:
    group.do(c.Open("op", 1, ((20, 21),), ()))
    group.do(adopt(group))
    group.do(c.Seal("op2", 2, ((3, 4),)))
    assert group.state.is_source_whole("op2", {3})


def test_a_member_that_still_writes_files_of_sealed_slots_is_no_source(group: Group) -> None:
    """Rows closed by the seal are in no file yet: a copy of the files would lack them."""
    group.write(P)
    group.do(c.Seal("op", 1, ((3, 4),)))
    assert group.state.jobs and group.state.is_source_whole("op", {3})
    assert not group.state.is_source_ready("op")
    group.finish()
    assert group.state.is_source_ready("op")


def test_adopting_twice_is_adopting_once(group: Group) -> None:
    group.do(c.Open("op", 1, ((20, 21),), ()))
    command = adopt(group)
    group.do(command)
    group.do(command)
    group.finish()
    assert len(group.state.files.manifest) == 1 and len(group.state.files.tombstones) == 1
    group.do(command)
    assert not group.state.jobs and group.state.slots.ended["op"] == "adopted"


def test_files_adopted_after_their_slot_was_released_are_deleted(group: Group) -> None:
    group.do(c.Open("op", 1, ((20, 21),), ()))
    group.do(adopt(group))
    adopting = group.state.jobs.pop()
    assert isinstance(adopting, AdoptFiles)
    group.do(c.Seal("op2", 2, ((20, 21),)))
    group.do(c.Release("op2", 2))
    group.state.on_adopted(adopting)
    assert not len(group.state.files.manifest)
    assert [type(j) for j in group.state.jobs] == [DeleteFiles]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_slot_that_returns_has_no_files_of_its_first_ownership(group: Group, restarted: bool) -> None:
    """The close of the slot's seal and an adoption for it end late, after the slot has opened here again."""
    group.do(c.Open("op", 1, ((20, 21),), ()))
    late = adopt(group)
    group.do(late)
    group.write(P)
    group.write(Q)
    group.do(c.Seal("op2", 2, ((3, 4), (20, 21))))
    group.do(c.CloseFile(((SLOT[Q], Q),)))
    group.do(c.Release("op2", 2))
    assert group.state.rows.memtable.partition(P) is None
    group.do(c.Open("op3", 3, ((3, 4), (20, 21)), ()))
    assert set(group.state.slots.arriving) == {"op3"}
    if restarted:
        group = group.restart()
    assert isinstance(group.write(P), Written)
    jobs = list(group.state.jobs)
    group.finish()
    assert {f.slot for f in group.state.files.manifest.files()} == {4}
    assert P in group.state.rows.memtable.partitions()
    deleted = {f.slot for j in (*jobs, *group.deleted) if isinstance(j, DeleteFiles) for f in j.files}
    assert deleted == {3, 20}


def test_a_repeated_close_brings_back_no_rows_of_released_slots(group: Group) -> None:
    """The file of the slot's seal was written, that of an earlier close was not: the replay restores the rows
    of both."""
    group.write(P)
    group.close(P)
    group.write(P)
    group.do(c.Seal("op", 1, ((3, 4),)))
    earlier = group.state.jobs.pop(0)
    group.finish()
    group.state.jobs.append(earlier)
    group.do(c.Release("op", 1))
    group = group.restart()
    assert group.state.rows.memtable.partition(P) is None and P not in group.state.rows.slot_of
    group.finish()
    assert not len(group.state.files.manifest)


def test_a_release_drops_files_sessions_and_deletes_of_its_slots_only(group: Group) -> None:
    group.write(P)
    group.write(Q)
    group.close(P, Q)
    group.finish()
    group.do(c.Seal("op", 1, ((3, 4),)))
    group.do(c.Release("op", 1))
    assert {f.slot for f in group.state.files.manifest.files()} == {4}
    assert group.state.sessions.written() == {4}


def test_a_late_release_leaves_slots_that_are_open_again(group: Group) -> None:
    """A leader with an old view may log the release after the slots returned (S11)."""
    group.do(c.Seal("op", 1, ((3, 4),)))
    group.do(c.Open("op2", 2, ((3, 4),), ()))
    assert isinstance(group.write(P), Written)
    group.do(c.Release("op", 1))
    assert P in group.state.rows.memtable.partitions() and 3 in group.state.slots.open


def test_a_new_member_gets_the_seal_and_no_files(group: Group) -> None:
    group.write()
    group.do(c.Seal("op", 1, ((3, 4),)))
    group.finish()
    saved = decode_checkpoint(encode_checkpoint(group.state.checkpoint({"op"})))
    state = DataState.restore(saved, group.state.base())
    assert (
        not len(state.files.manifest)
        and not state.is_source_ready("op")
        and group.state.is_source_ready("op")
    )


def test_a_new_group_begins_at_an_index_that_needs_a_checkpoint() -> None:
    """No entry contains the first slots, so a member must not be able to join from the log alone."""
    assert initial("g.1", ((0, 1),)).base() > DataState("g.1").base()


def test_a_session_that_came_with_slots_is_a_guest_for_these_slots() -> None:
    old, new = Sessions(), Sessions()
    old.open("s")
    new.import_tables([old.export([3])], {3})
    assert new.knows("s", 3) and not new.knows("s", 4)
    new.forget([3])
    assert not new.knows("s", 3)


def test_every_command_of_an_operation_is_idempotent() -> None:
    slots = Slots(open={1, 2})
    assert slots.seal("op", ((1, 2),), 5, b"") and not slots.seal("op", ((1, 2),), 6, b"")
    assert slots.sealed["op"].index == 5
    assert [slots.sealed_by(slot) for slot in (1, 2)] == ["op", None]
    assert slots.release("op") == {1} and slots.release("op") == set()
    assert not slots.unseal("op") and slots.open == {2}
    assert slots.open_slots("op2", ((7, 9),), 7, []) and not slots.open_slots("op2", ((7, 9),), 8, [])
    slots.adopted("op2", ((7, 8),))
    assert slots.arriving["op2"].slots == {8}
    assert [slots.arriving_by(slot) for slot in (7, 8)] == [None, "op2"]
    slots.adopted("op2", ((8, 9),))
    assert not slots.open_slots("op2", ((7, 9),), 9, [])


def test_a_newer_state_names_the_old_files_to_delete() -> None:
    """An install deletes old files that no manifest will list; files that will be written again stay."""
    old = Group()
    old.open_session()
    for p in (P, Q):
        old.write(p)
        old.close(p)
    new = old.restart()
    old.finish()
    assert new.state.superseded(old.state) == ()
    new.finish()
    new.do(c.Seal("op", 1, ((3, 4),)))
    new.do(c.Release("op", 1))
    assert [f.slot for f in new.state.superseded(old.state)] == [3]
    assert old.state.superseded(new.state) == ()


def test_a_newer_state_deletes_a_file_that_waited_for_an_earlier_close() -> None:
    """The file is on disk but in no manifest: the disk was full at the earlier close, then a snapshot was
    installed."""
    old = Group()
    old.open_session()
    for p in (P, P):
        old.write(p)
        old.close(p)
    new = old.restart()
    new.finish()
    old.state.jobs.pop(0)
    old.finish()
    (waiting,) = (f for p in old.state.closes.pending for f in p.made.values() if f is not None)
    assert new.state.superseded(old.state) == ()
    new.do(c.Seal("op", 1, ((0, 10),)))
    new.do(c.Release("op", 1))
    assert new.state.superseded(old.state) == (waiting,)


def test_an_operation_is_open_while_its_files_are_adopted() -> None:
    """In a rebalance a group both gives and gains slots: staged files stay until they are adopted."""
    slots = Slots(open={1, 2})
    slots.seal("op-1", ((1, 2),), 5, b"")
    slots.open_slots("op-1", ((7, 8),), 6, ["h.1"])
    slots.release("op-1")
    assert slots.ended_here() == set()
    slots.adopted("op-1", ((7, 8),))
    assert slots.ended_here() == {"op-1"} and slots.open == {2, 7}


def test_a_log_index_reused_after_a_recovery_names_another_session(group: Group) -> None:
    """Otherwise two clients would share a session, and a write of one would count as a duplicate of the
    other's."""
    replies = [
        DataState("g").apply(1, [Entry(term, int(EntryKind.COMMAND), c.encode(c.OpenSession()))], 0)
        for term in (3, 1003)
    ]
    assert len({reply for ((_, reply),) in replies}) == 2


@pytest.mark.parametrize("error", [KeyError("a bug"), AssertionError(), None])
def test_the_error_of_an_entry_names_it_and_has_the_answers_before_it(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    """A retry raises the same error: the entry is of a later release, or there is a bug."""
    state = initial("g.1", ((0, 5),))
    good = Entry(1, EntryKind.COMMAND, c.encode(c.Opaque(b"x")))
    bad = Entry(1, EntryKind.COMMAND, b"\xc1" if error is None else c.encode(c.ExpireSessions(("s",))))

    def fails(*_: object) -> None:
        assert error is not None
        raise error

    if error is not None:
        monkeypatch.setattr(Sessions, "expire", fails)
    with pytest.raises(EntryFailed) as failed:
        state.apply(2, [good, bad, good], 0)
    assert failed.value.index == 3 and [index for index, _ in failed.value.replies] == [2]


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_535, 65_536, 70_000])
def test_rows_in_memory_share_the_bytes_of_the_log_entry(size: int) -> None:
    """The rows are a slice at the end of their entry, and the garbage collector does not track them."""
    rows = bytes(i % 251 for i in range(size))
    entry = c.encode(c.WriteRows("s", 1, 0, 3, P, "t", 1, 1, 0, 0, memoryview(rows)))
    written = c.decode(entry)
    assert isinstance(written, c.WriteRows)
    batch = c.batch_of(9, written)
    assert batch.data is entry and batch.ipc == rows and batch.nbytes == size and batch.order == (9,)
    assert not gc.is_tracked(batch)


@pytest.mark.parametrize("rows", [b"rows", b"\xc4" * 196])
def test_rows_that_do_not_end_their_entry_are_copied(rows: bytes) -> None:
    """A later release may add fields after the rows; these bytes must not be read as rows."""
    entry = c.encode(c.WriteRows("s", 1, 0, 3, P, "t", 1, 1, 0, 0, memoryview(rows)))
    for more in (b"\x07", b"\xa5later", b"\xc4\xc4" + bytes(196)):
        written = c.decode(bytes([entry[0] + 1]) + entry[1:] + more)
        assert isinstance(written, c.WriteRows) and written.ipc == rows
        batch = c.batch_of(9, written)
        assert batch.ipc == rows and batch.data == rows


def saved_with_every_field(group: Group) -> Checkpoint:
    """A checkpoint of which no field is empty or has its default."""
    group.write()
    saved: Checkpoint = sample(Checkpoint)
    close: c.CloseFile = sample(c.CloseFile)
    saved.sessions = group.state.sessions.image()
    saved.substitutes = [saved.files[0].name]
    [(at, _, schemas, released)] = saved.pending
    saved.pending = [(at, c.encode(close), schemas, released)]
    saved.unfiled = [(at, close.partitions[0][1], 1)]
    saved.parked = [(at, name, why) for _, name, why in saved.parked]
    saved.adopting = [(at, c.encode(sample(c.Adopt)), lost) for at, _, lost in saved.adopting]
    saved.compacting = [(at, c.encode(sample(c.Compact)), s, t) for at, _, s, t in saved.compacting]
    assert all(getattr(saved, field) for field in Checkpoint.__struct_fields__)
    return saved


def test_a_restored_state_saves_each_field_of_its_checkpoint_unchanged(group: Group) -> None:
    """A field that `restore` or `checkpoint` forgets would be lost at the next restart."""
    saved = saved_with_every_field(group)
    state = DataState.restore(decode_checkpoint(encode_checkpoint(saved)), saved.applied)
    before, after = (to_builtins(s) for s in (saved, state.checkpoint()))
    assert {name: value for name, value in after.items() if value != before[name]} == {}

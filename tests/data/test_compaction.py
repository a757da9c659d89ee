"""Compaction and expiry depend on the log alone, whatever a member's pace, restarts and snapshots."""

import random
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
import xxhash

from nodeagent.data import commands as c
from nodeagent.data import compaction
from nodeagent.data.checkpoint import decode_checkpoint, encode_checkpoint
from nodeagent.data.state import DataState, initial
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.files import FileMeta, Tombstone, parked_name
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import AdoptFiles, Adoption, CloseFiles, CompactFiles, DeleteFiles, Job
from nodeagent.model.limits import COMPACT_BYTES_MAX, COMPACT_ROW_BYTES, MIB, SMALL_FILES_MAX
from nodeagent.model.schema import Column, TableSchema

PARTITIONS = tuple(PartitionKey("root.a", i, 0) for i in range(3))
SLOTS = {p: p.time_partition for p in PARTITIONS}
SCHEMA = TableSchema("root.a", "m", 1, (Column("device", "STRING", True), Column("v", "INT64", False)))
P = PARTITIONS[0]


def digest(*parts: object) -> str:
    return xxhash.xxh3_128_hexdigest(repr(parts).encode())


CONTENT: dict[str, object] = {}
"""File hash -> rows; parked rows are the same whether or not a member has made a TsFile of them."""


def made(job: CloseFiles) -> tuple[FileMeta | None, ...]:
    """The output of a worker: its bytes depend on the unit alone; None if all rows are deleted."""
    out: list[FileMeta | None] = []
    for u in job.units:
        times = [
            b.ipc[0]
            for b in u.batches
            if not any(b.order < t.order and t.time_from <= b.ipc[0] <= t.time_to for t in u.tombstones)
        ]
        s = u.spec
        xxh3 = digest(s, content := (times,))
        CONTENT[xxh3] = content
        out.append(
            FileMeta(
                s.name,
                s.slot,
                s.partition,
                "m",
                s.order,
                len(times),
                xxh3,
                1,
                min(times),
                max(times),
                (1, 1, 1),
                parked=s.parked,
            )
            if times
            else None
        )
    return tuple(out)


def merged(job: CompactFiles) -> FileMeta | None:
    u = job.unit
    left = [
        f
        for f in u.inputs
        if not any(t.masks(f) and t.time_from <= f.time_min and f.time_max <= t.time_to for t in u.tombstones)
    ]
    deletes = [t for t in u.tombstones if any(t.masks(f) for f in u.inputs)]
    if not left:
        return None
    inputs = [CONTENT.get(f.xxh3, f.xxh3) for f in u.inputs]
    is_parking = u.spec.name == parked_name(u.inputs[0].name)
    content = inputs[0] if is_parking else (inputs, deletes)
    CONTENT[xxh3 := digest(u.spec, content)] = content
    return FileMeta(
        u.spec.name,
        u.spec.slot,
        u.spec.partition,
        "m",
        u.spec.order,
        sum(f.size for f in left),
        xxh3,
        1,
        min(f.time_min for f in left),
        max(f.time_max for f in left),
        (1, 1, 1),
        u.clean,
        u.spec.parked,
    )


class Member:
    """A state, the index up to which it has applied the log, and its running jobs."""

    def __init__(self, log: list[Entry]) -> None:
        self.log = log
        self.state = initial("g.1", ((0, 3),))
        self.first = self.state.applied + 1
        self.saved = self.save()
        self.jobs: list[Job] = []
        self.compacted = 0
        self.copied = 0
        """Files of other members that completed several compactions at once."""

    def save(self) -> tuple[bytes, int]:
        self.saved = encode_checkpoint(self.state.checkpoint()), self.state.base()
        return self.saved

    def restore(self, saved: tuple[bytes, int]) -> None:
        """Restart as after a crash or an install: running jobs are lost."""
        self.saved = saved
        self.jobs = []
        self.state = DataState.restore(decode_checkpoint(saved[0]), saved[1])
        while not self.state.rows.recovered:
            self.step()
        self.gather()

    def gather(self) -> None:
        self.jobs += self.state.jobs
        self.state.jobs.clear()

    def step(self) -> bool:
        """Apply the next entry, if there is one."""
        at = self.state.rows.delivered + 1
        if at - self.first >= len(self.log):
            return False
        self.state.apply(at, [self.log[at - self.first]], 0)
        self.gather()
        return True

    def finish(self, which: int) -> None:
        job = self.jobs.pop(which)
        if isinstance(job, CloseFiles):
            self.state.on_closed(job, made(job))
        elif isinstance(job, CompactFiles):
            self.compacted += 1
            self.state.turns.on_compacted(job, merged(job))
        elif isinstance(job, AdoptFiles):
            self.state.on_adopted(job)
        elif isinstance(job, DeleteFiles):
            assert not [f for f in job.files if f.name in self.state.files.manifest]
        self.gather()

    def fail(self, which: int) -> None:
        """Fail a job in the worker; the units that are still needed are retried."""
        job = self.jobs.pop(which)
        if isinstance(job, CloseFiles):
            units = self.state.units_to_retry(job)
            self.jobs += [CloseFiles(job.group, units)] if units else []
        elif not isinstance(job, CompactFiles) or self.state.turns.should_retry(job):
            self.jobs.append(job)
        self.gather()

    def copy(self, which: int, others: "list[Member]") -> None:
        """Fail a compaction because of damage; a file of another member replaces its output if a member has
        one."""
        job = self.jobs[which]
        outcomes = self.state.turns.outcomes(job) if isinstance(job, CompactFiles) else []
        held = {f.name: f for m in others for f in m.files}
        outcome = next((o for o in outcomes if o.spec.name in held), None)
        if outcome is not None:
            self.jobs.pop(which)
            self.copied += len(outcome.steps) > 1
            assert held[outcome.spec.name].order == outcome.spec.order
            self.state.turns.on_copied(outcome, held[outcome.spec.name])
            self.gather()

    def settle(self) -> None:
        while self.step() or self.jobs:
            if self.jobs:
                self.finish(0)

    def settle_closes(self) -> None:
        while self.step():
            pass
        while closes := [i for i, j in enumerate(self.jobs) if isinstance(j, CloseFiles)]:
            self.finish(closes[0])

    @property
    def files(self) -> tuple[FileMeta, ...]:
        return self.state.files.manifest.files()


class Cluster:
    """Member 0 is ahead of the others and writes the log."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log: list[Entry] = []
        self.members = [Member(self.log) for _ in range(3)]
        self.leader = self.members[0]
        self.operations = 0
        self.sequence = 0
        self.do(c.UseSchema(SCHEMA))
        self.session = f"g.1:{self.leader.state.applied + 1}.1"
        self.do(c.OpenSession())

    def do(self, command: c.Command) -> None:
        self.log.append(Entry(1, int(EntryKind.COMMAND), c.encode(command)))
        while self.leader.step():
            pass

    def write(self, p: PartitionKey = P, time: int = 5) -> None:
        self.sequence += 1
        ipc = memoryview(bytes([time]))
        self.do(c.WriteRows(self.session, self.sequence, 0, SLOTS[p], p, "m", 1, 1, time, time, ipc))

    def delete(self, p: PartitionKey = P, first: int = 0, last: int = 9) -> None:
        self.sequence += 1
        self.do(c.DeleteRange(self.session, self.sequence, 0, SLOTS[p], p, "m", (), first, last))

    def close(self, *ps: PartitionKey) -> None:
        self.do(c.CloseFile(tuple((SLOTS[p], p) for p in ps or (P,))))

    def compact(self, files: list[FileMeta] | tuple[FileMeta, ...], parked: str = "") -> None:
        f = files[0]
        self.do(c.Compact(f.slot, f.partition, "m", tuple((f.name, f.xxh3) for f in files), parked=parked))

    def some_files(self, n: int, p: PartitionKey = P) -> tuple[FileMeta, ...]:
        """Make `n` files at the leader, each of one row with its own time."""
        for time in range(n):
            self.write(p, time)
            self.close(p)
        self.leader.settle()
        return self.leader.state.files.manifest.of_partition(p)

    def step(self) -> None:
        """One random command."""
        rng = self.rng
        p = rng.choice(PARTITIONS)
        files = self.leader.state.files.manifest.of_partition(p)
        slots = self.leader.state.slots
        match rng.randrange(17):
            case 0 | 1 | 2 | 3:
                self.write(p, rng.randrange(10))
            case 4 | 5 | 6:
                self.close(*rng.sample(PARTITIONS, rng.randint(1, 3)))
            case 7:
                self.delete(p, rng.randrange(6), rng.randint(3, 9))
            case 8:
                self.do(c.Expire(SLOTS[p], p, "m", rng.randrange(11)))
            case 9 | 10 | 11 if files:
                at = rng.randrange(len(files))
                self.compact(files[at : at + rng.randint(1, 4)], rng.choice(("", "", "no")))
            case 12:
                self.operations += 1
                slot = SLOTS[p]
                self.do(c.Seal(f"op-{self.operations}", 1, ((slot, slot + 1),)))
            case 13 if slots.sealed:
                operation = rng.choice(sorted(slots.sealed))
                self.do(rng.choice((c.Unseal, c.Release))(operation, 1))
            case 14:
                self.move_in(rng)
            case 15 | 16:
                self.park(rng)
            case _:
                pass  # no file to merge, or no sealed slot

    def park(self, rng: random.Random) -> None:
        """Park a close or compaction that failed at the present or a former leader; other members may have
        completed it."""
        state = self.leader.state
        specs = [u.spec for pending in state.closes.pending for u in pending.units]
        specs += [m.job.unit.spec for m in state.compactions.active if m.job is not None]
        done = [f for f in state.files.manifest.files() if not f.parked and len(f.order) == 1]
        if specs and rng.random() < 0.7:
            spec = rng.choice(specs)
            name, slot, p = spec.name, spec.slot, spec.partition
        elif done:
            file = rng.choice(done)
            name, slot, p = file.name, file.slot, file.partition
        else:
            return
        if name.endswith(".tsfile"):
            self.do(c.Park(slot, p, SCHEMA, int(name.split("-")[1]), name, "no"))

    def move_in(self, rng: random.Random) -> None:
        """Open a slot that arrives, or adopt the older rows of a slot that arrived."""
        slots = self.leader.state.slots
        gone = [p for p in PARTITIONS if SLOTS[p] not in slots.open and not slots.sealed_by(SLOTS[p])]
        if slots.arriving:
            operation = sorted(slots.arriving)[0]
            arrival = slots.arriving[operation]
            if not arrival.slots:
                return
            slot = min(arrival.slots)
            p = next(q for q in PARTITIONS if SLOTS[q] == slot)
            metas = [
                FileMeta(
                    f"{slot:05d}-{arrival.index:012d}-{i:04d}.tsfile",
                    *(slot, p, "m", (arrival.index, 10 * i), 1, digest(i), 1, i, 2 * i, (1, 1, 1)),
                )
                for i in range(3)
            ]
            deletes = (Tombstone((arrival.index, 15), p, "m", (), 0, 4),)
            adoptions = tuple(Adoption(f.name, f) for f in metas)
            for _ in range(rng.randint(1, 2)):
                self.do(c.Adopt(operation, ((slot, slot + 1),), adoptions, deletes))
        elif gone:
            self.operations += 1
            slot = SLOTS[gone[0]]
            self.do(c.Open(f"op-{self.operations}", 1, ((slot, slot + 1),), ()))


@pytest.mark.parametrize("seed", range(120))
def test_members_of_any_pace_end_with_the_same_files(seed: int) -> None:
    """The logs are random; jobs end late and in any order; members restart from old checkpoints and install
    snapshots."""
    cluster = Cluster(seed)
    rng = cluster.rng
    for _ in range(150):
        cluster.step()
        for member in cluster.members:
            for _ in range(rng.randrange(4)):
                if rng.random() < 0.5:
                    member.step()
                elif member.jobs:
                    others = [m for m in cluster.members if m is not member]
                    copy = partial(member.copy, others=others)
                    acts: list[Callable[[int], object]] = [member.fail, copy, *[member.finish] * 6]
                    rng.choice(acts)(rng.randrange(len(member.jobs)))
            if rng.random() < 0.05:
                member.save()
            if rng.random() < 0.03:
                member.restore(member.saved)
        follower = rng.choice(cluster.members[1:])
        if rng.random() < 0.02 and not cluster.leader.state.adoptions.waiting:
            follower.restore(cluster.leader.save())
        while cluster.leader.step():
            pass
    for member in cluster.members:
        member.settle()
    first = cluster.leader
    for member in cluster.members[1:]:
        assert member.files == first.files
        assert member.state.materialised == first.state.materialised == first.state.applied
        assert not member.state.compactions.active
        for p in PARTITIONS:
            files = first.state.files.manifest.of_partition(p)
            mine, theirs = (
                [t for t in m.state.files.tombstones if t.partition == p and any(t.masks(f) for f in files)]
                for m in (member, first)
            )
            assert sorted(mine, key=lambda t: t.order) == sorted(theirs, key=lambda t: t.order)


def test_the_random_logs_contain_compactions() -> None:
    """Otherwise the previous test shows nothing."""
    done = parked = 0
    for seed in range(10):
        cluster = Cluster(seed)
        for _ in range(150):
            cluster.step()
            cluster.leader.settle()
        done += cluster.leader.compacted
        parked += sum(f.parked != "" and f.clean != () for f in cluster.leader.files)
    assert done > 100 and parked


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(0)


def test_the_output_has_the_order_of_its_newest_input(cluster: Cluster) -> None:
    """Rows written before the entry and closed after it stay newer; earlier deletes are applied to the
    output."""
    files = cluster.some_files(4)
    cluster.delete(P, 1, 1)
    cluster.write(P, 7)
    cluster.compact(files[1:3])
    cluster.close()
    job = next(j for j in cluster.leader.jobs if isinstance(j, CompactFiles))
    assert job.unit.spec.order == files[2].order
    assert [t.time_from for t in job.unit.tombstones] == [1]
    cluster.leader.settle()
    names = [f.name for f in cluster.leader.state.files.manifest.of_partition(P)]
    assert names[0] == files[0].name and names[1] == job.unit.spec.name and names[2] == files[3].name
    assert len(names) == 4 and not cluster.leader.state.files.tombstones
    assert [f.name for f in cluster.leader.state.files.pending_delete] == [f.name for f in files[1:3]]


def test_the_hashes_of_the_inputs_are_those_of_the_log() -> None:
    """A member's own manifest may be wrong: with its hashes the member would merge files that the other
    members do not have."""
    file = FileMeta("f", 0, P, "m", (2,), 1, "0" * 32, 1, 1, 1, (1, 1, 1))
    logged = compaction.Compacting(5, c.Compact(0, P, "m", (("f", "1" * 32),)), SCHEMA, [])
    assert [f.xxh3 for f in compaction.job_of("g.1", logged, (file,)).unit.inputs] == ["1" * 32]


@pytest.mark.parametrize("which", ["absent", "apart", "backwards"])
def test_a_compaction_of_files_that_are_not_adjacent_has_no_effect(cluster: Cluster, which: str) -> None:
    files = cluster.some_files(4)
    chosen = {
        "absent": [files[0], msgspec.structs.replace(files[1], name="00000-000000000099-0000.tsfile")],
        "apart": [files[0], files[2]],
        "backwards": [files[1], files[0]],
    }[which]
    cluster.compact(chosen)
    assert not cluster.leader.state.compactions.active and not cluster.leader.jobs
    assert cluster.leader.state.files.manifest.of_partition(P) == files


def test_a_slot_that_is_sealed_or_not_adopted_is_not_compacted(cluster: Cluster) -> None:
    files = cluster.some_files(3)
    cluster.do(c.Seal("op-1", 1, ((0, 1),)))
    cluster.compact(files)
    assert not cluster.leader.state.compactions.active
    cluster.do(c.Release("op-1", 1))
    cluster.do(c.Open("op-2", 1, ((0, 1),), ()))
    new = cluster.some_files(2)
    cluster.compact(new)
    assert not cluster.leader.state.compactions.active
    cluster.do(c.Adopt("op-2", ((0, 1),), (), ()))
    cluster.compact(new)
    assert (
        len(cluster.leader.state.compactions.active) == 1
    )  # although the adopted files are not in place yet


def test_a_sealed_slot_is_no_source_before_earlier_compactions_ended(cluster: Cluster) -> None:
    """Otherwise members at different indexes would offer different files."""
    state = cluster.leader.state
    cluster.compact(cluster.some_files(3))
    cluster.do(c.Seal("op-1", 1, ((0, 1),)))
    assert not state.is_source_ready("op-1") and state.is_source_whole("op-1", {0})
    cluster.leader.settle()
    assert state.is_source_ready("op-1") and len(state.files.manifest) == 1


def test_a_release_cancels_a_compaction_and_deletes_its_output(cluster: Cluster) -> None:
    state = cluster.leader.state
    cluster.compact(cluster.some_files(3))
    job = cluster.leader.jobs.pop()
    assert isinstance(job, CompactFiles)
    cluster.do(c.Seal("op-1", 1, ((0, 1),)))
    cluster.do(c.Release("op-1", 1))
    assert state.materialised == state.applied
    out = merged(job)
    state.turns.on_compacted(job, out)
    assert (
        state.files.pending_delete == [out] and not len(state.files.manifest) and not state.compactions.active
    )


def test_a_failing_compaction_delays_only_its_own_files(cluster: Cluster) -> None:
    q = PARTITIONS[1]
    stuck, other = cluster.some_files(2), cluster.some_files(2, q)
    cluster.compact(stuck)
    index = cluster.leader.state.applied
    cluster.leader.jobs.pop()  # it cannot read an input
    cluster.write()
    cluster.close()
    cluster.compact(other)
    cluster.leader.settle()
    state = cluster.leader.state
    assert len(state.files.manifest.of_partition(q)) == 1 and len(state.files.manifest.of_partition(P)) == 3
    assert state.materialised == index - 1


def test_the_arrow_file_of_a_park_counts_as_named(cluster: Cluster) -> None:
    """The file's name has the log index of the close or merge that made its input."""
    (file,) = cluster.some_files(1)
    cluster.do(c.Park(0, P, SCHEMA, int(file.name.split("-")[1]), file.name, "no"))
    state = cluster.leader.state
    parked = msgspec.structs.replace(file, name=parked_name(file.name), parked="no")
    other = msgspec.structs.replace(file, name="00000-000000000999-0000.tsfile")
    assert [waiting.output for waiting in state.compactions.active] == [parked.name]
    assert state.never_named((file, parked, other)) == (other,)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_parked_merge_is_made_as_arrow_and_a_late_tsfile_is_deleted(
    cluster: Cluster, restarted: bool
) -> None:
    """The Arrow file has the same inputs, order and deletes, also after a restart."""
    files = cluster.some_files(3)
    cluster.delete(P, 1, 1)
    cluster.compact(files)
    late = cluster.leader.jobs.pop()
    assert isinstance(late, CompactFiles)
    spec = late.unit.spec
    for _ in range(2):  # it may be logged twice
        cluster.do(c.Park(0, P, SCHEMA, late.unit.clean[0], spec.name, "no"))
    leader = cluster.leader
    if restarted:
        leader.restore(leader.save())
    (job,) = leader.jobs
    assert isinstance(job, CompactFiles)
    unit = job.unit
    assert unit.spec.name == parked_name(spec.name) and unit.spec.parked == "no"
    assert (unit.inputs, unit.tombstones, unit.clean) == (files, late.unit.tombstones, late.unit.clean)
    out = merged(late)
    assert out is not None
    leader.state.turns.on_compacted(late, out)
    assert leader.state.jobs == [DeleteFiles("g.1", (out,))] and leader.state.compactions.active
    leader.settle()
    assert [f.name for f in leader.files] == [unit.spec.name] and not leader.state.files.tombstones
    leader.state.turns.on_compacted(late, out)
    assert leader.state.jobs == [DeleteFiles("g.1", (out,))]


def test_a_compaction_waits_for_an_earlier_one_of_the_same_files(cluster: Cluster) -> None:
    """A lagging member has the inputs of the second compaction only once the first has ended."""
    cluster.compact(cluster.some_files(2))
    cluster.leader.settle()
    cluster.write()
    cluster.close()
    cluster.leader.settle()
    cluster.compact(cluster.leader.state.files.manifest.of_partition(P))
    follower = cluster.members[1]
    while follower.step():
        pass
    assert [type(j) for j in follower.jobs] == [CloseFiles] * 3  # the member has made none of the inputs
    cluster.leader.settle()
    follower.settle()
    assert follower.files == cluster.leader.files and len(follower.files) == 1


def test_a_crash_before_the_checkpoint_finds_the_inputs(cluster: Cluster) -> None:
    """A compaction removes its inputs from the manifest only: the host unlinks them after the next durable
    checkpoint."""
    files = cluster.some_files(3)
    saved = cluster.leader.save()
    cluster.compact(files)
    cluster.leader.settle()
    output = cluster.leader.files
    assert not [j for j in cluster.leader.state.jobs if isinstance(j, DeleteFiles)]
    cluster.leader.restore(saved)
    cluster.leader.settle()
    assert cluster.leader.files == output


def test_an_installed_state_names_the_files_to_delete(cluster: Cluster) -> None:
    """An output that the new state has yet to make stays. Inputs that the new state lacks are deleted, also
    those that the old manifest no longer listed but that were not unlinked."""
    files = cluster.some_files(2)
    cluster.compact(files)
    ahead = decode_checkpoint(encode_checkpoint(cluster.leader.state.checkpoint()))
    waiting = DataState.restore(ahead, cluster.leader.state.base())
    cluster.leader.settle()
    old = cluster.leader.state
    assert waiting.superseded(old, old.files.pending_delete) == ()
    done = DataState.restore(decode_checkpoint(encode_checkpoint(old.checkpoint())), old.base())
    assert {f.name for f in done.superseded(waiting)} == {f.name for f in files}
    assert {f.name for f in done.superseded(old, old.files.pending_delete)} == {f.name for f in files}


def test_a_new_member_compacts_no_files_that_it_did_not_receive(cluster: Cluster) -> None:
    cluster.compact(cluster.some_files(2))
    cluster.do(c.Seal("op-1", 1, ((0, 1),)))
    state = cluster.leader.state
    saved = decode_checkpoint(encode_checkpoint(state.checkpoint({"op-1"})))
    assert not saved.compacting and not saved.files
    assert DataState.restore(saved, state.base()).materialised == state.applied


def test_a_cut_off_hides_old_rows_and_drops_old_files(cluster: Cluster) -> None:
    """Rows written after the cut-off stay visible, however old their time is."""
    cluster.some_files(6)
    cluster.do(c.Expire(0, P, "m", 4))
    state = cluster.leader.state
    assert [f.time_min for f in state.files.manifest.of_partition(P)] == [4, 5]
    assert len(state.files.pending_delete) == 4 and not state.files.tombstones
    cluster.write(P, 1)
    cluster.close()
    cluster.leader.settle()
    assert [f.time_min for f in state.files.manifest.of_partition(P)] == [4, 5, 1]


def test_a_cut_off_after_a_compaction_finds_its_output(cluster: Cluster) -> None:
    """If only one of two members has merged the old file by then, both must still end with the same files."""
    cluster.compact(cluster.some_files(3))
    cluster.do(c.Expire(0, P, "m", 2))
    slow, fast = cluster.members[1], cluster.members[2]
    fast.settle()
    while slow.step():
        pass
    slow.settle()
    assert slow.files == fast.files and len(slow.files) == 1


@pytest.mark.parametrize("named", [False, True])
def test_a_failed_close_that_expired_ends_unless_a_compaction_names_it(cluster: Cluster, named: bool) -> None:
    """No other member has its file any more, but a compaction logged before the cut-off needs it."""
    files = cluster.some_files(2)
    if named:
        cluster.compact(files)
        cluster.leader.settle()
    cluster.do(c.Expire(0, P, "m", 1))
    slow = cluster.members[1]
    while slow.step():
        pass
    (first,) = (u for u in slow.state.closes.pending[0].units)
    for _ in range(2):
        slow.fail(0)
    assert named == (first in [u for j in slow.jobs if isinstance(j, CloseFiles) for u in j.units])
    slow.settle()
    assert slow.files == cluster.leader.files and len(slow.files) == 1


def test_a_failed_merge_that_expired_ends(cluster: Cluster) -> None:
    cluster.compact(cluster.some_files(2))
    cluster.do(c.Expire(0, P, "m", 1))
    leader = cluster.leader
    leader.fail(0)
    assert leader.state.compactions.active
    cluster.do(c.Expire(0, P, "m", 5))
    leader.fail(0)
    assert not leader.state.compactions.active and not leader.files and not leader.jobs
    assert len(leader.state.files.pending_delete) == 2


@pytest.mark.parametrize("all_past", [False, True])
def test_a_failed_merge_that_expired_continues_if_a_later_one_takes_its_output(
    cluster: Cluster, all_past: bool
) -> None:
    """The later merge was logged before the cut-off, so other members executed it, unless all rows
    expired."""
    files = cluster.some_files(2)
    slow = cluster.members[1]
    slow.settle_closes()
    cluster.compact(files)
    cluster.leader.settle()
    cluster.write(time=9)
    cluster.close()
    cluster.leader.settle()
    cluster.compact(cluster.leader.files)
    cluster.do(c.Expire(SLOTS[P], P, "m", 5))
    cluster.leader.settle()
    slow.settle_closes()
    slow.fail(0)
    if all_past:
        cluster.do(c.Expire(SLOTS[P], P, "m", 20))
        cluster.leader.settle()
        slow.settle_closes()
        slow.fail(0)
        assert not slow.state.compactions.active
    slow.settle()
    assert slow.files == cluster.leader.files and len(slow.files) == (not all_past)


def test_a_compaction_after_a_cut_off_has_no_dropped_file_as_input(cluster: Cluster) -> None:
    """The same holds for a member that makes the dropped file only after both entries are applied."""
    files = cluster.some_files(3)
    cluster.do(c.Expire(0, P, "m", 1))
    cluster.compact(files[:2])
    slow = cluster.members[1]
    while slow.step():
        pass
    slow.settle()
    assert slow.files == cluster.leader.files == files[1:]


def test_a_cut_off_in_the_future_has_no_effect(cluster: Cluster) -> None:
    """The entry contains the time of its proposal; an entry of 0.1.0 has no such time and always counts."""
    cluster.some_files(2)
    cluster.do(c.Expire(0, P, "m", 9, passed=8))
    assert len(cluster.leader.state.files.manifest) == 2 and not cluster.leader.state.files.tombstones
    cluster.do(c.Expire(0, P, "m", 9, passed=9))
    assert len(cluster.leader.state.files.manifest) == 0


def test_a_cut_off_in_a_sealed_slot_has_no_effect(cluster: Cluster) -> None:
    cluster.some_files(2)
    cluster.do(c.Seal("op-1", 1, ((0, 1),)))
    cluster.do(c.Expire(0, P, "m", 9))
    assert len(cluster.leader.state.files.manifest) == 2 and not cluster.leader.state.files.tombstones


def test_a_repeated_adopt_does_not_bring_compacted_files_back(cluster: Cluster) -> None:
    """A new leader may repeat an `Adopt` before other units of the operation are logged."""
    cluster.do(c.Seal("op-1", 1, ((0, 2),)))
    cluster.do(c.Release("op-1", 1))
    cluster.do(c.Open("op-2", 1, ((0, 2),), ()))
    index = cluster.leader.state.slots.arriving["op-2"].index
    metas = [
        FileMeta(
            f"00000-{index:012d}-{i:04d}.tsfile", 0, P, "m", (index, i), 1, digest(i), 1, i, i, (1, 1, 1)
        )
        for i in range(2)
    ]
    adopt = c.Adopt("op-2", ((0, 1),), tuple(Adoption(f.name, f) for f in metas), ())
    cluster.do(adopt)
    cluster.leader.settle()
    cluster.compact(metas)
    cluster.leader.settle()
    assert "op-2" in cluster.leader.state.slots.arriving and len(cluster.leader.files) == 1
    cluster.do(adopt)
    cluster.leader.settle()
    assert len(cluster.leader.files) == 1


# --- choices of the leader -----------------------------------------------------------------------


def file(i: int, size: int, first: int = 0, last: int = 9, clean: tuple[int, ...] = ()) -> FileMeta:
    return FileMeta(
        f"00000-{i:012d}-0000.tsfile", 0, P, "m", (i,), size, "", 1, first, last, (1, 1, 1), clean
    )


@pytest.mark.parametrize("files_min", [4, 8])
@pytest.mark.parametrize("seed", range(30))
def test_files_stay_few_and_rows_are_rarely_rewritten(seed: int, files_min: int) -> None:
    """Files per table stay under the bound, and the bytes written are a few times the bytes received."""
    rng = random.Random(seed)
    files: list[FileMeta] = []
    came = rewritten = 0
    largest = rng.choice((2_000, 200_000, 8 * MIB))
    for i in range(3_000):
        files.append(file(i, rng.randint(1_000, largest)))
        came += files[-1].size
        while run := compaction.pick_small(files, files_min, 4):
            at = files.index(run[0])
            total = sum(f.size for f in run)
            assert total <= COMPACT_BYTES_MAX and list(run) == files[at : at + len(run)]
            files[at : at + len(run)] = [msgspec.structs.replace(run[-1], size=total)]
            rewritten += total
        large = sum(f.size >= COMPACT_BYTES_MAX // 4 for f in files)
        assert len(files) - large <= SMALL_FILES_MAX
    assert large <= 4 + 2 * came / (COMPACT_BYTES_MAX // 2)
    assert rewritten <= 8 * came


def test_a_run_of_files_that_compress_to_nothing_is_bounded() -> None:
    """A worker holds the rows of all inputs: twenty million highly compressible rows need several runs."""
    many = [msgspec.structs.replace(file(i, 1_000), rows=1_000_000) for i in range(20)]
    run = compaction.pick_small(many, 2)
    assert run and sum(f.rows for f in run) * COMPACT_ROW_BYTES <= COMPACT_BYTES_MAX
    delete = Tombstone((99,), P, "m", (), 0, 9)
    masked = compaction.pick_masked(many, [delete])
    assert masked and sum(f.rows for f in masked) * COMPACT_ROW_BYTES <= COMPACT_BYTES_MAX


def test_parked_files_are_merged_only_with_parked_files() -> None:
    """Otherwise a parked file would turn its neighbours into Arrow files, or many small files would never be
    merged."""
    kinds = "tttppptttpt"
    files = [msgspec.structs.replace(file(i, 1_000), parked="no" * (k == "p")) for i, k in enumerate(kinds)]
    assert compaction.pick_small(files, 3) == tuple(files[6:9])
    assert compaction.pick_small(files[:6], 3) == tuple(files[3:6])
    assert compaction.pick_small(files[:5], 3) == tuple(files[:3])
    delete = Tombstone((99,), P, "m", (), 0, 9)
    assert compaction.deletes_on(files[3:6], [delete]) == [delete]
    assert list(compaction.pick_masked(files, [delete])) == files[:3]
    assert list(compaction.pick_masked(files[3:], [delete])) == files[3:6]


def test_a_run_that_cannot_grow_does_not_wait_for_more_files() -> None:
    """Eight large files never fit into one file: without this rule they would stay separate during a long
    operation."""
    large = [file(i, 15 * MIB) for i in range(1, 6)]
    assert len(compaction.pick_small(large, 8, 4)) == 4
    small = [file(i, 1_000) for i in range(1, 8)]
    assert not compaction.pick_small(small, 8, 4) and len(compaction.pick_small(small, 4)) == 7
    assert len(compaction.pick_small([*small, file(9, 1_000)], 8, 4)) == 8


def test_masked_files_are_rewritten_until_no_delete_masks_them() -> None:
    """A TTL cut-off needs no rewrite, and a file that was rewritten after the delete is not chosen again."""
    files = [file(1, 10), file(2, 10, 20, 30), file(3, 10), file(9, 10)]
    delete = Tombstone((5,), P, "m", (), 0, 5)
    assert compaction.deletes_on(files, [delete]) == [delete]
    assert list(compaction.pick_masked(files, [delete])) == [files[0]]
    clean = [msgspec.structs.replace(files[0], clean=(10,)), *files[1:]]
    assert list(compaction.pick_masked(clean, [delete])) == [files[2]]
    expiry = msgspec.structs.replace(delete, expiry=True)
    assert not compaction.deletes_on(files, [expiry]) and not compaction.pick_masked(files, [expiry])


def test_cut_offs_move_in_steps_and_are_logged_if_rows_are_visible() -> None:
    assert compaction.cut_off(32_000, 100_999) == 68_000 == compaction.cut_off(32_000, 100_000)
    assert compaction.cut_off(5, 1_000) == 995
    cut = Tombstone((5,), P, "m", (), -(1 << 63), 9, expiry=True)
    assert compaction.needs_expiry(10, [((7,), 3, 20)], [cut])  # newer than the cut-off
    assert not compaction.needs_expiry(10, [((4,), 3, 20)], [cut])
    assert compaction.needs_expiry(12, [((4,), 3, 20)], [cut])
    assert not compaction.needs_expiry(12, [((4,), 3, 8), ((9,), 12, 20)], [cut])

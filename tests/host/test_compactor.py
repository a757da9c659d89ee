"""What a leader does with its files, step by step, on a node that is alone in its group."""

from collections.abc import Iterable, Sequence

import msgspec
import pytest

from nodeagent.data import commands
from nodeagent.data.checkpoint import encode_checkpoint
from nodeagent.data.state import initial
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.failing import PARK_TRIES, UNMET_TRIES, Answers, Copied
from nodeagent.host.saved import Saved
from nodeagent.log import GroupLog
from nodeagent.model.entries import Base, Config, HardState, LogOp
from nodeagent.model.files import PARKED, TSFILE, CloseSpec, FileMeta, FileRef, ScanSpec
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import (
    CompactFiles,
    DeleteFiles,
    Done,
    Failed,
    FileReplaced,
    FilesClosed,
    FilesHashed,
    FilesStaged,
    HashFiles,
    Job,
    JobResult,
    ReplaceFile,
    SaveCheckpoint,
    Scan,
    Scanned,
    StageFiles,
)
from nodeagent.model.operation import Operation, Options, Stage
from nodeagent.model.requests import (
    CheckFiles,
    CloseAll,
    DamagedFile,
    ErrorReply,
    FileRepaired,
    FilesChecked,
    GetManifest,
    ManifestReply,
    RepairFile,
    Reply,
    Request,
    RowsScanned,
    ScanRows,
)
from nodeagent.model.schema import Column, TableSchema
from nodeagent.table.manifest import Manifest
from tests.host.opened import opened
from tests.host.test_host import CONFIG

GROUP = "a.1"
ALONE = Config(("a",))
P = PartitionKey("sg", 1, 0)
SCHEMA = TableSchema("sg", "t", 1, (Column("v", "INT64", False),))
FILES = tuple(
    FileMeta(f"00003-{i:012d}-0000.tsfile", 3, P, "t", (i,), 10, f"{i:032x}", 1, i, i, (1, 1, 1))
    for i in (2, 3)
)
GOOD = FilesHashed(tuple((f.name, f.xxh3) for f in FILES))


class Node:
    """Leads a group of one member that holds `files`. A test decides when jobs end; the log is always
    durable."""

    def __init__(self, files: Iterable[FileMeta] = FILES, change: Operation | None = None) -> None:
        state = initial(GROUP, ((0, 5),))
        state.files.manifest.add(files)
        state.schemas["sg", "t"] = SCHEMA
        saved = Saved(Base(1, 0, ALONE), encode_checkpoint(state.checkpoint()))
        log = GroupLog(Base(1, 0, ALONE), HardState(1), [])
        groups = {GROUP: (log, msgspec.msgpack.encode(saved))}
        self.host = opened(CONFIG, groups)
        self.host.cluster.meta.image.operations = [change] if change else []
        self.jobs: list[tuple[int, Job]] = []
        self.replies: list[Reply] = []
        self.logged: list[LogOp] = []
        self.calls: list[tuple[int, object, Request]] = []
        self.notes: list[str] = []
        self.not_durable: list[int] | None = None
        """Batches that are not durable yet; None if all become durable at once."""

        self.now = 0
        self.pass_ms(3_000)
        assert self.replica.leads

    @property
    def replica(self) -> DataReplica:
        return self.host.replicas.data[GROUP]

    def take(self) -> None:
        while not self.host.idle or self.host.deadline() <= self.now:
            if self.host.deadline() <= self.now:
                self.host.tick(self.now, self.now)
            effects = self.host.take()
            self.jobs += effects.jobs
            self.calls += effects.calls
            self.notes += [event for event, _ in effects.notes]
            self.replies += [r for _, r in effects.replies]
            if effects.persist is not None:
                number, ops = effects.persist
                self.logged += ops
                if self.not_durable is None:
                    self.host.on_persisted(number, self.now)
                else:
                    self.not_durable.append(number)

    def pass_ms(self, ms: int) -> None:
        for _ in range(0, ms, 50):
            self.now += 50
            self.take()

    def under_way(self, kind: type) -> list[Job]:
        return [j for _, j in self.jobs if isinstance(j, kind)]

    def finish(self, kind: type, result: JobResult) -> Job:
        """End the oldest job of this kind."""
        number, job = next((n, j) for n, j in self.jobs if isinstance(j, kind))
        self.jobs.remove((number, job))
        self.host.on_job(number, result, self.now)
        self.take()
        return job

    def save(self) -> None:
        """Make every checkpoint that begins durable."""
        self.pass_ms(1_000)
        while self.under_way(SaveCheckpoint):
            self.finish(SaveCheckpoint, Done())
            self.pass_ms(1_000)


def output(job: CompactFiles) -> FileMeta:
    spec = job.unit.spec
    return FileMeta(spec.name, 3, P, "t", spec.order, 15, "f" * 32, 2, 2, 3, (2, 2, 2), job.unit.clean)


def test_inputs_are_unlinked_after_the_checkpoint_and_the_last_reader() -> None:
    """A restart needs the files that its checkpoint names, and a scan the files it was given."""
    node = Node()
    node.save()
    node.finish(HashFiles, GOOD)
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles) and job.unit.inputs == FILES
    node.host.on_request(1, ScanRows(GROUP, "sg", ScanSpec(SCHEMA), "weak"), node.now, node.now)
    node.take()
    node.finish(CompactFiles, FilesClosed((output(job),)))
    assert node.replica.state.files.manifest.files() == (output(job),)
    assert not node.under_way(DeleteFiles)
    node.save()
    assert not node.under_way(DeleteFiles), "a scan still reads them"
    assert node.replica.removals.is_pending
    node.finish(Scan, Scanned(b"", 0))
    assert isinstance(node.replies[-1], RowsScanned)
    (deleted,) = node.under_way(DeleteFiles)
    assert (
        isinstance(deleted, DeleteFiles) and deleted.files == FILES and not node.replica.removals.is_pending
    )


@pytest.mark.parametrize("fails", [False, True])
def test_inputs_stay_while_a_state_is_installed_that_may_name_them(fails: bool) -> None:
    """The sender may not have merged them yet. A scan that ends or a retried delete unlinks nothing during
    the installation; files that the new state does not name are unlinked after it."""
    node = Node()
    node.save()
    node.finish(HashFiles, GOOD)
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    if not fails:
        node.host.on_request(1, ScanRows(GROUP, "sg", ScanSpec(SCHEMA), "weak"), node.now, node.now)
        node.take()
    node.finish(CompactFiles, FilesClosed((output(job),)))
    node.save()
    if fails:
        node.finish(DeleteFiles, Failed("error", "not now"))
    node.replica.condition.installing = "5a"
    if not fails:
        node.finish(Scan, Scanned(b"", 0))
    node.pass_ms(5_000)
    assert not node.under_way(DeleteFiles) and node.replica.removals.is_pending is not fails
    node.replica.installs._on_pulled("b", "5a", Failed("unavailable", "no contact"))
    node.take()
    node.pass_ms(5_000)
    (deleted,) = node.under_way(DeleteFiles)
    assert isinstance(deleted, DeleteFiles) and not node.replica.removals.is_pending


def test_inputs_stay_while_the_last_checkpoint_names_them() -> None:
    node = Node()
    node.save()
    node.finish(HashFiles, GOOD)
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    node.pass_ms(1_000)  # begins a checkpoint that names them
    assert node.under_way(SaveCheckpoint)
    node.finish(CompactFiles, FilesClosed((output(job),)))
    node.finish(SaveCheckpoint, Done())
    assert not node.under_way(DeleteFiles)
    node.save()
    assert node.under_way(DeleteFiles)


def test_a_damaged_input_is_named_and_nothing_is_logged() -> None:
    node = Node()
    for found in ("missing", "0" * 31 + "f"):
        node.finish(HashFiles, FilesHashed(((FILES[0].name, found), (FILES[1].name, FILES[1].xxh3))))
        (status,) = [g for g in node.host.status.of_node(node.now, node.now).groups if g.group == GROUP]
        assert FILES[0].name in status.error and "on a" in status.error
        assert status.hint == "iotctl verify --repair"
        node.pass_ms(12_000)
    assert not node.under_way(CompactFiles) and not node.replica.state.compactions.active
    node.finish(HashFiles, GOOD)
    assert node.under_way(CompactFiles) and not node.replica.trouble


def test_files_are_not_merged_while_a_copy_on_another_member_is_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the intact copies would be removed while a damaged one is left. A member that does not answer
    may hold a damaged copy, one that has not made a file yet will make it, and a lost replica has no copy."""
    monkeypatch.setattr(f"{__name__}.ALONE", Config(("a",), ("b",)))
    node = Node()

    def checked(reply: Reply) -> None:
        """The next check, in which b has all files and then answers `reply`."""
        answer_listing(node, FilesChecked(FILES, ()))
        (number, request) = next_check(node)
        assert request.names == tuple(f.name for f in FILES) and not request.lists_only
        node.finish(HashFiles, GOOD)
        assert not node.replica.state.compactions.active, "b has not answered"
        node.host.on_reply(number, reply, node.now)
        node.take()

    for found in ("missing", "0" * 31 + "f"):
        checked(FilesChecked(FILES, ((FILES[0].name, FILES[0].xxh3), (FILES[1].name, found))))
        assert f"{FILES[1].name} on b" in node.replica.trouble
    for reply in (ErrorReply("unavailable", "no contact"), FilesChecked((), ())):
        checked(reply)
        assert not node.replica.state.compactions.active and node.replica.trouble, "nothing shows a repair"
        answer_listing(node, reply)
        assert not node.under_way(HashFiles), "only files that b has are hashed"
    answer_listing(node, ErrorReply("log_corrupt", "the replica there is lost"))
    (number, _) = next_check(node)
    node.finish(HashFiles, GOOD)
    node.host.on_reply(number, ErrorReply("log_corrupt", "the replica there is lost"), node.now)
    node.take()
    assert node.replica.state.compactions.active and not node.replica.trouble


def next_check(node: Node) -> tuple[int, CheckFiles]:
    """Wait for the next request of a check to b; returns its number and the request."""
    while not (found := [c for c in node.calls if isinstance(c[2], CheckFiles)]):
        node.host.peers.heard["b"] = node.now
        node.pass_ms(100)
    ((number, to, request),) = found
    node.calls.clear()
    assert to == "b" and isinstance(request, CheckFiles)
    return number, request


def answer_listing(node: Node, reply: Reply) -> None:
    """Wait until b is asked which inputs it has, and answer. Nothing is hashed before."""
    number, request = next_check(node)
    assert request.lists_only and request.names == tuple(f.name for f in FILES)
    assert not node.under_way(HashFiles)
    node.host.on_reply(number, reply, node.now)
    node.take()


def test_files_that_a_member_is_still_making_are_checked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member with another TsFile library copies each merged file: the next merge waits for the copy only,
    and not ten seconds after each merge. Nothing is hashed for that, or it would slow the writers. Damage,
    which an operator repairs, is checked every ten seconds."""
    monkeypatch.setattr(f"{__name__}.ALONE", Config(("a",), ("b",)))
    node = Node()

    def waited_ms(listed: Reply) -> int:
        """Answer the next listing for b; returns how long it took to begin."""
        began = node.now
        answer_listing(node, listed)
        return node.now - began

    lacks, has = FilesChecked(FILES[:1], ()), FilesChecked(FILES, ())
    assert max([waited_ms(lacks) for _ in range(8)][1:]) <= 1_000 and not node.under_way(HashFiles)
    first = (FILES[0].name, FILES[0].xxh3)
    for reply in (FilesChecked(FILES[:1], (first,)), ErrorReply("unavailable", "no contact")):
        waited_ms(reply)
        assert waited_ms(lacks) >= 10_000, "b read its files to answer, or is overloaded"
    assert waited_ms(has) <= 1_000
    whole = FilesChecked(FILES, (first, (FILES[1].name, FILES[1].xxh3)))
    slow = ErrorReply("unavailable", "no answer within 5 s")
    for reply in (FilesChecked(FILES, (first, (FILES[1].name, "0" * 32))), slow, whole):
        (number, _) = next_check(node)
        node.finish(HashFiles, GOOD)
        node.host.on_reply(number, reply, node.now)
        node.take()
        if reply is not whole:
            assert waited_ms(lacks) >= 10_000, "each check reads all files on all members"
            assert node.replica.trouble, "damage is named until a check is good"
            assert waited_ms(has) <= 1_000
    assert node.replica.state.compactions.active and not node.replica.trouble


def test_only_keys_that_still_wait_are_remembered() -> None:
    """Tables and partitions come and go; what waited in them once must not fill the memory."""
    node = Node()
    check = node.host.compactor._check
    for number in range(50):
        node.host.effects.now += 1_000
        check.postpone(GROUP, (PartitionKey("sg", number, 0), "t"), 10_000)
    assert len(check._not_before) <= 11
    waits = [check.is_due(GROUP, (PartitionKey("sg", n, 0), "t")) for n in (0, 49)]
    assert waits == [True, False]


def test_a_replica_reports_whether_it_is_making_files() -> None:
    """A check or a checkpoint makes no files, and a failed merge may fail again."""
    node = Node()

    def at_work() -> bool:
        node.host.on_request(1, GetManifest(GROUP), node.now, node.now)
        node.take()
        reply = node.replies[-1]
        assert isinstance(reply, ManifestReply)
        return reply.at_work

    assert node.under_way(HashFiles) and not at_work()
    node.finish(HashFiles, GOOD)
    assert at_work() and not node.replica.state_jobs.is_closing
    job = node.finish(CompactFiles, Failed("unavailable", "the worker died"))
    assert not at_work()
    node.pass_ms(11_000)
    assert node.under_way(CompactFiles) and not at_work(), "it may never succeed"
    assert isinstance(job, CompactFiles)
    node.finish(CompactFiles, FilesClosed((output(job),)))
    node.pass_ms(1_000)
    assert node.under_way(SaveCheckpoint) and not at_work()


def test_a_failed_compaction_is_named_and_retried() -> None:
    node = Node()
    node.finish(HashFiles, GOOD)
    job = node.finish(CompactFiles, Failed("file_corrupt", "not what it was"))
    assert "not what it was" in node.replica.trouble and not node.under_way(CompactFiles)
    node.pass_ms(11_000)
    assert node.under_way(CompactFiles) == [job]
    assert isinstance(job, CompactFiles)
    node.finish(CompactFiles, FilesClosed((output(job),)))
    assert not node.replica.trouble and len(node.replica.state.files.manifest) == 1


def merge_fails(node: Node, result: Failed, times: int) -> None:
    for _ in range(times):
        while not node.under_way(CompactFiles):
            node.pass_ms(1_000)
        node.finish(CompactFiles, result)


def parked(node: Node) -> bool:
    """A node with a running merge that is to be parked."""
    pending = [m.command for m in node.replica.state.compactions.active]
    return any(isinstance(c, commands.Park) or c.parked for c in pending)


def test_a_merge_that_fails_repeatedly_is_parked() -> None:
    """The leader parks it after enough tries. If it cannot even be made as Arrow, it is retried at growing
    intervals, and the status keeps naming it."""
    files = tuple(msgspec.structs.replace(f, name=f"old-{f.name}") for f in FILES)
    node = Node(files)
    node.finish(HashFiles, FilesHashed(tuple((f.name, f.xxh3) for f in files)))
    own = Failed("file_corrupt", "wrote 2 rows, the file has 1")
    merge_fails(node, own, PARK_TRIES - 1)
    assert not parked(node)
    assert "time partition 1" in node.replica.trouble and "has 1" in node.replica.trouble
    merge_fails(node, own, 1)
    node.pass_ms(100)
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    spec = job.unit.spec
    assert spec.name.endswith(PARKED) and spec.parked == own.what and job.unit.inputs == files
    node.pass_ms(11_000)
    assert node.under_way(CompactFiles) == [job] and not node.replica.trouble
    merge_fails(node, own, PARK_TRIES + 2)
    before = node.now
    merge_fails(node, own, 1)
    assert node.now - before > 30_000 and "time partition 1" in node.replica.trouble
    assert len(node.replica.state.compactions.active) == 1
    while not node.under_way(CompactFiles):
        node.pass_ms(1_000)
    made = msgspec.structs.replace(output(job), parked=spec.parked)
    node.finish(CompactFiles, FilesClosed((made,)))
    assert spec.name in node.replica.trouble and node.replica.state.files.manifest.files() == (made,)


IN_ARROW = tuple(
    msgspec.structs.replace(f, name=f"{i:05d}-old-0000{PARKED}", parked="why") for i, f in enumerate(FILES)
)


def trial(node: Node) -> CompactFiles:
    """The check of one parked file succeeds, and its trial begins."""
    node.pass_ms(1_000)
    hashed = node.under_way(HashFiles)[0]
    assert isinstance(hashed, HashFiles)
    node.finish(HashFiles, FilesHashed(tuple((f.name, f.xxh3) for f in hashed.files)))
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    return job


def test_a_parked_file_becomes_a_tsfile_once_a_process_can_make_it() -> None:
    """A process first tries it alone; a compaction, with earlier deletes, is logged only if that works."""
    node = Node(IN_ARROW[:1])
    job = trial(node)
    assert job.is_trial and job.unit.inputs == IN_ARROW[:1] and not node.replica.state.compactions.active
    node.pass_ms(5_000)
    assert node.under_way(CompactFiles) == [job] and not node.under_way(HashFiles)
    node.finish(CompactFiles, FilesClosed((None,)))
    job = trial(node)
    assert not job.is_trial and job.unit.spec.name.endswith(TSFILE) and not job.unit.spec.parked
    node.finish(CompactFiles, FilesClosed((output(job),)))
    node.pass_ms(5_000)
    assert node.replica.state.files.manifest.files() == (output(job),) and not node.replica.trouble
    assert not node.under_way(CompactFiles) and not node.under_way(HashFiles)


def test_a_process_tries_a_parked_file_once_and_then_merges_it_as_parked() -> None:
    """Many closes of rows that cannot become TsFiles must not leave as many files."""
    node = Node(IN_ARROW)
    for file in IN_ARROW:
        job = trial(node)
        assert job.is_trial and job.unit.inputs == (file,)
        node.finish(CompactFiles, Failed("file_corrupt", "no TsFile"))
    job = trial(node)
    assert not job.is_trial and job.unit.inputs == IN_ARROW
    assert job.unit.spec.name.endswith(PARKED) and job.unit.spec.parked == "why"
    assert "why" in node.replica.trouble


def test_a_trial_that_fails_for_lack_of_space_is_repeated() -> None:
    node = Node(IN_ARROW[:1])
    trial(node)
    node.finish(CompactFiles, Failed("overloaded", "no space left"))
    node.pass_ms(5_000)
    assert not node.under_way(HashFiles)
    node.pass_ms(7_000)
    assert trial(node).is_trial


@pytest.mark.parametrize(
    "result",
    [
        Failed("overloaded", "no space left"),
        Failed("file_corrupt", "a flipped byte", FILES[0].name, "d" * 32),
    ],
    ids=["space", "damage"],
)
def test_lack_of_space_and_damage_park_no_merge(result: Failed) -> None:
    node = Node()
    node.finish(HashFiles, GOOD)
    merge_fails(node, result, 3 * PARK_TRIES)
    assert not parked(node)


def test_native_code_on_a_full_disk_parks_no_merge() -> None:
    """Its error text for lack of space looks as if the rows were at fault."""
    node = Node()
    node.finish(HashFiles, GOOD)
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    node.host.on_disk(1, 1 << 40, node.now)
    node.finish(CompactFiles, Failed("file_corrupt", "wrote 2 rows, the file has 1"))
    assert node.replica.failures.stuck[job.unit.spec.name].tries == 0


def test_failing_merges_do_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeagent.host.compactor.COMPACTIONS_MAX", 1)
    q = PartitionKey("sg", 2, 0)
    others = tuple(
        msgspec.structs.replace(f, name=f.name.replace("-0000.", "-0001."), partition=q) for f in FILES
    )
    node = Node((*FILES, *others))
    hashed = node.under_way(HashFiles)[0]
    assert isinstance(hashed, HashFiles) and len(hashed.files) == 2
    node.finish(HashFiles, FilesHashed(tuple((f.name, f.xxh3) for f in hashed.files)))
    node.pass_ms(2_000)
    assert not node.under_way(HashFiles)
    node.finish(CompactFiles, Failed("file_corrupt", "no"))
    node.pass_ms(2_000)
    (after,) = node.under_way(HashFiles)
    assert isinstance(after, HashFiles) and after.files[0].partition != hashed.files[0].partition


def test_while_files_are_compared_none_is_compacted() -> None:
    node = Node()
    node.finish(HashFiles, FilesHashed(()))
    node.host.on_request(1, CloseAll(GROUP), node.now, node.now)
    node.pass_ms(25_000)
    assert not node.under_way(HashFiles)
    node.pass_ms(10_000)
    assert node.under_way(HashFiles)


def test_runs_are_longer_during_an_operation() -> None:
    """Two files are a run here, four while an operation runs; an operation that waits changes nothing."""
    change = Operation("op-9", "add-node", "d", "me", 0, 1, 2, [], [], Options(), Stage.COPYING)
    node = Node(change=change)
    node.pass_ms(5_000)
    assert not node.under_way(HashFiles)
    change.paused = True
    node.pass_ms(1_000)
    assert node.under_way(HashFiles)


def test_a_merge_postponed_by_an_operation_happens_after_it() -> None:
    change = Operation("op-9", "add-node", "d", "me", 0, 1, 2, [], [], Options(), Stage.OPEN)
    node = Node(change=change)
    node.pass_ms(5_000)
    assert not node.under_way(HashFiles)
    change.stage = Stage.DONE
    node.pass_ms(1_000)
    assert node.under_way(HashFiles)


def test_a_check_of_named_files_does_not_look_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compaction has every member hash a few files: to go through all hundred thousand files of the
    group each time would block the loop."""
    node = Node()
    node.host.cluster.meta.image.settings = CONFIG.cluster
    node.jobs.clear()
    for look in ("files", "unsorted", "of_slot"):
        monkeypatch.delattr(Manifest, look)
    for slots, found in (((0, 5),), (FILES[1],)), (((4, 5),), ()), ((), (FILES[1],)):
        node.host.on_request(1, CheckFiles(GROUP, slots, ("no-such", FILES[1].name)), node.now, node.now)
        ((_, job),) = node.host.take().jobs
        assert isinstance(job, HashFiles) and job.files == found
        names = ("no-such", FILES[1].name)
        node.host.on_request(1, CheckFiles(GROUP, slots, names, lists_only=True), node.now, node.now)
        effects = node.host.take()
        assert not effects.jobs and effects.replies == [(1, FilesChecked(found, ()))]


def test_a_damaged_input_is_a_finding_and_its_output_comes_from_another_member() -> None:
    """The manifest reply names the file and the compaction that waits; a repair brings that output."""
    files = tuple(msgspec.structs.replace(f, name=f"old-{f.name}") for f in FILES)
    node = Node(files)
    node.save()
    node.finish(HashFiles, FilesHashed(tuple((f.name, f.xxh3) for f in files)))
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    broken, made = files[0], output(job)
    node.finish(CompactFiles, Failed("file_corrupt", "a flipped byte", broken.name, "d" * 32))
    node.host.on_request(1, GetManifest(GROUP), node.now, node.now)
    node.take()
    listed = node.replies[-1]
    assert isinstance(listed, ManifestReply) and listed.pending == 1
    names = tuple(f.name for f in files)
    assert listed.damaged == (DamagedFile(broken.name, broken.slot, broken.xxh3, "d" * 32, made.name, names),)
    sources = (FileRef("b", "5a", made.name, made.size, made.xxh3),)
    other = msgspec.structs.replace(made, order=(9,))
    node.host.on_request(2, RepairFile(GROUP, other, sources), node.now, node.now)
    node.take()
    assert isinstance(node.replies[-1], ErrorReply), "only the output of this compaction is accepted"
    node.host.on_request(3, RepairFile(GROUP, made, sources), node.now, node.now)
    node.take()
    node.finish(StageFiles, FilesStaged((made.name,), (), made.size))
    node.finish(ReplaceFile, FileReplaced(""))
    assert node.replica.state.files.manifest.files() == (made,) and not node.replica.trouble
    assert not isinstance(node.replies[-1], FileRepaired), "a checkpoint must name the file first"
    node.save()
    assert isinstance(node.replies[-1], FileRepaired)
    deleted = node.finish(DeleteFiles, Done())
    assert isinstance(deleted, DeleteFiles) and deleted.files == files
    node.pass_ms(20_000)
    assert not node.replica.failures.stuck and not node.replica.damaged_files.named()


def test_a_damaged_input_without_any_copy_is_reported_with_the_node_to_replace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node is named only after all others have answered for some minutes that they have no copy: a silent
    member may have one."""
    node = Node()
    node.save()
    node.finish(HashFiles, GOOD)
    is_nowhere = True
    monkeypatch.setattr(node.replica.state_jobs, "_copy", lambda specs, then: then(None, Answers(is_nowhere)))

    def fail(times: int) -> None:
        for _ in range(times):
            assert "replace-node" not in hint_of(node)
            node.finish(CompactFiles, Failed("file_corrupt", "a flipped byte", FILES[0].name, "d" * 32))
            node.pass_ms(15_000)

    fail(UNMET_TRIES - 1)
    is_nowhere = False
    fail(1)
    is_nowhere = True
    fail(UNMET_TRIES)
    assert "replace-node" in hint_of(node) and "no other member has" in node.replica.trouble
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    node.finish(CompactFiles, FilesClosed((output(job),)))
    assert "replace-node" not in hint_of(node)


@pytest.mark.parametrize("released", [True, False])
def test_a_copy_that_comes_after_its_slot_was_released_is_unlinked(
    released: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is the output of a later compaction of a file that is damaged here. No manifest names it, then
    or later."""
    files = tuple(msgspec.structs.replace(f, name=f"old-{f.name}") for f in FILES)
    node = Node(files)
    node.save()
    node.finish(HashFiles, FilesHashed(tuple((f.name, f.xxh3) for f in files)))
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    later = commands.Compact(3, P, "t", ((job.unit.spec.name, "0" * 32),))
    node.replica.propose([commands.encode(later)])
    wanted: list[tuple[Sequence[CloseSpec], Copied]] = []
    monkeypatch.setattr(node.replica.state_jobs, "_copy", lambda specs, then: wanted.append((specs, then)))
    node.finish(CompactFiles, Failed("file_corrupt", "a flipped byte", files[0].name, "d" * 32))
    node.pass_ms(15_000)
    (spec, _), then = wanted[0]
    made = msgspec.structs.replace(output(job), name=spec.name, order=spec.order)
    assert not node.replica.state.never_named((made,))
    if released:
        seal, release = commands.Seal("op-1", 2, ((0, 5),)), commands.Release("op-1", 2)
        node.replica.propose([commands.encode(seal), commands.encode(release)])
        node.take()
        node.finish(DeleteFiles, Done())
    then(made, Answers())
    node.take()
    assert node.replica.state.files.manifest.files() == (() if released else (made,))
    assert node.under_way(DeleteFiles) == ([DeleteFiles(GROUP, (made,))] if released else [])
    assert not node.replica.state.compactions.active and not node.under_way(CompactFiles)


@pytest.mark.parametrize("unlinked", [False, True])
def test_a_file_repaired_during_its_compaction_is_unlinked_after_a_checkpoint(
    unlinked: bool,
) -> None:
    """A restart before that needs the files that its checkpoint names. If the inputs are already
    unlinked, the repaired copy is unlinked at once."""
    node = Node()
    node.save()
    node.finish(HashFiles, GOOD)
    mine = FILES[0]
    sources = (FileRef("b", "5a", mine.name, mine.size, mine.xxh3),)
    node.host.on_request(1, RepairFile(GROUP, mine, sources), node.now, node.now)
    node.take()
    node.finish(StageFiles, FilesStaged((mine.name,), (), mine.size))
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    node.finish(CompactFiles, FilesClosed((output(job),)))
    if unlinked:
        node.save()
        assert node.finish(DeleteFiles, Done()) == DeleteFiles(GROUP, FILES)
    node.finish(ReplaceFile, FileReplaced(""))
    assert isinstance(node.replies[-1], FileRepaired)
    assert node.under_way(DeleteFiles) == ([DeleteFiles(GROUP, (mine,))] if unlinked else [])
    if not unlinked:
        node.save()
        assert node.under_way(DeleteFiles) == [DeleteFiles(GROUP, FILES)]


def test_a_stopped_replica_unlinks_no_copy() -> None:
    """Its state may hold a part of the entry that it stopped at."""
    for stopped in (False, True):
        node = Node()
        if stopped:
            node.replica.stop(9, "an unknown entry")
        node.replica.removals.drop_unnamed(
            msgspec.structs.replace(FILES[0], name="00003-000000000009-0000.tsfile")
        )
        node.take()
        assert bool(node.under_way(DeleteFiles)) == (not stopped)


def hint_of(node: Node) -> str:
    return next(g.hint for g in node.host.status.of_node(node.now, node.now).groups if g.group == GROUP)


def test_damage_that_a_read_found_is_reported_until_it_is_repaired() -> None:
    node = Node()
    node.host.on_request(1, ScanRows(GROUP, "sg", ScanSpec(SCHEMA), "weak"), node.now, node.now)
    node.take()
    node.finish(Scan, Failed("file_corrupt", "a flipped byte", FILES[1].name, "d" * 32))
    (found,) = node.replica.damaged_files.named()
    assert (found.file, found.expected, found.found, found.output) == (
        FILES[1].name,
        FILES[1].xxh3,
        "d" * 32,
        "",
    )
    node.finish(HashFiles, GOOD)
    assert not node.replica.damaged_files.named()


def test_a_replica_reports_damage_that_a_pull_suspected_if_its_own_hash_confirms_it() -> None:
    """It hashes the file itself, also if the slot has left the group but its files are still here."""
    node = Node()
    node.pass_ms(500)
    node.jobs.clear()
    node.replica.state.slots.open.discard(FILES[0].slot)
    names = (FILES[1].name, "of-another-group", FILES[0].name)
    node.host.on_request(1, CheckFiles(GROUP, (), names), node.now, node.now)
    node.take()
    job = node.finish(HashFiles, FilesHashed(((FILES[0].name, FILES[0].xxh3), (FILES[1].name, "d" * 32))))
    assert isinstance(job, HashFiles) and job.files == FILES
    node.host.on_request(2, GetManifest(GROUP), node.now, node.now)
    node.take()
    listed = node.replies[-1]
    assert isinstance(listed, ManifestReply)
    bad = FILES[1]
    assert listed.damaged == (DamagedFile(bad.name, bad.slot, bad.xxh3, "d" * 32),)
    node.replica.files.check([bad.name, "of-another-group"])
    node.take()
    node.finish(HashFiles, FilesHashed(((bad.name, bad.xxh3),)))
    assert not node.replica.damaged_files.named()


def test_a_hash_keeps_what_a_compaction_reported_about_a_damaged_file() -> None:
    """A repair needs to know which compaction waits for the file."""
    node = Node()
    node.save()
    node.finish(HashFiles, GOOD)
    (job,) = node.under_way(CompactFiles)
    assert isinstance(job, CompactFiles)
    node.finish(CompactFiles, Failed("file_corrupt", "a flipped byte", FILES[0].name, "d" * 32))
    (before,) = node.replica.damaged_files.named()
    node.replica.files.check([FILES[0].name])
    node.take()
    node.finish(HashFiles, FilesHashed(((FILES[0].name, "missing"),)))
    assert before.output and node.replica.damaged_files.named() == (
        msgspec.structs.replace(before, found="missing"),
    )

"""The entries that leaders on this node propose for the files of their groups: `Compact` and `Expire`.

`nodeagent/data/compaction.py` defines these entries. Before a compaction is logged, every member that is up
hashes the inputs (`nodeagent/host/compaction_check.py`). If a copy is damaged, the files of its table and
partition are not merged, and the status names it, until `iotctl verify --repair`; writes continue.

Slots of an open operation are not compacted, because their files are copied and compared; nor, for a while,
are groups whose files are being compared. During an operation the runs of other slots are longer and so
fewer, because the writers already share the node with the operation.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import islice

from nodeagent.data import commands, compaction
from nodeagent.data.compaction import Key
from nodeagent.host.compaction_check import CHECK_AGAIN_MS, CompactionCheck, Runs
from nodeagent.host.compaction_pass import CompactionPass
from nodeagent.host.context import Context
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.peers import Peers
from nodeagent.host.replicas import Replicas
from nodeagent.host.writer import FileWriter
from nodeagent.model.errors import Overloaded
from nodeagent.model.files import FileMeta, Order, Tombstone
from nodeagent.model.ids import GroupId, PartitionKey
from nodeagent.model.jobs import Failed, JobResult
from nodeagent.model.limits import (
    COMPACT_KEYS_PER_TURN,
    COMPACTIONS_MAX,
    DELETES_KEPT_MAX,
    EXPIRE_PARTITIONS_PER_TURN,
    EXPIRIES_PER_TURN_MAX,
)
from nodeagent.partition.ranges import to_slots

COMPARE_QUIET_MS = 30_000
"""A group is not compacted for this long after the last step of a comparison of its files."""


class Compactor:
    """See the module. A restart only loses how long deletes have waited."""

    def __init__(self, context: Context, replicas: Replicas, peers: Peers, writer: FileWriter) -> None:
        self._node = context.node
        self._config = context.config
        self._effects = context.effects
        self._clocks = context.clocks
        self._replicas = replicas
        self._cluster = replicas.cluster
        self._writer = writer
        self._pass_at = context.effects.now
        self._expire_at = context.effects.now
        self._passes: dict[GroupId, CompactionPass] = {}
        """Passes that have not ended."""

        self._proposed: dict[GroupId, tuple[int, int]] = {}
        """group -> (term, index) of the last entry proposed; no other before it is applied"""

        self._check = CompactionCheck(context, replicas, peers)
        self._masked_since: dict[tuple[GroupId, Key], int] = {}
        self._trials: dict[tuple[GroupId, str], bool | None] = {}
        """(group, parked file) -> whether this process can make a TsFile of it; None while it tries"""

        self._unchecked: dict[GroupId, tuple[deque[PartitionKey], int]] = {}
        """Partitions that the search for expired rows has not checked yet, and the time that had certainly
        passed when the TTLs were requested."""

    def keep(self) -> None:
        """Called at every housekeeping."""
        now, config = self._effects.now, self._config
        if now >= self._pass_at:
            self._pass_at = now + config.compact_every_ms
            self._passes = {
                r.group: CompactionPass(len(r.state.files.changed), self._moving(r.group))
                for r in self._replicas.data.values()
                if r.leads and r.state.files.changed
            }
        for replica in self._led_replicas() if self._passes else ():
            current = self._passes.get(replica.group)
            if current is not None:
                self._compact(replica, current)
                if current.is_over:
                    del self._passes[replica.group]
        if now >= self._expire_at:
            self._expire_at = now + config.expire_every_ms
            self._begin_expiry()
        for replica in self._led_replicas() if self._unchecked else ():
            self._expire(replica)

    def _led_replicas(self) -> list[DataReplica]:
        """Replicas here that lead, have applied all entries of earlier leaders, and wait for no entry of this
        compactor."""
        return [
            r
            for r in self._replicas.data.values()
            if r.leads
            and r.state.rows.recovered
            and r.applied_index >= r.led_from
            and not self._is_waiting(r)
        ]

    def _is_waiting(self, replica: DataReplica) -> bool:
        term, index = self._proposed.get(replica.group, (0, 0))
        return term == replica.raft.term and replica.applied_index < index

    def _moving(self, group: GroupId) -> set[int]:
        """Slots of the open operation."""
        op = self._cluster.meta.operations.open()
        moves = op.moves if op is not None else ()
        return set[int]().union(*(to_slots(m.slots) for m in moves if group in (m.source, m.target)))

    # --- compaction --------------------------------------------------------------------------------

    def _files_min(self) -> int:
        """Minimum number of files in a run now; higher while an operation runs and does not wait."""
        config, op = self._config, self._cluster.meta.operations.open()
        if op is None or op.state() != "running":
            return config.compact_files_min
        return max(config.compact_files_min, config.compact_files_min_in_change)

    def _compact(self, replica: DataReplica, current: CompactionPass) -> None:
        now = self._effects.now
        if self._check.is_running(replica.group) or now < replica.compared_at + COMPARE_QUIET_MS:
            return
        stuck = min(len(replica.failures.stuck), COMPACTIONS_MAX)  # stuck compactions do not block others
        runs = self._choose(
            replica, current, COMPACTIONS_MAX - (len(replica.state.compactions.active) - stuck)
        )
        if runs:
            self._check.begin(replica, runs, lambda intact: self._propose(replica, intact))

    def _choose(self, replica: DataReplica, current: CompactionPass, room: int) -> Runs:
        """The runs to compact now. Changed tables and partitions that need no compaction are forgotten."""
        state, group = replica.state, replica.group
        files_min = self._files_min()
        current.left = min(current.left, len(state.files.changed))
        active = {c.key for c in state.compactions.active}
        runs: Runs = {}
        for key in list(islice(state.files.changed, min(COMPACT_KEYS_PER_TURN, current.left))):
            if len(runs) >= room or current.is_over:
                break
            del state.files.changed[key]
            current.left -= 1
            current.checked += 1
            if key not in active and self._check.is_due(group, key):
                run, is_done = self._run_of(replica, key, current.moving, files_min)
                if run:
                    runs[key] = run
                    current.runs += 1
                    current.weight += sum(map(compaction.weight_of, run))
                if is_done:
                    continue
            state.files.changed[key] = None  # moved to the end, so that every key gets its turn
        return runs

    def _run_of(
        self, replica: DataReplica, key: Key, moving: set[int], files_min: int
    ) -> tuple[Sequence[FileMeta], bool]:
        """(the run of `key` to compact now, if any; whether there will be none until something changes)"""
        state, group = replica.state, replica.group
        full_min = self._config.compact_files_min
        files = state.files.manifest.of_partition(*key)
        if files and (files[0].slot in moving or not state.adoptions.is_stable(files[0].slot)):
            return (), False
        low = self._effects.space.is_low  # then only runs that free space, by dropping deleted rows
        candidate = next((f for f in files if f.parked and self._may_become_tsfile(group, (f,))), None)
        if candidate is not None and not low:
            return (() if self._trials.get((group, candidate.name), True) is None else (candidate,)), False
        run = compaction.pick_small(files, files_min, full_min) if not low else []
        deletes = state.files.tombstones.of(*key)
        masked, is_due = self._deletes_due(group, key, files, deletes)
        if not run and (is_due or (low and masked)):
            run = compaction.pick_masked(files, deletes)
        # Runs that are too short during an operation wait for its end.
        return run, not run and not masked and not compaction.pick_small(files, full_min)

    def _deletes_due(
        self, group: GroupId, key: Key, files: Sequence[FileMeta], tombstones: Sequence[Tombstone]
    ) -> tuple[bool, bool]:
        """Whether range deletes mask files, and whether those files must be rewritten now."""
        masking = compaction.deletes_on(files, tombstones) if tombstones else []
        if not masking:
            self._masked_since.pop((group, key), None)
            return False, False
        waited = self._effects.now - self._masked_since.setdefault((group, key), self._effects.now)
        return True, len(masking) > DELETES_KEPT_MAX or waited >= self._config.compact_deletes_ms

    def _propose(self, replica: DataReplica, runs: Runs) -> None:
        state, meta = replica.state, self._cluster.meta
        moving = self._moving(replica.group)
        batch: list[bytes] = []
        for (partition, table), run in runs.items():
            if run[0].slot in moving or not state.adoptions.is_stable(run[0].slot):
                continue
            parked = run[-1].parked
            if parked and self._may_become_tsfile(replica.group, run):
                if self._trials.get((replica.group, run[0].name)) is None:
                    self._try(replica, run[0])
                    continue
                parked = ""
            name = (partition.storage_group, table)
            wanted, used = meta.tables.schemas.get(name), state.schemas.get(name)
            if wanted is not None and (used is None or used.version < wanted.version):
                batch.append(commands.encode(commands.UseSchema(wanted)))
            inputs = tuple((f.name, f.xxh3) for f in run)
            writer = self._writer.named
            compact = commands.Compact(run[0].slot, partition, table, inputs, parked=parked, writer=writer)
            batch.append(commands.encode(compact))
        self._log(replica, batch)

    def _may_become_tsfile(self, group: GroupId, run: Sequence[FileMeta]) -> bool:
        """Whether the run is one parked file that this process has not yet failed to make into a TsFile."""
        return len(run) == 1 and bool(run[0].parked) and self._trials.get((group, run[0].name)) is not False

    def _try(self, replica: DataReplica, file: FileMeta) -> None:
        """Try once per process whether a parked file can become a TsFile, with a later version of the library
        or on this machine. A compaction of the file alone is logged only if the trial succeeds."""
        name, state = (replica.group, file.name), replica.state
        schema = state.schemas.get((file.partition.storage_group, file.table))
        if name in self._trials or schema is None:
            return
        deletes = state.files.tombstones.of(file.partition, file.table)
        self._trials[name] = None

        def done(result: JobResult) -> None:
            if isinstance(result, Failed) and (result.code == Overloaded.code or result.found):
                del self._trials[name]  # the cause may pass
                self._check.postpone(replica.group, (file.partition, file.table), CHECK_AGAIN_MS)
            else:
                self._trials[name] = not isinstance(result, Failed)

        replica.files.read(compaction.trial_of(replica.group, file, schema, deletes), [file], done)

    def _log(self, replica: DataReplica, batch: list[bytes]) -> None:
        first = replica.propose(batch) if batch else None
        if first is not None:
            self._proposed[replica.group] = (replica.raft.term, first + len(batch) - 1)

    # --- expiry ------------------------------------------------------------------------------------

    def _partitions_with_ttl(self, replica: DataReplica) -> list[PartitionKey]:
        """Partitions of storage groups that have a table with a TTL, in files or memory."""
        groups = {name[0] for name, schema in self._cluster.meta.tables.schemas.items() if schema.ttl_ms}
        found = dict[PartitionKey, None]()
        for storage_group in sorted(groups):
            found |= dict.fromkeys(replica.state.files.manifest.partitions(storage_group))
        found |= dict.fromkeys(p for p in replica.state.rows.slot_of if p.storage_group in groups)
        return list(found)

    def _begin_expiry(self) -> None:
        """Search for expired rows once the meta group has confirmed the TTLs.

        A TTL that was revoked must delete nothing more, and this node may lead the data group while it is cut
        off from the meta group. So rows count as expired by the time at which the TTLs were requested.
        """
        meta = self._cluster.meta_replica
        if meta is None or not any(schema.ttl_ms for schema in self._cluster.meta.tables.schemas.values()):
            self._unchecked = {}
            return
        asked = {r.group: self._clocks.passed(r.raft.log.config.voters) for r in self._led_replicas()}

        def confirmed() -> None:
            self._unchecked = {
                r.group: (deque(self._partitions_with_ttl(r)), passed)
                for r in self._led_replicas()
                if (passed := asked.get(r.group)) is not None
            }

        meta.read(confirmed, lambda why: None)  # asked again at the next search

    def _expire(self, replica: DataReplica) -> None:
        """Log a cut-off if rows that are past their table's TTL by the voters' clocks would still be read.

        While the clocks disagree, or too few are known, no row expires. Each call checks some partitions.
        """
        unchecked, asked = self._unchecked.get(replica.group, (None, 0))
        passed = self._clocks.passed(replica.raft.log.config.voters) if unchecked else None
        if not unchecked or passed is None:
            self._unchecked.pop(replica.group, None)
            return
        passed = min(passed, asked)
        moving = self._moving(replica.group)
        batch: list[bytes] = []
        for _ in range(min(len(unchecked), EXPIRE_PARTITIONS_PER_TURN)):
            if len(batch) >= EXPIRIES_PER_TURN_MAX:
                break
            batch += self._cut_offs(replica, unchecked.popleft(), moving, passed)
        self._log(replica, batch)

    def _cut_offs(
        self, replica: DataReplica, partition: PartitionKey, moving: set[int], passed: int
    ) -> list[bytes]:
        """`Expire` entries for the tables of one partition that need them."""
        state = replica.state
        ages: dict[str, list[tuple[Order, int, int]]] = defaultdict(list)
        slot = state.rows.slot_of.get(partition)
        for f in state.files.manifest.of_partition(partition):
            slot = f.slot
            ages[f.table].append((f.order, f.time_min, f.time_max))
        held = state.rows.memtable.partition(partition)
        if slot is None or slot in moving or not state.adoptions.is_stable(slot):
            return []
        found = []
        for table in sorted({*ages, *(held.tables() if held is not None else ())}):
            schema = self._cluster.meta.tables.schemas.get((partition.storage_group, table))
            if schema is None or not schema.ttl_ms:
                continue
            cut = compaction.cut_off(schema.ttl_ms, passed)
            if held is not None:
                ages[table] += [
                    (h.batch.order, h.time_min, h.time_max)
                    for run in held.runs(table)
                    if run.time_min < cut
                    for h in run.held
                ]
            if compaction.needs_expiry(cut, ages[table], state.files.tombstones.of(partition, table)):
                found.append(commands.encode(commands.Expire(slot, partition, table, cut, passed)))
        return found

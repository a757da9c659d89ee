"""The meta state and how entries change it. Pure: the same log gives the same state everywhere.

Invariants:
    `table.version` never goes back and equal versions are equal tables;
    at most one operation is open;
    a group id is never used twice; a retired incarnation never returns.

The table switches to the new ring and owners with the entry that enters OPEN: until then no gaining
group could accept a write, and a cancelled change leaves the table untouched.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from nodeagent.meta import changes, commands, runs
from nodeagent.meta.commands import Begin, Command
from nodeagent.model import features
from nodeagent.model.config import ClusterSettings
from nodeagent.model.entries import Entry, EntryKind
from nodeagent.model.errors import EntryFailed, Refused
from nodeagent.model.features import Levels
from nodeagent.model.ids import GroupId, NodeId, data_group
from nodeagent.model.operation import GroupChange, Operation, SlotMove, Stage, StageSpan, cut_text
from nodeagent.model.requests import (
    Accepted,
    ErrorReply,
    GroupRecord,
    LockReply,
    NodeRecord,
    OperationReply,
    Recovery,
    Reply,
    SchemaInForce,
)
from nodeagent.model.runs import Lock, Run
from nodeagent.model.schema import TableSchema
from nodeagent.partition.recovery import lost_groups
from nodeagent.partition.table import PartitionTable, TableWire

DEAD = "dead"
"""State of a node that is gone for good and still on the ring."""

OPERATIONS_KEPT = 64
AUDIT_KEPT = 4096
WHO_CHARS = 100
AUDIT_CHARS = 500
"""Of one line of the audit log."""

CANCELLED = (Stage.CANCELLING, Stage.CANCELLED)


class Image(msgspec.Struct):
    """The whole state at `applied`."""

    applied: int = 0
    cluster_id: str = ""
    settings: ClusterSettings | None = None
    nodes: dict[NodeId, NodeRecord] = {}
    retired: list[str] = []
    table: TableWire | None = None
    next_table: TableWire | None = None
    """Of the open operation, until it enters OPEN."""

    groups: dict[GroupId, GroupRecord] = {}
    schemas: list[TableSchema] = []
    operations: list[Operation] = []
    audit: list[tuple[int, str, str]] = []
    """(ms, who, what)"""

    lock: Lock | None = None
    runs: list[Run] = []
    """Oldest first."""

    level: int = features.FIRST
    """The cluster's feature level."""

    unnamed_writer: str = ""
    """That made the files of entries which name none: of the leader when `Feature.FILE_WRITER` came."""


@dataclass(slots=True)
class MetaState:
    image: Image = field(default_factory=Image)
    table: PartitionTable | None = None
    schemas: dict[tuple[str, str], TableSchema] = field(default_factory=dict)
    levels: Levels = features.SPOKEN
    """Feature levels that this node speaks: it applies nothing of another."""

    _short: dict[str, Operation] = field(default_factory=dict)
    """Records of ended operations as they are listed."""

    # --- looking -----------------------------------------------------------------------------------

    @property
    def applied(self) -> int:
        return self.image.applied

    @property
    def cluster_id(self) -> str:
        return self.image.cluster_id

    @property
    def table_version(self) -> int:
        return self.image.table.version if self.image.table else 0

    def operation(self, name: str) -> Operation | None:
        return next((o for o in self.image.operations if o.id == name), None)

    def open_operation(self) -> Operation | None:
        return next((o for o in self.image.operations if not o.ended), None)

    def listed(self) -> tuple[Operation, ...]:
        """Open operations whole, ended ones short: every client asks for them all the time."""
        ended = {o.id: o for o in self.image.operations if o.ended}
        self._short = {name: self._short.get(name) or o.shortened() for name, o in ended.items()}
        return tuple(self._short.get(o.id, o) for o in self.image.operations)

    def group_of(self, header: NodeId) -> GroupRecord | None:
        """The living group that `header` heads."""
        return next((g for g in self.image.groups.values() if g.header == header and not g.dissolving), None)

    def address(self, node: NodeId) -> tuple[str, int] | None:
        record = self.image.nodes.get(node)
        return (record.host, record.port) if record else None

    # --- applying ----------------------------------------------------------------------------------

    def apply(self, first: int, entries: list[Entry]) -> list[tuple[int, Reply]]:
        """Apply committed entries from index `first`; the answers, by index.

        Raises:
            EntryFailed: an entry cannot be applied. The state may not be used or saved any more.
        """
        replies: list[tuple[int, Reply]] = []
        for index, entry in enumerate(entries, first):
            try:
                assert index == self.image.applied + 1, (index, self.image.applied)
                self.image.applied = index
                if entry.kind == EntryKind.COMMAND:
                    replies.append((index, self._apply(index, commands.decode(entry.data))))
            except MemoryError:
                raise  # it passes
            except Exception as error:  # whatever it is, it comes again with the entry
                raise EntryFailed.of(index, error, replies) from error
        return replies

    def _apply(self, index: int, command: Command) -> Reply:
        match command:
            case commands.Bootstrap():
                return self._bootstrap(index, command)
            case commands.PutSchema():
                return self._put_schema(command)
            case commands.DropTable():
                return self._drop_table(index, command)
            case commands.SetDraining():
                return self._set_draining(index, command)
            case commands.RaiseLevel():
                return self._raise_level(index, command)
            case commands.GiveUp():
                return self._give_up(index, command)
            case commands.TakeLock():
                return self._take_lock(index, command)
            case commands.DropLock():
                return self._drop_lock(index, command)
            case commands.RecordRun():
                return runs.record(self.image, command) or Accepted(index)
            case commands.LedAgain():
                return self._led_again(index, command)
            case Begin():
                return self._begin(index, command)
            case _:
                return self._evidence(index, command)

    def _bootstrap(self, index: int, b: commands.Bootstrap) -> Reply:
        im = self.image
        if im.cluster_id:
            return ErrorReply("refused", f"cluster {im.cluster_id} exists already")
        _check_level(self.levels, b.level)
        im.level = b.level
        im.cluster_id = b.cluster_id
        im.settings = b.settings
        im.nodes = {n.node: n for n in b.nodes}
        self._set_table(PartitionTable.from_wire(b.table).stamped(index))
        assert self.table is not None
        ring = self.table.ring
        for header in ring.names:
            members = ring.members(header, b.settings.replicas)
            group = data_group(header, index)
            im.groups[group] = GroupRecord(group, header, members, members, self.table.slots_of(header))
        self._note(b.now, "bootstrap", f"cluster {b.cluster_id} of {len(b.nodes)} nodes")
        return Accepted(index)

    def _set_table(self, table: PartitionTable) -> None:
        assert table.version > self.table_version, (table.version, self.table_version)
        self.table = table
        self.image.table = table.to_wire()

    def _put_schema(self, p: commands.PutSchema) -> Reply:
        key = (p.schema.storage_group, p.schema.table)
        known = self.schemas.get(key)
        merged = merge_schema(known, p.schema)
        if isinstance(merged, ErrorReply):
            return merged
        if p.ttl_ms is not None and p.ttl_ms != merged.ttl_ms:
            merged = msgspec.structs.replace(merged, ttl_ms=p.ttl_ms)
            self._note(p.now, "schema", f"TTL of {'.'.join(key)}: {p.ttl_ms or 'no'} ms")
        if merged is not known:
            self._set_schema(merged)
        return SchemaInForce(merged)

    def _set_schema(self, schema: TableSchema) -> None:
        self.schemas[schema.storage_group, schema.table] = schema
        self.image.schemas = list(self.schemas.values())

    def _drop_table(self, index: int, d: commands.DropTable) -> Reply:
        name = f"{d.storage_group}.{d.table}"
        known = self.schemas.get((d.storage_group, d.table))
        if known is None:
            return ErrorReply("not_found", f"there is no table {name}", "iotctl data schema")
        if known.version != d.version:
            what = f"table {name} was changed meanwhile: version {known.version}, not {d.version}"
            return ErrorReply("refused", what, "look again: iotctl data schema")
        if not known.dropped:
            self._set_schema(msgspec.structs.replace(known, dropped=True, ttl_ms=0))
            self._note(d.now, "schema", f"table {name} dropped")
        return Accepted(index)

    def _set_draining(self, index: int, d: commands.SetDraining) -> Reply:
        record = self.image.nodes.get(d.node)
        if record is None:
            return ErrorReply("not_found", f"no node {d.node} in the cluster", "iotctl cluster nodes")
        if (refusal := runs.fenced(self.image, d.lock)) is not None:
            return refusal
        is_ours = d.draining and d.for_restart and (record.for_restart or not record.draining)
        self.image.nodes[d.node] = msgspec.structs.replace(record, draining=d.draining, for_restart=is_ours)
        if record.draining != d.draining:
            self._note(d.now, d.by, f"{'drain' if d.draining else 'undrain'} {d.node}")
        return Accepted(index)

    def _raise_level(self, index: int, r: commands.RaiseLevel) -> Reply:
        if (refusal := runs.fenced(self.image, r.lock)) is not None:
            return refusal
        if self.image.level < features.Feature.FILE_WRITER <= r.level:
            self.image.unnamed_writer = r.unnamed_writer
        if r.level > self.image.level:
            _check_level(self.levels, r.level)
            self.image.level = r.level
            self._note(r.now, r.by, f"feature level {r.level}")
        return Accepted(index)

    # --- lost majorities ---------------------------------------------------------------------------

    def check_give_up(self, g: commands.GiveUp) -> ErrorReply | None:
        """Why these nodes cannot be given up with these groups, if so."""
        im = self.image
        if (op := self.open_operation()) is not None:
            return ErrorReply(
                "refused",
                f"{op.id} ({op.title}, stage {op.stage}) is open: recover works outside of changes",
                f"iotctl ops show {op.id}",
            )
        if g.table_version != self.table_version:
            return ErrorReply(
                "refused",
                f"the look was at table version {g.table_version}, it is {self.table_version} now",
                "look again",
            )
        unknown = next((n for n in g.nodes if n not in im.nodes), None)
        if unknown is not None or not g.nodes:
            return ErrorReply("not_found", f"no node {unknown or ''}".rstrip(), "iotctl cluster nodes")
        lost = self.lost_groups(g.nodes)
        if not lost:
            return ErrorReply(
                "refused",
                f"no group lost its majority by {', '.join(g.nodes)}",
                "iotctl cluster remove-node NODE --dead",
            )
        heirs = {h.group: h for h in g.heirs}
        for group, survivors in lost.items():
            if not survivors:
                return ErrorReply(
                    "refused",
                    f"nobody is left of group {group}: its rows are gone",
                    f"start {' or '.join(im.groups[group].members)}",
                )
            if group not in heirs or heirs[group].head not in survivors:
                return ErrorReply(
                    "refused",
                    f"group {group} needs one of {', '.join(survivors)} to go on with",
                    "look again",
                )
        extra = next((h for h in heirs if h not in lost), None)
        if extra is not None:
            return ErrorReply("refused", f"group {extra} has not lost its majority", "look again")
        return None

    def lost_groups(self, nodes: Collection[NodeId]) -> dict[GroupId, tuple[NodeId, ...]]:
        """Of each group that has no living majority once `nodes` are dead too: who is left."""
        living = {n for n, r in self.image.nodes.items() if r.state != DEAD} - set(nodes)
        return lost_groups(self.image.groups.values(), living)

    def _give_up(self, index: int, g: commands.GiveUp) -> Reply:
        refusal = self.check_give_up(g)
        if refusal is not None:
            return refusal
        im = self.image
        lost = self.lost_groups(g.nodes)
        for node in g.nodes:
            if im.nodes[node].state != DEAD:
                self._retire(node)
        for heir in g.heirs:
            recovery = Recovery(heir.head, heir.term, f"op-{index}")
            record = im.groups[heir.group]
            im.groups[heir.group] = msgspec.structs.replace(
                record, members=lost[heir.group], recovery=recovery
            )
        heirs = ", ".join(f"{h.group} goes on from {h.head}" for h in g.heirs)
        self._note(g.now, g.by, f"recover, data loss accepted: {', '.join(g.nodes)} given up; {heirs}")
        return Accepted(index)

    def _led_again(self, index: int, e: commands.LedAgain) -> Reply:
        record = self.image.groups.get(e.group)
        if record is not None and record.recovery is not None and record.recovery.operation == e.operation:
            self.image.groups[e.group] = msgspec.structs.replace(record, recovery=None)
            self._note(e.now, "", f"{e.group} is led again by {', '.join(record.members)}")
        return Accepted(index)

    # --- operators ---------------------------------------------------------------------------------

    def _take_lock(self, index: int, t: commands.TakeLock) -> Reply:
        taken = runs.take(self.image, index, t)
        if isinstance(taken, ErrorReply):
            return taken
        if taken.serial == index:
            self._note(t.now, t.by, f"lock {taken.serial} taken by {t.owner}: {t.what}")
        return LockReply(taken)

    def _drop_lock(self, index: int, d: commands.DropLock) -> Reply:
        dropped = runs.drop(self.image, d)
        if dropped is None:
            return ErrorReply("not_found", f"lock {d.serial} is not held", "iotctl ops list")
        self._note(d.now, d.by, f"lock {d.serial} of {dropped.owner} given up: {d.outcome}")
        return Accepted(index)

    # --- operations --------------------------------------------------------------------------------

    def check_begin(self, b: Begin) -> ErrorReply | None:
        """Why the change cannot begin by this state, if so."""
        if (refusal := runs.fenced(self.image, b.lock)) is not None:
            return refusal
        if (other := self.open_operation()) is not None:
            return ErrorReply(
                "busy",
                f"{other.id} ({other.title}, stage {other.stage}) is open; one change at a time",
                f"iotctl ops wait {other.id}",
                {"operation": other.id, "owner": other.by, "started_ms": other.started_ms},
            )
        if b.base_version != self.table_version:
            return ErrorReply(
                "refused",
                f"the plan was made for table version {b.base_version}, it is {self.table_version} now",
                "plan again",
            )
        waiting = next((g for g in self.image.groups.values() if g.recovery is not None), None)
        if waiting is not None and waiting.recovery is not None:
            return ErrorReply(
                "refused",
                f"group {waiting.group} is being recovered and not led by {waiting.recovery.head} yet",
                "try again shortly (`iotctl cluster groups`)",
            )
        if b.kind != "remove-node" and b.node.incarnation in self.image.retired:
            return ErrorReply(
                "refused",
                f"node {b.node.node} returns with a retired incarnation",
                "give it an empty data directory",
            )
        return None

    def _begin(self, index: int, b: Begin) -> Reply:
        refusal = self.check_begin(b)
        if refusal is not None:
            return refusal
        im = self.image
        assert self.table is not None
        ids = {g.header: g.group for g in im.groups.values() if not g.dissolving}
        new = PartitionTable.from_wire(b.table)
        created = None
        if b.created:
            created = data_group(b.node.node, index)
            ids[b.node.node] = created
            im.groups[created] = GroupRecord(created, b.node.node, b.created, b.created)
            im.nodes[b.node.node] = msgspec.structs.replace(b.node, state="joining")
        old_members = {g.group: g.members for g in im.groups.values()}
        after = {m.header: m.after for m in b.members}
        op = Operation(
            id=f"op-{index}",
            kind=b.kind,
            node=b.node.node,
            by=b.by,
            started_ms=b.now,
            base_version=b.base_version,
            table_version=index,
            moves=[
                SlotMove(
                    m.slots,
                    ids[m.source],
                    old_members[ids[m.source]],
                    ids[m.target],
                    after.get(m.target, old_members[ids[m.target]]),
                )
                for m in b.moves
            ],
            changes=[GroupChange(ids[m.header], m.joins, m.leaves, m.before, m.after) for m in b.members],
            options=b.options,
            created_group=created,
            created_members=b.created,
            replaces=b.replaces,
            meta_ready=b.kind == "rebalance",
            dead=sorted(n for n, r in im.nodes.items() if r.state == DEAD),
            stages=[StageSpan(Stage.PLANNED.value, b.now)],
        )
        if op.leaving is not None:
            op.dissolved_group = ids[op.leaving]
            if op.options.dead:
                self._fence(op, op.leaving)
            else:
                self._set_state(op.leaving, "leaving")
        im.next_table = new.to_wire()
        im.operations = [*im.operations, op][-OPERATIONS_KEPT:]
        self._note(b.now, b.by, f"begin {op.id}: {op.title}")
        self._advance(index, op, b.now)
        return OperationReply(op)

    def _evidence(self, index: int, e: commands.Evidence) -> Reply:
        op = self.operation(e.operation)
        if op is None:
            return ErrorReply("not_found", f"no operation {e.operation}", "iotctl ops list")
        if isinstance(e, commands.SteerOperation) and e.verb == "cancel" and op.stage in CANCELLED:
            return OperationReply(op)  # it counted already, and its answer may have been lost
        if op.ended:
            if isinstance(e, commands.SteerOperation):
                return ErrorReply("refused", f"{op.id} has ended in stage {op.stage}")
            return Accepted(index)
        if isinstance(e, commands.FormedBy) and e.group not in self.image.groups:
            return ErrorReply("not_found", f"no group {e.group}")
        is_formed = isinstance(e, commands.FormedBy) and op.stage is Stage.FORMAL and e.group not in op.formed
        if isinstance(e, commands.SteerOperation) and e.verb == "dead":
            refusal = self._amend(op, e.node)
        else:
            refusal = changes.record(op, e)
        if refusal is not None:
            return refusal
        if isinstance(e, commands.SteerOperation) and e.verb not in ("lease", "unlease"):
            self._note(e.now, e.by, " ".join(filter(None, (e.verb, op.id, e.node, e.report))))
        if isinstance(e, commands.FormedBy) and is_formed:
            im = self.image
            im.groups[e.group] = msgspec.structs.replace(im.groups[e.group], members=e.members)
        self._advance(index, op, e.now)
        return OperationReply(op) if isinstance(e, commands.SteerOperation) else Accepted(index)

    def _set_state(self, node: NodeId, state: str) -> None:
        self.image.nodes[node] = msgspec.structs.replace(self.image.nodes[node], state=state)

    def _fence(self, op: Operation, node: NodeId) -> None:
        """The node is gone for good: what runs under its incarnation is heard by nobody from now on."""
        if node in op.dead:
            return  # an earlier operation gave it up
        op.dead.append(node)
        op.fenced.append(node)
        self._retire(node)

    def _retire(self, node: NodeId) -> None:
        self._set_state(node, DEAD)
        self.image.retired.append(self.image.nodes[node].incarnation)

    def _amend(self, op: Operation, node: NodeId) -> ErrorReply | None:
        """`node` died during `op`: it leaves the required sets, if every group can do without it."""
        im = self.image
        if node not in im.nodes:
            return ErrorReply("not_found", f"no node {node}", "iotctl cluster nodes")
        if node in op.dead:
            return None
        dead = {n for n, r in im.nodes.items() if r.state == DEAD} | {node}
        left = {n for g in im.groups.values() for n in g.members if n not in im.nodes}
        groups = [(g.group, g.members, dead | left) for g in im.groups.values()]
        groups += [(c.group, c.after, dead) for c in op.changes]
        for group, members, lost in groups:
            gone = [n for n in members if n in lost]
            if 2 * len(gone) >= len(members):
                return ErrorReply(
                    "refused",
                    f"group {group} ({', '.join(members)}) would have no quorum without {', '.join(gone)}",
                    f"start {', '.join(gone)}",
                )
        self._fence(op, node)
        return None

    def _advance(self, index: int, op: Operation, now: int) -> None:
        for stage in changes.advance(op, now):
            self._note(now, "", f"{op.id} ({op.title}) enters {stage}")
            if stage is Stage.OPEN:
                self._switch_table(index, op)
            elif stage is Stage.DONE:
                self._finish(op)
            elif stage is Stage.CANCELLED:
                self._undo(op)

    def _switch_table(self, index: int, op: Operation) -> None:
        im = self.image
        assert im.next_table is not None
        self._set_table(PartitionTable.from_wire(im.next_table).stamped(index))
        im.next_table = None
        if op.created_group and op.node not in op.dead:
            self._set_state(op.node, "active")
        if op.dissolved_group:
            record = im.groups[op.dissolved_group]
            im.groups[op.dissolved_group] = msgspec.structs.replace(record, dissolving=True)

    def _finish(self, op: Operation) -> None:
        im = self.image
        if op.dissolved_group:
            del im.groups[op.dissolved_group]
        if op.leaving is not None:
            gone = im.nodes.pop(op.leaving)
            if gone.incarnation not in im.retired:
                im.retired.append(gone.incarnation)

    def _undo(self, op: Operation) -> None:
        im = self.image
        im.next_table = None
        for node in op.fenced:  # nothing was decided without it yet, so it may speak again
            im.retired.remove(im.nodes[node].incarnation)
            self._set_state(node, "active")
        if op.leaving is not None and op.leaving not in op.dead:
            self._set_state(op.leaving, "active")
        if op.created_group:
            del im.groups[op.created_group]
            im.nodes.pop(op.node)

    def _note(self, now: int, who: str, what: str) -> None:
        line = (now, cut_text(who, WHO_CHARS), cut_text(what, AUDIT_CHARS))
        self.image.audit = [*self.image.audit, line][-AUDIT_KEPT:]

    # --- images ------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self.image)

    @classmethod
    def decode(cls, payload: bytes, levels: Levels = features.SPOKEN) -> "MetaState":
        """Raises `Refused` if the cluster is at a feature level that is none of `levels`."""
        image = msgspec.msgpack.decode(payload, type=Image)
        _check_level(levels, image.level)
        for op in image.operations:
            changes.let_go(op)  # the first release kept all evidence
        state = cls(image, levels=levels)
        state.table = PartitionTable.from_wire(image.table) if image.table else None
        state.schemas = {(s.storage_group, s.table): s for s in image.schemas}
        return state


def _check_level(levels: Levels, level: int) -> None:
    if why := features.refusal("this node", levels, level):
        raise Refused(why, next_step=features.advice(levels, level))


def merge_schema(known: TableSchema | None, wanted: TableSchema) -> TableSchema | ErrorReply:
    """The table with `wanted`'s columns added: `known` itself when there is nothing new. One that was dropped
    is there again, with the columns it had."""
    if known is None:
        return msgspec.structs.replace(wanted, version=1, ttl_ms=0)
    columns = {c.name: c for c in known.columns}
    was = " (it was dropped; its columns are kept)" if known.dropped else ""
    fresh = []
    for column in wanted.columns:
        have = columns.get(column.name)
        if have is None and column.tag:
            return ErrorReply(
                "schema_mismatch",
                f"table {known.storage_group}.{known.table}: tag {column.name} cannot be added later{was}",
            )
        if have is None:
            fresh.append(column)
        elif have != column:
            return ErrorReply(
                "schema_mismatch",
                f"table {known.storage_group}.{known.table}: column {column.name} is "
                f"{'tag ' if have.tag else ''}{have.type}, not {'tag ' if column.tag else ''}{column.type}"
                f"{was}",
            )
    if not fresh and not known.dropped:
        return known
    return msgspec.structs.replace(
        known, version=known.version + 1, columns=(*known.columns, *fresh), dropped=False
    )

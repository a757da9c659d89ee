"""Requests, dealt out to who answers them. Every request gets exactly one reply."""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from nodeagent.data import commands as data
from nodeagent.host import reads, writes
from nodeagent.host.admission import check_status
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.evidence import unfit
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.session_parts import sealed_part
from nodeagent.meta import commands as meta
from nodeagent.meta.state import MetaState
from nodeagent.model import names
from nodeagent.model import requests as q
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.entries import Config
from nodeagent.model.errors import InvalidInput, InvariantBroken, Refused
from nodeagent.model.features import Feature
from nodeagent.model.ids import META, GroupId, NodeId
from nodeagent.model.limits import LOCK_TTL_MS_MAX, TABLES_MAX, TTL_MS_MAX
from nodeagent.partition.table import PartitionTable

if TYPE_CHECKING:
    from nodeagent.host.host import Host


Leading = (q.PutSchema | q.DropTable | q.BeginChange | q.Steer | q.Drain | q.GiveUp | q.Forward) | (
    q.RaiseLevel | q.TakeLock | q.DropLock | q.RecordRun
)
"""What the leader of the meta group answers."""

Meta = q.GetMeta | q.GetRuns | q.GetOperation | Leading
Data = (q.Write | q.Propose | q.ScanRows | q.ListPartitions | q.DeleteRows | q.OpenSession | q.CheckFiles) | (
    (q.GetManifest | q.GetWriteRates | q.CloseAll | q.RepairFile | q.ExportFiles | q.OpenSource)
    | (q.GetSealedSessions | q.ProbeGroup)
)
"""What a replica of a data group answers, the most frequent first. These unions are put together once: one
that is made for every request costs it more than all other checks."""


class Handlers:
    def __init__(self, host: "Host") -> None:
        self.host = host

    def on_request(self, token: int, request: q.Request) -> None:
        """What the peer may ask for is checked before (`runtime.rights`)."""
        try:
            self._answer(token, request)
        except InvariantBroken:
            raise
        except Exception as error:
            self.host.desk.failed(token, type(request).__name__, error)

    def _answer(self, token: int, request: q.Request) -> None:
        desk = self.host.desk
        if isinstance(request, q.CheckStatus):
            return self._check_status(token, request)
        if self.host.admission.refused:
            return desk.refuse(token, "refused", self.host.admission.refused)
        if self.host.own_standing.outcast:
            return desk.refuse(token, "unavailable", self.host.own_standing.outcast, "ask another node")
        if isinstance(request, Data):
            if isinstance(request, q.ProbeGroup) and request.group == META:
                return self._probe(token, self.host.cluster.meta_replica)
            return self._to_data(token, request)
        if isinstance(request, Meta):
            return self._to_meta(token, request)
        if isinstance(request, q.SetHolds):
            return desk.reply(token, self.host.operations.hold_points.set(request.points) or q.Accepted())
        if isinstance(request, q.PullUnit):
            op = self.host.cluster.meta.operations.open()
            fits = op if op is not None and op.id == request.operation else None
            return self.host.operations.mover.order(fits, request.group, request.slots, token)
        if isinstance(request, q.OfShell):
            return desk.refuse(token, "invalid_input", "the shell answers this request")
        assert_never(request)

    def _check_status(self, token: int, request: q.CheckStatus) -> None:
        host = self.host
        self.host.desk.reply(
            token,
            check_status(
                host.context.config,
                host.context.incarnation,
                host.cluster.meta,
                not host.admission.refused,
                request,
            ),
        )

    # --- meta --------------------------------------------------------------------------------------

    def _to_meta(self, token: int, request: Meta) -> None:
        host = self.host
        replica = host.cluster.meta_replica
        if META in host.replicas.damaged:
            return self._refuse_blind(token)
        if replica is None or not host.cluster.meta.cluster_id:
            why = ", ".join(host.admission.waiting_for)
            return host.desk.refuse(
                token,
                "unavailable",
                f"the cluster is not formed yet{': waiting for ' + why if why else ''}",
                "start the other seeds",
            )
        if replica.stopped:
            return _refuse_stopped(host, token, replica)
        if isinstance(request, q.GetMeta) and not request.strong:
            return host.desk.reply(token, meta_view(host, replica))
        if isinstance(request, q.GetMeta):
            return self._read(token, replica, "GetMeta", lambda: meta_view(host, replica))
        if isinstance(request, q.GetRuns):
            return self._read(token, replica, "GetRuns", lambda: runs_view(host, request.run))
        if isinstance(request, q.GetOperation):
            return self._read(token, replica, "GetOperation", lambda: operation_view(host, request.operation))
        if not replica.leads:
            leader = replica.raft.leader
            return host.desk.reply(
                token,
                q.ErrorReply(
                    "not_leader",
                    "this node does not lead the meta group",
                    f"ask {leader}" if leader else "retry shortly",
                    {"leader": leader, "group": META},
                ),
            )
        return self._lead_meta(token, replica, request)

    def _read(self, token: int, replica: MetaReplica, what: str, answer: Callable[[], q.Reply]) -> None:
        """Answer when this state is as new as everything acknowledged before."""
        desk = self.host.desk
        then = desk.guarded(token, what, lambda: desk.reply(token, answer()))
        replica.read(then, lambda why: desk.refuse(token, "unavailable", why))

    def _lead_meta(
        self,
        token: int,
        replica: MetaReplica,
        request: Leading,
    ) -> None:
        desk = self.host.desk
        now = self.host.cluster.record_now
        match request:
            case q.PutSchema():
                refusal = check_schema(self.host, request)
                if refusal is not None:
                    return desk.reply(token, refusal)
                replica.propose([meta.encode(meta.PutSchema(now, request.schema, request.ttl_ms))], token)
            case q.DropTable():
                if (request.storage_group, request.table) not in self.host.cluster.meta.tables.schemas:
                    return desk.refuse(token, "not_found", "there is no such table", "iotctl data schema")
                drop_table = meta.DropTable(now, request.storage_group, request.table, request.version)
                replica.propose([meta.encode(drop_table)], token)
            case q.Forward():
                evidence = evidence_at(now, request.command)
                if evidence is None:
                    return desk.refuse(token, "invalid_input", "what is forwarded is no evidence")
                why = unfit(self.host.cluster.meta, meta.decode(evidence))
                if why:
                    return desk.refuse(token, "invalid_input", why)
                replica.propose([evidence], token)
            case q.Steer():
                self._steer(token, replica, request)
            case q.Drain():
                # Here too: replicas of an older version do not look at it when they apply the entry.
                refusal = self.host.cluster.meta.runs.fenced(request.lock)
                if refusal is not None:
                    return desk.reply(token, refusal)
                for_restart = request.for_restart and self.host.cluster.level >= Feature.REASONS
                drain = meta.SetDraining(
                    now, request.node, request.draining, request.by, request.lock, for_restart
                )
                replica.propose([meta.encode(drain)], token)
            case q.RaiseLevel():
                refusal = check_raise(self.host, request)
                if refusal is not None:
                    return desk.reply(token, refusal)
                writer = self.host.writer.own
                raised = meta.RaiseLevel(now, request.level, request.by, request.lock, writer)
                replica.propose([meta.encode(raised)], token)
            case q.GiveUp():
                given_up = self.host.changes.give_up(request)
                if not isinstance(given_up, meta.GiveUp):
                    return desk.reply(token, given_up)
                replica.propose([meta.encode(given_up)], token)
            case q.TakeLock():
                if not 0 < request.ttl_ms <= LOCK_TTL_MS_MAX or not request.owner:
                    what = f"a lock has an owner and lasts 1 to {LOCK_TTL_MS_MAX} ms"
                    return desk.refuse(token, "invalid_input", what)
                take = meta.TakeLock(
                    now, request.owner, request.what, request.by, request.ttl_ms, request.serial
                )
                replica.propose([meta.encode(take)], token)
            case q.DropLock():
                drop = meta.DropLock(now, request.serial, request.by, request.outcome)
                replica.propose([meta.encode(drop)], token)
            case q.RecordRun():
                entry = meta.RecordRun(
                    now,
                    request.run,
                    request.name,
                    request.number,
                    request.entry,
                    request.serial,
                    request.by,
                    request.ended,
                )
                replica.propose([meta.encode(entry)], token)
            case q.BeginChange():
                self._begin(token, replica, request)
        return None

    def _begin(self, token: int, replica: MetaReplica, request: q.BeginChange) -> None:
        """Plan, then ask every group for a read index before anything is proposed."""
        planned = self.host.changes.begin(request)
        if not isinstance(planned, meta.Begin):
            return self.host.desk.reply(token, planned)
        leaves = request.node if request.kind == "remove-node" else request.replaces

        def still() -> q.ErrorReply | None:
            # A group may have answered because the node that is to be fenced is back.
            return self.host.changes.check_silent(leaves) if request.options.dead else None

        Probes(self.host, token, replica, planned, groups_of(planned, self.host.cluster.meta), still).start()
        return None

    def _steer(self, token: int, replica: MetaReplica, request: q.Steer) -> None:
        command = meta.SteerOperation(
            self.host.cluster.record_now,
            request.operation,
            request.verb,
            request.by,
            request.owner,
            request.ttl_ms,
            request.rate_bytes_per_s,
            request.report,
            request.node,
        )
        if request.verb != "dead":
            replica.propose([meta.encode(command)], token)
            return
        affected = self.host.changes.without(request.operation, request.node)
        if isinstance(affected, q.ErrorReply):
            return self.host.desk.reply(token, affected)
        node = request.node if affected else ""

        def still() -> q.ErrorReply | None:
            return self.host.changes.check_silent(node) if node else None

        Probes(self.host, token, replica, command, affected, still).start()
        return None

    def _refuse_blind(self, token: int) -> None:
        host = self.host
        damage = host.replicas.damaged[META]
        what = f"{host.context.node} serves no requests: its meta group is damaged: {damage}"
        host.desk.refuse(token, "unavailable", what, "ask another node")

    # --- data --------------------------------------------------------------------------------------

    def _to_data(self, token: int, request: Data) -> None:
        host = self.host
        if META in host.replicas.damaged:
            # Without tables, slots and schemas it can answer nothing, and would refuse what is right.
            return self._refuse_blind(token)
        replica = host.replicas.data.get(request.group)
        if replica is None:
            damage = host.replicas.damaged.get(request.group)
            if damage and request.group not in host.replicas.unsettled:
                return host.desk.refuse(token, "log_corrupt", damage, "nodeagent log check DIR")
            return host.desk.refuse(
                token,
                "unavailable",
                f"{host.context.node} holds no replica of group {request.group}",
                "refresh the partition table",
            )
        if replica.stopped:
            return _refuse_stopped(host, token, replica)
        refusal = _check_bounds(host, request)
        if refusal is not None:
            return host.desk.reply(token, refusal)
        match request:
            case q.Write():
                replica.used(request.session)
                writes.on_write(host.cluster, replica, token, request)
            case q.DeleteRows():
                replica.used(request.session)
                writes.on_delete(host.cluster, replica, token, request)
            case q.Propose():
                payloads = request.payloads or (b"",)
                replica.propose([data.encode(data.Opaque(p)) for p in payloads], token)
            case q.OpenSession():
                self._open_session(token, replica)
            case q.ScanRows():
                reads.on_scan(host.cluster, replica, token, request)
            case q.ListPartitions():
                reads.on_list(host.cluster, replica, token, request)
            case q.GetManifest():
                reads.on_manifest(host.cluster, replica, token, request)
            case q.GetWriteRates():
                rates = replica.state.writes.rates.bytes_per_s(host.desk.now)
                host.desk.reply(token, q.WriteRatesReply(tuple(rates.items())))
            case q.CloseAll():
                reads.on_close_all(host.cluster, replica, token, request)
            case q.CheckFiles():
                reads.on_check(host.cluster, replica, token, request)
            case q.RepairFile():
                host.repairs.start(token, replica, request)
            case q.ExportFiles():
                reads.on_export(host.cluster, replica, token, request, host.context.new_id())
            case q.OpenSource():
                reads.on_open_source(host.cluster, replica, token, request, host.context.new_id())
            case q.GetSealedSessions(wait=True):
                sealed = host.desk.guarded(token, type(request).__name__, self._sealed_sessions)
                host.seal_waits.add(replica, request.operation, partial(sealed, token, replica, request))
            case q.GetSealedSessions():
                self._sealed_sessions(token, replica, request)
            case q.ProbeGroup():
                self._probe(token, replica)
        return None

    def _open_session(self, token: int, replica: DataReplica) -> None:
        if not replica.leads:
            return self.host.desk.reply(token, writes.not_leader(replica))
        replica.propose([data.encode(data.OpenSession())], token)
        return None

    def _sealed_sessions(self, token: int, replica: DataReplica, request: q.GetSealedSessions) -> None:
        part = sealed_part(replica, request.operation, request.part)
        if not part:
            what = f"{request.group} has no part {request.part} of the sessions of {request.operation} here"
            return self.host.desk.refuse(token, "not_found", what, "ask another member")
        return self.host.desk.reply(token, q.SealedSessions(part))

    def _probe(self, token: int, replica: DataReplica | MetaReplica | None) -> None:
        desk = self.host.desk
        if replica is None:
            return desk.refuse(token, "unavailable", "no such group here")
        return replica.read(
            lambda: desk.reply(token, q.Accepted()), lambda why: desk.refuse(token, "unavailable", why)
        )


def _refuse_stopped(host: "Host", token: int, replica: DataReplica | MetaReplica) -> None:
    """Its state ends before an entry that others have applied."""
    what = f"the replica of {replica.group} on {host.context.node} is {replica.stopped}"
    host.desk.refuse(token, "unavailable", what, "ask another member; upgrade this node")


def _check_bounds(host: "Host", request: q.Request) -> q.ErrorReply | None:
    """Slots are expanded and numbers counted with later: refuse what no honest client sends."""
    settings = host.cluster.meta.image.settings
    slots = getattr(request, "slots", ())
    limit = settings.slots if settings is not None else 0
    if slots and (any(not 0 <= a < b <= limit for a, b in slots) or sum(b - a for a, b in slots) > limit):
        return q.ErrorReply("invalid_input", f"slots must be ranges within [0, {limit})")
    if isinstance(request, q.ScanRows) and not _is_place(request):
        return q.ErrorReply("invalid_input", "a read goes on where a page before it ended")
    if isinstance(request, q.Write | q.DeleteRows) and not 0 <= request.settled < request.sequence:
        return q.ErrorReply("invalid_input", "sequences begin at 1 and are not settled before they are sent")
    return None


def _is_place(request: q.ScanRows) -> bool:
    """Whether the read begins and ends where a page can, and no number is negative."""
    tags = len(request.spec.schema.tags)
    places = [place for place in (request.after, request.until) if place is not None]
    return min(request.cursor, request.limit, *(p.position for p in places), 0) == 0 and all(
        p.key is None or len(p.key.tags) == tags for p in places
    )


class Probes:
    """Asks the members of every affected group for a read index, each until one of the group has it; proposes
    the command if every group answers in time, and nothing has come between (`still`)."""

    WITHIN_MS = 1_500
    """Clients wait for an answer at least 2 s."""

    AGAIN_MS = 100

    def __init__(
        self,
        host: "Host",
        token: int,
        replica: MetaReplica,
        command: meta.Begin | meta.SteerOperation,
        groups: Mapping[GroupId, tuple[NodeId, ...]],
        still: Callable[[], q.ErrorReply | None],
    ) -> None:
        self.host = host
        self.token = token
        self.replica = replica
        self.command = command
        self.waiting = dict(groups)
        self.still = still
        self.why: dict[GroupId, str] = {}
        self.ended = False

    def start(self) -> None:
        if not self.waiting:
            return self._finish()
        self.host.desk.later(self.WITHIN_MS, self._finish)
        for group, members in list(self.waiting.items()):
            for node in members:
                self._ask(group, node)
        return None

    def _ask(self, group: GroupId, node: NodeId) -> None:
        if self.ended or group not in self.waiting:
            return
        own = self.host.replicas.data.get(group)
        if node == self.host.context.node and own is not None:  # a recovered group may have no other member
            own.read(
                lambda: self._on_reply(group, node, q.Accepted()),
                lambda why: self._on_reply(group, node, q.ErrorReply("unavailable", why)),
            )
            return
        self.host.desk.call(node, q.ProbeGroup(group), lambda r: self._on_reply(group, node, r))

    def _on_reply(self, group: GroupId, node: NodeId, reply: q.Reply) -> None:
        if isinstance(reply, q.ErrorReply):
            self.why.setdefault(group, reply.what)
            self.host.desk.later(self.AGAIN_MS, lambda: self._ask(group, node))
            return
        self.waiting.pop(group, None)
        if not self.waiting:
            self._finish()

    def _finish(self) -> None:
        if self.ended:
            return None
        self.ended = True
        if self.waiting:
            lost = "; ".join(f"{g}: {self.why.get(g, 'nobody answers')}" for g in sorted(self.waiting))
            return self.host.desk.refuse(
                self.token,
                "refused",
                f"nothing was changed: no live quorum in {lost}",
                "start the missing nodes (`iotctl cluster status`); gone for ever, and no change is open: "
                "iotctl cluster recover NODE...",
            )
        return self.host.desk.guarded(self.token, "a change", self._propose)()

    def _propose(self) -> None:
        refusal = self.still()
        if refusal is not None:
            return self.host.desk.reply(self.token, refusal)
        self.replica.propose([meta.encode(self.command)], self.token)
        return None


def groups_of(begin: meta.Begin, state: MetaState) -> dict[GroupId, tuple[NodeId, ...]]:
    """Groups that give or take slots or change members, with who is in them today."""
    headers = {m.source for m in begin.moves} | {m.target for m in begin.moves}
    headers |= {m.header for m in begin.members}
    return {g.group: g.members for g in state.image.groups.values() if g.header in headers}


def evidence_at(now: int, command: bytes) -> bytes | None:
    """What a node reports, with the leader's time in it: times of a record are compared with each other and
    with the leader's clock. None for what is no evidence: every member applies what is logged, so nothing is
    logged that cannot be decoded, and what people ask for is checked elsewhere.
    """
    try:
        decoded = meta.decode(command)
    except UNDECODABLE:
        return None
    people = meta.Bootstrap | meta.PutSchema | meta.SetDraining | meta.GiveUp | meta.Begin
    people |= (
        meta.RaiseLevel
        | meta.DropTable
        | meta.TakeLock
        | meta.DropLock
        | meta.RecordRun
        | meta.SteerOperation
    )
    return None if isinstance(decoded, people) else meta.encode(replace(decoded, now=now))


def check_raise(host: "Host", request: q.RaiseLevel) -> q.ErrorReply | None:
    """Why the cluster's feature level cannot be raised now, if so."""
    refusal = host.cluster.meta.runs.fenced(request.lock)
    if refusal is not None:
        return refusal
    limit_ms = host.context.config.raft.election_timeout_ms

    def is_silent(node: NodeId) -> bool:
        return host.desk.now - host.peers.heard.get(node, -(1 << 62)) > limit_ms

    try:
        host.peers.levels.check_raise(request.level, host.cluster.meta.image, is_silent)
    except Refused as error:
        return q.ErrorReply(error.code, error.what, error.next_step)
    return None


def check_schema(host: "Host", request: q.PutSchema) -> q.ErrorReply | None:
    schema = request.schema
    known = host.cluster.meta.tables.schemas.get((schema.storage_group, schema.table))
    if known is None and len(host.cluster.meta.tables.schemas) >= TABLES_MAX:
        return q.ErrorReply("overloaded", f"the cluster has {TABLES_MAX} tables")
    if request.ttl_ms is not None and not 0 <= request.ttl_ms <= TTL_MS_MAX:
        return q.ErrorReply("invalid_input", f"a TTL is 0 (none) to {TTL_MS_MAX} ms")
    try:
        names.check_schema(schema, known)
    except InvalidInput as error:
        return q.ErrorReply(error.code, error.what, error.next_step)
    return None


@lru_cache(maxsize=4)
def _owners(table: PartitionTable) -> tuple[tuple[int, int, NodeId], ...]:
    """Everybody who waits for something asks for the same table again and again."""
    return tuple(sorted((a, b, h) for h in table.ring.names for a, b in table.slots_of(h)))


def runs_view(host: "Host", run: str) -> q.RunsReply:
    image = host.cluster.meta.image
    return q.RunsReply(image.lock, tuple(r if r.id == run else replace(r, entries=[]) for r in image.runs))


def operation_view(host: "Host", operation: str) -> q.Reply:
    found = host.cluster.meta.operations.find(operation)
    if found is None:
        return q.ErrorReply("not_found", f"no operation {operation}", "iotctl ops list")
    return q.OperationReply(found)


def meta_view(host: "Host", replica: MetaReplica) -> q.MetaView:
    image = host.cluster.meta.image
    table = host.cluster.meta.placement.table
    assert image.settings is not None and table is not None
    config: Config = replica.raft.log.config
    return q.MetaView(
        node=host.context.node,
        applied=image.applied,
        cluster_id=image.cluster_id,
        settings=image.settings,
        nodes=tuple(image.nodes.values()),
        table_version=table.version,
        ring=table.ring.names,
        owners=_owners(table),
        groups=tuple(image.groups.values()),
        schemas=tuple(s for s in image.schemas if not s.dropped),
        operations=host.cluster.meta.operations.listed(),
        leader=replica.raft.leader,
        term=replica.raft.term,
        voters=config.voters,
        learners=config.learners,
        level=image.level,
    )

"""Requests, dealt out to who answers them. Every request gets exactly one reply."""

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from nodeagent.data import commands as data
from nodeagent.host import reads, writes
from nodeagent.host.admission import check_status
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.operations import plan_begin, plan_give_up
from nodeagent.meta import commands as meta
from nodeagent.meta.runs import fenced
from nodeagent.model import requests as q
from nodeagent.model.entries import Config
from nodeagent.model.ids import META, NodeId
from nodeagent.model.limits import COLUMNS_MAX, LOCK_TTL_MS_MAX, TABLES_MAX, TTL_MS_MAX
from nodeagent.model.schema import TYPES
from nodeagent.partition.table import PartitionTable

if TYPE_CHECKING:
    from nodeagent.host.host import Host


Leading = (q.PutSchema | q.BeginChange | q.Steer | q.Drain | q.GiveUp | q.Forward) | (
    q.TakeLock | q.DropLock | q.RecordRun
)
"""What the leader of the meta group answers."""


class Handlers:
    def __init__(self, host: "Host") -> None:
        self.host = host

    def on_request(self, token: int, request: q.Request) -> None:
        """What the peer may ask for is checked before (`runtime.rights`)."""
        desk = self.host.desk
        if isinstance(request, q.CheckStatus):
            return self._check_status(token, request)
        if self.host.admission.refused:
            return desk.refuse(token, "refused", self.host.admission.refused)
        if self.host.outcast:
            return desk.refuse(token, "unavailable", self.host.outcast, "ask another node")
        if isinstance(request, q.GetMeta | q.GetRuns | Leading):
            return self._to_meta(token, request)
        if isinstance(request, q.GetStatus | q.GetEvents | q.FetchChunk):
            return desk.refuse(token, "invalid_input", "the shell answers this request")
        if isinstance(request, q.SetHolds):
            return desk.reply(token, self.host.operations.hold(request.points) or q.Accepted())
        if isinstance(request, q.PullUnit):
            op = self.host.meta.open_operation()
            fits = op if op is not None and op.id == request.operation else None
            return self.host.mover.order(fits, request.group, request.slots, token)
        if isinstance(request, q.ProbeGroup) and request.group == META:
            return self._probe(token, self.host.meta_replica)
        return self._to_data(token, request)

    def _check_status(self, token: int, request: q.CheckStatus) -> None:
        host = self.host
        self.host.desk.reply(
            token, check_status(host.config, host.incarnation, host.meta, not host.admission.refused, request)
        )

    # --- meta --------------------------------------------------------------------------------------

    def _to_meta(self, token: int, request: q.GetMeta | q.GetRuns | Leading) -> None:
        host = self.host
        replica = host.meta_replica
        if replica is None or not host.meta.cluster_id:
            why = ", ".join(host.admission.waiting_for)
            return host.desk.refuse(
                token,
                "unavailable",
                f"the cluster is not formed yet{': waiting for ' + why if why else ''}",
                "start the other seeds",
            )
        if isinstance(request, q.GetMeta):
            if request.strong:
                return replica.read(
                    lambda: host.desk.reply(token, meta_view(host, replica)),
                    lambda why: host.desk.refuse(token, "unavailable", why),
                )
            return host.desk.reply(token, meta_view(host, replica))
        if isinstance(request, q.GetRuns):
            return replica.read(
                lambda: host.desk.reply(token, runs_view(host, request.run)),
                lambda why: host.desk.refuse(token, "unavailable", why),
            )
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

    def _lead_meta(
        self,
        token: int,
        replica: MetaReplica,
        request: Leading,
    ) -> None:
        desk = self.host.desk
        now = desk.wall
        match request:
            case q.PutSchema():
                refusal = check_schema(self.host, request)
                if refusal is not None:
                    return desk.reply(token, refusal)
                replica.propose([meta.encode(meta.PutSchema(now, request.schema, request.ttl_ms))], token)
            case q.Forward():
                if not is_evidence(request.command):
                    return desk.refuse(token, "invalid_input", "what is forwarded is no evidence")
                replica.propose([request.command], token)
            case q.Steer():
                command = meta.SteerOperation(
                    now,
                    request.operation,
                    request.verb,
                    request.by,
                    request.owner,
                    request.ttl_ms,
                    request.rate_bytes_per_s,
                    request.report,
                    request.node,
                )
                replica.propose([meta.encode(command)], token)
            case q.Drain():
                # Here too: replicas of an older version do not look at it when they apply the entry.
                refusal = fenced(self.host.meta.image, request.lock)
                if refusal is not None:
                    return desk.reply(token, refusal)
                drain = meta.SetDraining(now, request.node, request.draining, request.by, request.lock)
                replica.propose([meta.encode(drain)], token)
            case q.GiveUp():
                given_up = plan_give_up(self.host, request)
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
        """CHECKED: plan, then ask every group for a read index before anything is proposed."""
        planned = plan_begin(self.host, request)
        if not isinstance(planned, meta.Begin):
            return self.host.desk.reply(token, planned)
        Probes(self.host, token, replica, planned).start()
        return None

    # --- data --------------------------------------------------------------------------------------

    def _to_data(self, token: int, request: q.Request) -> None:
        host = self.host
        assert not isinstance(request, q.CheckStatus | q.GetStatus | q.GetEvents | q.GetMeta | Leading)
        assert not isinstance(request, q.SetHolds | q.GetRuns | q.FetchChunk | q.PullUnit)
        replica = host.data.get(request.group)
        if replica is None:
            damage = host.damaged.get(request.group)
            if damage:
                return host.desk.refuse(token, "log_corrupt", damage, "nodeagent log check DIR")
            return host.desk.refuse(
                token,
                "unavailable",
                f"{host.node} holds no replica of group {request.group}",
                "refresh the partition table",
            )
        refusal = _check_bounds(host, request)
        if refusal is not None:
            return host.desk.reply(token, refusal)
        match request:
            case q.Write():
                replica.used(request.session)
                writes.on_write(host, replica, token, request)
            case q.DeleteRows():
                replica.used(request.session)
                writes.on_delete(host, replica, token, request)
            case q.Propose():
                payloads = request.payloads or (b"",)
                replica.propose([data.encode(data.Opaque(p)) for p in payloads], token)
            case q.OpenSession():
                self._open_session(token, replica)
            case q.ScanRows():
                reads.on_scan(host, replica, token, request)
            case q.ListPartitions():
                reads.on_list(host, replica, token, request)
            case q.GetManifest():
                reads.on_manifest(host, replica, token, request)
            case q.GetWriteRates():
                rates = replica.state.rates.bytes_per_s(host.desk.now)
                host.desk.reply(token, q.WriteRatesReply(tuple(rates.items())))
            case q.CloseAll():
                reads.on_close_all(host, replica, token, request)
            case q.CheckFiles():
                reads.on_check(host, replica, token, request)
            case q.RepairFile():
                host.repairs.start(token, replica, request)
            case q.ExportFiles():
                reads.on_export(host, replica, token, request, host.new_id())
            case q.OpenSource():
                reads.on_open_source(host, replica, token, request, host.new_id())
            case q.ProbeGroup():
                self._probe(token, replica)
        return None

    def _open_session(self, token: int, replica: DataReplica) -> None:
        if not replica.leads:
            return self.host.desk.reply(token, writes.not_leader(replica))
        replica.propose([data.encode(data.OpenSession())], token)
        return None

    def _probe(self, token: int, replica: DataReplica | MetaReplica | None) -> None:
        desk = self.host.desk
        if replica is None:
            return desk.refuse(token, "unavailable", "no such group here")
        return replica.read(
            lambda: desk.reply(token, q.Accepted()), lambda why: desk.refuse(token, "unavailable", why)
        )


def _check_bounds(host: "Host", request: q.Request) -> q.ErrorReply | None:
    """Slots are expanded and numbers counted with later: refuse what no honest client sends."""
    settings = host.meta.image.settings
    slots = getattr(request, "slots", ())
    limit = settings.slots if settings is not None else 0
    if any(not 0 <= a < b <= limit for a, b in slots) or sum(b - a for a, b in slots) > limit:
        return q.ErrorReply("invalid_input", f"slots must be ranges within [0, {limit})")
    if isinstance(request, q.ScanRows) and request.cursor < 0:
        return q.ErrorReply("invalid_input", "a cursor is not negative")
    if isinstance(request, q.Write | q.DeleteRows) and not 0 <= request.settled < request.sequence:
        return q.ErrorReply("invalid_input", "sequences begin at 1 and are not settled before they are sent")
    return None


class Probes:
    """Asks a member of every affected group for a read index; proposes the change if all answer."""

    ATTEMPTS = 3

    def __init__(self, host: "Host", token: int, replica: MetaReplica, begin: meta.Begin) -> None:
        self.host = host
        self.token = token
        self.replica = replica
        self.begin = begin
        headers = {m.source for m in begin.moves} | {m.target for m in begin.moves}
        headers |= {m.header for m in begin.members}
        groups = host.meta.image.groups.values()
        self.waiting = {g.group: g.members for g in groups if g.header in headers}
        self.failed: dict[str, str] = {}

    def start(self) -> None:
        if not self.waiting:
            self._finish()
        for group, members in list(self.waiting.items()):
            self._ask(group, members, 0)

    def _ask(self, group: str, members: tuple[NodeId, ...], attempt: int) -> None:
        node = members[attempt % len(members)]
        own = self.host.data.get(group)
        if node == self.host.node and own is not None:  # a recovered group may have no other member
            own.read(
                lambda: self._on_reply(group, members, attempt, q.Accepted()),
                lambda why: self._on_reply(group, members, attempt, q.ErrorReply("unavailable", why)),
            )
            return
        self.host.desk.call(node, q.ProbeGroup(group), lambda r: self._on_reply(group, members, attempt, r))

    def _on_reply(self, group: str, members: tuple[NodeId, ...], attempt: int, reply: q.Reply) -> None:
        if isinstance(reply, q.ErrorReply) and attempt + 1 < max(self.ATTEMPTS, len(members)):
            self.host.desk.later(100, lambda: self._ask(group, members, attempt + 1))
            return
        if isinstance(reply, q.ErrorReply):
            self.failed[group] = reply.what
        self.waiting.pop(group, None)
        if not self.waiting:
            self._finish()

    def _finish(self) -> None:
        desk = self.host.desk
        if self.failed:
            lost = "; ".join(f"{g}: {why}" for g, why in sorted(self.failed.items()))
            return desk.refuse(
                self.token,
                "refused",
                f"nothing was changed: no live quorum in {lost}",
                "start the missing nodes (`iotctl cluster status`)",
            )
        self.replica.propose([meta.encode(self.begin)], self.token)
        return None


def is_evidence(command: bytes) -> bool:
    """Every member applies what is logged, so nothing is logged that cannot be decoded."""
    try:
        decoded = meta.decode(command)
    except msgspec.MsgspecError:
        return False
    people = meta.Bootstrap | meta.PutSchema | meta.SetDraining | meta.GiveUp | meta.Begin
    people |= meta.TakeLock | meta.DropLock | meta.RecordRun
    return not isinstance(decoded, people)


def check_schema(host: "Host", request: q.PutSchema) -> q.ErrorReply | None:
    schema = request.schema
    if not schema.storage_group or not schema.table or len(schema.columns) > COLUMNS_MAX:
        return q.ErrorReply("invalid_input", "a table has a storage group, a name and at most 4096 columns")
    if (schema.storage_group, schema.table) not in host.meta.schemas and len(host.meta.schemas) >= TABLES_MAX:
        return q.ErrorReply("overloaded", f"the cluster has {TABLES_MAX} tables")
    if request.ttl_ms is not None and not 0 <= request.ttl_ms <= TTL_MS_MAX:
        return q.ErrorReply("invalid_input", f"a TTL is 0 (none) to {TTL_MS_MAX} ms")
    names = [c.name for c in schema.columns]
    bad = [c for c in schema.columns if c.name != c.name.lower() or c.type not in TYPES or c.name == "time"]
    bad += [c for c in schema.columns if c.tag and c.type != "STRING"]
    if bad or len(set(names)) != len(names) or schema.table != schema.table.lower():
        return q.ErrorReply(
            "invalid_input",
            f"table {schema.table}: names are lower case and unique, types are {', '.join(TYPES)}, "
            f"tags are STRING{': ' + bad[0].name if bad else ''}",
        )
    return None


@lru_cache(maxsize=4)
def _owners(table: PartitionTable) -> tuple[tuple[int, int, NodeId], ...]:
    """Everybody who waits for something asks for the same table again and again."""
    return tuple(sorted((a, b, h) for h in table.ring.names for a, b in table.slots_of(h)))


def runs_view(host: "Host", run: str) -> q.RunsReply:
    image = host.meta.image
    return q.RunsReply(image.lock, tuple(r if r.id == run else replace(r, entries=[]) for r in image.runs))


def meta_view(host: "Host", replica: MetaReplica) -> q.MetaView:
    image = host.meta.image
    table = host.meta.table
    assert image.settings is not None and table is not None
    config: Config = replica.raft.log.config
    return q.MetaView(
        node=host.node,
        applied=image.applied,
        cluster_id=image.cluster_id,
        settings=image.settings,
        nodes=tuple(image.nodes.values()),
        table_version=table.version,
        ring=table.ring.names,
        owners=_owners(table),
        groups=tuple(image.groups.values()),
        schemas=tuple(image.schemas),
        operations=tuple(image.operations),
        leader=replica.raft.leader,
        term=replica.raft.term,
        voters=config.voters,
        learners=config.learners,
    )

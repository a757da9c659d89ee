"""Requests to the leader of the meta group, which checks them and proposes their entries."""

from msgspec.structs import replace

from nodeagent.host.context import Context
from nodeagent.host.handlers.changes import Changes
from nodeagent.host.handlers.probes import Probes, groups_of
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.peers import Peers
from nodeagent.host.replicas import Replicas
from nodeagent.host.report_checks import why_invalid
from nodeagent.host.writer import FileWriter
from nodeagent.meta import commands as meta
from nodeagent.meta.state import MetaState
from nodeagent.model import names
from nodeagent.model import requests as q
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.errors import InvalidInput, Refused
from nodeagent.model.features import Feature
from nodeagent.model.ids import NodeId
from nodeagent.model.limits import LOCK_TTL_MS_MAX, TABLES_MAX, TTL_MS_MAX

Entry = (q.PutSchema | q.DropTable | q.Drain | q.SetZones | q.RaiseLevel | q.ForceRecover) | (
    q.TakeLock | q.DropLock | q.RecordRun
)
"""Requests that become an entry at once, or are refused."""

Leading = Entry | q.BeginChange | q.ControlOperation | q.Forward


class MetaLeader:
    """
    Args:
        writer: names this node's TsFile library, which a raised feature level records.
    """

    def __init__(self, context: Context, replicas: Replicas, peers: Peers, writer: FileWriter) -> None:
        self._context = context
        self._effects = context.effects
        self._replicas = replicas
        self._cluster = replicas.cluster
        self._peers = peers
        self._writer = writer
        self._changes = Changes(context, replicas.cluster, peers)

    def answer(self, token: int, replica: MetaReplica, request: Leading) -> None:
        match request:
            case q.BeginChange():
                self._begin(token, replica, request)
            case q.ControlOperation():
                self._control(token, replica, request)
            case q.Forward():
                self._forward(token, replica, request)
            case _:
                entry = self._entry(request)
                if isinstance(entry, q.ErrorReply):
                    self._effects.reply(token, entry)
                else:
                    replica.propose([meta.encode(entry)], token)

    def _entry(self, request: Entry) -> meta.Command | q.ErrorReply:
        """The entry, or why there is none."""
        now = self._cluster.record_now
        match request:
            case q.PutSchema():
                refusal = check_schema(self._cluster.meta, request)
                return refusal or meta.PutSchema(now, request.schema, request.ttl_ms, request.if_new)
            case q.DropTable():
                if (request.storage_group, request.table) not in self._cluster.meta.tables.schemas:
                    return q.ErrorReply("not_found", "there is no such table", "iotctl data schema")
                return meta.DropTable(now, request.storage_group, request.table, request.version)
            case q.Drain():
                return self._drain(now, request)
            case q.SetZones():
                return self._set_zones(now, request)
            case q.RaiseLevel():
                raised = meta.RaiseLevel(now, request.level, request.by, request.lock, self._writer.own)
                return self._check_raise(request) or raised
            case q.ForceRecover():
                return self._changes.give_up(request)
            case q.TakeLock():
                if not 0 < request.ttl_ms <= LOCK_TTL_MS_MAX or not request.owner:
                    what = f"a lock has an owner and lasts 1 to {LOCK_TTL_MS_MAX} ms"
                    return q.ErrorReply("invalid_input", what)
                return meta.TakeLock(
                    now, request.owner, request.what, request.by, request.ttl_ms, request.serial
                )
            case q.DropLock():
                return meta.DropLock(now, request.serial, request.by, request.outcome)
            case q.RecordRun():
                return meta.RecordRun(
                    now,
                    request.run,
                    request.name,
                    request.number,
                    request.entry,
                    request.serial,
                    request.by,
                    request.ended,
                )

    def _drain(self, now: int, request: q.Drain) -> meta.SetDraining | q.ErrorReply:
        # The lock is checked here too, because replicas of an older version apply the entry without a check.
        refusal = self._cluster.meta.runs.fenced(request.lock)
        if refusal is not None:
            return refusal
        for_restart = request.for_restart and self._cluster.level >= Feature.REASONS
        return meta.SetDraining(now, request.node, request.draining, request.by, request.lock, for_restart)

    def _set_zones(self, now: int, request: q.SetZones) -> meta.SetZones | q.ErrorReply:
        level = self._cluster.level
        if level < Feature.ZONES:
            return q.ErrorReply(
                "refused",
                f"no zone was set: zones need feature level {Feature.ZONES:d}; the cluster is at {level}",
                "iotctl cluster finalize-upgrade",
            )
        return meta.SetZones(now, dict(request.zones), request.by, request.lock)

    def _check_raise(self, request: q.RaiseLevel) -> q.ErrorReply | None:
        """Why the cluster's feature level cannot be raised now, None if it can."""
        refusal = self._cluster.meta.runs.fenced(request.lock)
        if refusal is not None:
            return refusal
        limit_ms = self._context.config.raft.election_timeout_ms

        def is_silent(node: NodeId) -> bool:
            return self._effects.now - self._peers.heard.get(node, -(1 << 62)) > limit_ms

        try:
            self._context.levels.check_raise(request.level, self._cluster.meta.image, is_silent)
        except Refused as error:
            return q.ErrorReply(error.code, error.what, error.next_step)
        return None

    def _forward(self, token: int, replica: MetaReplica, request: q.Forward) -> None:
        evidence = report_at(self._cluster.record_now, request.command)
        if evidence is None:
            return self._effects.refuse(
                token, "invalid_input", "the forwarded command is not a progress report"
            )
        why = why_invalid(self._cluster.meta, meta.decode(evidence))
        if why:
            return self._effects.refuse(token, "invalid_input", why)
        replica.propose([evidence], token)
        return None

    def _begin(self, token: int, replica: MetaReplica, request: q.BeginChange) -> None:
        """Plan the change, then ask every affected group for a read index before anything is proposed."""
        planned = self._changes.begin(request)
        if not isinstance(planned, meta.Begin):
            return self._effects.reply(token, planned)
        leaves = request.node if request.kind == "remove-node" else request.replaces

        def still() -> q.ErrorReply | None:
            # A group may have answered only because the node that is to be fenced is back.
            return self._changes.check_silent(leaves) if request.options.dead else None

        groups = groups_of(planned, self._cluster.meta)
        return Probes(self._context, self._replicas, token, replica, planned, groups, still).start()

    def _control(self, token: int, replica: MetaReplica, request: q.ControlOperation) -> None:
        command = meta.ControlOperation(
            self._cluster.record_now,
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
            return None
        affected = self._changes.without(request.operation, request.node)
        if isinstance(affected, q.ErrorReply):
            return self._effects.reply(token, affected)
        node = request.node if affected else ""

        def still() -> q.ErrorReply | None:
            return self._changes.check_silent(node) if node else None

        return Probes(self._context, self._replicas, token, replica, command, affected, still).start()


def report_at(now: int, command: bytes) -> bytes | None:
    """A node's progress report with the leader's time, because the times of a record are compared with each
    other and with the leader's clock.

    Returns:
        None if the command cannot be decoded (every member would have to apply it), or if it is an operator's
        request, which is checked elsewhere.
    """
    try:
        decoded = meta.decode(command)
    except UNDECODABLE:
        return None
    people = meta.Bootstrap | meta.PutSchema | meta.SetDraining | meta.ForceRecover | meta.Begin
    people |= (
        meta.SetZones
        | meta.RaiseLevel
        | meta.RecoverMeta
        | meta.DropTable
        | meta.TakeLock
        | meta.DropLock
        | meta.RecordRun
        | meta.ControlOperation
    )
    return None if isinstance(decoded, people) else meta.encode(replace(decoded, now=now))


def check_schema(state: MetaState, request: q.PutSchema) -> q.ErrorReply | None:
    schema = request.schema
    known = state.tables.schemas.get((schema.storage_group, schema.table))
    if known is None and len(state.tables.schemas) >= TABLES_MAX:
        return q.ErrorReply("overloaded", f"the cluster has {TABLES_MAX} tables, the maximum")
    level = state.image.level
    if request.if_new and level < Feature.TTL_IF_NEW:
        what = f"a TTL for new tables needs feature level {Feature.TTL_IF_NEW}; the cluster is at {level}"
        return q.ErrorReply("refused", what, "iotctl cluster finalize-upgrade")
    if request.ttl_ms is not None and not 0 <= request.ttl_ms <= TTL_MS_MAX:
        return q.ErrorReply("invalid_input", f"a TTL is 0 (none) to {TTL_MS_MAX} ms")
    try:
        names.check_schema(schema, known)
    except InvalidInput as error:
        return q.ErrorReply(error.code, error.what, error.next_step)
    return None

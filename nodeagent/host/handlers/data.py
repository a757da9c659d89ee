"""Requests to a replica of a data group."""

from functools import partial

from nodeagent.data import commands
from nodeagent.host.context import Context
from nodeagent.host.data_replica import DataReplica
from nodeagent.host.handlers import files, lists, scans, writes
from nodeagent.host.handlers.probes import answer_probe
from nodeagent.host.handlers.refusals import blind, not_leader, stopped
from nodeagent.host.repairs import Repairs
from nodeagent.host.replicas import Replicas
from nodeagent.host.session_parts import SealWaits, sealed_part
from nodeagent.model import requests as q
from nodeagent.model.ids import META, GroupId

Data = (q.Write | q.Propose | q.ScanRows | q.ListPartitions | q.DeleteRows | q.OpenSession | q.CheckFiles) | (
    (q.GetManifest | q.GetWriteRates | q.CloseAll | q.RepairFile | q.ExportFiles | q.OpenSource)
    | (q.GetSealedSessions | q.ProbeGroup)
)
"""The most frequent requests first. The union is built once, because building it for every request would cost
more than all other checks."""


class DataRequests:
    def __init__(self, context: Context, replicas: Replicas, repairs: Repairs, seal_waits: SealWaits) -> None:
        self._context = context
        self._effects = context.effects
        self._replicas = replicas
        self._cluster = replicas.cluster
        self._repairs = repairs
        self._seal_waits = seal_waits

    def answer(self, token: int, request: Data) -> None:
        node = self._context.node
        if META in self._replicas.damaged:
            return self._effects.reply(token, blind(node, self._replicas.damaged[META]))
        replica = self._replicas.data.get(request.group)
        if replica is None:
            return self._effects.reply(token, self._absent(request.group))
        if replica.stopped:
            return self._effects.reply(token, stopped(node, replica))
        refusal = self._check_bounds(request)
        if refusal is not None:
            return self._effects.reply(token, refusal)
        return self._of_replica(token, replica, request)

    def _absent(self, group: GroupId) -> q.ErrorReply:
        damage = self._replicas.damaged.get(group)
        if damage and group not in self._replicas.awaiting_meta_state:
            return q.ErrorReply("log_corrupt", damage, "nodeagent log check DIR")
        what = f"{self._context.node} holds no replica of group {group}"
        return q.ErrorReply("unavailable", what, "refresh the partition table")

    def _of_replica(self, token: int, replica: DataReplica, request: Data) -> None:
        cluster, new_id = self._cluster, self._context.new_id
        match request:
            case q.Write():
                replica.sessions.on_used(request.session)
                writes.on_write(cluster, replica, token, request)
            case q.DeleteRows():
                replica.sessions.on_used(request.session)
                writes.on_delete(cluster, replica, token, request)
            case q.Propose():
                payloads = request.payloads or (b"",)
                replica.propose([commands.encode(commands.Opaque(p)) for p in payloads], token)
            case q.OpenSession():
                self._open_session(token, replica)
            case q.ScanRows():
                scans.on_scan(cluster, replica, token, request)
            case q.ListPartitions():
                lists.on_list(cluster, replica, token, request)
            case q.GetManifest():
                files.on_manifest(self._effects, replica, token, request)
            case q.GetWriteRates():
                rates = replica.state.writes.rates.bytes_per_s(self._effects.now)
                self._effects.reply(token, q.WriteRatesReply(tuple(rates.items())))
            case q.CloseAll():
                files.on_close_all(self._effects, replica, token, request)
            case q.CheckFiles():
                files.on_check(self._effects, replica, token, request)
            case q.RepairFile():
                self._repairs.start(token, replica, request)
            case q.ExportFiles():
                files.on_export(self._effects, replica, token, request, new_id())
            case q.OpenSource():
                files.on_open_source(self._effects, replica, token, request, new_id())
            case q.GetSealedSessions(wait=True):
                sealed = self._effects.guarded(token, type(request).__name__, self._sealed_sessions)
                answer = partial(sealed, token, replica, request)
                self._seal_waits.add(replica, request.operation, answer)
            case q.GetSealedSessions():
                self._sealed_sessions(token, replica, request)
            case q.ProbeGroup():
                answer_probe(self._effects, token, replica)

    def _open_session(self, token: int, replica: DataReplica) -> None:
        if not replica.leads:
            return self._effects.reply(token, not_leader(replica))
        replica.propose([commands.encode(commands.OpenSession())], token)
        return None

    def _sealed_sessions(self, token: int, replica: DataReplica, request: q.GetSealedSessions) -> None:
        part = sealed_part(replica, request.operation, request.part)
        if not part:
            what = f"{request.group} has no part {request.part} of the sessions of {request.operation} here"
            return self._effects.refuse(token, "not_found", what, "ask another member")
        return self._effects.reply(token, q.SealedSessions(part))

    def _check_bounds(self, request: Data) -> q.ErrorReply | None:
        """Refuse slots and numbers out of range, which no correct client sends: later code expands the slots
        and calculates with the numbers."""
        settings = self._cluster.meta.image.settings
        slots = getattr(request, "slots", ())
        limit = settings.slots if settings is not None else 0
        if slots and (any(not 0 <= a < b <= limit for a, b in slots) or sum(b - a for a, b in slots) > limit):
            what = f"slots must be non-empty ranges within [0, {limit}), with at most {limit} slots in total"
            return q.ErrorReply("invalid_input", what)
        if isinstance(request, q.ScanRows) and not _is_place(request):
            what = "a read's positions and limit must not be negative, and its keys must have a value per tag"
            return q.ErrorReply("invalid_input", what)
        if (
            isinstance(request, q.Write | q.DeleteRows)
            and not 0 <= request.acknowledged_through < request.sequence
        ):
            what = "sequences begin at 1, and `acknowledged_through` must be in [0, sequence)"
            return q.ErrorReply("invalid_input", what)
        return None


def _is_place(request: q.ScanRows) -> bool:
    """Whether the read begins and ends where a page can, without negative numbers."""
    tags = len(request.spec.schema.tags)
    places = [place for place in (request.after, request.until) if place is not None]
    return min(request.cursor, request.limit, *(p.position for p in places), 0) == 0 and all(
        p.key is None or len(p.key.tags) == tags for p in places
    )

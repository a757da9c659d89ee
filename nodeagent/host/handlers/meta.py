"""Requests to a replica of the meta group. Its leader answers requests for changes (`leading`)."""

from collections.abc import Callable

from nodeagent.host.admission import Admission
from nodeagent.host.context import Context
from nodeagent.host.freshness import confirmed_text
from nodeagent.host.handlers.leading import Leading, MetaLeader
from nodeagent.host.handlers.meta_recovery import MetaRecovery
from nodeagent.host.handlers.probes import answer_probe
from nodeagent.host.handlers.refusals import blind, job_error, stopped
from nodeagent.host.handlers.views import audit_view, meta_view, operation_view, runs_view
from nodeagent.host.meta_replica import MetaReplica
from nodeagent.host.replicas import Replicas
from nodeagent.model import requests as q
from nodeagent.model.features import Feature
from nodeagent.model.ids import META, NodeId
from nodeagent.model.jobs import Failed, JobResult

Reading = q.GetMeta | q.GetAudit | q.GetRuns | q.GetOperation
Meta = Reading | q.OfferState | q.BackUpMeta | q.RecoverMeta | Leading


class MetaRequests:
    def __init__(
        self,
        context: Context,
        replicas: Replicas,
        admission: Admission,
        leader: MetaLeader,
        recovery: MetaRecovery,
    ) -> None:
        self._node = context.node
        self._bound_ms = context.config.meta_staleness_max_ms
        self._effects = context.effects
        self._replicas = replicas
        self._cluster = replicas.cluster
        self._admission = admission
        self._leader = leader
        self._recovery = recovery

    def answer(self, token: int, request: Meta) -> None:
        replica = self._cluster.meta_replica
        if META in self._replicas.damaged:
            return self._effects.reply(token, blind(self._node, self._replicas.damaged[META]))
        if replica is None or not self._cluster.id:
            why = ", ".join(self._admission.waiting_for)
            return self._effects.refuse(
                token,
                "unavailable",
                f"the cluster is not formed yet{': waiting for ' + why if why else ''}",
                "start the other seeds",
            )
        if replica.stopped:
            return self._effects.reply(token, stopped(self._node, replica))
        match request:
            case q.GetMeta(strong=True, held=held):
                return self._read(token, replica, "GetMeta", lambda: meta_view(self._node, replica, 0, held))
            case q.GetMeta(any_age=True, held=held):
                return self._effects.reply(token, self._aged_view(replica, held))
            case q.GetMeta(held=held):
                return self._read_bounded(token, replica, held)
            case q.GetAudit():
                return self._read(token, replica, "GetAudit", lambda: audit_view(replica.state))
            case q.GetRuns(run=run):
                return self._read(token, replica, "GetRuns", lambda: runs_view(replica.state, run))
            case q.GetOperation(operation=name):
                return self._read(token, replica, "GetOperation", lambda: operation_view(replica.state, name))
            case q.OfferState():
                return self._offer(token, replica, request)
            case q.BackUpMeta():
                return self._back_up(token, replica)
            case q.RecoverMeta():
                return self._recovery.answer(token, replica, request)
            case _:
                return self._change(token, replica, request)

    def _read(self, token: int, replica: MetaReplica, what: str, answer: Callable[[], q.Reply]) -> None:
        """Answer when the state holds everything acknowledged before the request."""
        effects = self._effects
        then = effects.guarded(token, what, lambda: effects.reply(token, answer()))
        replica.read(then, lambda why: effects.refuse(token, "unavailable", why))

    def _aged_view(self, replica: MetaReplica, held: str) -> q.MetaView:
        return meta_view(self._node, replica, replica.freshness.age_ms, held)

    def _read_bounded(self, token: int, replica: MetaReplica, held: str) -> None:
        """Answer if the state is new enough, now or after a question to the leader."""
        effects, bound_ms = self._effects, self._bound_ms
        then = effects.guarded(token, "GetMeta", lambda: effects.reply(token, self._aged_view(replica, held)))

        def refuse(age_ms: int) -> None:
            what = f"the meta state of {self._node} may be stale: {confirmed_text(age_ms)}; "
            what += f"{bound_ms} ms are allowed"
            reply = q.ErrorReply("unavailable", what, "iotctl meta status", {"age_ms": age_ms})
            effects.reply(token, reply)

        replica.freshness.within(bound_ms, then, refuse)

    def _offer(self, token: int, replica: MetaReplica, request: q.OfferState) -> None:
        effects = self._effects
        if replica.applied_index < request.base:
            what = f"the meta state of this node ends at entry {replica.applied_index}"
            return effects.refuse(token, "unavailable", what)
        return self._make_image(token, replica, request.node, "OfferState")

    def _back_up(self, token: int, replica: MetaReplica) -> None:
        effects = self._effects

        def make() -> None:
            level = replica.state.image.level
            if level >= Feature.IMAGES:
                return self._make_image(token, replica, self._node, "BackUpMeta")
            what = f"no image was made: this needs feature level {Feature.IMAGES}; the cluster is at {level}"
            return effects.refuse(token, "refused", what, "iotctl cluster finalize-upgrade")

        then = effects.guarded(token, "BackUpMeta", make)
        return replica.read(then, lambda why: effects.refuse(token, "unavailable", why))

    def _make_image(self, token: int, replica: MetaReplica, node: NodeId, what: str) -> None:
        """Make an image of the applied state for `node`, and offer it."""
        effects = self._effects
        if replica.installing or replica.rebasing:
            return effects.refuse(token, "unavailable", "the meta state of this node is being replaced")

        def made(name: str, index: int, result: JobResult) -> None:
            failed = isinstance(result, Failed)
            effects.reply(token, job_error(result) if failed else q.StateOffered(name, index))

        return replica.snapshots.make_once(node, effects.guarded(token, what, made))

    def _change(self, token: int, replica: MetaReplica, request: Leading) -> None:
        if replica.leads:
            return self._leader.answer(token, replica, request)
        leader = replica.raft.leader
        return self._effects.reply(
            token,
            q.ErrorReply(
                "not_leader",
                "this node does not lead the meta group",
                f"ask {leader}" if leader else "retry shortly",
                {"leader": leader, "group": META},
            ),
        )

    def probe(self, token: int) -> None:
        replica = self._cluster.meta_replica
        if replica is None:
            return self._effects.refuse(token, "unavailable", "this node has no replica of the meta group")
        return answer_probe(self._effects, token, replica)

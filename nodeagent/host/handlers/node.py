"""Requests to the node itself."""

from nodeagent.host.admission import Admission, check_status
from nodeagent.host.cluster import Cluster
from nodeagent.host.context import Context
from nodeagent.host.operations import Operations
from nodeagent.model import requests as q

Node = q.SetFailpoints | q.PullUnit


class NodeRequests:
    def __init__(
        self, context: Context, cluster: Cluster, admission: Admission, operations: Operations
    ) -> None:
        self._context = context
        self._cluster = cluster
        self._admission = admission
        self._operations = operations

    def check_status(self, token: int, request: q.CheckStatus) -> None:
        """Answer in every state of the node, because the answer contains that state."""
        context, is_ready = self._context, not self._admission.refused
        cluster = self._cluster
        reply = check_status(
            context.config, context.incarnation, cluster.meta, is_ready, request, cluster.first_config
        )
        context.effects.reply(token, reply)

    def answer(self, token: int, request: Node) -> None:
        match request:
            case q.SetFailpoints():
                refusal = self._operations.failpoints.set(request.points)
                self._context.effects.reply(token, refusal or q.Accepted())
            case q.PullUnit():
                op = self._cluster.meta.operations.open()
                fits = op if op is not None and op.id == request.operation else None
                self._operations.slot_copier.order(fits, request.group, request.slots, token)

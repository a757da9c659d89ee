"""Passes each request to the class that answers it. Every request gets exactly one reply."""

from typing import assert_never

from nodeagent.host.admission import Admission
from nodeagent.host.effect_queue import EffectQueue
from nodeagent.host.handlers.data import Data, DataRequests
from nodeagent.host.handlers.meta import Meta, MetaRequests
from nodeagent.host.handlers.node import Node, NodeRequests
from nodeagent.host.own_membership import OwnMembership
from nodeagent.model import requests as q
from nodeagent.model.errors import InvariantBroken
from nodeagent.model.ids import META


class Handlers:
    def __init__(
        self,
        effects: EffectQueue,
        admission: Admission,
        own_membership: OwnMembership,
        meta: MetaRequests,
        data: DataRequests,
        node: NodeRequests,
    ) -> None:
        self._effects = effects
        self._admission = admission
        self._own_membership = own_membership
        self._meta = meta
        self._data = data
        self._node = node

    def on_request(self, token: int, request: q.Request) -> None:
        """Answer a request; the peer's rights are already checked (`runtime.rights`)."""
        try:
            self._answer(token, request)
        except InvariantBroken:
            raise
        except Exception as error:
            self._effects.failed(token, type(request).__name__, error)

    def _answer(self, token: int, request: q.Request) -> None:
        if isinstance(request, q.CheckStatus):
            return self._node.check_status(token, request)
        if self._admission.refused:
            return self._effects.refuse(token, "refused", self._admission.refused)
        if self._own_membership.fenced_reason:
            return self._effects.refuse(
                token, "unavailable", self._own_membership.fenced_reason, "ask another node"
            )
        if isinstance(request, Data):
            if isinstance(request, q.ProbeGroup) and request.group == META:
                return self._meta.probe(token)
            return self._data.answer(token, request)
        if isinstance(request, Meta):
            return self._meta.answer(token, request)
        if isinstance(request, Node):
            return self._node.answer(token, request)
        if isinstance(request, q.OfShell):
            return self._effects.refuse(token, "invalid_input", "the shell answers this request")
        assert_never(request)

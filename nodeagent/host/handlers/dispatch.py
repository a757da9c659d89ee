"""Passes each request to the class that answers it. Every request gets exactly one reply."""

from typing import assert_never

from nodeagent.host.admission import Admission
from nodeagent.host.desk import Desk
from nodeagent.host.handlers.data import Data, DataRequests
from nodeagent.host.handlers.meta import Meta, MetaRequests
from nodeagent.host.handlers.node import Node, NodeRequests
from nodeagent.host.own_standing import OwnStanding
from nodeagent.model import requests as q
from nodeagent.model.errors import InvariantBroken
from nodeagent.model.ids import META


class Handlers:
    def __init__(
        self,
        desk: Desk,
        admission: Admission,
        own_standing: OwnStanding,
        meta: MetaRequests,
        data: DataRequests,
        node: NodeRequests,
    ) -> None:
        self._desk = desk
        self._admission = admission
        self._own_standing = own_standing
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
            self._desk.failed(token, type(request).__name__, error)

    def _answer(self, token: int, request: q.Request) -> None:
        if isinstance(request, q.CheckStatus):
            return self._node.check_status(token, request)
        if self._admission.refused:
            return self._desk.refuse(token, "refused", self._admission.refused)
        if self._own_standing.outcast:
            return self._desk.refuse(token, "unavailable", self._own_standing.outcast, "ask another node")
        if isinstance(request, Data):
            if isinstance(request, q.ProbeGroup) and request.group == META:
                return self._meta.probe(token)
            return self._data.answer(token, request)
        if isinstance(request, Meta):
            return self._meta.answer(token, request)
        if isinstance(request, Node):
            return self._node.answer(token, request)
        if isinstance(request, q.OfShell):
            return self._desk.refuse(token, "invalid_input", "the shell answers this request")
        assert_never(request)

"""The lease of an operation: while one lives, the agents leave the order of pulls to its owner.

It is renewed by a thread at a third of its life. When the driver dies it lapses and the agents go on
by themselves; so losing it loses nothing but the order.
"""

import threading
from types import TracebackType
from typing import Self

from iotctl.pipeline.link import Cluster, expect
from nodeagent.model.errors import Busy, NodeAgentError, Refused
from nodeagent.model.operation import Operation
from nodeagent.model.requests import OperationReply, Steer

TTL_MS = 30_000
RENEWALS_PER_TTL = 3


class HeldLease:
    """Held from `__enter__` to `__exit__`; `lost` names why it is not held any more."""

    def __init__(self, cluster: Cluster, operation: str, by: str, owner: str) -> None:
        self._cluster = cluster
        self._operation = operation
        self._by = by
        self._owner = owner
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self.lost = ""

    def __enter__(self) -> Self:
        """Raises `Busy` when someone else holds it."""
        self._steer("lease")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self.lost:
            return
        try:
            self._steer("unlease")
        except NodeAgentError as failure:
            self.lost = f"not given back, lapses by itself: {failure.what}"

    def _renew(self) -> None:
        while not self._over.wait(TTL_MS / 1000 / RENEWALS_PER_TTL):
            try:
                self._steer("lease")
            except (Busy, Refused) as error:
                self.lost = error.what
                return
            except NodeAgentError:
                continue  # the next renewal is still in time

    def _steer(self, verb: str) -> Operation:
        request = Steer(self._operation, verb, self._by, owner=self._owner, ttl_ms=TTL_MS)
        return expect(self._cluster.call_meta(request), OperationReply).operation

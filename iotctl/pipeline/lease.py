"""The lease of an operation: while it is held, the agents leave the order of pulls to its owner.

If the driver dies, the lease expires and the agents continue on their own, so only the order is lost.
"""

from types import TracebackType
from typing import Self

from iotctl.pipeline.link import Cluster, expect
from iotctl.renewal import Renewal
from nodeagent.model.errors import Busy, NodeAgentError, Refused
from nodeagent.model.operation import Operation
from nodeagent.model.requests import ControlOperation, OperationReply

TTL_MS = 30_000


def _is_lost(error: NodeAgentError) -> bool:
    return isinstance(error, Busy | Refused)


class HeldLease:
    """The lease, held from `__enter__` to `__exit__`; `lost` says why it is no longer held."""

    def __init__(self, cluster: Cluster, operation: str, by: str, owner: str) -> None:
        self._cluster = cluster
        self._operation = operation
        self._by = by
        self._owner = owner
        self._renewal = Renewal(lambda: self._control("lease"), TTL_MS, "lease", _is_lost)
        self._not_released = ""

    @property
    def lost(self) -> str:
        return self._renewal.lost or self._not_released

    def __enter__(self) -> Self:
        """Raises `Busy` if another job holds the lease."""
        self._control("lease")
        self._renewal.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._renewal.__exit__(kind, error, trace)
        if self.lost:
            return
        try:
            self._control("unlease")
        except NodeAgentError as failure:
            self._not_released = f"not released, expires by itself: {failure.what}"

    def _control(self, verb: str) -> Operation:
        request = ControlOperation(self._operation, verb, self._by, owner=self._owner, ttl_ms=TTL_MS)
        return expect(self._cluster.call_meta(request), OperationReply).operation

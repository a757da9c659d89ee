"""Begin, control and watch changes of the cluster. The operation itself is stored in the meta group."""

import asyncio
from collections.abc import Callable

import msgspec

from nodeagent.client.calls import Calls
from nodeagent.model.errors import NodeAgentError, NotFound, OutcomeUnknown, Unavailable
from nodeagent.model.operation import Operation
from nodeagent.model.requests import BeginChange, ControlOperation, GetOperation, OperationReply

POLL_S = 0.2

Until = Callable[[Operation], bool]
OnProgress = Callable[[Operation], None]


def has_ended(operation: Operation) -> bool:
    return operation.ended


class Changes:
    """Operations that change the cluster (see the module)."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def begin(self, change: BeginChange) -> Operation:
        """Start a change.

        If the answer is lost, the request is not retried, because that could start a second change: the
        meta group is asked whether it has the operation.

        Raises:
            Busy, Refused: nothing changed.
            OutcomeUnknown: no such operation was found (none exists yet, or the meta group did not answer);
                it may still begin.
        """
        view = await self._calls.views.meta()
        before = {o.id for o in view.operations}
        try:
            reply = await self._calls.ask_meta(change)
        except OutcomeUnknown as error:
            found = await self._begun(change, before)
            if found is None:
                asked = f"{change.kind} {change.node}".rstrip()
                raise OutcomeUnknown(
                    f"{asked} was sent; it is not known whether it began: {error.what}",
                    next_step="iotctl ops list",
                ) from error
            return found
        assert isinstance(reply, OperationReply), reply
        return reply.operation

    async def _begun(self, change: BeginChange, before: set[str]) -> Operation | None:
        try:
            view = await self._calls.views.meta(strong=True)
        except NodeAgentError:
            return None
        for operation in view.operations:
            same = (operation.kind, operation.node, operation.by) == (change.kind, change.node, change.by)
            if same and operation.id not in before:
                return operation
        return None

    async def control(self, control: ControlOperation) -> Operation:
        """Control an open operation; every action is safe to repeat."""
        reply = await self._calls.ask_meta(control)
        assert isinstance(reply, OperationReply), reply
        return reply.operation

    async def operation(self, operation: str, strong: bool = True) -> Operation:
        """The full record of an operation. Raises `NotFound` (unless `strong`, also of a node that lags)."""
        view = await self._calls.views.meta(strong)
        for candidate in view.operations:
            if candidate.id == operation:
                return await self._whole(operation) if candidate.is_short else candidate
        raise NotFound(f"there is no operation {operation}", next_step="iotctl ops list")

    async def _whole(self, operation: str) -> Operation:
        reply = await self._calls.ask_meta(GetOperation(operation))
        assert isinstance(reply, OperationReply), reply
        return reply.operation

    async def wait(
        self,
        operation: str,
        *,
        until: Until = has_ended,
        on_progress: OnProgress | None = None,
        timeout_s: float | None = None,
    ) -> Operation:
        """The operation once `until` holds; `on_progress` is called whenever its record changes.

        Polling continues while the cluster does not answer: the operation does not depend on the client.

        Raises:
            Unavailable: `timeout_s` has passed; the operation continues.
            NotFound: there is no such operation, or the node that answered has not applied its begin yet.
        """
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + timeout_s
        shown = b""
        silence: Unavailable | None = None
        while True:
            try:
                current = await self.operation(operation, strong=False)
            except Unavailable as error:
                silence = error
            else:
                silence = None
                state = msgspec.msgpack.encode(current)
                if on_progress is not None and state != shown:
                    on_progress(current)
                shown = state
                if until(current):
                    return current
            if end is not None and loop.time() >= end:
                what = silence.what if silence else "the awaited state is not reached yet"
                raise Unavailable(
                    f"waited {timeout_s:g} s for {operation}: {what}; the operation continues",
                    next_step=f"iotctl ops wait {operation}",
                )
            await asyncio.sleep(POLL_S)

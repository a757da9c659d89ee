"""Requests every slot until it is answered once, by the group that serves it.

A request goes to the groups in *legs*: one group and the slots it serves according to our routes. A leg
counts only if the node answered from a table version in which the group serves all of these slots. Otherwise,
and after any error that is not `FINAL`, its slots are routed and requested again until the deadline passes
without progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from nodeagent.client.calls import Calls
from nodeagent.client.deadline import Deadline, pause
from nodeagent.client.retry import Backoff
from nodeagent.client.routes import Leg, mask_of_ranges
from nodeagent.model.errors import Damaged, Forbidden, InvalidInput, NodeAgentError, Unavailable

if TYPE_CHECKING:
    from nodeagent.client.routes import Mask

LEGS_MAX = 8
"""Groups asked concurrently."""

FINAL = (InvalidInput, Forbidden)
"""Errors that a retry would only repeat."""

_T = TypeVar("_T")
Ask = Callable[[Leg, Deadline], Awaitable[tuple[int, _T]]]
"""Asks one leg: (table version of the answering node, answer). Progress extends the deadline."""


@dataclass(frozen=True, slots=True)
class _Answer(Generic[_T]):
    value: _T


class Cover:
    """Requests legs until every slot is answered (see the module)."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def answers(self, wanted: Mask, ask: Ask[_T]) -> AsyncIterator[tuple[Leg, _T]]:
        """Request every slot of `wanted` until it is answered once (see the module).

        Raises:
            Unavailable: some slots were not answered; it names the last error.
            Damaged: the same, if the last error is `Damaged`.
        """
        pending = wanted.copy()
        deadline = Deadline(self._calls.timeout_s)
        backoff = Backoff(self._calls.rng)
        while pending.any():
            last: NodeAgentError | None = None
            room = asyncio.Semaphore(LEGS_MAX)
            legs = (await self._calls.views.current()).legs(pending)
            tasks = [asyncio.create_task(self._try_leg(leg, ask, deadline, room)) for leg in legs]
            try:
                for next_done in asyncio.as_completed(tasks):
                    leg, answer = await next_done
                    if isinstance(answer, NodeAgentError):
                        last = answer
                        continue
                    pending &= ~mask_of_ranges(leg.slots, pending.size)
                    deadline.extend()
                    backoff = Backoff(self._calls.rng)
                    yield leg, answer.value
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if not pending.any():
                return
            assert last is not None
            if deadline.passed:
                raise self.missing(pending, last) from last
            await pause(backoff.delay_s(), deadline)
            await self._calls.views.refresh()

    async def check_version(self, leg: Leg, version: int) -> None:
        """Raise `Unavailable` unless the group serves the leg's slots in table version `version`."""
        if version == leg.version:
            return
        routes = self._calls.views.at_version(version)
        if routes is None and version > leg.version:
            await self._calls.views.refresh()
            routes = self._calls.views.at_version(version)
        if routes is None or not routes.owns(leg.group.group, leg.slots):
            raise Unavailable(
                f"{leg.group.group} answered from table version {version};"
                f" the request was routed by version {leg.version}"
            )

    def missing(self, pending: Mask, last: NodeAgentError) -> NodeAgentError:
        if isinstance(last, Damaged):
            return last
        slots = np.flatnonzero(pending)
        return Unavailable(
            f"{slots.size} slots were not answered (first: slot {int(slots[0])}): {last.what}",
            next_step="see `iotctl cluster status`",
            slots=int(slots.size),
        )

    async def _try_leg(
        self, leg: Leg, ask: Ask[_T], deadline: Deadline, room: asyncio.Semaphore
    ) -> tuple[Leg, _Answer[_T] | NodeAgentError]:
        async with room:
            try:
                version, value = await ask(leg, deadline)
                await self.check_version(leg, version)
            except FINAL:
                raise
            except NodeAgentError as error:
                return leg, error
        return leg, _Answer(value)

"""The real client in a simulated cluster: its event loop runs on the simulation's clock, and its link is the
simulation's network."""

import asyncio
import math
import random
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

import msgspec

from nodeagent.client.cluster import Cluster
from nodeagent.client.link import not_connected
from nodeagent.model.errors import OutcomeUnknown
from nodeagent.model.ids import NodeId
from nodeagent.model.requests import ErrorReply, MetaView, Reply, Request
from nodeagent.testing.node import SimNode
from nodeagent.testing.sim import CLIENT, LATE_MS, Sim
from nodeagent.wire.faults import to_error

FOREVER_MS = 3_600_000
ODD, ODD_S = 0.002, 3.0
"""Probability per answer that its node begins to give odd answers, and the longest time for which it does."""

LOOK_S = 0.2
"""How often a call checks that the node still runs."""

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class SimLoop(asyncio.SelectorEventLoop):
    """An event loop that runs the simulation, instead of waiting, until a reply arrives or a timer is due."""

    def __init__(self, sim: Sim[SimNode]) -> None:
        self.sim = sim
        self.woken = False
        """Whether a reply arrived."""

        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.sim.now / 1000

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Ts], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Round future deadlines up to the next millisecond. The clock advances only while all tasks wait, so
        a deadline within the resolution of asyncio would wake its task again and again."""
        if when > self.time():
            when = max(self.sim.now + 1, math.ceil(when * 1000 - 1e-6)) / 1000
        return super().call_at(when, callback, *args, context=context)


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        loop = self._loop
        if timeout is None or timeout > 0:
            loop.woken = False
            wait_ms = FOREVER_MS if timeout is None else max(1, math.ceil(timeout * 1000 - 1e-6))
            loop.sim.run(lambda: loop.woken, wait_ms)
            assert loop.woken or timeout is not None, "no reply can arrive any more, and no timer is set"
        return super().select(0)


class SimLink:
    """`client.link.Link` over the simulated network. A node that does not run refuses connections.

    If the network would lose a message, the connection breaks, before or after the node received the request.

    Args:
        odd: probability that a node begins to give answers that this release does not know, or that come from
            another cluster, for at most `ODD_S` seconds.
    """

    def __init__(self, sim: Sim[SimNode], loop: SimLoop, odd: float = 0.0) -> None:
        self._sim = sim
        self._loop = loop
        self._odd = odd
        self._odd_until: dict[str, float] = {}
        self._known: dict[NodeId, tuple[str, int]] = {}

    def learn(self, target: str, host: str, port: int) -> None:
        self._known[target] = (host, port)

    def where(self, target: str) -> tuple[str, int] | None:
        return self._known.get(target)

    def known(self) -> list[str]:
        return list(self._known)

    async def call(self, target: str, request: Request, timeout_s: float) -> Reply:
        node = self._sim.nodes.get(target)
        if node is None or not node.alive:
            raise not_connected(f"{target} refuses connections")
        sim, life = self._sim, node.life
        is_lost = sim.rng.random() < sim.faults.drop
        until = self._loop.time() + min(timeout_s, sim.rng.random() if is_lost else timeout_s)
        answer: asyncio.Future[Reply] = self._loop.create_future()

        def finish(reply: Reply) -> None:
            if not (answer.done() or is_lost):
                answer.set_result(reply)
                self._loop.woken = True

        def back(reply: Reply) -> None:
            sim.at(sim.between(sim.faults.delay_ms), lambda: finish(reply))

        def serve(at: SimNode) -> None:
            if at.life == life:
                at.serve(CLIENT, request, back)

        if not is_lost:
            sim.hand(target, serve)
        elif sim.rng.random() < 0.5:  # the request was in a buffer when the connection broke
            sim.at(sim.rng.choice((0, 1, 1)) * sim.rng.randint(0, LATE_MS), lambda: sim.hand(target, serve))
        while self._loop.time() < until and node.alive and node.life == life:
            await asyncio.wait([answer], timeout=min(LOOK_S, until - self._loop.time()))
            if answer.done():
                reply = answer.result()
                if self._is_odd(target):
                    reply = _odd(reply)
                if isinstance(reply, ErrorReply):
                    raise to_error(reply)
                return reply
        raise OutcomeUnknown(f"no answer from {target}, or the connection to it was lost")

    def _is_odd(self, target: str) -> bool:
        now, rng = self._loop.time(), self._sim.rng
        if self._odd and rng.random() < self._odd:
            self._odd_until[target] = now + ODD_S * rng.random()
        return now <= self._odd_until.get(target, -1.0)

    async def close(self) -> None:
        pass


def _odd(reply: Reply) -> Reply:
    """The odd answer that replaces `reply`; the request was served."""
    if isinstance(reply, MetaView):
        return msgspec.structs.replace(reply, cluster_id="another", applied=reply.applied + 1_000)
    return ErrorReply("of_a_newer_release", "something that this release does not know")


class SimCluster(Cluster):
    """A client whose knowledge of the cluster can be checked."""

    _applied = 0
    _cluster_id = ""
    _versions: Mapping[tuple[str, str], int] = {}

    def look(self) -> None:
        """Check that the client's knowledge of the cluster never goes backwards (S14)."""
        routes = self._calls.views.routes
        if routes is None:
            return
        view = routes.view
        assert view.applied >= self._applied, (
            f"S14: a client knew index {self._applied} and now uses {view.applied}"
        )
        self._applied = view.applied
        of_one = view.cluster_id == self._cluster_id or not self._cluster_id
        assert of_one, f"S14: a client of {self._cluster_id} uses a view of {view.cluster_id}"
        self._cluster_id = view.cluster_id
        versions = {(s.storage_group, s.table): s.version for s in self._calls.views.known_schemas()}
        back = [name for name, known in self._versions.items() if versions.get(name, known) < known]
        assert not back, f"S14: a client uses older schemas of {back}"
        self._versions = versions


def client_of(
    sim: Sim[SimNode], loop: SimLoop, nodes: list[NodeId], timeout_s: float, odd: float = 0.0
) -> SimCluster:
    """A client that knows the addresses of `nodes`; `odd` as in `SimLink`."""
    link = SimLink(sim, loop, odd)
    for node in nodes:
        link.learn(node, node, 1)
    return SimCluster(link, timeout_s=timeout_s, rng=random.Random(sim.rng.getrandbits(64)))


def run_in(sim: Sim[SimNode], main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` to completion on the simulation's clock."""
    with asyncio.Runner(loop_factory=lambda: SimLoop(sim)) as runner:
        return runner.run(main)

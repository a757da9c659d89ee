"""Clients of the Raft groups in `swarm`: they count and read, and note the replies."""

from collections.abc import Callable
from typing import TypeVar

from nodeagent.model.ids import GroupId
from nodeagent.model.requests import ErrorReply, Reply, Written
from nodeagent.testing.groups import GroupNode
from nodeagent.testing.sim import CLIENT, Sim
from nodeagent.testing.swarm_plan import Plan

A = TypeVar("A")

DEFINITE = ("not_leader", "overloaded", "refused", "invalid_input")
"""Error codes that mean that the command was not accepted and never will be (S18)."""


class Histories:
    """Requests of the clients and their replies. Every client counts upwards, so a number implies all smaller
    ones."""

    def __init__(self) -> None:
        self.asked: dict[tuple[GroupId, str], int] = {}
        self.acked: dict[tuple[GroupId, str], int] = {}
        self.never: set[str] = set()
        """Marks of commands that were definitely refused."""

        self.applied: set[str] = set()
        self.counted = self.reads = self.unknown = self.refused = 0

    def refuse(self, marks: list[str]) -> None:
        """Note that these commands were definitely refused (S18)."""
        found = self.applied.intersection(marks)
        assert not found, f"S18: {found} were definitely refused and are applied"
        self.never.update(marks)


class Client:
    """Counts upwards in one group and reads, with several requests in progress."""

    def __init__(
        self,
        sim: Sim[GroupNode],
        plan: Plan,
        histories: Histories,
        key: tuple[GroupId, str],
        is_calm: Callable[[], bool],
    ) -> None:
        """
        Args:
            key: its group, and its own name.
            is_calm: whether the faults have ended, after which it sends nothing.
        """
        self.sim = sim
        self.key = key
        self.group, self.who = key
        self._histories = histories
        self._is_calm = is_calm
        self._window = plan.window
        self.waiting = 0
        """Requests in progress."""

        self._target = ""
        self._next = 0
        self._pause_ms = 2 * plan.settings.heartbeat_ms
        self._patience_ms = 2 * plan.settings.election_timeout_ms

    def step(self) -> None:
        if self._is_calm():
            return
        rng = self.sim.rng
        if not self._target or rng.random() < 0.02:
            self._target = rng.choice(sorted(self.sim.nodes))
        for _ in range(rng.randint(0, self._window - self.waiting)):
            if rng.random() < 0.25:
                self._read()
            else:
                self._count()
        self.sim.at(rng.randint(1, self._pause_ms), self.step)

    def _once(self, then: Callable[[A | None], None]) -> Callable[[A | None], None]:
        """A function that calls `then` once: with the first answer, or with None at the timeout."""
        answered = False

        def finish(answer: A | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self.waiting -= 1
                then(answer)

        self.waiting += 1
        self.sim.at(self._patience_ms, lambda: finish(None))
        return finish

    def _count(self) -> None:
        histories = self._histories
        numbers = list(range(self._next + 1, self._next + 1 + self.sim.rng.choice([1, 1, 1, 3])))
        self._next = histories.asked[self.key] = numbers[-1]

        def answered(reply: Reply | None) -> None:
            if isinstance(reply, Written):
                histories.counted += len(numbers)
                histories.acked[self.key] = max(numbers[-1], histories.acked.get(self.key, 0))
                return
            assert reply is None or isinstance(reply, ErrorReply)
            leader = reply.details.get("leader") if reply else None
            self._target = leader if isinstance(leader, str) else ""
            histories.refused += is_definite(reply)
            histories.unknown += not is_definite(reply)

        finish = self._once(answered)

        def serve(node: GroupNode) -> None:
            taken: list[str] = []
            refused: list[Reply] = []

            def answer(reply: Reply) -> None:
                if is_definite(reply):
                    refused.append(reply)
                    histories.refuse(taken)
                self.sim.back(node.node, CLIENT, lambda: finish(reply))

            taken += node.count(self.group, self.who, numbers, answer)
            if refused:
                histories.refuse(taken)

        self.sim.carry(CLIENT, self._target, serve)

    def _read(self) -> None:
        histories = self._histories
        floor = histories.acked.get(self.key, 0)
        target = self.sim.rng.choice(sorted(self.sim.nodes))

        def answered(number: int | None) -> None:
            if number is None:
                return
            histories.reads += 1
            asked = histories.asked.get(self.key, 0)
            assert floor <= number <= asked, (
                f"S6: a strong read of {self.key} at {target} returned {number}; {floor} were acknowledged "
                f"before it, {asked} requested"
            )

        finish = self._once(answered)

        def serve(node: GroupNode) -> None:
            node.read(self.group, self.who, lambda n: self.sim.back(node.node, CLIENT, lambda: finish(n)))

        self.sim.carry(CLIENT, target, serve)


def is_definite(reply: Reply | None) -> bool:
    return isinstance(reply, ErrorReply) and reply.code in DEFINITE

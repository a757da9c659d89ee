"""Which starts of other nodes' directories were seen: an older copy of one is not heard. Pure.

Every start of an agent has a number, counted in its directory, and a random nonce. A peer that says a lower
number than it once said, or another nonce for a start that was seen, runs on an older copy of its directory
(a restored backup or snapshot of a machine): it has forgotten votes and entries that it had promised. The
directory that was copied may be in use meanwhile, and is heard as before.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from nodeagent.model.ids import NodeId

STARTS_SPARE = 64
"""Starts of nodes that are no members, or not yet, that are kept at least."""


class Start(msgspec.Struct, array_like=True, frozen=True):
    """`number` 0: a node of the first release, which counts none."""

    node: NodeId
    number: int
    nonce: str


class Starts:
    """The newest start by incarnation, and the incarnations that run on an older copy, with the reason."""

    def __init__(self, newest: Mapping[str, Start]) -> None:
        self.newest = dict(newest)
        self.older: dict[str, str] = {}
        self._by_hello: set[str] = set()
        """Those of `older` of which only a copy was heard: the directory itself may be in use."""

        self.is_saved = True
        """Whether `newest` is on disk as it is here; the shell sees to it."""

    def meet(self, incarnation: str, node: NodeId, number: int, nonces: Sequence[str]) -> str:
        """Note a peer's start. Returns why the peer is not heard, "" when it is.

        Args:
            nonces: of its last starts, this one's last.
        """
        newest = self.newest.get(incarnation)
        is_known = newest is not None and nonces and (number, nonces[-1]) == (newest.number, newest.nonce)
        if is_known and not self.older:
            return ""  # as at nearly every frame
        if not number or not nonces:
            return self.older.get(incarnation, "")
        if newest is not None and not _goes_on_from(newest, number, nonces):
            evidence = f"it is in start {number}, and start {newest.number} of another copy was seen"
            if incarnation not in self.older:
                self._by_hello.add(incarnation)
                self.older[incarnation] = older_sentence(node, evidence)
        elif newest is None or number > newest.number:
            self.newest[incarnation] = Start(node, number, nonces[-1])
            self.is_saved = False
            self._forgive(incarnation)
        elif incarnation in self._by_hello:
            self._forgive(incarnation)
        return self.older.get(incarnation, "")

    def _forgive(self, incarnation: str) -> None:
        self.older.pop(incarnation, None)
        self._by_hello.discard(incarnation)

    def prune(self, members: Collection[str]) -> None:
        """Forget incarnations that left, when there are many."""
        if len(self.newest) > 2 * len(members) + STARTS_SPARE:
            self.newest = {i: start for i, start in self.newest.items() if i in members}


def _goes_on_from(seen: Start, number: int, nonces: Sequence[str]) -> bool:
    """Whether a directory in start `number` had the start that was seen, as far as its nonces go back."""
    back = number - seen.number
    return back >= len(nonces) or (back >= 0 and nonces[-1 - back] == seen.nonce)


def older_sentence(node: NodeId, evidence: str) -> str:
    """Why `node` is not heard until it is replaced."""
    return f"{node} runs on an older copy of its directory: {evidence}; it no longer votes or serves requests"

"""The known starts of other nodes, by which an older copy of a node's directory is recognised and refused.
Pure.

Every start of an agent has a number, counted in its directory, and a random nonce. A peer that sends a lower
number than before, or another nonce for a known start, runs on an older copy of its directory (a restored
backup or machine snapshot): it has forgotten votes and entries that it had promised. The original directory
may still be in use; its messages are accepted as before.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from nodeagent.model.ids import NodeId

STARTS_SPARE = 64
"""Starts of nodes that are not members (any more, or yet) are kept until these are this many more than the
members; then all of them are forgotten."""


class Start(msgspec.Struct, array_like=True, frozen=True):
    """`number` is 0 for a node of the first release, which does not count its starts."""

    node: NodeId
    number: int
    nonce: str


class Starts:
    """The newest start by incarnation, and the incarnations that run on an older copy, with the reason."""

    def __init__(self, newest: Mapping[str, Start]) -> None:
        self.newest = dict(newest)
        self.older: dict[str, str] = {}
        self._by_hello: set[str] = set()
        """Incarnations in `older` of which only a copy was heard: the original directory may be in use."""

        self.is_saved = True
        """Whether `newest` is on disk as it is here; the shell saves it."""

    def meet(self, incarnation: str, node: NodeId, number: int, nonces: Sequence[str]) -> str:
        """Note a peer's start.

        Args:
            nonces: those of its last starts, the current one last.

        Returns:
            Why the peer's messages are refused, "" if they are not.
        """
        newest = self.newest.get(incarnation)
        is_known = newest is not None and nonces and (number, nonces[-1]) == (newest.number, newest.nonce)
        if is_known and not self.older:
            return ""  # as at nearly every frame
        if not number or not nonces:
            return self.older.get(incarnation, "")
        if newest is not None and not _goes_on_from(newest, number, nonces):
            evidence = f"it is in start {number}, but start {newest.number} of another copy is known"
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
        """Forget incarnations that are not members, once there are many."""
        if len(self.newest) > 2 * len(members) + STARTS_SPARE:
            self.newest = {i: start for i, start in self.newest.items() if i in members}


def _goes_on_from(seen: Start, number: int, nonces: Sequence[str]) -> bool:
    """Whether a directory in start `number` went through the known start, as far as its nonces go back."""
    back = number - seen.number
    return back >= len(nonces) or (back >= 0 and nonces[-1 - back] == seen.nonce)


def older_sentence(node: NodeId, evidence: str) -> str:
    """Why messages of `node` are refused as long as they come from the older copy."""
    return f"{node} runs on an older copy of its directory: {evidence}; it no longer votes or serves requests"

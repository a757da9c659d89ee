"""Majorities of the voters."""

from collections.abc import Collection, Mapping, Sequence
from enum import Enum

from nodeagent.model.ids import NodeId


class Verdict(Enum):
    OPEN = "open"
    WON = "won"
    LOST = "lost"


def majority_value(values: Sequence[int]) -> int:
    """Highest number that a majority has reached; `values` holds one number per voter. 0 without voters."""
    if not values:
        return 0
    return sorted(values)[(len(values) - 1) // 2]


def count_votes(voters: Collection[NodeId], votes: Mapping[NodeId, bool]) -> Verdict:
    """Result of an election; only votes of `voters` count."""
    needed = len(voters) // 2 + 1
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if granted >= needed:
        return Verdict.WON
    if len(voters) - refused < needed:
        return Verdict.LOST
    return Verdict.OPEN

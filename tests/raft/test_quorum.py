"""Majorities agree with a simple model."""

import random
from itertools import product

from nodeagent.raft.quorum import Verdict, count_votes, majority_value


def simple_majority(values: list[int]) -> int:
    reached = [v for v in values if 2 * sum(1 for o in values if o >= v) > len(values)]
    return max(reached, default=0)


def test_majority_value_equals_counting_for_each_value() -> None:
    """20 000 random groups of up to nine: the highest value that more than half have reached."""
    draw = random.Random(1)
    for _ in range(20_000):
        values = [draw.randrange(6) for _ in range(draw.randrange(10))]
        assert majority_value(values) == simple_majority(values), values


def test_votes_are_counted_in_every_group_of_up_to_five() -> None:
    """An election is won with more than half of the votes, lost if that is no longer possible, and otherwise
    open."""
    for size in range(1, 6):
        voters = tuple("abcde"[:size])
        for answers in product((True, False, None), repeat=size):
            votes = {v: a for v, a in zip(voters, answers, strict=True) if a is not None}
            yes, no = answers.count(True), answers.count(False)
            expected = Verdict.OPEN
            if 2 * yes > size:
                expected = Verdict.WON
            elif 2 * (size - no) <= size:
                expected = Verdict.LOST
            assert count_votes(voters, votes) is expected, votes


def test_votes_of_others_do_not_count() -> None:
    """The vote of a learner does not count."""
    assert count_votes(("a", "b", "c"), {"a": True, "x": True, "y": True}) is Verdict.OPEN

"""Several questions in one trip, asked of this machine's own shell."""

import time
from collections.abc import Sequence

import pytest

from iotctl.errors import Unreachable
from iotctl.fleet import facts
from iotctl.fleet.asking import Answer, Question, ask
from iotctl.fleet.host import Ran, ThisHost


def test_each_script_finds_its_own_words_and_says_its_own_answers() -> None:
    """Words are never read by the shell; what one script sets, or reads, is not the next one's."""
    odd = "a 'b' $(touch x) \"c\""
    first = Question('mine=1; cat; for word in "$@"; do say word "$word"; done', (odd, "", "-n"))
    second = Question('say count $#; say mine "$mine"; false', ())
    third = Question("say last yes", ())
    one, two, three = ask(ThisHost(), first, second, third)
    assert one.every("word") == (odd, "", "-n") and "count" not in one
    assert (two.number("count"), two.one("mine")) == (0, "") and "mine" in two
    assert three.said == {"last": ["yes"]} and three.one("other") == "" and three.every("other") == ()


def test_what_ends_early_is_no_answer() -> None:
    """Half of the facts would be taken for all of them."""

    class Cut(ThisHost):
        def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 1.0) -> Ran:
            return Ran(137, b"user=bob\nend=0\nuser=", b"Killed")

    with pytest.raises(Unreachable, match="cannot be examined") as caught:
        ask(Cut(), Question("", ()), Question("", ()))
    assert caught.value.why == "Killed"
    for broken in ("exit 3", "say a b; : ${nothing?}; say c d", "( say x y"):
        with pytest.raises(Unreachable, match="cannot be examined"):
            ask(ThisHost(), Question("say fine yes", ()), Question(broken, ()))


class Clock(ThisHost):
    """Its `date` is `ahead_s` ahead of ours; counts how often it is asked for it alone."""

    looks = 0

    def __init__(self, ahead_s: float, nanoseconds: bool = True) -> None:
        self.ahead_s = ahead_s
        self.nanoseconds = nanoseconds

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 1.0) -> Ran:
        self.looks += 1
        now = time.time() + self.ahead_s
        date = f"{now:.9f}" if self.nanoseconds else f"{int(now)}.%N"
        return Ran(0, f"hello\nclock={date}\n".encode(), b"")


def heard(took_s: float, date: str) -> Answer:
    now = time.time()
    return Answer({"clock": [date]}, now - took_s, now)


def test_a_clock_that_is_right_is_not_looked_at_again() -> None:
    """One trip for each machine; its length is how well the clock is known."""
    host = Clock(0.0)
    found = facts.facts_of(heard(0.2, f"{time.time() - 0.2:.9f}"), host, agent=False)
    assert found.clock_ms == pytest.approx(-100, abs=20) and found.clock_error_ms == pytest.approx(100, abs=5)
    assert host.looks == 0


@pytest.mark.parametrize(("took_s", "ahead_s"), [(0.1, 2.0), (0.1, -2.0), (3.0, 0.0)])
def test_a_clock_that_may_be_off_is_looked_at_by_itself(took_s: float, ahead_s: float) -> None:
    """It is, or the machine was too slow to tell."""
    host = Clock(ahead_s)
    found = facts.facts_of(heard(took_s, f"{time.time() + ahead_s:.9f}"), host, agent=False)
    assert host.looks == 3 and found.clock_error_ms < 20
    assert found.clock_ms == pytest.approx(ahead_s * 1e3, abs=20)


def test_without_nanoseconds_half_a_second_is_open() -> None:
    """Some `date` print %N as it stands."""
    found = facts.facts_of(heard(0.02, f"{int(time.time())}.%N"), Clock(0.0, nanoseconds=False), agent=False)
    assert 500 <= found.clock_error_ms < 520 and found.clock_ms is not None
    assert abs(found.clock_ms) <= 520
    assert facts.facts_of(heard(0.02, "?"), Clock(0.0), agent=False).clock_ms is None

"""The pull rate of `auto`."""

from nodeagent.runtime.rate import BUSY_ABOVE, CEILING, EVERY_S, FLOOR, START, AutoRate


class Machine:
    """A machine with two processors and one agent."""

    def __init__(self) -> None:
        self.auto = AutoRate()
        self.now = 1_000.0
        self.rows = 0
        self.idle = 50.0
        self.all = 100.0
        self.pass_time(busy=0.0, rows_per_s=0.0)

    def pass_time(self, *, busy: float, rows_per_s: float, seconds: float = EVERY_S) -> int:
        self.now += seconds
        self.rows += round(rows_per_s * seconds)
        self.idle += 2 * seconds * (1 - busy)
        self.all += 2 * seconds
        assert self.auto.is_due(self.now)
        self.auto.adjust(self.now, self.rows, self.idle, self.all)
        assert not self.auto.is_due(self.now)
        return self.auto.bytes_per_s


def test_a_copy_has_no_limit_while_no_rows_are_requested() -> None:
    machine = Machine()
    assert [machine.pass_time(busy=1.0, rows_per_s=4.0) for _ in range(20)] == [0] * 20


def test_a_copy_slows_down_for_writers_to_the_floor() -> None:
    machine = Machine()
    rates = [machine.pass_time(busy=1.0, rows_per_s=500.0) for _ in range(30)]
    assert rates[0] < START and rates == sorted(rates, reverse=True) and rates[-1] == FLOOR


def test_the_rate_rises_while_processors_are_idle_and_then_settles() -> None:
    machine = Machine()
    rates = [machine.pass_time(busy=0.2, rows_per_s=500.0) for _ in range(40)]
    assert rates == sorted(rates) and rates[-1] == CEILING
    settled = machine.pass_time(busy=BUSY_ABOVE - 0.05, rows_per_s=500.0)
    assert settled == CEILING


def test_a_short_burst_of_work_does_not_hold_the_rate_at_the_floor() -> None:
    machine = Machine()
    for _ in range(10):
        machine.pass_time(busy=1.0, rows_per_s=500.0)
    rates = [machine.pass_time(busy=BUSY_ABOVE - 0.1, rows_per_s=500.0) for _ in range(40)]
    assert rates == sorted(rates) and FLOOR < rates[0] < 1.2 * FLOOR and rates[-1] == START
    assert machine.pass_time(busy=BUSY_ABOVE + 0.05, rows_per_s=500.0) < START


def test_the_rate_has_no_limit_after_the_writers_stop() -> None:
    machine = Machine()
    for _ in range(10):
        machine.pass_time(busy=1.0, rows_per_s=500.0)
    assert machine.pass_time(busy=1.0, rows_per_s=0.0) == 0

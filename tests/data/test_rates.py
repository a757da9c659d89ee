"""Write rates: acknowledged bytes count, older bytes count less, and a slot migration preserves them."""

import pytest

from nodeagent.data import commands as c
from nodeagent.data.rates import HALF_LIFE_MS, REBASE_HALF_LIVES, WriteRates
from nodeagent.model.limits import WRITE_RATES_MAX
from nodeagent.model.requests import Written
from tests.data.test_state import SLOT, Group, P, Q


def steady(rates: WriteRates, slot: int, bytes_per_s: int, from_ms: int, until_ms: int) -> None:
    for now in range(from_ms, until_ms, 1000):
        rates.add(slot, bytes_per_s, now)


def test_a_steady_writer_is_measured() -> None:
    """Slots written at 100 and 300 bytes per second for long enough have these rates."""
    rates = WriteRates()
    for slot, speed in ((1, 100), (2, 300)):
        steady(rates, slot, speed, 0, 8 * HALF_LIFE_MS)
    found = rates.bytes_per_s(8 * HALF_LIFE_MS)
    assert found == pytest.approx({1: 100, 2: 300}, rel=0.01)


def test_a_rate_halves_with_every_half_life_and_is_forgotten() -> None:
    rates = WriteRates()
    rates.add(1, 1_000_000, 5)
    first = rates.bytes_per_s(5)[1]
    assert rates.bytes_per_s(5 + HALF_LIFE_MS)[1] == pytest.approx(first / 2)
    assert not rates.bytes_per_s(5 + 30 * HALF_LIFE_MS)


def test_years_do_not_overflow_and_old_slots_leave_the_memory() -> None:
    """With single bytes over a thousand half-lives, the count stays finite and small."""
    rates = WriteRates()
    for i in range(1000):
        rates.add(i, 10, i * HALF_LIFE_MS)
    assert len(rates.counts) <= 2 * REBASE_HALF_LIVES
    assert rates.bytes_per_s(1000 * HALF_LIFE_MS)[999] > 0


def test_memory_is_bounded_and_the_fastest_slots_are_retained() -> None:
    rates = WriteRates()
    rates.add(-1, 10_000, 0)
    for slot in range(WRITE_RATES_MAX):
        rates.add(slot, 1, 0)
    assert len(rates.counts) <= WRITE_RATES_MAX and -1 in rates.counts


def test_the_counts_of_a_moved_slot_in_two_groups_add_up() -> None:
    """The counts of a moved slot in its old and its new group add up to its rate."""
    stayed, old, new = WriteRates(), WriteRates(), WriteRates()
    half = 3 * HALF_LIFE_MS
    steady(stayed, 1, 50, 0, 2 * half)
    steady(old, 1, 50, 0, half)
    steady(new, 1, 50, half, 2 * half)
    now = 2 * half
    assert old.bytes_per_s(now)[1] + new.bytes_per_s(now)[1] == pytest.approx(stayed.bytes_per_s(now)[1])


def test_only_acknowledged_writes_count() -> None:
    """Duplicates and writes to slots that are not open do not count; a release removes no count."""
    group = Group()
    group.open_session()
    assert isinstance(group.write(P, sequence=1), Written)
    group.write(P, sequence=1)
    once = dict(group.state.writes.rates.counts)
    assert set(once) == {SLOT[P]}
    group.do(c.Seal("op-1", 1, ((SLOT[Q], SLOT[Q] + 1),)))
    group.write(Q)
    assert group.state.writes.rates.counts == once
    group.do(c.Seal("op-2", 1, ((SLOT[P], SLOT[P] + 1),)))
    group.do(c.Release("op-2", 1))
    assert group.state.writes.rates.counts == once

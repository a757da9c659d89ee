"""Converts a file's time column to milliseconds, by a unit and a zone, without silent loss of digits.

Whole numbers are in the unit; other text is ISO 8601; timestamps have their own unit. A time without a zone
is read in `zone`. Digits below a millisecond are refused unless `truncate`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iotctl.errors import InputProblem, UsageProblem
from iotctl.rows.masks import Mask, mask, nulls
from nodeagent.model.limits import TIME_MS_MAX, TIME_MS_MIN

Cast = Callable[[pa.Array, pa.DataType], tuple[pa.Array, Mask]]

AUTO = "auto"
PER_MS = {"us": 1_000, "ns": 1_000_000}

SECONDS_FROM, SECONDS_TO = 315_532_800, 4_102_444_800
"""The years 1980 to 2100 in seconds; as milliseconds, these numbers are in January and February 1970. The
unit of a column is unclear if most of its numbers are in this range. It is also unclear if some are in this
range, some are the same years in milliseconds, and none are between the two ranges: a series in milliseconds
that began in 1970 has times there."""

MS_TO = 10**14
"""More than 3000 years. If most numbers are further from 1970, their unit is shorter than a millisecond."""


class TimeRule(msgspec.Struct, frozen=True):
    """`unit` of whole numbers: auto, s, ms, us or ns; `zone` of times without a zone."""

    unit: str = AUTO
    zone: str = "UTC"
    truncate: bool = False


@dataclass(slots=True)
class Seen:
    """Counts of the kinds of times in a column."""

    naive: int = 0
    """Times without a zone."""

    dates: int = 0
    """Whole numbers that look like a written date, such as 20240501 or 202405011200."""

    numbers: int = 0
    seconds: int = 0
    between: int = 0
    recent: int = 0
    beyond: int = 0
    """`numbers`: all whole numbers; `seconds`: from `SECONDS_FROM` to `SECONDS_TO`; `recent`: the same years
    in milliseconds; `between`: between these two ranges; `beyond`: outside of ±`MS_TO`."""

    def add(self, other: "Seen") -> None:
        self.naive += other.naive
        self.dates += other.dates
        self.numbers += other.numbers
        self.seconds += other.seconds
        self.between += other.between
        self.recent += other.recent
        self.beyond += other.beyond


@dataclass(slots=True)
class Times:
    """`values`: int64 milliseconds, to be ignored where a mask of `bad` is true: they are not always null."""

    values: pa.Array
    bad: list[tuple[Mask, str]]
    seen: Seen = field(default_factory=Seen)


def check_zone(zone: str) -> None:
    """Raises `UsageProblem` for an unknown time zone."""
    try:
        pc.assume_timezone(pa.array([0], pa.timestamp("ms")), zone)
    except pa.ArrowException:
        raise UsageProblem(
            f"time zone {zone!r} is not known", next="write it like Europe/Berlin, +02:00 or UTC"
        ) from None


def check_unit(seen: Seen, rule: TimeRule, *, name: str, where: str) -> None:
    """Raises `InputProblem` if the operator must name the unit of the numbers."""
    if rule.unit != AUTO or not seen.numbers:
        return
    if seen.dates * 2 > seen.numbers:
        raise InputProblem(
            f"{name}: most times look like dates written without separators",
            why="read as milliseconds, they would be different dates",
            next="nothing was written; write times like 2024-05-01T12:00 (or add --time-unit ms)",
            where=where,
        )
    if seen.seconds * 2 > seen.numbers:
        why, unit = "most look like seconds; as milliseconds they would be in January or February 1970", "s"
    elif seen.beyond * 2 > seen.numbers:
        why = "as milliseconds most would be more than 3000 years before or after 1970"
        unit = "us or --time-unit ns"
    elif seen.seconds and seen.recent and not seen.between:
        why = f"{seen.seconds} of {seen.numbers} look like seconds, the others like milliseconds"
        unit = "s"
    else:
        return
    raise InputProblem(
        f"{name}: the unit of the times is not clear",
        why=why,
        next=f"nothing was written; name the unit: --time-unit {unit} (or --time-unit ms)",
        where=where,
    )


def look_like_dates(numbers: npt.NDArray[np.int64]) -> Mask:
    """Which numbers look like a date of the years 1900 to 2199: yyyymmdd, also with hhmm or hhmmss."""
    found = np.zeros(len(numbers), np.bool_)
    for clock in (1, 10**4, 10**6):
        day, rest = np.divmod(numbers, clock)
        month = day // 100 % 100
        of_day = rest if clock == 10**4 else rest // 100
        found |= (
            (day >= 1900_01_01)
            & (day <= 2199_12_31)
            & (month >= 1)
            & (month <= 12)
            & (day % 100 >= 1)
            & (day % 100 <= 31)
            & (of_day < 2400)
            & (of_day % 100 < 60)
            & ((rest % 100 < 60) if clock == 10**6 else True)
        )
    return found


def read_times(column: pa.Array, rule: TimeRule, cast: Cast) -> Times:
    """The column as milliseconds. `cast` casts an array and marks the values that cannot be cast.

    Raises:
        InputProblem: the type of the column cannot hold times.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("ms"))
    if pa.types.is_timestamp(column.type):
        times = _stamps(column, rule)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        times = _texts(column.cast(pa.string()), rule, cast)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        numbers, bad = cast(column, pa.int64())
        times = _numbers(numbers, rule)
        times.bad.append((bad, "not a whole number"))
    elif pa.types.is_null(kind):
        times = Times(pa.nulls(len(column), pa.int64()), [])
    else:
        raise InputProblem(
            f"a column of type {kind} cannot hold times", next="name another column with --time"
        )
    return _within_calendar(times)


def _texts(text: pa.Array, rule: TimeRule, cast: Cast) -> Times:
    trimmed = pc.utf8_trim_whitespace(text)
    whole = pc.match_substring_regex(trimmed, r"^[+-]?\d+$")
    none = pa.scalar(None, pa.string())
    numbers, bad_numbers = cast(pc.if_else(whole, trimmed, none), pa.int64())
    counted = _numbers(numbers, rule)
    # Cutting zeros below a millisecond loses nothing; cutting other digits does.
    iso = pc.replace_substring_regex(
        pc.if_else(whole, none, trimmed), pattern=r"(\.\d{3})0+($|[^\d])", replacement=r"\1\2"
    )
    fine = mask(pc.match_substring_regex(iso, r"\.\d{4}"))
    iso = pc.replace_substring_regex(iso, pattern=r"(\.\d{3})\d+", replacement=r"\1")
    zoned = pc.match_substring_regex(iso, r"\d[ T]?\d\d:?\d\d.*([zZ]|[+-]\d\d(:?\d\d)?)$")
    plain, bad_plain = cast(pc.if_else(zoned, none, iso), pa.timestamp("ms"))
    aware, bad_aware = cast(pc.if_else(zoned, iso, none), pa.timestamp("ms", "UTC"))
    local = _stamps(plain, rule)
    values = pc.coalesce(counted.values, local.values, aware.cast(pa.int64()))
    bad = [(bad_numbers | bad_plain | bad_aware, "neither a whole number of 64 bits nor a time in ISO 8601")]
    bad += [*counted.bad, *local.bad]
    if not rule.truncate:
        bad.append((fine, _BELOW))
    seen = counted.seen
    seen.add(local.seen)
    return Times(values, bad, seen)


_BELOW = "has digits below a millisecond (--truncate-times cuts them)"


def _numbers(numbers: pa.Array, rule: TimeRule) -> Times:
    """Converts numbers from the unit; `auto` is milliseconds, which `check_unit` checks for plausibility."""
    seen = Seen(
        dates=int(np.count_nonzero(look_like_dates(numbers.fill_null(0).to_numpy()))),
        numbers=len(numbers) - numbers.null_count,
        seconds=_count(numbers, SECONDS_FROM, SECONDS_TO),
        between=_count(numbers, SECONDS_TO + 1, SECONDS_FROM * 1000 - 1),
        recent=_count(numbers, SECONDS_FROM * 1000, SECONDS_TO * 1000),
        beyond=len(numbers) - numbers.null_count - _count(numbers, -MS_TO, MS_TO),
    )
    if rule.unit in PER_MS:
        per_ms = PER_MS[rule.unit]
        given = numbers.fill_null(0).to_numpy()
        values = pa.array(np.floor_divide(given, per_ms), mask=nulls(numbers))
        bad = [] if rule.truncate else [(given % per_ms != 0, _BELOW)]
        return Times(values, bad, seen)
    if rule.unit == "s":
        most = TIME_MS_MAX // 1000
        far = mask(pc.or_(pc.greater(numbers, most), pc.less(numbers, -most)))
        kept = pc.if_else(pa.array(far), pa.scalar(0, pa.int64()), numbers)
        return Times(pc.multiply(kept, 1000), [(far, _OUTSIDE)], seen)
    return Times(numbers, [], seen)


def _stamps(column: pa.Array, rule: TimeRule) -> Times:
    """Timestamps of any unit."""
    unit, naive = column.type.unit, column.type.tz is None
    seen = Seen(naive=len(column) - column.null_count if naive else 0)
    bad: list[tuple[Mask, str]] = []
    if unit in PER_MS:
        given = column.cast(pa.int64()).fill_null(0).to_numpy()
        if not rule.truncate:
            bad.append((given % PER_MS[unit] != 0, _BELOW))
        numbers = pa.array(np.floor_divide(given, PER_MS[unit]), mask=nulls(column))
    elif unit == "s":
        times = _numbers(column.cast(pa.int64()), TimeRule("s"))
        numbers, bad = times.values, times.bad
    else:
        numbers = column.cast(pa.int64())
    if naive and rule.zone != "UTC":
        numbers, odd = _localised(numbers, rule.zone)
        bad.append((odd, f"this local time does not exist in {rule.zone}, or exists twice"))
    return Times(numbers, bad, seen)


def _localised(numbers: pa.Array, zone: str) -> tuple[pa.Array, Mask]:
    """UTC of local times, and a mask of those that a clock change skips or repeats."""
    local = numbers.cast(pa.timestamp("ms"))
    early, late = (
        pc.assume_timezone(local, zone, ambiguous=way, nonexistent=way).cast(pa.int64())
        for way in ("earliest", "latest")
    )
    return early, mask(pc.not_equal(early, late))


def _within_calendar(times: Times) -> Times:
    outside = pc.or_(pc.less(times.values, TIME_MS_MIN), pc.greater(times.values, TIME_MS_MAX))
    times.bad.append((mask(outside), _OUTSIDE))
    missing = nulls(times.values)
    known = np.logical_or.reduce([found for found, _ in times.bad])
    times.bad.append((missing & ~known, "no time"))
    return times


_OUTSIDE = "outside the years 1 to 9999"


def _count(numbers: pa.Array, first: int, last: int) -> int:
    inside = pc.and_(pc.greater_equal(numbers, first), pc.less_equal(numbers, last))
    return int(pc.sum(inside).as_py() or 0)

"""The report of a bench: figures with their unit, the floor that they must reach, and the raw limit."""

from collections.abc import Sequence
from statistics import median

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """A figure: `value` is the median of `runs`, `floor` is 0 if none is set, `limit` is the measured
    bound."""

    name: str
    value: float
    unit: str
    runs: tuple[float, ...] = ()
    floor: float = 0.0
    ceiling: float = 0.0
    """Upper bound, for figures such as times."""

    limit: str = ""
    details: dict[str, float] = {}

    @property
    def verdict(self) -> str:
        if self.floor:
            return "ok" if self.value >= self.floor else "BELOW"
        if self.ceiling:
            return "ok" if self.value <= self.ceiling else "ABOVE"
        return ""

    @property
    def judgement(self) -> str:
        """One line for a figure with a floor or an upper bound; "" for any other."""
        if not self.verdict:
            return ""
        bar = f">= {number(self.floor)}" if self.floor else f"<= {number(self.ceiling)}"
        word = "PASS" if self.verdict == "ok" else "FAIL"
        why = f" ({self.limit})" if self.limit else ""
        return f"{word}  {self.name}: {number(self.value)} {self.unit}, wanted {bar}{why}"


class Report(msgspec.Struct, frozen=True):
    """One bench: its workload in words, its figures, how long it took."""

    bench: str
    workload: str
    figures: tuple[Figure, ...]
    seconds: float


def of(
    name: str,
    runs: Sequence[float],
    unit: str,
    *,
    floor: float = 0.0,
    ceiling: float = 0.0,
    limit: str = "",
    details: dict[str, float] | None = None,
) -> Figure:
    return Figure(name, median(runs), unit, tuple(runs), floor, ceiling, limit, details or {})


def number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

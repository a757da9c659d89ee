"""Human-readable numbers; JSON output does not use them."""

from datetime import UTC, datetime, timedelta

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: float | None) -> str:
    """`1.5 GiB`; `-` if unknown."""
    if count is None:
        return "-"
    value = float(count)
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} {_UNITS[-1]}"


def time_text(time_ms: int | None) -> str:
    """RFC 3339 in UTC; `-` if unknown or 0."""
    if not time_ms:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def row_time_text(time_ms: object) -> str:
    """The exact time of a row in RFC 3339 and UTC. Unchanged if it is not an integer, or is outside the years
    1 to 9999."""
    if not isinstance(time_ms, int):
        return str(time_ms)
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:
        return str(time_ms)
    return moment.isoformat(timespec="milliseconds" if time_ms % 1000 else "seconds").replace("+00:00", "Z")


def span_text(seconds: float | None) -> str:
    """`850 ms`, `42 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`; `-` if unknown."""
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    for size, name, lesser_size, lesser in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // lesser_size
            return f"{whole // size} {name} {rest} {lesser}" if rest else f"{whole // size} {name}"
    raise AssertionError("at least a minute")


def count_text(count: int | None) -> str:
    """Digits in groups of three, as in `26 115`; `-` if unknown."""
    return "-" if count is None else f"{count:,}".replace(",", " ")


def or_dash(value: int | None) -> int | str:
    """The number; `-` if unknown."""
    return "-" if value is None else value

"""Durations, rates and sizes in text form."""

import re

from iotctl.errors import UsageProblem

_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `500ms`, `30s`, `10m`, `1h`, `7d`, `2w`.

    Raises:
        UsageProblem: not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)", text.strip())
    if not match:
        raise UsageProblem(f"{text!r} is not a duration", next="write it like 500ms, 30s, 10m, 24h or 7d")
    return _whole(float(match[1]) * _DURATION_MS[match[2]], text)


def parse_rate(text: str) -> int:
    """Bytes per second of `200MB/s`, `200MiB/s`; 0 for `auto`.

    Raises:
        UsageProblem: not a rate.
    """
    if text.strip() == "auto":
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)/s", text.strip())
    if not match or match[2].upper() not in _SIZE or float(match[1]) <= 0:
        raise UsageProblem(f"{text!r} is not a rate", next="write it like 200MB/s, 200MiB/s or auto")
    return _whole(float(match[1]) * _SIZE[match[2].upper()], text)


def _whole(number: float, text: str) -> int:
    if not number < 1 << 62:
        raise UsageProblem(f"{text[:40]!r} is too large", next="use a smaller value")
    return int(number)

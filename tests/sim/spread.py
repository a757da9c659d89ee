"""Which values of a test `make test` runs: it has no time for all of them."""

from collections.abc import Iterable
from typing import Any

import pytest

SPREAD = pytest.mark.spread


def spread(values: Iterable[Any], take: int = 1) -> list[Any]:
    """For `parametrize`: the first `take` values run where the test does, the others in `make spread`."""
    return [
        value if number < take else pytest.param(*_as_tuple(value), marks=SPREAD)
        for number, value in enumerate(values)
    ]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)

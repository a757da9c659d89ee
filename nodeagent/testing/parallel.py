"""One check run on many inputs in a few processes: seeds, or the cases of a table."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


def whys(
    run: Callable[[*Ts], object], jobs: Sequence[tuple[*Ts]], processes: int | None = None
) -> Iterator[str]:
    """Why each job failed, in their order and as soon as it is known; "" for one that passed.

    Args:
        run: a function of a module, so that other processes find it; it fails by `AssertionError`.
        processes: as many as there are processors when None.
    """
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(_why, run), jobs)


def _why(run: Callable[[*Ts], object], job: tuple[*Ts]) -> str:
    try:
        run(*job)
    except AssertionError as error:
        return str(error) or "an assertion without words"
    return ""

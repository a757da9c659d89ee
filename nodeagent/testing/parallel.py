"""One check run on many inputs in a few processes: seeds, or the cases of a table."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar, TypeVarTuple

_Ts = TypeVarTuple("_Ts")
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def results(
    run: Callable[[_Job], _Result], jobs: Sequence[_Job], processes: int | None = None
) -> Iterator[_Result]:
    """What `run` gives for each job, in their order and as soon as it is known. A failure is raised, and ends
    the others.

    Args:
        run: a function of a module that is no `__main__`, so that other processes find it.
        processes: as many as there are processors when None.
    """
    count = max(1, min(processes or os.cpu_count() or 1, len(jobs)))
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        yield from pool.imap(run, jobs)


def whys(
    run: Callable[[*_Ts], object], jobs: Sequence[tuple[*_Ts]], processes: int | None = None
) -> Iterator[str]:
    """Why each job failed, in their order and as soon as it is known; "" for one that passed.

    Args:
        run: as in `results`; it fails by `AssertionError`.
    """
    return results(partial(_why, run), jobs, processes)


def _why(run: Callable[[*_Ts], object], job: tuple[*_Ts]) -> str:
    try:
        run(*job)
    except AssertionError as error:
        return str(error) or "an assertion without words"
    return ""


def print_evidence(evidence: Callable[[int], str]) -> None:
    """What a command line of `FIRST [COUNT]` asks for: a line for each seed, up to the first that fails."""
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print_results(evidence, range(first, first + count))


def print_results(evidence: Callable[[int], str], seeds: Sequence[int]) -> None:
    """A line for each seed, up to the first that fails."""
    for line in results(evidence, seeds):
        print(line, flush=True)

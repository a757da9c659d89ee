"""Run one check on many inputs in several processes: on seeds, or on the cases of a table."""

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
    """Yield the result of each job, in the order of `jobs` and as soon as it is known. A failure is raised
    and ends the other jobs.

    Args:
        run: a function of a module other than `__main__`, so that other processes can import it.
        processes: number of processes; None for one per processor.
    """
    count = max(1, min(processes or os.cpu_count() or 1, len(jobs)))
    with multiprocessing.get_context("spawn").Pool(count) as pool:
        yield from pool.imap(run, jobs)


def whys(
    run: Callable[[*_Ts], object], jobs: Sequence[tuple[*_Ts]], processes: int | None = None
) -> Iterator[str]:
    """Yield why each job failed, "" if it passed, in the order of `jobs` and as soon as it is known.

    Args:
        run: as in `results`; raises `AssertionError` to fail.
    """
    return results(partial(_why, run), jobs, processes)


def _why(run: Callable[[*_Ts], object], job: tuple[*_Ts]) -> str:
    try:
        run(*job)
    except AssertionError as error:
        return str(error) or "an assertion failed without a message"
    return ""


def run_command(result_line: Callable[[int], str]) -> None:
    """Run the seeds that the command line `FIRST [COUNT]` names and print a line for each, up to the first
    that fails."""
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    print_results(result_line, range(first, first + count))


def print_results(result_line: Callable[[int], str], seeds: Sequence[int]) -> None:
    """Print a line for each seed, up to the first that fails."""
    for line in results(result_line, seeds):
        print(line, flush=True)

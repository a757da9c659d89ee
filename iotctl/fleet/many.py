"""Runs the same work on many machines in parallel, in a bounded number of threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from iotctl.errors import Unreachable

A = TypeVar("A")
B = TypeVar("B")

THREADS = 32


def each(
    items: Sequence[A], work: Callable[[A], B], done: Callable[[int], None] = lambda count: None
) -> list[B | Unreachable]:
    """The results in the order of the items; `done` is called with the number of items that are done.

    The result of an unreachable machine is its error; any other error is raised.
    """

    def one(item: A) -> B | Unreachable:
        try:
            return work(item)
        except Unreachable as error:
            return error

    pool = ThreadPoolExecutor(min(THREADS, max(1, len(items))))
    try:
        futures = [pool.submit(one, item) for item in items]
        found = []
        for count, future in enumerate(futures, 1):
            found.append(future.result())
            done(count)
        return found
    finally:
        # After an error or Ctrl-C, waiting items do not start; running items end when their connection does.
        pool.shutdown(wait=False, cancel_futures=True)

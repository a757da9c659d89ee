"""The same work on many machines at once, in a bounded number of threads."""

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
    """What came of each item, in their order; `done` hears how many are over.

    A machine that cannot be reached is its error; any other error ends the whole.
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
        # After an error or Ctrl-C what waits is not begun, and what runs ends with its connection.
        pool.shutdown(wait=False, cancel_futures=True)

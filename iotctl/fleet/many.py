"""The same work on many machines at once, in a bounded number of threads."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from iotctl.errors import IotctlError

A = TypeVar("A")
B = TypeVar("B")

THREADS = 32


def each(
    items: Sequence[A], work: Callable[[A], B], done: Callable[[int], None] = lambda count: None
) -> list[B | IotctlError]:
    """What came of each item, in their order; a failure is its error. `done` hears how many are over."""
    over = 0

    def one(item: A) -> B | IotctlError:
        try:
            return work(item)
        except IotctlError as error:
            return error

    with ThreadPoolExecutor(min(THREADS, max(1, len(items)))) as pool:
        futures = [pool.submit(one, item) for item in items]
        found = []
        for future in futures:
            found.append(future.result())
            over += 1
            done(over)
    return found

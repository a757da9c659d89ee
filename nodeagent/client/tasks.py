"""Helpers for several asyncio tasks at a time."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def begun(call: Coroutine[object, object, _T]) -> asyncio.Task[_T]:
    """A task whose error is ignored if nothing awaits it any more."""
    task = asyncio.create_task(call)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def wait_first(
    tasks: Iterable[asyncio.Task[_T]], timeout_s: float | None = None
) -> list[asyncio.Task[_T]]:
    """Wait until a task is done; return all that are done, in the order given. Empty after `timeout_s`."""
    running = list(tasks)
    if not running:
        await asyncio.sleep(timeout_s or 0)
        return []
    done, _ = await asyncio.wait(running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    return [task for task in running if task in done]


async def run_bounded(jobs: Iterable[Coroutine[object, object, None]], running_max: int) -> None:
    """Run all jobs, `running_max` at a time; the first failure cancels the others and is raised."""
    running: list[asyncio.Task[None]] = []

    async def wait_for_one() -> None:
        done = await wait_first(running)
        for task in done:
            running.remove(task)
        errors = [error for task in done if (error := task.exception()) is not None]
        if errors:
            raise errors[0]

    try:
        for job in jobs:
            running.append(asyncio.create_task(job))
            if len(running) >= running_max:
                await wait_for_one()
        while running:
            await wait_for_one()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

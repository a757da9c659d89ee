"""The event loop in a thread, and the callers that wait for its results."""

import asyncio
import threading
from contextlib import suppress

import pytest

from nodeagent.client import blocking
from nodeagent.client.blocking import LoopThread
from nodeagent.model.errors import OutcomeUnknown, Unavailable


def test_closing_the_client_ends_a_waiting_call_in_another_thread() -> None:
    """A pool worker survives a Ctrl-C during its start, and the process waits for the worker before it exits.
    A worker that waited indefinitely for a stopped loop would prevent the exit."""
    loop, begun, said = LoopThread(), threading.Event(), list[str]()

    async def answer() -> None:
        begun.set()
        await asyncio.sleep(3600)

    def wait() -> None:
        try:
            loop.run(answer())
        except OutcomeUnknown as error:  # the request may have been sent
            said.append(error.what)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert begun.wait(5)
    loop.stop()
    thread.join(5)
    assert not thread.is_alive() and said == ["the client was closed before the call ended"]


def test_a_closed_client_raises_unavailable_at_once() -> None:
    loop = LoopThread()
    loop.stop()
    with pytest.raises(Unavailable, match="closed"):
        loop.run(asyncio.sleep(0))
    assert not loop.running
    loop.stop()


def test_a_task_that_ignores_cancellation_does_not_block_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task may continue after it was cancelled."""
    monkeypatch.setattr(blocking, "END_S", 0.1)
    loop, begun, said = LoopThread(), threading.Event(), list[str]()

    async def stubborn() -> None:
        begun.set()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    def wait() -> None:
        with suppress(OutcomeUnknown):
            loop.run(stubborn())
        said.append("over")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert begun.wait(5)
    loop.stop()
    thread.join(5)
    assert said == ["over"]


def test_close_waits_for_tasks_that_end_late(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise asyncio prints for each task that it "was destroyed but it is pending"."""
    loop, ended = LoopThread(), list[str]()

    async def late() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            ended.append("late")

    async def begin() -> None:
        tasks.append(asyncio.create_task(late()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    loop.run(begin())
    loop.stop()
    assert ended == ["late"] and not capsys.readouterr().err

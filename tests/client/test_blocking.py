"""The loop in a thread, and who waits for it."""

import asyncio
import threading
from contextlib import suppress

import pytest

from nodeagent.client import blocking
from nodeagent.client.blocking import LoopThread
from nodeagent.model.errors import OutcomeUnknown, Unavailable


def test_a_thread_that_waits_for_an_answer_hears_that_the_client_was_closed() -> None:
    """A worker of a pool outlives a Ctrl-C that comes while it is being started. The process waits for it at
    its end: one that waited without end for a loop that is gone kept the command from ending."""
    loop, begun, said = LoopThread(), threading.Event(), list[str]()

    async def answer() -> None:
        begun.set()
        await asyncio.sleep(3600)

    def wait() -> None:
        try:
            loop.run(answer())
        except OutcomeUnknown as error:  # it may have been sent
            said.append(error.what)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert begun.wait(5)
    loop.stop()
    thread.join(5)
    assert not thread.is_alive() and said == ["the client was closed before the call ended"]


def test_a_closed_client_answers_nobody_and_keeps_nobody_waiting() -> None:
    loop = LoopThread()
    loop.stop()
    with pytest.raises(Unavailable, match="closed"):
        loop.run(asyncio.sleep(0))
    assert not loop.running
    loop.stop()


def test_what_does_not_end_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that goes on though it was cancelled."""
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


def test_what_ends_late_is_waited_for_before_the_loop_is_closed(capsys: pytest.CaptureFixture[str]) -> None:
    """Else asyncio prints of each task that it "was destroyed but it is pending"."""
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

"""Threads that run calls in order."""

import threading

import pytest

from nodeagent.runtime.lanes import Lane


def test_a_call_that_raises_ends_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other calls still run, and the exception is reported."""
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(repr(args.exc_value)))
    lane, done = Lane("test", 10), threading.Event()

    def fails() -> None:
        raise KeyError("a bug")

    assert lane.submit(fails) and lane.submit(done.set)
    assert done.wait(10)
    lane.stop(10)
    assert told == ["KeyError('a bug')"] and lane.queued == 0

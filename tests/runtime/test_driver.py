"""What the driver makes of a peer's refusal."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodeagent.host.desk import Effects
from nodeagent.log.identity import NodeFile
from nodeagent.model.errors import Forbidden
from nodeagent.runtime.clock import Clock
from nodeagent.runtime.driver import Driver


@pytest.mark.parametrize(
    "details,told",
    [
        ({"older": "mine"}, ["older"]),
        ({"retired": "mine"}, ["retired"]),
        ({"older": "another"}, []),
        ({"retired": "another"}, []),
        ({}, []),
    ],
)
def test_a_refusal_of_this_directory_reaches_the_host(details: dict[str, str], told: list[str]) -> None:
    """A node that runs on an older copy of its directory, or was given up, learns it from its peers alone.
    What they say of another directory is no matter of this one."""
    heard: list[str] = []
    host = SimpleNamespace(
        on_older_copy=lambda why, now: heard.append("older"),
        on_retired=lambda why, now: heard.append("retired"),
        take=Effects,
        idle=True,
        deadline=lambda: 1 << 40,
    )

    async def test() -> None:
        driver = Driver(
            cast(Any, host),
            "a",
            NodeFile("a", "mine", ""),
            clock=Clock(),
            notes=cast(Any, SimpleNamespace(write=lambda *_: None)),
            status=cast(Any, None),
            events=cast(Any, None),
            on_tick=lambda: None,
        )
        driver.on_refused("b", Forbidden("not heard", **cast(Any, details)))
        driver.stop()

    asyncio.run(test())
    assert heard == told

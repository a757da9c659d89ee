"""When the driver calls its host, and how it handles a peer's refusal."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nodeagent.host.effect_queue import Effects
from nodeagent.log.identity import NodeFile
from nodeagent.model.errors import Forbidden, Unavailable
from nodeagent.model.requests import Accepted, GetMeta, Reply, Request
from nodeagent.runtime.clock import Clock
from nodeagent.runtime.driver import Driver
from tests.runtime.links import admin_hello

NEVER = 1 << 40
TURNS = 20
"""More turns of the loop than needed to run everything that is due now."""


def driver_of(host: object, clock: Clock | None = None) -> Driver:
    return Driver(
        cast(Any, host),
        "a",
        NodeFile("a", "mine", ""),
        clock=clock or Clock(),
        notes=cast(Any, SimpleNamespace(write=lambda *_: None)),
        status=cast(Any, None),
        events=cast(Any, None),
        on_tick=lambda: None,
    )


async def let_run() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


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
    """A node that runs on an older copy of its directory, or that was retired, learns this only from its
    peers. A refusal of another directory is ignored."""
    heard: list[str] = []
    host = SimpleNamespace(
        on_older_copy=lambda why, now: heard.append("older"),
        on_retired=lambda why, now: heard.append("retired"),
        take=Effects,
        idle=True,
        deadline=lambda: NEVER,
    )

    async def test() -> None:
        driver = driver_of(host)
        driver.on_refused("b", Forbidden("not heard", **cast(Any, details)))
        driver.stop()

    asyncio.run(test())
    assert heard == told


def test_an_unreachable_peer_is_logged_once_for_each_reason() -> None:
    """It is dialled every second: a line for each attempt would fill the disk."""
    noted: list[str] = []

    async def test() -> None:
        driver = driver_of(SimpleNamespace())
        driver._notes = cast(Any, SimpleNamespace(write=lambda event, fields: noted.append(fields["what"])))
        for why in ("down", "down", "forbidden", "forbidden", "down"):
            driver.on_refused("b", Unavailable(why))
        driver.on_refused("c", Unavailable("down"))
        driver.stop()

    asyncio.run(test())
    assert noted == ["down", "forbidden", "down", "down"]


def test_an_earlier_deadline_rearms_the_timer() -> None:
    """A newly elected leader must send heartbeats long before its former election deadline."""

    class Stopped(Clock):
        def now(self) -> int:
            return 1000

    class Host:
        due = 1000 + 3_600_000
        ticks = 0
        idle = True
        peers = SimpleNamespace(addresses={})

        def take(self) -> Effects:
            return Effects()

        def deadline(self) -> int:
            return self.due

        def on_persisted(self, batch: int, now: int) -> None:
            if batch == 2:
                self.due = now

        def tick(self, now: int, wall: int) -> None:
            self.ticks += 1
            self.due = NEVER

    async def test() -> None:
        host = Host()
        driver = driver_of(host, Stopped())
        driver.attach(*cast(Any, (None, None, None, SimpleNamespace(update=lambda addresses: None))))
        driver.on_persisted(1)
        await let_run()
        assert host.ticks == 0
        driver.on_persisted(2)
        await let_run()
        driver.stop()
        assert host.ticks == 1

    asyncio.run(test())


def test_work_left_by_a_turn_is_done_without_a_further_event() -> None:
    """The host bounds its work per turn so that the loop stays free. No further event triggers the rest."""

    class Host:
        def __init__(self) -> None:
            self.asked: list[int] = []

        @property
        def idle(self) -> bool:
            return not self.asked

        def on_request(self, token: int, request: Request, now: int, wall: int) -> None:
            self.asked.append(token)

        def take(self) -> Effects:
            return Effects(replies=[(self.asked.pop(0), Accepted(1))])

        def deadline(self) -> int:
            return NEVER

    answered: list[int] = []

    def reply(number: int, reply: Reply) -> None:
        answered.append(number)

    async def test() -> None:
        driver = driver_of(Host())
        connection = cast(Any, SimpleNamespace(peer=admin_hello(), reply=reply))
        for number in (1, 2, 3):
            driver.on_request(connection, number, GetMeta())
        await let_run()
        driver.stop()

    asyncio.run(test())
    assert answered == [1, 2, 3]

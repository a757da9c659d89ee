"""What operators do to a cluster, as the meta group keeps it: who holds its lock, and records of runs."""

import msgspec


class Lock(msgspec.Struct, frozen=True):
    """Held by one owner at a time, who renews it; it lapses when it was not renewed for `ttl_ms`.

    `serial` fences: it grows from holder to holder, so what an earlier one still sends is refused.
    """

    owner: str
    what: str
    by: str
    serial: int
    since_ms: int
    ttl_ms: int
    renewed: int
    """Index of the entry that took or renewed it last."""


class Run(msgspec.Struct):
    """The record of a run, which any machine can read and go on with. `entries` are the writer's own."""

    id: str
    name: str
    by: str
    began_ms: int
    ended: bool = False
    entries: list[bytes] = []

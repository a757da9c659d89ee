"""The cluster lock and the records of playbook runs, as the meta group stores them. Times are in ms."""

import msgspec


class Lock(msgspec.Struct, frozen=True):
    """The cluster lock. One owner holds it at a time and renews it; it lapses if not renewed for `ttl_ms`.

    `serial` fences: it grows with each owner, so that commands of an earlier owner are refused.
    """

    owner: str
    """The process that holds the lock (user@host, pid)."""

    what: str
    """What the owner does under the lock, for operators."""

    by: str
    serial: int
    since_ms: int
    """When the owner took it, by the wall clock of the meta leader."""

    ttl_ms: int
    renewed: int
    """Meta log index of the entry that took or last renewed it."""


class Run(msgspec.Struct):
    """The record of a playbook run, which any machine can read to continue the run.

    Only the program that writes `entries` interprets them.
    """

    id: str
    name: str
    by: str
    began_ms: int
    ended: bool = False
    entries: list[bytes] = []

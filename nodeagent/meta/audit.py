"""Who did what in the cluster, the newest lines of it, for people. Nothing is decided by it."""

from typing import Protocol

from nodeagent.model.operation import cut_text

AUDIT_KEPT = 4096
WHO_CHARS = 100
AUDIT_CHARS = 500
"""Of one line of the audit log."""


class Kept(Protocol):
    """The part of the image that is changed here."""

    audit: list[tuple[int, str, str]]


class Audit:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def note(self, now: int, who: str, what: str) -> None:
        line = (now, cut_text(who, WHO_CHARS), cut_text(what, AUDIT_CHARS))
        self._kept.audit = [*self._kept.audit, line][-AUDIT_KEPT:]

"""The newest lines of the cluster's audit log: who did what. It informs operators; no code depends on it."""

from typing import Protocol

from nodeagent.model.audit_chain import AuditLine, digests
from nodeagent.model.features import Feature
from nodeagent.model.operation import cut_text

AUDIT_KEPT = 4096
"""Lines of the audit log that are retained."""

WHO_CHARS = 100
AUDIT_CHARS = 500
"""Characters of one line of the audit log."""


class Kept(Protocol):
    """The fields of the image that this module changes; it reads the level."""

    audit: list[AuditLine]
    audit_first: int
    audit_base: str
    level: int


class Audit:
    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def note(self, now: int, who: str, what: str) -> None:
        line = (now, cut_text(who, WHO_CHARS), cut_text(what, AUDIT_CHARS))
        kept = self._kept
        lines = [*kept.audit, line]
        cut, kept.audit = lines[:-AUDIT_KEPT], lines[-AUDIT_KEPT:]
        if kept.level >= Feature.AUDIT_CHAIN:
            kept.audit_first += len(cut)
            for digest in digests(kept.audit_base, cut):
                kept.audit_base = digest

"""The cluster's feature level. An entry raises it; a node refuses a level that it does not support."""

from typing import Protocol

from nodeagent.meta import commands as c
from nodeagent.meta.audit import Audit
from nodeagent.meta.runs import Runs
from nodeagent.model import features
from nodeagent.model.errors import Refused
from nodeagent.model.features import Levels
from nodeagent.model.requests import Accepted, Reply


class Kept(Protocol):
    """The fields of the image that this module changes."""

    level: int
    unnamed_writer: str


class FeatureLevel:
    def __init__(self, kept: Kept, spoken: Levels, runs: Runs, audit: Audit) -> None:
        self._kept = kept
        self._spoken = spoken
        self._runs = runs
        self._audit = audit

    def begin(self, level: int) -> None:
        """Set the level of a new cluster."""
        check_level(self._spoken, level)
        self._kept.level = level

    def raise_to(self, index: int, r: c.RaiseLevel) -> Reply:
        if (refusal := self._runs.fenced(r.lock)) is not None:
            return refusal
        if self._kept.level < features.Feature.FILE_WRITER <= r.level:
            self._kept.unnamed_writer = r.unnamed_writer
        if r.level > self._kept.level:
            check_level(self._spoken, r.level)
            self._kept.level = r.level
            self._audit.note(r.now, r.by, f"feature level {r.level}")
        return Accepted(index)


def check_level(spoken: Levels, level: int) -> None:
    """Raise `Refused` if the cluster's `level` is not among the levels `spoken`."""
    if why := features.refusal("this node", spoken, level):
        raise Refused(why, next_step=features.advice(spoken, level))

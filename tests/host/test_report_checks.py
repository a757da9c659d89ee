"""Progress reports of members are logged only if they are valid."""

import msgspec
import pytest

from nodeagent.data.sessions import Sessions
from nodeagent.host.report_checks import why_invalid
from nodeagent.meta import commands as c
from nodeagent.model.operation import CopyRecord, SealResult, Stage
from nodeagent.model.requests import ErrorReply
from tests.meta.test_changes import Meta

HUGE = (1 << 64) - 1


@pytest.fixture
def meta() -> Meta:
    meta = Meta()
    meta.begin()
    return meta


def test_a_valid_progress_report_is_logged(meta: Meta) -> None:
    """Reports of every kind, and those for an ended operation, which have no effect."""
    op = meta.op
    group, created = op.losing[0], op.created_group
    assert created is not None
    exported = Sessions().export([0])
    for evidence in (
        *(c.MetaReady(1, op.id), c.GroupReady(1, op.id, created), c.ReportError(1, op.id, "no")),
        *(c.SealedBy(1, op.id, SealResult(group, 5, exported)), c.OpenedBy(1, op.id, created, 9)),
        c.SealedBy(1, op.id, SealResult(group, 5, parts=("0" * 32,))),
        *(c.JoinReady(1, op.id, created, "e"), c.SourceReady(1, op.id, group, "a")),
        *(c.FormedBy(1, op.id, created, 9, ("a", "e")), c.AdoptedBy(1, op.id, created, 9)),
        c.Copied(1, op.id, CopyRecord(created, "e", "i-e", ((0, 2),), "d", 1, 1)),
        *(c.ReleasedBy(1, op.id, group, 9), c.UnsealedBy(1, op.id, group)),
        *(c.RecoveryCompleted(1, group, op.id), c.FormedBy(1, "op-0", "x", HUGE, ())),
    ):
        assert why_invalid(meta.state, evidence) == "", evidence


def test_a_progress_report_with_unknown_names_is_refused(meta: Meta) -> None:
    op = meta.op
    group = op.losing[0]
    for evidence in (
        *(c.GroupReady(1, op.id, "x"), c.OpenedBy(1, op.id, group, HUGE), c.RecoveryCompleted(1, "x", op.id)),
        *(c.SealedBy(1, op.id, SealResult("x", 5, b"")), c.SealedBy(1, op.id, SealResult(group, 5, b"\xc1"))),
        *(c.SealedBy(1, op.id, SealResult(group, 5, b"")), c.JoinReady(1, op.id, group, "x")),
        *(c.FormedBy(1, op.id, "x", 9, ()), c.FormedBy(1, op.id, group, 9, ("x",))),
        c.Copied(1, op.id, CopyRecord(group, "x", "i", ((0, 2),), "d", 1, 1)),
        c.Copied(1, op.id, CopyRecord(group, "a", "i", ((2, 0),), "d", 1, 1)),
        c.Copied(1, op.id, CopyRecord(group, "a", "i", ((0, 2),), "d", 1, HUGE)),
        c.ReportError(1, op.id, "x" * 10_000),
    ):
        assert why_invalid(meta.state, evidence), evidence


def test_a_report_that_an_unknown_group_is_formed_is_refused(meta: Meta) -> None:
    """If such an entry is in a log, it has no effect and stops no member."""
    meta.op.stage = Stage.RECONFIGURING
    before = msgspec.msgpack.encode(meta.state.image.groups)
    assert isinstance(meta.do(c.FormedBy(1, meta.op.id, "x", 9, ("a",))), ErrorReply)
    assert msgspec.msgpack.encode(meta.state.image.groups) == before

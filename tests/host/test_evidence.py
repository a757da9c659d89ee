"""What a member reports is logged only if it names what there is."""

import msgspec
import pytest

from nodeagent.data.sessions import Sessions
from nodeagent.host.evidence import unfit
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


def test_good_evidence_is_logged(meta: Meta) -> None:
    """That of every kind, and of an operation that is over, which has no effect."""
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
        *(c.LedAgain(1, group, op.id), c.FormedBy(1, "op-0", "x", HUGE, ())),
    ):
        assert unfit(meta.state, evidence) == "", evidence


def test_evidence_of_what_there_is_not_is_refused(meta: Meta) -> None:
    op = meta.op
    group = op.losing[0]
    for evidence in (
        *(c.GroupReady(1, op.id, "x"), c.OpenedBy(1, op.id, group, HUGE), c.LedAgain(1, "x", op.id)),
        *(c.SealedBy(1, op.id, SealResult("x", 5, b"")), c.SealedBy(1, op.id, SealResult(group, 5, b"\xc1"))),
        *(c.SealedBy(1, op.id, SealResult(group, 5, b"")), c.JoinReady(1, op.id, group, "x")),
        *(c.FormedBy(1, op.id, "x", 9, ()), c.FormedBy(1, op.id, group, 9, ("x",))),
        c.Copied(1, op.id, CopyRecord(group, "x", "i", ((0, 2),), "d", 1, 1)),
        c.Copied(1, op.id, CopyRecord(group, "a", "i", ((2, 0),), "d", 1, 1)),
        c.Copied(1, op.id, CopyRecord(group, "a", "i", ((0, 2),), "d", 1, HUGE)),
        c.ReportError(1, op.id, "x" * 10_000),
    ):
        assert unfit(meta.state, evidence), evidence


def test_a_group_that_is_not_there_is_not_formed(meta: Meta) -> None:
    """Should such an entry be in a log, it has no effect: it ends no member."""
    meta.op.stage = Stage.FORMAL
    before = msgspec.msgpack.encode(meta.state.image.groups)
    assert isinstance(meta.do(c.FormedBy(1, meta.op.id, "x", 9, ("a",))), ErrorReply)
    assert msgspec.msgpack.encode(meta.state.image.groups) == before

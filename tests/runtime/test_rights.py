"""Which role may send which request, for every request type."""

from typing import get_args

import pytest

from nodeagent.model.errors import Forbidden, Unavailable
from nodeagent.model.requests import DropTable, GetStatus, Request
from nodeagent.model.requests.base import Repeat, Traits
from nodeagent.runtime.rights import check_right

KINDS = {kind.__name__: kind.traits for kind in get_args(Request)}
READS = {
    *("GetStatus", "GetEvents", "GetMeta", "GetRuns", "GetOperation", "GetWriteRates", "ProbeGroup"),
    "GetAudit",
    *("ScanRows", "ListPartitions", "GetManifest", "CheckFiles"),
}


def of(role: str) -> set[str]:
    return {name for name, traits in KINDS.items() if role in traits.by}


def test_rights() -> None:
    assert of("reader") == READS
    assert set(KINDS) - of("admin") == {"Forward", "CheckStatus", "GetSealedSessions", "OfferState"}
    assert set(KINDS) - of("node") == {
        *("RepairFile", "ForceRecover", "RaiseLevel", "TakeLock", "DropLock", "RecordRun", "DropTable"),
        *("RecoverMeta", "BackUpMeta"),
    }
    assert of("guest") == {"CheckStatus"}
    assert of("nobody") == set()


def test_a_refusal_names_the_peer_and_the_request() -> None:
    """An unknown node may become a member in a moment: its next step is to retry."""
    drop = DropTable("sg", "t", 1)
    check_right("admin", "ann", drop)
    with pytest.raises(Forbidden, match="reader ann may not send DropTable"):
        check_right("reader", "ann", drop)
    with pytest.raises(Unavailable, match="does not know node9 as a member"):
        check_right("guest", "node9", GetStatus())


def test_every_request_declares_its_traits() -> None:
    """The traits are explicit and not an inherited default."""
    for kind in get_args(Request):
        assert isinstance(kind.__dict__.get("traits"), Traits), kind


def test_requests_of_readers_change_nothing() -> None:
    assert all(KINDS[name].repeat is Repeat.FREELY for name in READS)


def test_requests_that_must_not_be_repeated() -> None:
    """A write is recognised by its session; these requests have none, or start an operation."""
    never = {name for name, traits in KINDS.items() if traits.repeat is Repeat.NEVER}
    assert never == {"BeginChange", "Write", "DeleteRows", "Propose", "RecoverMeta"}
    careful = {name for name, traits in KINDS.items() if traits.repeat is Repeat.UNLESS_FAILED}
    assert careful == {
        *("PutSchema", "DropTable", "Drain", "SetZones", "RaiseLevel", "ControlOperation", "Forward")
    }

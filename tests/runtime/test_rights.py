"""Which role may ask for what, for every request there is."""

from typing import get_args

import pytest

from nodeagent.model.errors import Forbidden, Unavailable
from nodeagent.model.requests import DropTable, GetStatus, Request
from nodeagent.model.requests.base import Repeat, Traits
from nodeagent.runtime.rights import check_right

KINDS = {kind.__name__: kind.traits for kind in get_args(Request)}
READS = {
    *("GetStatus", "GetEvents", "GetMeta", "GetRuns", "GetOperation", "GetWriteRates", "ProbeGroup"),
    *("ScanRows", "ListPartitions", "GetManifest", "CheckFiles"),
}


def of(role: str) -> set[str]:
    return {name for name, traits in KINDS.items() if role in traits.by}


def test_rights() -> None:
    assert of("reader") == READS
    assert set(KINDS) - of("admin") == {"Forward", "CheckStatus", "GetSealedSessions"}
    assert set(KINDS) - of("node") == {
        *("RepairFile", "GiveUp", "RaiseLevel", "TakeLock", "DropLock", "RecordRun", "DropTable")
    }
    assert of("guest") == {"CheckStatus"}
    assert of("nobody") == set()


def test_what_is_refused_says_by_whom() -> None:
    """A node that is not known yet may be a member in a moment: it is told to ask again."""
    drop = DropTable("sg", "t", 1)
    check_right("admin", "ann", drop)
    with pytest.raises(Forbidden, match="reader ann may not send DropTable"):
        check_right("reader", "ann", drop)
    with pytest.raises(Unavailable, match="does not know node9 as a member"):
        check_right("guest", "node9", GetStatus())


def test_every_request_says_how_it_is_treated() -> None:
    """Itself, and not by a default that nobody chose."""
    for kind in get_args(Request):
        assert isinstance(kind.__dict__.get("traits"), Traits), kind


def test_what_readers_ask_changes_nothing() -> None:
    assert all(KINDS[name].repeat is Repeat.FREELY for name in READS)


def test_what_is_not_to_be_repeated() -> None:
    """A write has its session to be known again by; these have nothing, or are followed by an operation."""
    never = {name for name, traits in KINDS.items() if traits.repeat is Repeat.NEVER}
    assert never == {"BeginChange", "Write", "DeleteRows", "Propose"}
    careful = {name for name, traits in KINDS.items() if traits.repeat is Repeat.UNLESS_FAILED}
    assert careful == {"PutSchema", "DropTable", "Drain", "RaiseLevel", "Steer", "Forward"}

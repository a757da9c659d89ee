"""Which role may ask for what, for every request there is."""

from typing import get_args

from nodeagent.model.requests import Request
from nodeagent.runtime.rights import may_ask

READS = {
    *("GetStatus", "GetEvents", "GetMeta", "GetRuns", "GetOperation", "GetWriteRates", "ProbeGroup"),
    *("ScanRows", "ListPartitions", "GetManifest", "CheckFiles"),
}


def test_rights() -> None:
    every = {kind.__name__ for kind in get_args(Request)}

    def allowed(role: str) -> set[str]:
        return {kind.__name__ for kind in get_args(Request) if may_ask(role, kind)}

    assert allowed("reader") == READS
    assert every - allowed("admin") == {"Forward", "CheckStatus", "GetSealedSessions"}
    assert every - allowed("node") == {
        *("RepairFile", "GiveUp", "RaiseLevel", "TakeLock", "DropLock", "RecordRun", "DropTable")
    }
    assert allowed("guest") == {"CheckStatus"}
    assert allowed("nobody") == set()

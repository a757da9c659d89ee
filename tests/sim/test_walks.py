"""Random walks through the small worlds. A failure prints the command that replays it."""

import pytest

from nodeagent.data.state import DataState
from nodeagent.raft import candidate, quorum
from nodeagent.scaling import groups
from nodeagent.testing.walks import run


@pytest.mark.parametrize(
    "where, name, what, broken",
    [
        (candidate, "is_up_to_date", lambda state, request: True, "S3"),
        (quorum, "majority_value", max, "S6"),
        (DataState, "is_source_ready", lambda state, operation: True, "S8|S9|S10|L2"),
        (groups, "_release", lambda op, look: [], "L2"),
    ],
)
def test_a_bug_is_found_and_reported_with_its_events(
    monkeypatch: pytest.MonkeyPatch, where: object, name: str, what: object, broken: str
) -> None:
    monkeypatch.setattr(where, name, what)
    monkeypatch.setattr("nodeagent.raft.leader.majority_value", quorum.majority_value)
    with pytest.raises(AssertionError, match=rf"^seed \d+: ({broken})(.|\n)*after: ") as caught:
        for seed in range(1, 40):
            run(seed)
    assert "replay: python -m nodeagent.testing.walks" in str(caught.value)

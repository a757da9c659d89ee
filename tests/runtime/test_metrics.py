"""The metrics page of a status."""

from nodeagent.model.requests import NodeStatus
from nodeagent.runtime.metrics import render

STATUS = NodeStatus(
    "a", "i", "id", "c", "1.0", "ready", 7_000, 5_500, 3, (), {"b": 250}, cert_expires_ms=9_000, room="low"
)


def test_values_are_in_the_units_of_their_names() -> None:
    page = render(STATUS, {"turns_total": 4.0, "lag": 2.0}).decode()
    lines = {line for line in page.splitlines() if not line.startswith("#")}
    assert lines >= {
        "nodeagent_start_time_seconds 5.5",
        "nodeagent_certificate_expiry_seconds 9.0",
        'nodeagent_peer_heard_seconds{peer="b"} 0.25',
        "nodeagent_rows_refused 1.0",
        "nodeagent_turns_total 4.0",
        "nodeagent_lag 2.0",
    }

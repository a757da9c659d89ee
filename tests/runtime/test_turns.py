"""A turn of the loop that is too long is counted and named."""

from nodeagent.host.desk import Effects
from nodeagent.model.jobs import DropSnapshot
from nodeagent.model.limits import TURN_MS_MAX
from nodeagent.runtime.turns import Turns


def test_a_slow_turn_is_counted_and_says_what_it_did() -> None:
    """From the first event to the end of the effects; a pause between two turns is no turn. How much was
    the thread's own work tells whether the agent is slow or its machine."""
    now, used = [0.0], [0.0]
    said: list[tuple[str, dict[str, object]]] = []
    turns = Turns(lambda *note: said.append(note), lambda: now[0], lambda: used[0])
    turns.event()
    now[0] += TURN_MS_MAX / 1000
    turns.end(Effects())
    assert (turns.count, turns.slow, said) == (1, 0, [])
    now[0] += 60
    used[0] += 1
    turns.event()
    now[0] += 0.08
    turns.event()
    now[0] += 0.04
    used[0] += 0.005
    turns.end(Effects(jobs=[(1, DropSnapshot("s"))], applied=7, applied_bytes=900))
    assert (turns.count, turns.slow) == (2, 1) and round(turns.longest_s, 3) == 0.12
    ((event, fields),) = said
    assert event == "slow_turn" and fields["ms"] == 120 and fields["events"] == 2
    assert fields["own_ms"] == 5
    assert (fields["applied"], fields["applied_bytes"], fields["kinds"]) == (7, 900, "DropSnapshot")

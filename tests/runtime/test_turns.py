"""A turn of the loop that is too long is counted and named."""

from nodeagent.host.desk import Effects
from nodeagent.model.jobs import DropSnapshot
from nodeagent.model.limits import TURN_MS_MAX
from nodeagent.runtime.turns import OWN_SAMPLE_S, Turns


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


def test_the_thread_s_time_is_read_seldom_and_told_nearly() -> None:
    """Short turns follow each other closely: a system call for each would be a part of their cost."""
    now, used, reads = [100.0], [0.0], [0]

    def thread_time() -> float:
        reads[0] += 1
        return used[0]

    said: list[dict[str, object]] = []
    turns = Turns(lambda _, fields: said.append(fields), lambda: now[0], thread_time)
    for _ in range(1000):
        turns.event()
        now[0] += 0.001
        used[0] += 0.001
        turns.end(Effects())
    assert reads[0] <= 1 + 1000 * 0.001 / OWN_SAMPLE_S
    turns.event()
    now[0] += 0.2
    used[0] += 0.15
    turns.end(Effects())
    (fields,) = said
    assert 150 <= int(str(fields["own_ms"])) <= 150 + 1000 * OWN_SAMPLE_S

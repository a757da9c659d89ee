"""The sizes of sessions and changes stay within bounds that are known in advance."""

from nodeagent.model.limits import MIB, SESSIONS_PART_BYTES
from tests.scaling.eight_changes import run


def test_eight_changes_under_many_writers_stay_within_their_bounds() -> None:
    """In a hundredth of the full size (2 000 writers in 10 000 slots) a data group's checkpoint is at most a
    hundredth of 16 MiB, plus the part that does not depend on the slots. The meta group stores no
    sessions."""
    largest = run(200, 1_000)
    names = 64 * 1024
    assert largest.data_checkpoint <= 16 * MIB // 100 + names
    assert (
        largest.data_entry <= SESSIONS_PART_BYTES + 1024
        and largest.sessions_reply <= SESSIONS_PART_BYTES + 64
    )
    assert largest.meta_reply <= 256 * 1024 and largest.meta_checkpoint <= 256 * 1024
    assert largest.meta_entry <= 4 * 1024

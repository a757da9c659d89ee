"""`peers.seen`: what a node remembers of the starts of others."""

from nodeagent.host.starts import Start
from nodeagent.runtime.seen import SEEN_FILE, load_starts, save_starts
from nodeagent.testing.disk import Fault, SimDisk

STARTS = {"1f": Start("node2", 3, "a1"), "2f": Start("node3", 1, "c3")}


def test_what_was_seen_is_read_back_and_every_bit_that_turns_over_is_noticed() -> None:
    """The node goes on without it, whatever is left: text that is no UTF-8, or no JSON."""
    disk = SimDisk()
    assert load_starts(disk) == ({}, True)
    save_starts(disk, STARTS)
    assert load_starts(disk) == (STARTS, True)
    for byte in range(disk.stat(SEEN_FILE).size):
        for bit in range(8):
            disk.flip(SEEN_FILE, byte, bit)
            assert load_starts(disk) == ({}, False)
            disk.flip(SEEN_FILE, byte, bit)
    disk.faults.append(Fault("read"))  # a sector that cannot be read
    assert load_starts(disk) == ({}, False)

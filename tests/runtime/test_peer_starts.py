"""`peers.seen`: the starts of other nodes that a node retains."""

from nodeagent.host.starts import Start
from nodeagent.runtime.peer_starts import SEEN_FILE, load_starts, save_starts
from nodeagent.testing.disk import SimDisk
from nodeagent.testing.volume import Fault

STARTS = {"1f": Start("node2", 3, "a1"), "2f": Start("node3", 1, "c3")}


def test_saved_starts_are_read_back_and_every_flipped_bit_is_detected() -> None:
    """The node starts without the file, whatever it contains: text that is not UTF-8, or not JSON."""
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

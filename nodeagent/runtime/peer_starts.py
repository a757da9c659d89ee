"""`peers.seen`: the newest starts of other nodes, by which a restarted node recognises older copies of their
directories."""

import errno

import msgspec
import xxhash

from nodeagent.host.starts import Start
from nodeagent.model.decoding import UNDECODABLE
from nodeagent.model.disk import Disk

SEEN_FILE = "peers.seen"


class _Seen(msgspec.Struct, frozen=True):
    """`starts` by incarnation; `seal` is the XXH3-64 of the encoded starts."""

    starts: dict[str, Start]
    seal: str


def save_starts(disk: Disk, starts: dict[str, Start]) -> None:
    disk.write_atomic(SEEN_FILE, msgspec.json.encode(_Seen(starts, _seal(starts))))


def load_starts(disk: Disk) -> tuple[dict[str, Start], bool]:
    """The starts, and whether the file could be read. The node also runs without it: the file contains
    nothing about this node, and every other node has such a file too."""
    if not disk.exists(SEEN_FILE):
        return {}, True
    try:
        found = msgspec.json.decode(disk.read(SEEN_FILE), type=_Seen)
    except UNDECODABLE:
        return {}, False
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return {}, False
    return (found.starts, True) if found.seal == _seal(found.starts) else ({}, False)


def _seal(starts: dict[str, Start]) -> str:
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(starts))

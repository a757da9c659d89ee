"""(storage group, time partition, shard) -> slot, and tags -> shard.

Standard mode (`murmur3`): MurmurHash3 x64 128 with seed 2333 over

    utf8(storage group) ++ time partition (8 bytes, big endian, signed) [++ shard (2 bytes, big endian)]

where the shard is present only in clusters with more than one shard, so that `shards=1` is the exact
routing of old IoTDB for ASCII names. The slot is |low 32 bits of h1 + h2, as signed| mod slots.

`legacy` mode repeats three errors of the Java original, for data that was placed with them: the length is
counted in UTF-16 units (for a non-ASCII name only a prefix is hashed, possibly without the time partition),
tail bytes >= 0x80 are sign-extended, and times before 1970 round toward partition 0.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache

import mmh3

from nodeagent.model.config import ClusterSettings
from nodeagent.model.errors import InvalidInput

SEED = 2333
SHARD_CACHE_MAX = 65_536
"""Distinct tag tuples whose shard is cached."""

MURMUR3 = "murmur3"
LEGACY = "legacy"

_MASK = (1 << 64) - 1
_C1 = 0x87C37B91114253D5
_C2 = 0x4CF5AD432745937F


def slot_of(storage_group: str, time_partition: int, shard: int, settings: ClusterSettings) -> int:
    """The slot that owns one partition, in [0, settings.slots)."""
    key = storage_group.encode() + struct.pack(">q", time_partition)
    if settings.shards > 1:
        key += struct.pack(">H", shard)
    if is_legacy(settings.hash_mode):
        length = len(storage_group.encode("utf-16-le")) // 2 + len(key) - len(storage_group.encode())
        total = _java_murmur3(key[:length])
    else:
        h1, h2 = mmh3.hash64(key, SEED, x64arch=True, signed=False)
        total = h1 + h2
    low = total & 0xFFFF_FFFF
    return min(low, (1 << 32) - low) % settings.slots


def is_legacy(hash_mode: str) -> bool:
    """Whether the mode is `legacy`; `InvalidInput` if it is neither `legacy` nor `murmur3`."""
    if hash_mode not in (MURMUR3, LEGACY):
        raise InvalidInput(
            f"hash mode {hash_mode!r} does not exist", next_step=f"use {MURMUR3!r} or {LEGACY!r}"
        )
    return hash_mode == LEGACY


def time_partition(time_ms: int, interval_ms: int, hash_mode: str = MURMUR3) -> int:
    """The time partition of a time: floor(time / interval); `legacy` truncates toward zero."""
    if is_legacy(hash_mode) and time_ms < 0:
        return -(-time_ms // interval_ms)
    return time_ms // interval_ms


def time_span(partition: int, interval_ms: int, hash_mode: str = MURMUR3) -> tuple[int, int]:
    """First and last time (ms, both inclusive) of a time partition; the inverse of `time_partition`."""
    first, last = partition * interval_ms, (partition + 1) * interval_ms - 1
    if is_legacy(hash_mode) and partition <= 0:
        first = (partition - 1) * interval_ms + 1
        last = partition * interval_ms if partition else last
    return first, last


@lru_cache(maxsize=SHARD_CACHE_MAX)
def _tags_hash(tags: tuple[str | None, ...]) -> int:
    parts = bytearray()
    for tag in tags:
        if tag is None:
            parts += b"\0"
        else:
            value = tag.encode()
            parts += b"\1" + struct.pack(">I", len(value)) + value
    return mmh3.hash64(bytes(parts), SEED, x64arch=True, signed=False)[0]


def shard_of(tags: Sequence[str | None], shards: int) -> int:
    """The shard of one device (its tag values in schema order).

    Hashed bytes: per tag 0x00 for null, else 0x01, the UTF-8 length (4 bytes, big endian) and the value. The
    shard is the first half of MurmurHash3 x64 128, mod `shards`. Trailing nulls are left out, so that a tag
    column added to a table later moves no existing device.
    """
    if shards <= 1:
        return 0
    end = len(tags)
    while end and tags[end - 1] is None:
        end -= 1
    return _tags_hash(tuple(tags[:end])) % shards


def _rotl(x: int, r: int) -> int:
    return ((x << r) | (x >> (64 - r))) & _MASK


def _fmix(k: int) -> int:
    k = ((k ^ (k >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    k = ((k ^ (k >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    return k ^ (k >> 33)


def _mix1(k: int) -> int:
    return (_rotl((k * _C1) & _MASK, 31) * _C2) & _MASK


def _mix2(k: int) -> int:
    return (_rotl((k * _C2) & _MASK, 33) * _C1) & _MASK


def _java_tail(tail: bytes) -> int:
    """Up to 8 tail bytes, XORed together after sign extension (the Java error)."""
    k = 0
    for i, byte in enumerate(tail):
        k ^= ((byte - 256 if byte >= 128 else byte) << (8 * i)) & _MASK
    return k


def _java_murmur3(data: bytes) -> int:
    """h1 + h2 of the original's MurmurHash3 x64 128."""
    h1 = h2 = SEED
    blocks = len(data) // 16 * 16
    for k1, k2 in struct.iter_unpack("<QQ", data[:blocks]):
        h1 ^= _mix1(k1)
        h1 = ((_rotl(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mix2(k2)
        h2 = ((_rotl(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    h2 ^= _mix2(_java_tail(data[blocks + 8 :]))
    h1 ^= _mix1(_java_tail(data[blocks : blocks + 8]))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    h1, h2 = _fmix(h1), _fmix(h2)
    h1 = (h1 + h2) & _MASK
    return h1 + h2 + h1

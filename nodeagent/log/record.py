"""One block: the bytes of one atomic batch.

    head    fixed part (56 bytes) + rows (msgpack: contents of the body, one row per operation)
    body    the payloads of the operations, one after the other
    head    the same bytes repeated
    pad     zeros up to a multiple of 8

Every block begins at a multiple of 8. The fixed part, little endian:

    magic 4, version 2, kind 2, segment 8, seq 8, offset 8, synced 8, rows 4, body 4, body crc 4, head crc 4

- `segment` and `offset` are the block's own place: a block in another place, because of a recycled file or
  a misdirected write, is not valid.
- `seq` numbers the blocks of the whole log without a gap.
- `synced`: every byte of this segment before this offset was durable when the block was written. A bad
  block before it is corruption and not a torn write (as in Pebble's WAL chunks, its issue 453).
- The head has its own checksum, so that the rows of a bad body show which entries were lost, and it is
  written twice, so that a single bad place never hides the rows.

A block is valid if the body and at least one head match their checksums: a batch is read whole or not at all.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from nodeagent.model.disk import Buffer
from nodeagent.model.entries import Append, Base, Entry, Forget, HardState, LogOp, Rebase, SetHard
from nodeagent.model.ids import GroupId

MAGIC = b"\xf1Lg\xa7"
VERSION = 1
ALIGNMENT = 8
BODY_BYTES_MAX = (1 << 32) - 1

_FIXED = struct.Struct("<4sHHQQQQIIII")
_CRC = struct.Struct("<I")
_CRC_AT = _FIXED.size - _CRC.size
_PADS = [bytes(n) for n in range(ALIGNMENT)]


class BlockKind(IntEnum):
    START = 0
    """First block of a segment; its body holds every group's state (`Mark`)."""

    BATCH = 1
    SEAL = 2
    """Last block of a segment; its body lists the live entries of the segment: (group, first, last)."""

    SYNCED = 3
    """No rows and no body; only its `synced` matters."""


class RowKind(IntEnum):
    APPEND = 0
    HARD = 1
    REBASE_KEEP = 2
    REBASE_DROP = 3
    FORGET = 4
    COPY = 5
    """Live entries copied forward, so that an old segment can be deleted; replaces no entries."""


_APPEND, _COPY = int(RowKind.APPEND), int(RowKind.COPY)
"""Looked up once, because an enum look-up costs more than the row."""


class Row(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One operation, as described in the head.

    `previous` is the seq of the group's previous operation, 0 for its first: so every group with an
    operation in a lost block detects the loss, and no other group does.
    `first` is an index (of the base for a rebase, of the last entry held for a removal), `term` is the term
    of the last entry, of the hard state or of the base; `length` is the payload's size in bytes.
    """

    group: GroupId
    kind: int
    previous: int
    first: int
    count: int
    term: int
    length: int

    @property
    def last(self) -> int:
        return self.first + self.count - 1


class Copy(msgspec.Struct, frozen=True):
    """The log's own operation: a copy of live entries at a newer place."""

    group: GroupId
    first: int
    entries: list[Entry]


AnyOp = LogOp | Copy


@dataclass(frozen=True, slots=True)
class Head:
    kind: int
    segment: int
    seq: int
    offset: int
    synced: int
    head_length: int
    body_length: int
    body_crc: int
    rows: list[Row]

    @property
    def end(self) -> int:
        """Offset after the block, padding included."""
        return self.offset + aligned(2 * self.head_length + self.body_length)

    @property
    def body_at(self) -> int:
        return self.offset + self.head_length


@dataclass(frozen=True, slots=True)
class Block:
    """A valid block. `healed` if its first head was bad and the second was used."""

    head: Head
    body: memoryview
    healed: bool = False


_encoder = msgspec.msgpack.Encoder()
_rows = msgspec.msgpack.Decoder(list[Row])
_entries = msgspec.msgpack.Decoder(list[Entry])
_hard = msgspec.msgpack.Decoder(HardState)
_base = msgspec.msgpack.Decoder(Base)


def aligned(length: int) -> int:
    return (length + ALIGNMENT - 1) & -ALIGNMENT


def encode_payload(op: AnyOp) -> bytes:
    match op:
        case Append() | Copy():
            return _encoder.encode(op.entries)
        case SetHard():
            return _encoder.encode(op.hard)
        case Rebase():
            return _encoder.encode(op.base)
        case Forget():
            return b"" if op.memory is None else _encoder.encode(op.memory)


def row_of(op: AnyOp, previous: int, length: int) -> Row:
    """The row that describes `op`, whose payload has `length` bytes."""
    match op:
        case Append() | Copy():
            assert op.first >= 1 and op.entries, f"{op.group}: an empty append at {op.first}"
            kind = _APPEND if isinstance(op, Append) else _COPY
            term = op.entries[-1].term
            return Row(op.group, kind, previous, op.first, len(op.entries), term, length)
        case SetHard():
            return Row(op.group, RowKind.HARD, previous, 0, 0, op.hard.term, length)
        case Rebase():
            kind = RowKind.REBASE_KEEP if op.keep_suffix else RowKind.REBASE_DROP
            return Row(op.group, kind, previous, op.base.index, 0, op.base.term, length)
        case Forget():
            memory = op.memory or HardState()
            return Row(op.group, RowKind.FORGET, previous, memory.held[1], 0, memory.term, length)


def decode_op(row: Row, payload: Buffer) -> AnyOp:
    """The operation of a valid block.

    Raises:
        `decoding.UNDECODABLE`: the payload does not match the row (written by another version).
    """
    if row.kind in (RowKind.APPEND, RowKind.COPY):
        entries = _entries.decode(payload)
        if len(entries) != row.count:
            raise msgspec.ValidationError(f"{len(entries)} entries, the row says {row.count}")
        return (Append if row.kind == RowKind.APPEND else Copy)(row.group, row.first, entries)
    if row.kind == RowKind.HARD:
        return SetHard(row.group, _hard.decode(payload))
    if row.kind in (RowKind.REBASE_KEEP, RowKind.REBASE_DROP):
        return Rebase(row.group, _base.decode(payload), row.kind == RowKind.REBASE_KEEP)
    if row.kind == RowKind.FORGET:
        return Forget(row.group, _hard.decode(payload) if row.length else None)
    raise msgspec.ValidationError(f"unknown operation kind {row.kind}")


def decode_ops(block: Block) -> list[tuple[Row, AnyOp]]:
    found: list[tuple[Row, AnyOp]] = []
    at = 0
    for row in block.head.rows:
        found.append((row, decode_op(row, block.body[at : at + row.length])))
        at += row.length
    return found


def encode_block(
    kind: BlockKind,
    segment: int,
    seq: int,
    offset: int,
    synced: int,
    rows: Sequence[Row],
    payloads: Sequence[bytes],
) -> tuple[list[Buffer], int]:
    """The parts to write at `offset`, and their total length."""
    assert offset % ALIGNMENT == 0 and synced <= offset
    body_length = body_crc = 0
    for payload in payloads:
        body_length += len(payload)
        body_crc = zlib.crc32(payload, body_crc)
    assert body_length <= BODY_BYTES_MAX
    table = _encoder.encode(rows)
    fixed = _FIXED.pack(
        MAGIC, VERSION, kind, segment, seq, offset, synced, len(table), body_length, body_crc, 0
    )[:_CRC_AT]
    head = b"".join((fixed, _CRC.pack(zlib.crc32(table, zlib.crc32(fixed))), table))
    length = 2 * len(head) + body_length
    total = aligned(length)
    return [head, *payloads, head, _PADS[total - length]], total


def _head_crc(head: Buffer) -> int:
    """Checksum of the head without the four bytes that hold the checksum."""
    with memoryview(head) as view:
        return zlib.crc32(view[_FIXED.size :], zlib.crc32(view[:_CRC_AT]))


def parse_head(buffer: memoryview, at: int, segment: int) -> Head | None:
    """The head, first or second, whose bytes begin at `at`; None if no valid head begins there."""
    if at + _FIXED.size > len(buffer) or buffer[at : at + len(MAGIC)] != MAGIC:
        return None
    _, version, kind, owner, seq, offset, synced, table, body_length, body_crc, crc = _FIXED.unpack_from(
        buffer, at
    )
    length = _FIXED.size + table
    if version != VERSION or owner != segment or at + length > len(buffer):
        return None
    if _head_crc(buffer[at : at + length]) != crc or at not in (offset, offset + length + body_length):
        return None
    rows = _rows.decode(buffer[at + _FIXED.size : at + length])
    return Head(kind, segment, seq, offset, synced, length, body_length, body_crc, rows)


def body_of(buffer: memoryview, head: Head) -> memoryview | None:
    """The body, if its checksum matches."""
    body = buffer[head.body_at : head.body_at + head.body_length]
    if len(body) != head.body_length or zlib.crc32(body) != head.body_crc:
        return None
    return body

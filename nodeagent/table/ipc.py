"""Refuse an Arrow IPC stream that takes more memory than it has bytes, from its metadata alone.

A small compressed body can become arbitrarily large, and so can a body whose columns share bytes, because
in a file and in a page of a read each column has its own bytes. Our clients write neither, so both are
refused, and a body takes as much memory as it has bytes. Only these parts of the format are read: a stream
is a sequence of messages

    [FFFFFFFF] | size of metadata, i32 | metadata (a flatbuffer `Message`) | body (`bodyLength` bytes)

and a `RecordBatch`, also that of a dictionary, has the field `compression` if its body is compressed, and
`buffers`, a vector of (offset, length), both i64: the places of its columns' parts in the body.
"""

import struct

from nodeagent.model.errors import InvalidInput

_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_U16 = struct.Struct("<H")
_I64 = struct.Struct("<q")
_CONTINUES = -1
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
"""Fields of `Message`."""

_SCHEMA, _DICTIONARY_BATCH = 1, 2
_DATA = 1
"""The record batch in a `DictionaryBatch`."""

_BUFFERS, _COMPRESSION = 2, 3
"""Fields of `RecordBatch`."""


def check_plain(ipc: bytes) -> None:
    """Raise `InvalidInput` for a body that is compressed or shared by columns, and for an invalid stream."""
    try:
        at, end = 0, len(ipc) - 4
        while at <= end:
            (size,) = _I32.unpack_from(ipc, at)
            at += 4
            if size == _CONTINUES:
                (size,) = _I32.unpack_from(ipc, at)
                at += 4
            if not size:
                return
            body = _check_message(ipc, at)
            if size < 0 or body < 0:
                raise InvalidInput("not a valid Arrow stream: a negative length")
            at += size + body
    except (struct.error, IndexError) as error:
        raise InvalidInput(f"not a valid Arrow stream: {error}") from error


def _check_message(ipc: bytes, at: int) -> int:
    """Length of the body of the message at `at`; 0 for a schema."""
    message = at + _U32.unpack_from(ipc, at)[0]
    kind_at = _field(ipc, message, _HEADER_TYPE)
    kind = ipc[kind_at] if kind_at else 0
    if kind == _SCHEMA:
        return 0
    header = _field(ipc, message, _HEADER)
    batch = header and header + _U32.unpack_from(ipc, header)[0]
    if kind == _DICTIONARY_BATCH and batch:
        data = _field(ipc, batch, _DATA)
        batch = data and data + _U32.unpack_from(ipc, data)[0]
    if batch and _field(ipc, batch, _COMPRESSION):
        next_step = "send it without compression; the storage compresses it"
        raise InvalidInput("the Arrow stream is compressed", next_step=next_step)
    length_at = _field(ipc, message, _BODY_LENGTH)
    length = int(_I64.unpack_from(ipc, length_at)[0]) if length_at else 0
    if batch and 0 <= length < _named(ipc, batch):
        next_step = "write separate buffers for each column"
        raise InvalidInput("columns of the Arrow stream share bytes", next_step=next_step)
    return length


def _named(ipc: bytes, batch: int) -> int:
    """Total length of the buffers of a record batch; shared bytes count once for each use."""
    field = _field(ipc, batch, _BUFFERS)
    if not field:
        return 0
    vector = field + _U32.unpack_from(ipc, field)[0]
    (count,) = _U32.unpack_from(ipc, vector)
    lengths = struct.unpack_from(f"<{2 * min(count, len(ipc))}q", ipc, vector + _U32.size)[1::2]
    if lengths and min(lengths) < 0:
        raise InvalidInput("not a valid Arrow stream: a negative length")
    return sum(lengths)


def _field(ipc: bytes, table: int, number: int) -> int:
    """Where field `number` of a flatbuffer table is; 0 when it is absent."""
    vtable = table - _I32.unpack_from(ipc, table)[0]
    if vtable < 0:
        raise InvalidInput("not a valid Arrow stream: an offset before its beginning")
    entry = 4 + 2 * number
    if entry + 2 > _U16.unpack_from(ipc, vtable)[0]:
        return 0
    offset: int = _U16.unpack_from(ipc, vtable + entry)[0]
    return offset and table + offset

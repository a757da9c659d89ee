"""A request to a worker as bytes: the request without rows, then the rows of its batches unchanged.

A close has up to 32 MiB of rows, or one larger unit. Encoding them with the request would be one call of tens
of milliseconds that holds the interpreter lock: the event loop would be blocked, and nothing would be logged.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec

from nodeagent.model.jobs import CloseUnit, MemBatch
from nodeagent.model.limits import MIB
from nodeagent.storage.handler import CloseRequest, CompactRequest, Request, ScanRequest

PIECE_BYTES = 1 * MIB
_PREFIX_BYTES = 8


class _Head(msgspec.Struct, frozen=True, array_like=True):
    request: Request
    """The request; its batches have no rows."""

    lengths: tuple[int, ...]
    """Size of each batch's rows in bytes, in the order of the batches."""


_decoder = msgspec.msgpack.Decoder(_Head)


def encode(request: Request) -> tuple[int, Iterator[bytes]]:
    """(length of the message, its bytes in pieces)."""
    lengths = tuple(b.nbytes for b in _batches(request))
    bare = (MemBatch(b.order, b"") for b in _batches(request))
    head = msgspec.msgpack.encode(_Head(_with(request, bare), lengths))
    prefix = len(head).to_bytes(_PREFIX_BYTES, "little")
    rows = (b.ipc for b in _batches(request))
    return len(prefix) + len(head) + sum(lengths), _pieces(chain([prefix, head], rows))


def decode(body: bytes) -> Request:
    """Decode a message of `encode`. The rows are not copied out of `body`."""
    view = memoryview(body)
    at = _PREFIX_BYTES + int.from_bytes(view[:_PREFIX_BYTES], "little")
    head = _decoder.decode(view[_PREFIX_BYTES:at])
    assert sum(head.lengths) == len(view) - at, (sum(head.lengths), len(view) - at)
    return _with(head.request, _filled(_batches(head.request), head.lengths, body, at))


def _filled(bare: Iterable[MemBatch], lengths: Iterable[int], body: bytes, at: int) -> Iterator[MemBatch]:
    for batch, length in zip(bare, lengths, strict=True):
        yield MemBatch(batch.order, body, at, at + length)
        at += length


def _batches(request: Request) -> Iterator[MemBatch]:
    match request:
        case CloseRequest():
            for unit in request.units:
                yield from unit.batches
        case ScanRequest():
            yield from request.batches
        case CompactRequest():
            pass  # it names files


def _with(request: Request, batches: Iterator[MemBatch]) -> Request:
    """The request with these batches instead of its own, in the same order."""
    match request:
        case CloseRequest():
            return CloseRequest(tuple(_unit_with(unit, batches) for unit in request.units))
        case ScanRequest():
            return msgspec.structs.replace(request, batches=tuple(batches))
        case _:
            return request


def _unit_with(unit: CloseUnit, batches: Iterator[MemBatch]) -> CloseUnit:
    own = tuple(next(batches) for _ in unit.batches)
    return msgspec.structs.replace(unit, batches=own)


def _pieces(parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    run: list[bytes | memoryview] = []
    size = 0
    for part in parts:
        if run and size + len(part) > PIECE_BYTES:
            yield b"".join(run)
            run, size = [], 0
        run.append(part)
        size += len(part)
    yield b"".join(run)

"""A request to a worker as bytes: what it says, then the rows of its batches as they are.

A close brings up to 64 MiB of rows. To encode them with the rest would be one call of tens of milliseconds
that no other thread of the agent can interrupt: the loop would stand still, and nothing be logged.
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
    """Its batches are without rows."""

    lengths: tuple[int, ...]
    """Bytes of the rows of each batch, in their order."""


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
    """What `encode` made. The rows stay where they are in `body`."""
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
    """The request with these in the place of its own, in their order."""
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

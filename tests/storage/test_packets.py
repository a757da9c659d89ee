"""Requests are encoded for a worker and decoded again."""

import itertools
from collections.abc import Sequence

import msgspec
import pytest

from nodeagent.model.files import Order
from nodeagent.model.jobs import CompactUnit, MemBatch
from nodeagent.storage import packets
from nodeagent.storage.handler import CloseRequest, CompactRequest, Request, ScanRequest

from .units import rows, spec, unit


def packed(request: Request) -> list[bytes]:
    length, pieces = packets.encode(request)
    made = list(pieces)
    assert sum(map(len, made)) == length
    return made


def comparable(request: Request) -> object:
    """The request, with its rows wherever they are stored."""
    if isinstance(request, CloseRequest):
        return [(u.spec, comparable_batches(u.batches), u.tombstones) for u in request.units]
    if isinstance(request, ScanRequest):
        return msgspec.structs.replace(request, batches=()), comparable_batches(request.batches)
    return request


def comparable_batches(batches: Sequence[MemBatch]) -> list[tuple[Order, bytes]]:
    return [(b.order, bytes(b.ipc)) for b in batches]


@pytest.mark.parametrize(
    "request_",
    [
        CloseRequest((unit("a", (1, rows(10)), (2, rows(3))), unit("b", (1, rows(7))))),
        CloseRequest(()),
        ScanRequest(spec(), (), (*unit("a", (4, rows(2))).batches, MemBatch((5,), b"")), heavy=True),
        ScanRequest(spec(), ()),
    ],
)
def test_a_request_is_unchanged_after_encoding_and_decoding(request_: Request) -> None:
    assert comparable(packets.decode(b"".join(packed(request_)))) == comparable(request_)


def test_rows_are_not_encoded_in_one_call() -> None:
    """No call holds the interpreter for long: the pieces are small, however many rows a unit has."""
    batches = tuple((i, rows(2_000)) for i in range(1, 200))
    request = CloseRequest((unit("big", *batches),))
    pieces = packed(request)
    largest = max(len(b.ipc) for b in request.units[0].batches)
    assert len(pieces) > 5 and max(map(len, pieces)) <= max(packets.PIECE_BYTES, largest)
    assert all(len(a) + len(b) > packets.PIECE_BYTES for a, b in itertools.pairwise(pieces[:-1]))
    assert comparable(packets.decode(b"".join(pieces))) == comparable(request)


def test_a_compaction_request_contains_no_rows() -> None:
    one = unit("c")
    request = CompactRequest(CompactUnit(one.spec, (3,), ()), ("x/y",))
    assert packets.decode(b"".join(packed(request))) == request


def test_a_request_with_missing_or_extra_rows_is_refused() -> None:
    body = b"".join(packed(CloseRequest((unit("a", (1, rows(10))),))))
    for bad in (body[:-1], body + b"x"):
        with pytest.raises(AssertionError):
            packets.decode(bad)

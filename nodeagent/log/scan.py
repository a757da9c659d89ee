"""Read one segment: valid blocks, bad places, and where it ends.

Rules that distinguish a torn write from corruption, for the first invalid block at offset X:

1. not the newest segment: corruption;
2. a valid head after X has `synced` > X: corruption, because X was durable once;
3. `durable`, which is recorded outside the segment, is > X: corruption, even if only zeros follow;
   it counts as at least 1, because the first block is durable before the file gets its name;
4. otherwise a torn write: nothing from X on was ever acknowledged, and it may be cut.

A later valid block proves nothing by itself: a disk may write out of order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent.log.record import MAGIC, Block, Head, body_of, parse_head

_ZEROS = bytes(1 << 16)


@dataclass(frozen=True, slots=True)
class Bad:
    """Corrupt bytes from `offset` to `end`. `head` describes the block if one of its heads is valid."""

    offset: int
    end: int
    head: Head | None


@dataclass(frozen=True, slots=True)
class End:
    """The blocks end at `offset`; the bytes from there to `torn_end` are a torn write."""

    offset: int
    torn_end: int


def scan_segment(buffer: memoryview, segment: int, durable: int | None) -> Iterator[Block | Bad | End]:
    """Everything in the segment, in order; only the last item is an `End`.

    Args:
        durable: for the newest segment, the durable offset recorded elsewhere (0 if none is recorded); None
            for every other segment, which was durable as a whole.
    """
    at = 0
    floor: int | None = None
    while (found := _next(buffer, at, segment)) is not None:
        if isinstance(found, Bad):
            if floor is None:
                floor = _durable_floor(buffer, at, segment, durable)
            if found.offset >= floor:
                break
            yield found
            at = found.end
        else:
            yield found
            at = found.head.end
    if durable is not None and at < durable:
        yield Bad(at, durable, None)
        at = durable
    yield End(at, _content_end(buffer, at))


def _durable_floor(buffer: memoryview, at: int, segment: int, durable: int | None) -> int:
    """Offset before which bad bytes are corrupt, not torn."""
    if durable is None:
        return len(buffer)
    behind = max((head.synced for head in _heads(buffer, at, segment)), default=0)
    return max(1, durable, behind)


def _next(buffer: memoryview, at: int, segment: int) -> Block | Bad | None:
    """The block or bad place at `at`; None if only zeros follow."""
    head = parse_head(buffer, at, segment)
    if head is not None and head.offset == at:
        body = body_of(buffer, head)
        return Bad(at, head.end, head) if body is None else Block(head, body)
    behind = next(_heads(buffer, at, segment), None)
    if behind is None:
        end = _content_end(buffer, at)
        return None if end == at else Bad(at, end, None)
    if behind.offset > at:
        return Bad(at, behind.offset, None)
    body = body_of(buffer, behind)
    return Bad(at, behind.end, behind) if body is None else Block(behind, body, healed=True)


def _heads(buffer: memoryview, at: int, segment: int) -> Iterator[Head]:
    """Valid first and second heads of blocks that begin at `at` or later."""
    stored = buffer.obj
    assert isinstance(stored, bytes)
    place = stored.find(MAGIC, at)
    while place >= 0:
        head = parse_head(buffer, place, segment)
        if head is not None and head.offset >= at:
            yield head
        place = stored.find(MAGIC, place + 1)


def _content_end(buffer: memoryview, at: int) -> int:
    """Offset after the last non-zero byte, at least `at`."""
    end = len(buffer)
    while end > at:
        start = max(at, end - len(_ZEROS))
        piece = bytes(buffer[start:end])  # a memoryview compares byte by byte
        if piece != _ZEROS[: end - start]:
            return start + len(piece.rstrip(b"\0"))
        end = start
    return at

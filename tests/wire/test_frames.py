"""The pieces in which the bytes of a frame arrive make no difference, and no bytes do harm."""

import random
import struct

import pytest

from nodeagent.model.entries import Entry
from nodeagent.model.errors import FrameError, InvalidInput, NotLeader
from nodeagent.model.limits import FRAME_BYTES_MAX
from nodeagent.model.raft_messages import AppendReply, AppendRequest, Routed
from nodeagent.model.requests import Accepted, Chunk, ErrorReply, GetStatus, Hello, Propose, Reply, Request
from nodeagent.wire import codec
from nodeagent.wire.faults import to_error, to_reply
from nodeagent.wire.frames import FIRST_BYTES, PROTOCOL, Frame, FrameReader, Kind

HELLO = Hello(PROTOCOL, "node", "node1", "abc", "cluster", 7)
RAFT = [
    Routed("meta", AppendRequest(3, 10, 2, 9, [Entry(3, 2, b"x" * 300), Entry(3, 2, b"")], 4)),
    Routed("node1.5", AppendReply(3, True, 12)),
]
MESSAGES: list[object] = [
    HELLO,
    RAFT,
    GetStatus(),
    Accepted(5),
    Propose("meta", (b"a" * 5000,)),
    Chunk(b"", 0),
]


def encoded() -> bytes:
    return b"".join(
        (
            codec.encode_hello(HELLO),
            *codec.encode_raft(RAFT),
            codec.encode_request(1, GetStatus()),
            codec.encode_reply(2**40, Accepted(5)),
            codec.encode_request(2, Propose("meta", (b"a" * 5000,))),
            codec.encode_reply(3, Chunk(b"", 0)),
        )
    )


def decoded(frame: Frame) -> Hello | list[Routed] | Request | Reply:
    match frame.kind:
        case Kind.HELLO:
            return codec.decode_hello(frame)
        case Kind.RAFT:
            return codec.decode_raft(frame)
        case Kind.REQUEST:
            return codec.decode_request(frame)
        case Kind.REPLY:
            return codec.decode_reply(frame)


def read(pieces: list[bytes]) -> list[object]:
    reader = FrameReader()
    return [decoded(frame) for piece in pieces for frame in reader.feed(piece)]


def test_whole_stream_at_once_gives_every_message() -> None:
    """All messages are decoded unchanged, in order."""
    assert read([encoded()]) == MESSAGES


def test_byte_by_byte_gives_the_same_messages() -> None:
    """The bytes arrive one at a time."""
    assert read([bytes([byte]) for byte in encoded()]) == MESSAGES


@pytest.mark.parametrize("seed", range(20))
def test_random_pieces_give_the_same_messages(seed: int) -> None:
    """The stream may arrive in any pieces, even empty ones."""
    rng = random.Random(seed)
    data = encoded()
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(30))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert read(pieces) == MESSAGES


def test_trailing_bytes_are_kept_for_the_next_feed() -> None:
    """An unfinished frame after whole ones is completed later."""
    data = encoded()
    reader = FrameReader()
    first = reader.feed(data + data[:7])
    assert [decoded(f) for f in first] == MESSAGES
    assert reader.pending_bytes == 7
    assert [decoded(f) for f in reader.feed(data[7:])] == MESSAGES


def test_numbers_arrive_unchanged() -> None:
    """Requests and replies keep their 64-bit number."""
    frames = FrameReader().feed(encoded())
    assert [f.number for f in frames] == [0, 0, 1, 2**40, 2, 3]


def test_too_long_is_refused_by_its_length_alone() -> None:
    """The length alone is refused: nothing is allocated for a frame over the limit."""
    with pytest.raises(FrameError, match="announced"):
        FrameReader().feed(struct.pack(">I", FRAME_BYTES_MAX + 1))
    with pytest.raises(FrameError, match="announced"):
        FrameReader(100).feed(struct.pack(">I", 101))


def test_empty_frame_is_refused() -> None:
    """A frame contains at least its kind."""
    with pytest.raises(FrameError):
        FrameReader().feed(bytes(4))


@pytest.mark.parametrize("kind", [0, 5, 71, 255])
def test_unknown_kind_is_refused(kind: int) -> None:
    """This includes a frame that arrives in two parts."""
    data = struct.pack(">IB", 3, kind) + b"ab"
    with pytest.raises(FrameError, match="unknown"):
        FrameReader().feed(data)
    reader = FrameReader()
    reader.feed(data[:6])
    with pytest.raises(FrameError, match="unknown"):
        reader.feed(data[6:])


def test_request_without_number_is_refused() -> None:
    """A REQUEST frame that is shorter than its number is refused."""
    with pytest.raises(FrameError, match="no number"):
        FrameReader().feed(struct.pack(">IB", 4, Kind.REQUEST) + b"abc")


@pytest.mark.parametrize("seed", range(30))
def test_garbage_is_a_frame_error_or_nothing(seed: int) -> None:
    """Random bytes raise `FrameError` or wait for more; they never crash."""
    rng = random.Random(seed)
    reader = FrameReader(4096)
    try:
        for _ in range(200):
            for frame in reader.feed(rng.randbytes(rng.randrange(40))):
                decoded(frame)
    except FrameError:
        pass


@pytest.mark.parametrize("seed", range(30))
def test_damaged_body_is_a_frame_error_or_another_message(seed: int) -> None:
    """Flipped bytes inside a body decode to something of the right type or raise `FrameError`."""
    rng = random.Random(seed)
    for original in FrameReader().feed(encoded()):
        body = bytearray(original.body)
        for _ in range(3):
            if body:
                body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        try:
            decoded(Frame(original.kind, original.number, memoryview(body)))
        except FrameError:
            continue


def test_the_buffer_of_a_large_frame_grows_with_received_bytes() -> None:
    """An announced length allocates at most `first_bytes`; received bytes at most twice their size."""
    data = bytes(codec.encode_request(1, Propose("meta", (bytes(1 << 20),))))
    reader = FrameReader()
    step = 64 * 1024
    for at in range(0, len(data) - step, step):
        assert reader.feed(data[at : at + step]) == []
        assert reader._partial is not None and reader.announced == len(data) - 4
        assert len(reader._partial) <= max(FIRST_BYTES, 2 * (at + step))
    (frame,) = reader.feed(data[len(data) - len(data) % step - (step if len(data) % step == 0 else 0) :])
    assert codec.decode_request(frame) == Propose("meta", (bytes(1 << 20),))


def test_long_raft_frames_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that do not fit into one frame are sent in several; a single message that is too long is
    dropped."""
    monkeypatch.setattr(codec, "FRAME_BYTES_MAX", 400)
    small = [Routed(f"node1.{i}", AppendReply(3, True, i)) for i in range(50)]
    long = Routed("meta", AppendRequest(1, 1, 1, 1, [Entry(1, 2, bytes(500))]))
    frames = codec.encode_raft([*small[:20], long, *small[20:]])
    reader = FrameReader(400)
    found = [m for frame in frames for f in reader.feed(frame) for m in codec.decode_raft(f)]
    assert found == small and len(frames) > 1


def test_request_over_the_limit_is_an_error_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises `InvalidInput`, a definite error: nothing was sent."""
    monkeypatch.setattr(codec, "FRAME_BYTES_MAX", 400)
    with pytest.raises(InvalidInput, match="exceeds the frame limit"):
        codec.encode_request(1, Propose("meta", (bytes(500),)))


def test_errors_arrive_unchanged() -> None:
    """Class, text, next step and plain details arrive unchanged."""
    error = NotLeader("node1 does not lead", next_step="ask node2", leader="node2", term=4)
    found = to_error(to_reply(error))
    assert type(found) is NotLeader
    assert (found.what, found.next_step, found.details) == (error.what, error.next_step, error.details)


def test_unknown_error_code_is_not_a_definite_error() -> None:
    """An unknown error of a newer peer leaves the outcome open."""
    assert to_error(ErrorReply("brand_new", "text")).code == "error"

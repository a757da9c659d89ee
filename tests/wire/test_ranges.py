"""A value out of range is refused during decoding, with the name of its field."""

from typing import get_args

import msgspec
import msgspec.inspect
import pytest

from nodeagent.model import bounds
from nodeagent.model import requests as q
from nodeagent.model.errors import FrameError, InvalidInput
from nodeagent.model.ids import PartitionKey
from nodeagent.model.limits import CHUNK_BYTES, SLOTS_MAX, TEXT_CHARS_MAX
from nodeagent.model.operation import Options
from nodeagent.model.raft_messages import AppendReply, Heartbeat, RaftMessage, Routed, VoteRequest
from nodeagent.model.requests import Request
from nodeagent.wire import codec
from nodeagent.wire.frames import FrameReader


def write(slot: int = 1, shard: int = 0, time_partition: int = 0, group: str = "sg") -> q.Write:
    key = PartitionKey(group, time_partition, shard)
    return q.Write("g", slot, key, "t", 1, "s", 1, 0, 1, b"")


def delete(**values: object) -> q.DeleteRows:
    good = q.DeleteRows("g", 1, PartitionKey("sg", 0, 0), "t", "s", 1, 0, (), 0, 1)
    return msgspec.structs.replace(good, **values)


def through(request: Request) -> Request:
    (frame,) = FrameReader().feed(bytes(codec.encode_request(1, request)))
    return codec.decode_request(frame)


@pytest.mark.parametrize(
    "request_",
    [
        *(write(shard=-1), write(shard=70_000), write(time_partition=1 << 63), write(group="x" * 300)),
        *(write(slot=-1), write(slot=SLOTS_MAX), delete(time_from=1 << 63), delete(sequence=1 << 60)),
        delete(partition=PartitionKey("sg", 0, -1)),
        q.Drain("node1", True, "x" * (TEXT_CHARS_MAX + 1)),
        q.FetchChunk("s", "n", -1, 1),
        q.FetchChunk("s", "n", 0, CHUNK_BYTES + 1),
        q.BeginChange("add-node", "n", "x", Options(hold_release_ms=-1)),
        q.BeginChange("add-node", "n", "x", port=70_000),
        q.ForceRecover(("node1",), (q.RecoveryLeader("g", "node2", 1 << 60),), 1, "x"),
        q.GetManifest("g", ((0, SLOTS_MAX + 1),)),
    ],
)
def test_a_request_out_of_range_is_refused(request_: Request) -> None:
    with pytest.raises(FrameError):
        through(request_)


def test_values_within_the_bounds_are_accepted() -> None:
    """The bounds themselves, and any time."""
    for request in (
        *(write(shard=bounds.SHARD_MAX), write(slot=SLOTS_MAX - 1), delete(time_from=bounds.INT64_MIN)),
        *(delete(time_to=bounds.INT64_MAX), q.FetchChunk("s", "n", 0, CHUNK_BYTES)),
        q.GetManifest("g", ((0, SLOTS_MAX),)),
    ):
        assert through(request) == request


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat((1 << 64) - 1, 0),
        Heartbeat(1 << 62, 0),
        Heartbeat(-1, 0),
        VoteRequest(1, 1 << 60, 1, False),
        AppendReply(1, True, -1),
    ],
)
def test_a_term_or_an_index_out_of_range_is_refused(message: RaftMessage) -> None:
    """A term is durable: a term that leaves no room for an election would end the group permanently."""
    (encoded,) = codec.encode_raft([Routed("meta", message)])
    (frame,) = FrameReader().feed(bytes(encoded))
    with pytest.raises(FrameError):
        codec.decode_raft(frame)


@pytest.mark.parametrize("kind", get_args(RaftMessage))
def test_every_number_of_a_raft_message_has_a_range(kind: type) -> None:
    """This includes terms and indexes in answers: a leader computes with them, like a follower."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    numbers = {f.name: f.type for f in info.fields if isinstance(f.type, msgspec.inspect.IntType)}
    assert "term" in numbers
    for name, number in numbers.items():
        if name not in ("wall", "room"):
            most = bounds.TERM_MAX if "term" in name else bounds.COUNT_MAX
            assert (number.ge, number.le) == (0, most), name


def test_a_reply_that_cannot_be_encoded_is_an_error_of_that_reply() -> None:
    """The connection continues, whatever reply a handler built."""
    with pytest.raises(InvalidInput):
        codec.encode_reply(1, q.Accepted(1 << 70))

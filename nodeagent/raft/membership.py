"""Which membership change one CONFIG entry may make (thesis 4.1: one voter at a time).

Two configs whose voters differ by one have overlapping majorities; learners count in no majority.
"""

import msgspec

from nodeagent.model.entries import Config
from nodeagent.model.errors import Refused

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Config)


def encode_config(config: Config) -> bytes:
    """The data of a CONFIG entry."""
    return _encoder.encode(config)


def decode_config(data: bytes) -> Config:
    return _decoder.decode(data)


def check_step(old: Config, new: Config) -> None:
    """Raise `Refused` unless one entry may change `old` to `new`.

    Any number of learners may be added or removed. At most one voter may change: a learner is promoted,
    or a voter is removed or demoted to a learner.
    """
    if len(set(new.members)) != len(new.members):
        raise Refused(f"a member is listed twice in {new.voters} + {new.learners}")
    if not new.voters:
        raise Refused("a group needs at least one voter", next_step="remove the group instead")
    if new == old:
        raise Refused("the group already has this config")
    added = set(new.voters) - set(old.voters)
    removed = set(old.voters) - set(new.voters)
    if len(added) + len(removed) > 1:
        raise Refused(
            f"only one voter may change at a time, not {sorted(added)} added and {sorted(removed)} removed",
            next_step="make one change after the other",
        )
    if not added <= set(old.learners):
        raise Refused(
            f"{min(added)} is not a learner of the group",
            next_step="add it as a learner first, because a voter without entries can stop commits",
        )

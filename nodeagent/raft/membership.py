"""Which change of members one CONFIG entry may make (thesis 4.1: one voter at a time).

Two configs whose voters differ by one have overlapping majorities; learners count in none.
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
    """Raise `Refused` unless one entry may lead from `old` to `new`.

    Any number of learners may come or go. Of the voters at most one may change: a learner is promoted,
    or a voter is removed or made a learner.
    """
    if len(set(new.members)) != len(new.members):
        raise Refused(f"a member is named twice in {new.voters} + {new.learners}")
    if not new.voters:
        raise Refused("a group needs a voter", next_step="remove the group instead of its last voter")
    if new == old:
        raise Refused("the group already has this config")
    added = set(new.voters) - set(old.voters)
    removed = set(old.voters) - set(new.voters)
    if len(added) + len(removed) > 1:
        raise Refused(
            f"voters may change one at a time, not {sorted(added)} in and {sorted(removed)} out",
            next_step="make the changes one after the other",
        )
    if not added <= set(old.learners):
        raise Refused(
            f"{min(added)} is not a learner of the group",
            next_step="add it as a learner first, so that a voter without entries cannot stop commits",
        )

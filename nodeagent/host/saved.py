"""A checkpoint of one replica, as it is stored and as it is sent to a peer."""

import msgspec

from nodeagent.model.entries import Base
from nodeagent.model.ids import GroupId, Owner


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint: the log continues at `base`; the state may be newer."""

    base: Base
    state: bytes
    sent: bool = False
    """Made for a peer. The peer's own log after `base` is then not known to be what the state came from."""

    group: GroupId = ""
    owner: Owner = Owner()
    """The node that saved the checkpoint; if it is sent, the node that it is made for."""

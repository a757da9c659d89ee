"""The saved state of one replica, as it is stored and as it is sent to a peer: a checkpoint or an image."""

import msgspec

from nodeagent.model.entries import Base
from nodeagent.model.ids import GroupId, Owner
from nodeagent.model.image_format import ImageBytes, is_image


class Saved(msgspec.Struct, frozen=True):
    """A checkpoint: the log continues at `base`; the state may be newer."""

    base: Base
    state: bytes
    sent: bool = False
    """Made for a peer. The peer's own log after `base` is then not known to be what the state came from."""

    group: GroupId = ""
    owner: Owner = Owner()
    """The node that saved the checkpoint; if it is sent, the node that it is made for."""


def read_saved(payload: bytes) -> Saved:
    """What a checkpoint or an image says about itself; the `state` of an image is the whole image.

    Raises:
        Damaged: the header of the image does not verify.
        UNDECODABLE: the bytes are no checkpoint.
    """
    if not is_image(payload):
        return msgspec.msgpack.decode(payload, type=Saved)
    header = ImageBytes(payload).header
    return Saved(header.base, payload, header.sent, header.group, header.owner)

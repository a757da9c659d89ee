"""The newest saved state of a group that verifies: an image, or the payload of its checkpoint."""

from nodeagent.model.disk import Disk
from nodeagent.model.errors import Damaged
from nodeagent.model.ids import GroupId
from nodeagent.storage.checkpoint import load_checkpoint
from nodeagent.storage.images import Loaded, load_image


def load_state(disk: Disk, group: GroupId) -> Loaded:
    """The newest saved state, with what is wrong with newer ones; without content if none was saved.

    Raises:
        Damaged: a state was saved, and none verifies.
    """
    image = load_image(disk, group)
    if image.content is not None:
        return image
    payload = load_checkpoint(disk, group)
    if payload is None and image.faults:
        raise Damaged("; ".join(image.faults))
    return Loaded(payload, image.faults)

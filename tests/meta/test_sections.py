"""The meta state as sections of an image, and back."""

from nodeagent.meta.sections import image_of, sections_of
from nodeagent.model.entries import Base, Config
from nodeagent.model.features import SPOKEN
from nodeagent.model.ids import META
from nodeagent.model.image_format import Header, ImageBytes

from .test_changes import Meta


def test_an_image_of_an_open_change_holds_both_partition_tables() -> None:
    meta = Meta()
    meta.begin()
    image = meta.state.image
    assert image.table is not None and image.next_table is not None
    content = ImageBytes.of(Header(Base(image.applied, 1, Config()), META), sections_of(image))
    assert image_of(content, SPOKEN) == image

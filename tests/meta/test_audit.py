"""The audit log and its chain of digests."""

import pytest

from nodeagent.meta.audit import AUDIT_KEPT, Audit
from nodeagent.meta.image import Image
from nodeagent.meta.sections import image_of, sections_of
from nodeagent.meta.state import MetaState
from nodeagent.model.audit_chain import AuditLine, chained, digests
from nodeagent.model.entries import Base, Config
from nodeagent.model.features import FIRST, SPOKEN, Feature
from nodeagent.model.ids import META
from nodeagent.model.image_format import Header, ImageBytes

EXTRA = 10


def noted(level: int, lines: int) -> Image:
    image = Image(level=level, cluster_id="c")
    audit = Audit(image)
    for number in range(lines):
        audit.note(number, "ann", f"did {number}")
    return image


def whole(lines: int) -> list[AuditLine]:
    return [(number, "ann", f"did {number}") for number in range(lines)]


def test_the_digest_before_the_first_line_is_that_of_all_dropped_lines() -> None:
    image = noted(Feature.AUDIT_CHAIN, AUDIT_KEPT + EXTRA)
    every = list(digests("", whole(AUDIT_KEPT + EXTRA)))
    assert (image.audit_first, image.audit_base) == (EXTRA, every[EXTRA - 1])
    assert list(digests(image.audit_base, image.audit)) == every[EXTRA:]
    few = noted(Feature.AUDIT_CHAIN, 3)
    assert (few.audit_first, few.audit_base, len(few.audit)) == (0, "", 3)


def test_below_its_level_nothing_is_counted() -> None:
    """Nodes of an earlier release would count nothing: all nodes begin at the entry that raises the level."""
    image = noted(FIRST, AUDIT_KEPT + EXTRA)
    assert (image.audit_first, image.audit_base) == (0, "") and len(image.audit) == AUDIT_KEPT


@pytest.mark.parametrize(
    "changed", [(1, "ann", "did 0"), (0, "bob", "did 0"), (0, "ann", "did 0 "), (0, "anndid 0", "")]
)
def test_every_part_of_a_line_is_in_its_digest(changed: AuditLine) -> None:
    assert chained("", changed) != chained("", (0, "ann", "did 0")) != chained("x", (0, "ann", "did 0"))


def test_an_image_and_a_checkpoint_hold_the_chain() -> None:
    image = noted(Feature.AUDIT_CHAIN, AUDIT_KEPT + EXTRA)
    assert MetaState.decode(MetaState(image).encode()).image == image
    content = ImageBytes.of(Header(Base(0, 0, Config()), META), sections_of(image))
    assert image_of(content, SPOKEN) == image

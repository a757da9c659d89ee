"""A node without an image of the meta state to start from asks another node for one."""

from typing import Any

import pytest

from nodeagent.log import Damage, GroupLog
from nodeagent.model.entries import Base, HardState
from nodeagent.model.ids import META
from nodeagent.model.requests import OfferState
from tests.host.opened import opened
from tests.host.test_host import CONFIG, MEMBERS

UNREADABLE = Damage(0, 0, META, 0, 0, "image.9 is damaged")


@pytest.mark.parametrize(
    ("base", "held", "asks"),
    [
        (9, {}, True),
        (0, {}, False),
        (9, {"damaged": [UNREADABLE], "imageless": {META}}, True),
        (9, {"damaged": [UNREADABLE]}, False),
        (
            9,
            {"damaged": [UNREADABLE, Damage(0, 0, META, 0, 0, "a segment is damaged")], "imageless": {META}},
            False,
        ),
    ],
    ids=["all missing", "none needed", "all damaged", "the log is damaged", "both damaged"],
)
def test_an_image_is_asked_for_if_the_log_is_whole(base: int, held: dict[str, Any], asks: bool) -> None:
    """With a damaged log, votes and acknowledgements of this node may be lost: it does not continue."""
    log = GroupLog(Base(base, 1 if base else 0, MEMBERS), HardState(1), [])
    host = opened(CONFIG, {META: (log, None)}, **held)
    requests = [r for _, _, r in host.take().calls if isinstance(r, OfferState)]
    assert [r.base for r in requests] == ([base] if asks else [])

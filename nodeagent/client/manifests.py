"""The manifest of one replica, read page by page."""

from collections.abc import Callable, Sequence

from nodeagent.model.ids import GroupId
from nodeagent.model.operation import Ranges
from nodeagent.model.requests import GetManifest, ManifestReply


def whole_manifest(
    ask: Callable[[GetManifest], ManifestReply], group: GroupId, slots: Ranges = ()
) -> ManifestReply:
    """All pages as one reply; see `joined`."""
    pages = [ask(GetManifest(group, slots, 0))]
    while (following := pages[-1].next) is not None:
        pages.append(ask(GetManifest(group, slots, following)))
    return joined(pages)


def joined(pages: Sequence[ManifestReply]) -> ManifestReply:
    """The files of all pages, in their order. What is said of the replica holds for each of them: the lowest
    index up to which files are made, the most that is pending; damage as the last page has it."""
    last = pages[-1]
    return ManifestReply(
        last.group,
        last.node,
        applied=min(page.applied for page in pages),
        materialised=min(page.materialised for page in pages),
        pending=max(page.pending for page in pages),
        files=tuple(file for page in pages for file in page.files),
        damaged=last.damaged,
    )

"""The manifest of one replica, which comes in pages."""

from collections.abc import Sequence

from nodeagent.model.requests import ManifestReply


def joined(pages: Sequence[ManifestReply]) -> ManifestReply:
    """The files of all pages, in their order. What is said of the replica holds for each of them: the lowest
    index up to which files are made, the most that is pending, whether files were being made; damage as the
    last page has it."""
    last = pages[-1]
    return ManifestReply(
        last.group,
        last.node,
        applied=min(page.applied for page in pages),
        materialised=min(page.materialised for page in pages),
        pending=max(page.pending for page in pages),
        files=tuple(file for page in pages for file in page.files),
        damaged=last.damaged,
        at_work=any(page.at_work for page in pages),
    )

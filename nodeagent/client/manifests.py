"""The manifest of one replica, which comes in pages."""

from collections.abc import Sequence

from nodeagent.model.requests import ManifestReply


def joined(pages: Sequence[ManifestReply]) -> ManifestReply:
    """One reply with the files of all pages, in order. It has the lowest `applied` and `materialised` and
    the highest `pending` of all pages, `at_work` if any page has it, and `damaged` of the last page."""
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

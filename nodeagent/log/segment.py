"""The current segment: filled with zeros in advance, blocks written one after the other."""

from collections.abc import Sequence

from nodeagent.model.disk import Buffer, File

LARGE_BLOCKS_PER_STEP = 16


class Segment:
    """Invariant: synced <= end <= filled; from `end` to `filled` the file holds zeros, or part of a block
    that did not fit on the disk: the next block overwrites it, and recovery treats it as a torn write.

    Zeros are written `zero_step` bytes at a time, so that the syncs in between write no metadata (an
    overwrite syncs in half the time of an append). A block that is large compared to the step is not worth
    writing twice, so no zeros are written for it.
    """

    __slots__ = ("_zero_step", "closed", "end", "file", "filled", "first_batch", "number", "synced")

    def __init__(self, file: File, number: int, end: int, zero_step: int) -> None:
        self.file = file
        self.number = number
        self.end = end
        self.filled = max(end, file.size())
        self.synced = end
        self.first_batch = end
        """Offset of the first block after the start, or of the first block this process wrote."""

        self.closed = False
        """No more blocks are written to this segment."""

        self._zero_step = zero_step

    def put(self, parts: Sequence[Buffer], length: int) -> None:
        """Write one block at `end`. On error `end` does not change, and the block may be retried."""
        after = self.end + length
        if after > self.filled and length * LARGE_BLOCKS_PER_STEP < self._zero_step:
            self.file.zero_fill(self.filled, self._zero_step)
            self.filled += self._zero_step
        self.file.pwritev(self.end, parts)
        self.end = after
        self.filled = max(self.filled, after)

    def trim(self) -> None:
        """After a failed `put`, free the space it took beyond the zeros."""
        if self.file.size() > self.filled:
            self.file.truncate(self.filled)

    def sync(self) -> None:
        self.file.sync()
        self.synced = self.end

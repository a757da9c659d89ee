"""The segment that is written to: bytes filled with zeros ahead, blocks put one after the other."""

from collections.abc import Sequence

from nodeagent.model.disk import Buffer, File

LARGE_BLOCKS_PER_STEP = 16


class Segment:
    """Invariant: synced <= end <= filled; from `end` to `filled` the file holds zeros, or a part of a block
    for which there was no room: the next block takes its place, and recovery takes it for a torn write.

    Zeros are written `zero_step` bytes at a time, so that the syncs in between carry no metadata (an
    overwrite syncs in half the time of an append). A block that is large against the step is not worth
    writing twice and goes past the zeros as it is.
    """

    __slots__ = ("_zero_step", "closed", "end", "file", "filled", "first_batch", "number", "synced")

    def __init__(self, file: File, number: int, end: int, zero_step: int) -> None:
        self.file = file
        self.number = number
        self.end = end
        self.filled = max(end, file.size())
        self.synced = end
        self.first_batch = end
        """Where the blocks after the start began, or where this process went on."""

        self.closed = False
        """Nothing more is put here."""

        self._zero_step = zero_step

    def put(self, parts: Sequence[Buffer], length: int) -> None:
        """Write one block at `end`. On error `end` stays and the same block may be put again."""
        after = self.end + length
        if after > self.filled and length * LARGE_BLOCKS_PER_STEP < self._zero_step:
            self.file.zero_fill(self.filled, self._zero_step)
            self.filled += self._zero_step
        self.file.pwritev(self.end, parts)
        self.end = after
        self.filled = max(self.filled, after)

    def trim(self) -> None:
        """After a put that failed: give back what it took behind the zeros."""
        if self.file.size() > self.filled:
            self.file.truncate(self.filled)

    def sync(self) -> None:
        self.file.sync()
        self.synced = self.end

"""The segments of a log directory: the sealed ones, and the current one that is written."""

from nodeagent.log.record import BlockKind, encode_block
from nodeagent.log.replay import NEWEST, SUFFIX, Replay, newest_content, path_of
from nodeagent.log.segment import Segment
from nodeagent.log.space import Space
from nodeagent.model.disk import Disk

NEW = ".new"


class Segments:
    """Creates and deletes segment files. `current` is set before the first write."""

    current: Segment

    def __init__(self, disk: Disk, directory: str, zero_step: int, space: Space, replay: Replay) -> None:
        self._disk = disk
        self._directory = directory
        self._zero_step = zero_step
        self._space = space
        self.sealed: dict[int, int] = dict(replay.sizes)
        """Number -> bytes of every segment but the current one."""

        self.starts = replay.starts
        """See `Replay.starts`."""

    @property
    def numbers(self) -> list[int]:
        """Ascending; the current segment is the last."""
        return [*sorted(self.sealed), self.current.number]

    @property
    def bytes_total(self) -> int:
        return sum(self.sealed.values()) + self.current.filled

    def create(self, number: int, seq: int, start: bytes) -> None:
        """Create segment `number` with block `seq`, whose body is `start`; it becomes the current segment."""
        path = path_of(self._directory, number)
        temporary = path.removesuffix(SUFFIX) + NEW
        self.drop_new()
        file = self._disk.create(temporary)
        try:
            segment = Segment(file, number, 0, self._zero_step)
            parts, length = encode_block(BlockKind.START, number, seq, 0, 0, [], [start])
            segment.put(parts, length)
            segment.first_batch = segment.end
            segment.sync()
            self._disk.rename(temporary, path)
            self._disk.sync_dir(self._directory)
            self.write_newest(segment)
        except BaseException:
            file.close()  # an open file would keep its space allocated
            raise
        self.starts[number] = True
        self.current = segment

    def drop_new(self) -> None:
        """Remove a new segment that does not have its final name yet."""
        for name in self._disk.listdir(self._directory):
            if name.endswith(NEW):
                self._disk.unlink(f"{self._directory}/{name}")

    def write_newest(self, segment: Segment) -> None:
        """Record in `newest` that `segment` is the newest, and how far it is durable."""
        content = newest_content(segment.number, segment.synced)
        self._disk.write_atomic(f"{self._directory}/{NEWEST}", content)

    def read(self, number: int) -> bytes:
        return self._disk.read(path_of(self._directory, number))

    def delete(self, number: int) -> None:
        """Delete a sealed segment, and first the torn bytes that recovery cut from it."""
        path = path_of(self._directory, number)
        prefix = f"{number:012d}."
        for name in self._disk.listdir(self._directory):
            if name.startswith(prefix) and name.endswith(".torn"):
                self._disk.unlink(f"{self._directory}/{name}")
        self._space.guard(lambda: self._disk.unlink(path))
        self._space.guard(lambda: self._disk.sync_dir(self._directory))
        del self.sealed[number]
        self.starts.pop(number, None)

"""Work that waits until a checkpoint of a data group is durable."""

from collections.abc import Callable

Waiting = tuple[Callable[[], None], Callable[[], None]]
"""What to do when the checkpoint is durable, and what if the replica ends before that."""


class CheckpointWaits:
    def __init__(self) -> None:
        self._unsaved: list[Waiting] = []
        """These wait for a checkpoint that has not begun yet."""

        self._saving: list[Waiting] = []
        """These wait for the checkpoint that has begun."""

    @property
    def is_saving(self) -> bool:
        """Whether something waits for the checkpoint that has begun."""
        return bool(self._saving)

    def add(self, saved: Callable[[], None], abandoned: Callable[[], None] = lambda: None) -> None:
        """Run `saved` once a checkpoint of the current state is durable, `abandoned` if none will be."""
        self._unsaved.append((saved, abandoned))

    def on_begun(self) -> None:
        """A checkpoint of the current state begins."""
        self._saving += self._unsaved
        self._unsaved = []

    def on_durable(self) -> None:
        waits, self._saving = self._saving, []
        for saved, _ in waits:
            saved()

    def abandon(self) -> None:
        """No further checkpoint becomes durable."""
        waits = [*self._saving, *self._unsaved]
        self._saving, self._unsaved = [], []
        for _, abandoned in waits:
            abandoned()

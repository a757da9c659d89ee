"""The jobs of one group that work on its files."""

from collections.abc import Callable

from nodeagent.host.effect_queue import EffectQueue
from nodeagent.model.jobs import Job, JobResult


class GroupJobs:
    """Counts the jobs that it runs, so that a removal or an installation can wait for their end. Jobs that
    only read files (`FileReads`) are not counted."""

    def __init__(self, effects: EffectQueue) -> None:
        self._effects = effects
        self._running = 0
        self._at_rest: Callable[[], None] | None = None

    @property
    def is_running(self) -> bool:
        return self._running > 0

    def run(self, job: Job, then: Callable[[JobResult], None]) -> None:
        """Run `job`, then `then` with its result."""

        def done(result: JobResult) -> None:
            self._running -= 1
            then(result)
            self._maybe_rest()

        self._running += 1
        self._effects.job(job, done)

    def hold(self, then: Callable[[], None]) -> Callable[[], None]:
        """Count as a running job until the returned call is made, which runs `then`."""

        def done() -> None:
            self._running -= 1
            then()
            self._maybe_rest()

        self._running += 1
        return done

    def when_at_rest(self, then: Callable[[], None]) -> None:
        """Run `then` when no counted job of this group runs."""
        if self._running:
            self._at_rest = then
        else:
            then()

    def _maybe_rest(self) -> None:
        if not self._running and self._at_rest is not None:
            self._at_rest()

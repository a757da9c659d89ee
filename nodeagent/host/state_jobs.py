"""The jobs that the state of a data group asks for, each started at once and retried when it fails.

A file that cannot be made here is copied from a member that has it, or has merged it into a later file
(`failing`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from nodeagent.data import commands
from nodeagent.data.state import DataState
from nodeagent.host.checkpoint_waits import CheckpointWaits
from nodeagent.host.damaged_files import DamagedFiles
from nodeagent.host.failing import FOREIGN, Answers, Copied, Failing, Making, specs_of
from nodeagent.host.file_failures import FileFailures
from nodeagent.host.group_context import GroupContext
from nodeagent.host.held_state import HeldState
from nodeagent.host.removals import Removals
from nodeagent.host.writer import FileWriter
from nodeagent.model.errors import Overloaded
from nodeagent.model.files import CloseSpec, FileMeta
from nodeagent.model.jobs import (
    AdoptFiles,
    CloseFiles,
    CompactFiles,
    DeleteFiles,
    Failed,
    FilesClosed,
    Job,
    JobResult,
)
from nodeagent.model.space import Room

JOB_RETRY_MS = 1_000

SEALED_CLOSE_MS = 1_000
"""Files of sealed slots are made this long after the seal. Nobody reads them yet; if all members made them at
once, they would slow down the very moment in which writers wait for the slots to open elsewhere."""


class StateJobs:
    """
    Args:
        copy: fetches the first of the described files that another member has made.
    """

    def __init__(
        self,
        context: GroupContext,
        held: HeldState,
        damaged: DamagedFiles,
        waits: CheckpointWaits,
        writer: FileWriter,
        copy: Callable[[Sequence[CloseSpec], Copied], None],
    ) -> None:
        self._context = context
        self._held = held
        self._damaged = damaged
        self._writer = writer
        self._copy = copy
        self.failures = FileFailures(held)
        self.removals = Removals(context, held, waits, self._start)
        self._running: Counter[type[Job]] = Counter()
        """Number of the state's jobs that run, by kind."""

    def start(self) -> None:
        """Start what the state asks for."""
        state = self._held.state
        jobs = list(state.jobs)
        state.jobs.clear()
        for job in jobs:
            if isinstance(job, CloseFiles) and all(self._is_sealed(u.spec.slot) for u in job.units):
                self._start_after(SEALED_CLOSE_MS, job)
            else:
                self._start(job)
        state = self._held.state
        self.removals.add(state.files.pending_delete)
        state.files.pending_delete = []

    @property
    def is_making(self) -> bool:
        """Whether files are being made, or wait for a worker, and none fails."""
        kinds = (CloseFiles, CompactFiles, AdoptFiles)
        return any(self._running[kind] for kind in kinds) and not self.failures.failing

    @property
    def is_closing(self) -> bool:
        """As `is_making`, for rows in memory."""
        return self._running[CloseFiles] > 0 and not self.failures.failing

    def owed(self, made: FileMeta) -> CompactFiles | None:
        """The open compaction that is to make this very file here; None if there is none."""
        for c in self._held.state.compactions.active:
            spec = c.job.unit.spec if c.job is not None else None
            if spec is not None and (spec.name, spec.slot, spec.partition, spec.order) == (
                made.name,
                made.slot,
                made.partition,
                made.order,
            ):
                return c.job
        return None

    def take_output(self, job: CompactFiles, made: FileMeta) -> None:
        """The output of a compaction has come from another member."""
        self._on_job(job, self._held.state, FilesClosed((made,)))

    # --- one job -----------------------------------------------------------------------------------

    def _is_sealed(self, slot: int) -> bool:
        return self._held.state.slots.sealed_by(slot) is not None

    def _start_after(self, delay_ms: int, job: Job) -> None:
        state, held = self._held.state, self._held
        self._context.effects.later(delay_ms, lambda: self._start(job) if state is held.state else None)

    def _start(self, job: Job) -> None:
        condition, space = self._context.condition, self._context.effects.space
        if condition.removed:
            return
        state = self._held.state
        if isinstance(job, DeleteFiles) and condition.installing is not None:
            return self._start_after(JOB_RETRY_MS, job)  # the state to come may name them
        if isinstance(job, Making):
            if not self._writer.is_ready:
                return self._start_after(JOB_RETRY_MS, job)
            self.failures.forget_unparked(job)
            if why := self._refusal(specs_of(job)):
                return self._leave_to_others(job, why)
        if isinstance(job, CompactFiles) and sum(f.size for f in job.unit.inputs) > space.spare:
            return self._on_job(job, state, Failed(Overloaded.code, space.why))

        def done(result: JobResult) -> None:
            self._running[type(job)] -= 1
            self._on_job(job, state, result)

        self._running[type(job)] += 1
        self._context.jobs.run(job, done)

    def _on_job(self, job: Job, state: DataState, result: JobResult) -> None:
        if self._held.is_obsolete(state):
            return
        condition, effects = self._context.condition, self._context.effects
        if isinstance(result, Failed) and isinstance(job, Making):
            return self._on_not_made(job, result)
        if isinstance(result, Failed):
            condition.error = f"{type(job).__name__}: {result.what}"
            effects.note("job_failed", group=self._context.group, job=type(job).__name__, why=result.what)
            return self._start_after(JOB_RETRY_MS, job)
        condition.error = ""
        if isinstance(job, Making):
            assert isinstance(result, FilesClosed)
            self._on_made(job, result)
        elif isinstance(job, AdoptFiles):
            self._held.state.on_adopted(job)
        self._context.unsaved.add()
        self.start()

    # --- files that are made -----------------------------------------------------------------------

    def _on_made(self, job: Making, result: FilesClosed) -> None:
        self.failures.helped = ""
        if isinstance(job, CompactFiles):
            self._held.state.turns.on_compacted(job, result.files[0])
        else:
            self._held.state.on_closed(job, result.files)
        self.failures.forget(job, None)

    def _on_not_made(self, job: Making, result: Failed) -> None:
        """Without space nothing can be made, and the whole job is retried. Otherwise one unit of a close may
        be the reason: halves are tried until that unit is alone, so that the others get their files."""
        effects, group = self._context.effects, self._context.group
        effects.note("job_failed", group=group, job=type(job).__name__, why=result.what)
        if isinstance(job, CompactFiles):
            self._damaged.on_failed(result, job.unit.inputs, job)
        if effects.space.room is Room.FULL:  # native code reports a full disk in its own words
            result = Failed(Overloaded.code, result.what)
        left = self._left_of(job)
        self._context.unsaved.add()
        if isinstance(left, CloseFiles) and len(left.units) > 1 and result.code != Overloaded.code:
            half = len(left.units) // 2
            self._start(CloseFiles(group, left.units[:half]))
            self._start(CloseFiles(group, left.units[half:]))
        elif left is not None:
            self._retry_later(left, result)
        self.start()

    def _leave_to_others(self, job: Making, why: str) -> None:
        """Files that only other members can make are copied from there; the rest of the job is done here."""
        left = self._left_of(job)
        if isinstance(left, CloseFiles):
            own = tuple(u for u in left.units if not self._refusal((u.spec,)))
            if own:
                self._start(CloseFiles(self._context.group, own))
            for unit in left.units:
                if self._refusal((unit.spec,)):
                    self._retry_later(CloseFiles(self._context.group, (unit,)), Failed(FOREIGN, why))
        elif left is not None:
            self._retry_later(left, Failed(FOREIGN, why))

    def _refusal(self, specs: Iterable[CloseSpec]) -> str:
        """Why other members are to make these files, "" if this member is."""
        substitutes = self._held.state.files.substitutes
        return self._writer.refusal(s for s in specs if s.name not in substitutes)

    def _left_of(self, job: Making) -> Making | None:
        """What the job still has to make, without what was parked or released since it began."""
        left: Making | None = None
        if isinstance(job, CloseFiles):
            units = self._held.state.units_to_retry(job)
            left = CloseFiles(self._context.group, units) if units else None
        elif self._held.state.turns.should_retry(job):
            left = job
        self.failures.forget(job, left)
        return left

    def _retry_later(self, job: Making, result: Failed) -> None:
        failing = self.failures.add(job)
        for f in failing:
            f.count(result)
        state = self._held.state
        self._context.effects.later(max(f.delay_ms for f in failing), lambda: self._retry(job, state))
        if len(failing) == 1:
            self._maybe_park(failing[0])

    def _maybe_park(self, failing: Failing) -> None:
        """Leader: park the file if it failed often enough, but not while this node is short of space, which
        may be the reason."""
        context = self._context
        if failing.is_foreign and self._held.state.compactions.is_input(failing.spec.name):
            return  # a logged compaction needs the file as it is: this node's TsFile library makes it
        park = failing.parked() if context.leads and not context.effects.space.room else None
        if park is not None:
            context.effects.note("parking", group=context.group, file=park.name, why=park.why)
            context.proposals.propose([commands.encode(park)])

    def _retry(self, job: Making, state: DataState, *, ask: bool = True) -> None:
        """Make what is left of the job.

        Args:
            ask: first ask the other members for a file that failed often.
        """
        if self._held.is_obsolete(state):
            return
        left = self._left_of(job)
        specs = specs_of(left)
        failing = self.failures.failing.get(specs[0].name) if ask and len(specs) == 1 else None
        if left is not None and failing is not None and failing.wants_copy:
            self._copy(self._outcomes(left), partial(self._on_copied, left, state))
        elif left is not None:
            self._start(left)
        self.start()

    # --- copies of what other members have made ----------------------------------------------------

    def _outcomes(self, job: Making) -> tuple[CloseSpec, ...]:
        """The files that would do instead, the latest first: while this node was down the other members may
        have merged the file that it lacks."""
        later = self._held.state.turns.outcomes(job) if isinstance(job, CompactFiles) else ()
        return tuple(o.spec for o in later) or specs_of(job)

    def _on_copied(self, job: Making, state: DataState, made: FileMeta | None, answers: Answers) -> None:
        if self._held.is_obsolete(state):
            return None
        failures = self.failures
        failing = failures.failing.get(specs_of(job)[0].name)
        is_taken = made is not None and self._take(job, made)
        if made is not None:
            self.removals.drop_unnamed(made)
        if made is None or not is_taken:
            if failing is not None:
                failing.on_absent(answers)
                is_input = self._held.state.compactions.is_input(failing.spec.name)
                if failing.wants_substitute(is_input=is_input):
                    self._substitute(failing)
            return self._retry(job, state, ask=False)
        if failing is not None:
            # A damaged file is no longer in use; any other reason will make the next file fail too.
            is_expected = failing.is_damaged or failing.is_foreign
            failures.helped = "" if is_expected else f"{failing.trouble}; another member's file was taken"
            self._context.effects.note(
                "copied_instead", group=self._context.group, file=made.name, why=failing.why
            )
        return None

    def _substitute(self, failing: Failing) -> None:
        """Have this node's TsFile library make the file: the other members have merged theirs while this node
        was down, or all were upgraded before one had made it."""
        self._held.state.files.substitutes.add(failing.spec.name)
        self._context.effects.note(
            "substituted", group=self._context.group, file=failing.spec.name, why=failing.why
        )

    def _take(self, job: Making, made: FileMeta) -> bool:
        """Take the copy if it is the file to be made or one that replaces it; return whether it was taken."""
        state = self._held.state
        later = state.turns.outcomes(job) if isinstance(job, CompactFiles) else ()
        outcome = next((o for o in later if o.spec.name == made.name), None)
        if outcome is not None and len(outcome.steps) > 1:
            state.turns.on_copied(outcome, made)
            self.failures.forget(job, None)
            self._context.unsaved.add()
            self.start()
        elif made.name == specs_of(job)[0].name:
            self._on_job(job, state, FilesClosed((made,)))
        else:
            return False
        return True

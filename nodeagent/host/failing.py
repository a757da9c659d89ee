"""Files that this node fails to make: when each is retried, when other members are asked for it, when it is
parked.

Closes and merges are treated alike. The rows of a failed close stay in memory, are read from there, and pin
their log; the files of a failed merge stay separate. Nothing is lost, only late, so the file is retried at
growing intervals; after `COPY_TRIES` another member's file is requested before each try; after `PARK_TRIES`
the leader parks it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.data.commands import Park
from nodeagent.model.errors import Overloaded
from nodeagent.model.files import CloseSpec, FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CloseFiles, CompactFiles, Failed

COPY_TRIES = 3
"""Failures in a row after which other members are asked for the file before each further try. If an input is
damaged, one failure is enough, because no further try can succeed."""

UNMET_TRIES = 30
"""If damage keeps a file from being made: requests for a copy that no member has, before the status says that
no member has it. That is about five minutes."""

PARK_TRIES = 6
"""Failures before a file is parked: about half a minute for a close, a minute for a merge."""

FOREIGN_TRIES = 12
"""The same if only another TsFile library can make the file: each try asks the other members, and all tries
take about 50 s."""

PARK_WHY_MAX = 500
"""Characters of the error that a `Park` entry contains."""

SUBSTITUTE_TRIES = 3
"""If another TsFile library should make a file: requests to which some member answers that it no longer has
the file, before this node's library makes it."""

PASSED = "passed"
"""Detail of a refusal to export a file: whether the file existed and no longer does."""

FOREIGN = "foreign"
"""Code of a failure: this node's TsFile library is not the one that the entry names."""

Making = CloseFiles | CompactFiles


@dataclass(frozen=True, slots=True)
class Pace:
    retry_ms: int
    retry_ms_max: int
    """The wait doubles with each further failure, up to this."""

    even_tries: int
    """Failures up to which the wait remains `retry_ms`."""

    park_tries: int
    """Failures before the leader parks it."""

    def delay_ms(self, tries: int) -> int:
        """Before the next try."""
        return min(self.retry_ms << max(0, min(tries - self.even_tries, 16)), self.retry_ms_max)


@dataclass(frozen=True, slots=True)
class Kind:
    what: str
    """What cannot be done with the rows, as a participle."""

    pace: Pace


CLOSE = Kind("stored as a file", Pace(1_000, 60_000, 1, PARK_TRIES))
MERGE = Kind("merged", Pace(10_000, 640_000, PARK_TRIES, PARK_TRIES))
"""Each try reads all of the inputs. The wait grows only if the merge cannot be parked either."""

FOREIGN_PACE = Pace(200, 10_000, 2, FOREIGN_TRIES)
"""A try only asks the other members, and one of them is probably making the file now."""


@dataclass(slots=True)
class Answers:
    """The answers of the other members that were asked for a file and did not have it."""

    is_nowhere: bool = False
    """There are other members, and each answered that it does not have the file."""

    has_passed: bool = False
    """A member had the file once, or has no row left for it (`DataState.was_removed`)."""


Copied = Callable[[FileMeta | None, Answers], None]
"""Receives the file that came from another member and is in place; None if none came."""


@dataclass(slots=True)
class Failing:
    """One file that this node fails to make."""

    kind: Kind
    spec: CloseSpec
    index: int
    """Index of the entry that asks for the file."""

    tries: int = 0
    """Failures, except those due to a lack of space, or to damage, which a repair ends."""

    why: str = ""
    is_damaged: bool = False
    """Whether the last try failed because an input is damaged."""

    is_foreign: bool = False
    """Whether another TsFile library makes it on the other members: only their file helps, not a retry."""

    unmet: int = 0
    """How often in a row no other member had the file."""

    passed: int = 0
    """How often a member that was asked no longer had the file."""

    @classmethod
    def of(cls, job: Making, spec: CloseSpec) -> "Failing":
        if isinstance(job, CompactFiles):
            return cls(MERGE, spec, max(job.unit.clean, default=0))
        return cls(CLOSE, spec, spec.order[0])

    @property
    def trouble(self) -> str:
        where = _place(self.spec.partition, self.spec.schema.table)
        lost = ", and no other member has the resulting file" if self.is_lost else ""
        return f"{where} cannot be {self.kind.what}, tried {self.tries} times{lost}: {self.why}"

    @property
    def wants_copy(self) -> bool:
        return self.is_damaged or self.is_foreign or self.tries >= COPY_TRIES

    @property
    def is_awaited(self) -> bool:
        """Whether another member is expected to make the file soon, so that nothing is reported yet."""
        return self.is_foreign and self.tries < FOREIGN_TRIES

    def wants_substitute(self, *, is_input: bool) -> bool:
        """Whether this node's TsFile library makes a file that another library should make. Its bytes are
        never compared: a logged compaction merges it (`is_input`), or the others no longer have it."""
        if not self.is_foreign:
            return False
        return self.passed >= SUBSTITUTE_TRIES or (is_input and self.tries >= FOREIGN_TRIES)

    @property
    def is_lost(self) -> bool:
        """Whether apparently no further try can succeed."""
        return self.is_damaged and self.unmet >= UNMET_TRIES

    @property
    def delay_ms(self) -> int:
        return self.pace.delay_ms(self.tries)

    @property
    def pace(self) -> Pace:
        return FOREIGN_PACE if self.is_foreign else self.kind.pace

    def count(self, result: Failed) -> None:
        if result.code != Overloaded.code and not result.found:
            self.tries += 1
        self.why = result.what
        self.is_damaged = bool(result.found)
        self.is_foreign = result.code == FOREIGN

    def on_absent(self, answers: Answers) -> None:
        self.unmet = self.unmet + 1 if answers.is_nowhere else 0
        self.passed += answers.has_passed

    def parked(self) -> Park | None:
        """The entry with which the leader parks the file; None if it is too early, or if the file that cannot
        be made is an Arrow file.

        A temporary cause (a killed worker, lack of memory) gets time to pass, and a copy from another member
        is tried first. Parking too early only costs bytes, and a repeated entry changes nothing.
        """
        spec = self.spec
        if self.tries < self.pace.park_tries or spec.parked:
            return None
        why = self.why[:PARK_WHY_MAX]
        return Park(spec.slot, spec.partition, spec.schema, self.index, spec.name, why)


def specs_of(job: Making | None) -> tuple[CloseSpec, ...]:
    """The files that the job is to make."""
    if isinstance(job, CompactFiles):
        return (job.unit.spec,)
    return tuple(u.spec for u in job.units) if job is not None else ()


def _place(key: PartitionKey, table: str) -> str:
    return f"rows of {key.storage_group}.{table} (time partition {key.time_partition}, shard {key.shard})"


def parked_trouble(file: FileMeta) -> str:
    where = _place(file.partition, file.table)
    return f"{where} are kept as {file.name}, because they cannot be stored as a TsFile: {file.parked}"

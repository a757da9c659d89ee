"""Files that fail to be made here: when each is tried again, when others are asked for it, when it is parked.

A close and a merge are alike in this. The rows of a close stay in memory, are read from there, and hold their
log; the files of a merge stay apart. Nothing is lost, only late, so the way is: again, ever more rarely;
after `COPY_TRIES` another member's file before each try; after `PARK_TRIES` the leader parks it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nodeagent.data.commands import Park
from nodeagent.model.errors import Overloaded
from nodeagent.model.files import CloseSpec, FileMeta
from nodeagent.model.ids import PartitionKey
from nodeagent.model.jobs import CloseFiles, CompactFiles, Failed

COPY_TRIES = 3
"""Failures in a row after which a member that has made the file is asked for it before each next try. When a
file it is to be made of is damaged, one is enough: nothing else ends that."""

UNMET_TRIES = 30
"""Copies that nobody had of what damage keeps from being made, some five minutes, before a person is told."""

PARK_TRIES = 6
"""Failures of one unit or merge before it is parked: about half a minute, or a minute."""

FOREIGN_TRIES = 12
"""The same, when only another library can make it: each try asks the other members for it, for some 50 s."""

PARK_WHY_MAX = 500
"""Characters of the error that are logged with it."""

SUBSTITUTE_TRIES = 3
"""Copies of what another library makes that nobody had, before this node's library makes one."""

PASSED = "passed"
"""Detail of a refusal to export a file: whether it was there and is no more."""

FOREIGN = "foreign"
"""Code of a failure: this node's library is not the one that the entry names."""

Making = CloseFiles | CompactFiles


@dataclass(frozen=True, slots=True)
class Pace:
    retry_ms: int
    retry_ms_max: int
    """What fails again and again waits twice as long each time, up to this."""

    even_tries: int
    """Tries before it waits longer."""

    park_tries: int
    """Failures before the leader parks it."""

    def delay_ms(self, tries: int) -> int:
        """Before the next try."""
        return min(self.retry_ms << max(0, min(tries - self.even_tries, 16)), self.retry_ms_max)


@dataclass(frozen=True, slots=True)
class Kind:
    what: str
    """That cannot be done with the rows."""

    pace: Pace


CLOSE = Kind("stored as a file", Pace(1_000, 60_000, 1, PARK_TRIES))
MERGE = Kind("merged", Pace(10_000, 640_000, PARK_TRIES, PARK_TRIES))
"""Each try reads all of the inputs. Only one that cannot even be parked waits longer."""

FOREIGN_PACE = Pace(200, 10_000, 2, FOREIGN_TRIES)
"""A try costs a question to the other members, and one of them is making the file at this moment."""


@dataclass(slots=True)
class Answers:
    """Of the other members that were asked for a file, while none had it."""

    is_nowhere: bool = False
    """There are others, and each said that it has none."""

    has_passed: bool = False
    """One had it once, or had no row left for it (`DataState.has_passed`)."""


Copied = Callable[[FileMeta | None, Answers], None]
"""Gets the file that came from another member and is in place, None if none came."""


@dataclass(slots=True)
class Failing:
    """One file that fails to be made here."""

    kind: Kind
    spec: CloseSpec
    index: int
    """Of the entry that has it made."""

    tries: int = 0
    """For a reason of its own: want of space is none, nor damage, which a repair ends."""

    why: str = ""
    is_damaged: bool = False
    """For damage of an input that was found the last time."""

    is_foreign: bool = False
    """For what makes it elsewhere is another library: no try helps, another member's file does."""

    unmet: int = 0
    """How often in a row no other member had it."""

    passed: int = 0
    """How often one that was asked had it no more."""

    @classmethod
    def of(cls, job: Making, spec: CloseSpec) -> "Failing":
        if isinstance(job, CompactFiles):
            return cls(MERGE, spec, max(job.unit.clean, default=0))
        return cls(CLOSE, spec, spec.order[0])

    @property
    def trouble(self) -> str:
        where = _place(self.spec.partition, self.spec.schema.table)
        lost = ", and no other member has what becomes of them" if self.is_lost else ""
        return f"{where} cannot be {self.kind.what}, tried {self.tries} times{lost}: {self.why}"

    @property
    def wants_copy(self) -> bool:
        return self.is_damaged or self.is_foreign or self.tries >= COPY_TRIES

    @property
    def is_awaited(self) -> bool:
        """Whether another member is expected to have made it in a moment: no trouble yet."""
        return self.is_foreign and self.tries < FOREIGN_TRIES

    def wants_substitute(self, *, is_input: bool) -> bool:
        """Whether to make with this node's library what another library should. Its bytes are compared with
        nobody's: a compaction that is logged takes it in (`is_input`), or it is over for the others."""
        if not self.is_foreign:
            return False
        return self.passed >= SUBSTITUTE_TRIES or (is_input and self.tries >= FOREIGN_TRIES)

    @property
    def is_lost(self) -> bool:
        """Whether no try will help, as far as one can tell."""
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
        """What the leader logs, once there was time for what passes (a worker that was killed, memory) and
        for a copy of what only this member cannot do; if it came too early, it costs only bytes. What is
        logged once more changes nothing."""
        spec = self.spec
        if self.tries < self.pace.park_tries or spec.parked:
            return None
        why = self.why[:PARK_WHY_MAX]
        return Park(spec.slot, spec.partition, spec.schema, self.index, spec.name, why)


def specs_of(job: Making | None) -> tuple[CloseSpec, ...]:
    """The files it is to make."""
    if isinstance(job, CompactFiles):
        return (job.unit.spec,)
    return tuple(u.spec for u in job.units) if job is not None else ()


def _place(key: PartitionKey, table: str) -> str:
    return f"rows of {key.storage_group}.{table} (time partition {key.time_partition}, shard {key.shard})"


def parked_trouble(file: FileMeta) -> str:
    where = _place(file.partition, file.table)
    return f"{where} are kept as {file.name}, because they cannot be stored as a TsFile: {file.parked}"

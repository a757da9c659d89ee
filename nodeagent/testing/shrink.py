"""Shrink a failing seed of the swarm to the fewest faults, clients, groups and bounds with which it still
fails the same way, and print it as a script that becomes a test (`tests/sim/scripts`).

`python -m nodeagent.testing.shrink SEED [RUNS]` prints the script; `... shrink FILE` runs a script.

A run without some of its faults is a different run, in which other messages are lost or late. So each
candidate runs with several seeds for those draws (`noise`), and the first that fails the same way is kept.
"""

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from nodeagent.model.errors import InvalidInput
from nodeagent.testing.cluster_script import ClusterScript
from nodeagent.testing.script import Script
from nodeagent.testing.swarm import Swarm

RUNS_MAX = 400
NOISES = 3
"""Number of `noise` seeds tried for each candidate, after the one that failed last."""

KIND = re.compile(r"^(S\d+|L\d+|liveness)\b")

S = TypeVar("S", Script, ClusterScript)
T = TypeVar("T")


def failure(run: Callable[[], object]) -> tuple[str, str]:
    """(kind, message) of the failure of `run`; two empty strings if it passes."""
    try:
        run()
    except Exception as error:
        said = (str(error) or repr(error)).splitlines()[0]
        kind = KIND.match(said)
        return kind.group() if kind else type(error).__name__, said
    return "", ""


def shown(run: Callable[[], object]) -> int:
    """Run and print the failure, or that it passed; returns the exit code."""
    _, said = failure(run)
    print(said or "passed")
    return bool(said)


class Ran(NamedTuple, Generic[S]):
    """The result of running a candidate."""

    kind: str
    """Kind of failure; "" if it passed."""

    script: S
    """The candidate up to the failure, with the failure's message."""

    size: str
    """Description of how long the run was."""


class Shrinker(ABC, Generic[S]):
    """Runs candidates until no shorter one fails or `left` runs are used up; `best` is the shortest."""

    def __init__(self, seed: int, runs: int) -> None:
        """Raises `LookupError` if the seed does not fail."""
        self.left = runs
        self._tried: set[str] = set()
        first = self._reported(self.first(seed))
        if not first.kind:
            raise LookupError(f"seed {seed} does not fail")
        self.kind = first.kind
        self.best: S = first.script

    @abstractmethod
    def first(self, seed: int) -> Ran[S]:
        """Run the seed itself."""

    @abstractmethod
    def ran(self, candidate: S) -> Ran[S]:
        """Run the candidate."""

    @abstractmethod
    def look(self) -> None:
        """Try scripts shorter than `best`, first those that shorten the run most."""

    def shrink(self) -> S:
        before = None
        while self.left > 0 and self.best != before:
            before = self.best
            self.look()
        return self.best

    def planned(self, **changes: object) -> S:
        """`best` with these changes to its plan."""
        return replace(self.best, plan=replace(self.best.plan, **changes))

    def attempt(self, candidate: S) -> bool:
        """Run the candidate with each noise; if it fails the same way, make it `best` and return True.
        An impossible script is impossible with any noise."""
        for noise in dict.fromkeys([candidate.noise, *range(NOISES)]):
            candidate = replace(candidate, noise=noise)
            text = candidate.to_text()
            if self.left <= 0 or text in self._tried:
                continue
            self._tried.add(text)
            self.left -= 1
            ran = self._reported(self.ran(candidate))
            if ran.kind == self.kind:
                self.best = ran.script
                return True
            if ran.kind == InvalidInput.__name__:
                return False
        return False

    def _reported(self, ran: Ran[S]) -> Ran[S]:
        """Print a line of progress; returns `ran`."""
        line = f"{self.left:>3} left: {ran.size}: {ran.script.why or 'passed'}"
        print(line, file=sys.stderr, flush=True)
        return ran

    def fewer(self, items: Callable[[], tuple[T, ...]], having: Callable[[tuple[T, ...]], S]) -> None:
        """Leave out all items, then halves, then quarters, and so on (ddmin: Zeller, Hildebrandt, IEEE TSE
        28/2, 2002).

        Args:
            items: gives the items of `best`.
            having: gives `best` with these items instead.
        """
        size = len(items())
        while size and self.left > 0:
            start = 0
            while start < len(items()) and self.left > 0:
                if not self.attempt(having(items()[:start] + items()[start + size :])):
                    start += size
            size //= 2


class GroupsShrinker(Shrinker[Script]):
    """Shrinks a run of `Swarm`."""

    def __init__(self, seed: int, runs: int = RUNS_MAX) -> None:
        super().__init__(seed, runs)
        self.fails_again = self.attempt(self.best)
        """Whether the script of the seed's run fails the same way; otherwise the seed cannot be shrunk."""

    def first(self, seed: int) -> Ran[Script]:
        swarm = Swarm(seed)
        kind, said = failure(swarm.run)
        return _ran(swarm, kind, Script(seed, tuple(swarm.nemesis.done), why=said))

    def ran(self, candidate: Script) -> Ran[Script]:
        swarm = Swarm(candidate.seed, candidate)
        kind, said = failure(swarm.run)
        return _ran(swarm, kind, replace(candidate, why=said))

    def look(self) -> None:
        self.fewer(lambda: self.best.faults, lambda faults: replace(self.best, faults=faults))
        plan = Swarm(self.best.seed, self.best).plan
        for name in ("groups", "clients", "window"):
            if getattr(plan, name) > 1:
                self.attempt(self.planned(**{name: 1}))
        self.fewer(self._limits, lambda limits: self.planned(limits=dict(limits)))

    def _limits(self) -> tuple[tuple[str, int], ...]:
        return tuple(Swarm(self.best.seed, self.best).plan.limits.items())


def _ran(swarm: Swarm, kind: str, script: Script) -> Ran[Script]:
    """The result, with the script cut at the end of the faults: the run may have failed after healing."""
    end = swarm.sim.now if swarm.nemesis.healed_at is None else swarm.nemesis.healed_at
    faults = tuple(f for f in script.faults if f[0] <= end)
    return Ran(kind, replace(script, faults=faults, length_ms=end), f"{len(faults)} faults, {end} ms")


def main(words: Sequence[str]) -> int:
    if not words[0].isdecimal():
        script = Script.from_text(Path(words[0]).read_text())
        return shown(Swarm(script.seed, script).run)
    shrinker = GroupsShrinker(*map(int, words[:2]))
    if not shrinker.fails_again:
        print(
            f"replaying the seed's faults from a script does not reproduce the failure: {shrinker.best.why}",
            file=sys.stderr,
        )
        return 1
    print(shrinker.shrink().to_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

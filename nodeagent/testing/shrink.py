"""Makes a failing seed of the swarm short: the fewest faults, clients, groups and bounds with which it still
fails the same way, as text that is a test from then on (`tests/sim/scripts`).

`python -m nodeagent.testing.shrink SEED [RUNS]` prints the script, `... shrink FILE` runs one.

Without some of its faults a run is another run: what is lost and late is drawn for other messages then. So
each candidate runs with a few seeds for that (`noise`), and the first that fails the same way is kept.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from nodeagent.testing.script import Script
from nodeagent.testing.swarm import Swarm

RUNS_MAX = 400
NOISES = 3
"""Tried for each candidate, the last that failed first."""

KIND = re.compile(r"^(S\d+|L\d+|liveness)\b")


def failure(swarm: Swarm) -> tuple[str, str]:
    """(kind, what is said) of how its run fails; twice "" when it does not."""
    try:
        swarm.run()
    except Exception as error:
        said = (str(error) or repr(error)).splitlines()[0]
        kind = KIND.match(said)
        return kind.group() if kind else type(error).__name__, said
    return "", ""


class Shrinker:
    """Runs candidates until there are no shorter ones, or `runs` are used up."""

    def __init__(self, seed: int, runs: int = RUNS_MAX) -> None:
        """Raises `LookupError` when the seed does not fail."""
        self.left = runs
        swarm = Swarm(seed)
        self.kind, said = failure(swarm)
        if not self.kind:
            raise LookupError(f"seed {seed} does not fail")
        self.best = Script(seed, tuple(swarm.nemesis.done), length_ms=_length(swarm), why=said)
        self.fails_again = self._try(self.best)
        """By what was written down of it; else it cannot be made shorter."""

    def shrink(self) -> Script:
        before = None
        while self.fails_again and self.left > 0 and self.best != before:
            before = self.best
            self._fewer_faults()
            self._simpler_plan()
        return self.best

    def _fewer_faults(self) -> None:
        """Leave out halves, then quarters, and so on (ddmin: Zeller, Hildebrandt, IEEE TSE 28/2, 2002)."""
        size = max(1, len(self.best.faults) // 2)
        while size and self.left > 0:
            start = 0
            while start < len(self.best.faults) and self.left > 0:
                faults = self.best.faults[:start] + self.best.faults[start + size :]
                if not self._try(replace(self.best, faults=faults)):
                    start += size
            size //= 2

    def _simpler_plan(self) -> None:
        plan = Swarm(self.best.seed, self.best).plan
        for name in ("groups", "clients", "window"):
            if getattr(plan, name) > 1:
                self._try(replace(self.best, plan=replace(self.best.plan, **{name: 1})))
        for limits in _fewer(plan.limits):
            if self._try(replace(self.best, plan=replace(self.best.plan, limits=limits))):
                return  # what is left is looked at in the next round

    def _try(self, candidate: Script) -> bool:
        for noise in dict.fromkeys([candidate.noise, *range(NOISES)]):
            if self.left <= 0:
                return False
            self.left -= 1
            swarm = Swarm(candidate.seed, replace(candidate, noise=noise))
            kind, said = failure(swarm)
            if kind != self.kind:
                continue
            end = _length(swarm)
            faults = tuple(f for f in candidate.faults if f[0] <= end)
            self.best = replace(candidate, noise=noise, faults=faults, length_ms=end, why=said)
            print(f"{len(faults)} faults, {end} ms, {self.left} runs left", file=sys.stderr, flush=True)
            return True
        return False


def _length(swarm: Swarm) -> int:
    """How long faults went on, in ms: it may have failed when it was healed."""
    return swarm.sim.now if swarm.nemesis.healed_at is None else swarm.nemesis.healed_at


def _fewer(limits: dict[str, int]) -> Iterator[dict[str, int]]:
    """None of them, or all but one."""
    if limits:
        yield {}
    for place in limits if len(limits) > 1 else ():
        yield {p: v for p, v in limits.items() if p != place}


def main(words: Sequence[str]) -> int:
    if not words[0].isdecimal():
        script = Script.from_text(Path(words[0]).read_text())
        _, said = failure(Swarm(script.seed, script))
        print(said or "passed")
        return bool(said)
    shrinker = Shrinker(*map(int, words[:2]))
    if not shrinker.fails_again:
        print(f"it does not fail by its written faults alone: {shrinker.best.why}", file=sys.stderr)
        return 1
    print(shrinker.shrink().to_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

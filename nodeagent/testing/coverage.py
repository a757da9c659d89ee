"""Count what runs of the simulator did and reached, and list what they never reached.

`python -m nodeagent.testing.coverage` runs seeds of the swarms and prints how much they did, and a table for
each class of events: faults; effects in progress at a kill or a power cut; messages by the role of the
receiver; operations by stage; jobs and disk calls that failed; and the notes that mark rare branches of the
code.
"""

import argparse
import random
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import msgspec

import nodeagent
from nodeagent.log.identity import LOG_DIR
from nodeagent.model.jobs import Job
from nodeagent.model.operation import NEXT
from nodeagent.model.raft_messages import RaftMessage
from nodeagent.raft.state import Role
from nodeagent.testing import cluster_swarm, single_node, swarm
from nodeagent.testing.injector import CALLS, KINDS, PASSIVE, WHOLE_KINDS, Focus
from nodeagent.testing.nemesis import Nemesis, focusable
from nodeagent.testing.parallel import results
from nodeagent.testing.sim import Sim

Seen = Mapping[tuple[str, str], int]
NOTE = re.compile(r'\bnote\(\s*"([a-z_]+)"')
OPERATIONS = ("add-node", "remove-node", "replace-node", "rebalance")
BEGIN, END = "<!-- coverage -->\n", "<!-- /coverage -->\n"
WIDTH = 110
MODULE = "nodeagent.testing.coverage"
HOUR_MS = 3_600_000
FOCUS_MEMBERS = 4
"""How many rare events one run looks for."""

STEERED_AT_ONCE = 8
"""How many runs are made before the rare events are determined again."""

Ran = tuple[Sim[Any], Nemesis, msgspec.Struct]
"""A world after its run, and its report."""


class Run(msgspec.Struct, frozen=True):
    """A run of one seed, repeated if `twice`."""

    world: str
    seed: int
    twice: bool
    focus: Focus = ()

    @property
    def command(self) -> str:
        """The module and arguments that repeat it."""
        others = "".join(f" --{world} 0" for world in WORLDS if world != self.world)
        twice = " --twice" if self.twice else ""
        focus = "".join(f" --focus '{name}: {member}'" for name, member in self.focus)
        return f"{MODULE} --{self.world} 1{others} --first {self.seed}{twice}{focus}"


def run_groups(run: Run) -> Ran:
    world, report = swarm.ran(run.seed)
    return world.sim, world.nemesis, report


def run_alone(run: Run) -> Ran:
    world, report = single_node.ran(run.seed)
    return world.sim, world.nemesis, report


def run_cluster(run: Run) -> Ran:
    world, report = cluster_swarm.ran(run.seed, run.focus, run.command)
    return world.sim, world.nemesis, report


WORLDS: dict[str, Callable[[Run], Ran]] = {
    "clusters": run_cluster,
    "alone": run_alone,
    "groups": run_groups,
}
"""Runner of each world, the slowest world first."""

PASSED_AT_ONCE = {"remove-node PLANNED", "rebalance PLANNED", "rebalance RECONFIGURING"}
"""Stages that an operation passes at once: no node joins, or no group changes its members
(`meta.changes`)."""


@cache
def universe() -> dict[str, set[str]]:
    """Everything that can be reached, by class."""
    jobs = {job.__name__ for job in get_args(Job)}
    effects = {*jobs, "log not written", "log written, not synced", "at rest"}
    roles = [*Role, "no replica"]
    package = Path(nodeagent.__file__).parent
    sources = [p.read_text() for p in package.rglob("*.py") if "testing" not in p.parts]
    return {
        "fault": {*KINDS, *WHOLE_KINDS} - {*PASSIVE},
        "kill": effects,
        "power cut": effects,
        "failed job": jobs,
        "failed on disk": {
            *(f"{operation} {place.rstrip('/')}" for operation, place in CALLS),
            *(f"{operation} {LOG_DIR}" for operation in ("read", "write", "sync")),
        },
        "message": {f"{m.__name__} at {role}" for m in get_args(RaftMessage) for role in roles},
        "operation": {f"{kind} {stage}" for kind in OPERATIONS for stage in NEXT} - PASSED_AT_ONCE,
        "note": {name for text in sources for name in NOTE.findall(text)},
    }


class Found(msgspec.Struct):
    """What a run did and reached, and `why` it failed."""

    did: Counter[str]
    seen: Seen
    why: str = ""


def find(run: Run) -> Found:
    try:
        sim, nemesis, report = WORLDS[run.world](run)
        if run.twice:
            again = WORLDS[run.world](run)[2]
            assert again == report, f"two runs differ: {report} and {again}"
    except Exception as error:  # any failure: the other runs continue
        why = str(error) if isinstance(error, AssertionError) else ""
        return Found(Counter(), {}, why or repr(error))
    numbers = {k: v for k, v in msgspec.structs.asdict(report).items() if isinstance(v, int)}
    seen = Counter(sim.seen)
    seen.update({("fault", kind): count for kind, count in nemesis.faults.items()})
    for machine in sim.nodes.values():
        seen.update({("failed on disk", what): count for what, count in machine.disk.failed.items()})
    return Found(Counter(numbers) + Counter(seeds=1), seen)


def report(did: Mapping[str, Counter[str]], seen: Seen) -> str:
    """What was done in each world, and for each class a table of what was reached and never reached."""
    lines = [_sums(world, numbers) for world, numbers in did.items()]
    for name, members in universe().items():
        counts = {m: seen.get((name, m), 0) for m in members}
        reached = sorted(((count, m) for m, count in counts.items() if count), reverse=True)
        lines.append(f"\n{name}: {len(reached)} of {len(members)} reached")
        lines += [f"{m:<32} {count:>10}" for count, m in reached]
        never = sorted(m for m, count in counts.items() if not count)
        if never:
            lines.append(_filled(f"never: {', '.join(never)}"))
    return "\n".join(lines)


def _sums(world: str, numbers: Counter[str]) -> str:
    left = {k: v for k, v in numbers.items() if k not in ("seed", "trace", "seeds", "simulated_ms")}
    said = "".join(f", {count:,} {what}" for what, count in left.items())
    hours = numbers["simulated_ms"] / HOUR_MS
    return _filled(f"{world}: {numbers['seeds']:,} seeds, {hours:.1f} simulated hours{said}")


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def parts(path: Path) -> tuple[str, str]:
    """The text before and after the place to write to.

    Raises:
        ValueError: the document cannot be read or has no marks.
    """
    try:
        before, begin, rest = path.read_text().partition(BEGIN)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{path}: {BEGIN.strip()} or {END.strip()} is missing; add both marks where the table belongs"
        )
    return before, after


def write(path: Path, text: str) -> None:
    """Write `text` into the document, between its marks."""
    before, after = parts(path)
    path.write_text(f"{before}{BEGIN}\n```text\n{text}\n```\n\n{END}{after}")


def steer(seen: Seen, seed: int, *, twice: bool = False) -> Run:
    """A run of a whole cluster that looks for some of the events reached least often."""
    members = [(name, m) for name, ms in universe().items() for m in sorted(ms) if focusable(name, m)]
    rng = random.Random(f"focus {seed}")
    rng.shuffle(members)
    rare = sorted(members, key=lambda member: seen.get(member, 0))[: 2 * FOCUS_MEMBERS]
    return Run("clusters", seed, twice, tuple(sorted(rng.sample(rare, FOCUS_MEMBERS))))


class Total:
    """The totals of all runs."""

    def __init__(self) -> None:
        self.did: dict[str, Counter[str]] = {}
        self.seen = Counter[tuple[str, str]]()
        self.failed: list[Run] = []
        self._runs = 0

    def make(self, runs: Sequence[Run]) -> None:
        for run, found in zip(runs, results(find, runs), strict=True):
            self.did.setdefault(run.world, Counter()).update(found.did)
            self.seen.update(found.seen)
            if found.why:
                self.failed.append(run)
                print(f"FAILED: python -m {run.command}\n{found.why}", flush=True)
            self._runs += 1
            focus = ", ".join(f"{name}: {member}" for name, member in run.focus)
            print(f"{self._runs}: {run.world} {run.seed} {focus}", file=sys.stderr, flush=True)


def _member(text: str) -> tuple[str, str]:
    name, _, member = text.partition(": ")
    if member not in universe().get(name, ()) or not focusable(name, member):
        raise argparse.ArgumentTypeError(f"{text!r} is not a `CLASS: MEMBER` that a run can look for")
    return name, member


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--first", type=int, default=1, help="first seed (default 1)")
    for world in WORLDS:
        parser.add_argument(
            f"--{world}", type=int, default=20, help="number of seeds of this world (default 20)"
        )
    parser.add_argument(
        "--steer", type=int, default=0, help="number of additional runs that look for rare events (default 0)"
    )
    parser.add_argument(
        "--focus",
        action="append",
        type=_member,
        default=[],
        help="event that all clusters look for, as `CLASS: MEMBER` of the tables; can be repeated",
    )
    parser.add_argument("--twice", action="store_true", help="run each seed twice and compare the traces")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the tables into this document")
    args = parser.parse_args()
    if args.write:
        try:
            parts(args.write)
        except ValueError as error:
            parser.error(str(error))
    total, after = Total(), args.first + args.clusters
    total.make(
        [
            Run(world, seed, args.twice, tuple(args.focus) if world == "clusters" else ())
            for world in WORLDS
            for seed in range(args.first, args.first + getattr(args, world))
        ]
    )
    for seed in range(after, after + args.steer, STEERED_AT_ONCE):
        last = min(seed + STEERED_AT_ONCE, after + args.steer)
        total.make([steer(total.seen, s, twice=args.twice) for s in range(seed, last)])
    text = report(total.did, total.seen)
    print(text)
    if total.failed:
        print("\n".join(["FAILED:", *(f"python -m {run.command}" for run in total.failed)]))
        return 1
    if args.write:
        write(args.write, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m nodeagent.testing.mutants [--seeds N] [--world WORLD] [--net NET] [--room ROOM] [--sample N] [--machine N]
[--record] [NAME...]`.

Print what each net found for each planted bug, and the numbers of planted and detected bugs by package and net. Each
net must first pass on the package without a bug.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from statistics import median

from nodeagent.testing.mutants import MUTANTS, machine
from nodeagent.testing.mutants.hunt import NETS, Found, control, hunt_one, key_of, record
from nodeagent.testing.mutants.mutant import Mutant
from nodeagent.testing.parallel import results
from nodeagent.testing.seeds import WORLDS

SEEDS = 50
SAMPLE_SEED = 1
BY_CHARS = 110
"""Maximum length of the message of a kill."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nodeagent.testing.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of seeds; 0: only the recorded seed")
    parser.add_argument("--world", choices=WORLDS, default="", help="run the seeds only in this world")
    parser.add_argument("--net", action="append", choices=NETS, help="use only this net; can be repeated")
    parser.add_argument(
        "--room", action="append", default=[], help="only bugs of this package; can be repeated"
    )
    parser.add_argument("--sample", type=int, help="plant a fixed sample of this size")
    parser.add_argument("--machine", type=int, help="plant this many generated bugs instead")
    parser.add_argument("--record", action="store_true", help="record the seeds that found the bugs")
    parser.add_argument("names", nargs="*", help="parts of the names of bugs to plant")
    args = parser.parse_args()
    nets = [net for net in NETS if not args.net or net in args.net]
    chosen = [
        m
        for m in (MUTANTS if args.machine is None else machine.sample(args.machine))
        if (not args.room or m.room in args.room) and (not args.names or any(n in m.name for n in args.names))
    ]
    if args.sample is not None and args.sample < len(chosen):
        chosen = random.Random(SAMPLE_SEED).sample(chosen, args.sample)
    took = control(dict.fromkeys(m.room for m in chosen), nets)
    print("; ".join(f"{what}: {seconds:.0f} s" for what, seconds in took.items()), flush=True)
    outcomes: list[tuple[Mutant, list[Found]]] = []
    jobs = [(mutant, args.seeds, nets, took, args.world) for mutant in chosen]
    for mutant, found in zip(chosen, results(hunt_one, jobs), strict=True):
        outcomes.append((mutant, found))
        if args.record:
            record({key_of(mutant): f for f in found if f.net == "seeds"})
        print(f"{mutant.room}: {mutant.name}: {_said(found)}", flush=True)
    _print_rooms(outcomes, nets)
    return 0 if all(any(f.by for f in found) for _, found in outcomes) else 1


def _said(found: Sequence[Found]) -> str:
    if not found:
        return "no net covers it"
    if not any(f.by for f in found):
        return "SURVIVED"
    return "; ".join(
        f"{f.net}{f' ({f.seeds})' if f.seeds else ''}: "
        + (" ".join(f.by.split())[-BY_CHARS:] if f.by else "survived")
        for f in found
    )


def _print_rooms(outcomes: Sequence[tuple[Mutant, list[Found]]], nets: Sequence[str]) -> None:
    columns = "".join(f"{net:>8}" for net in nets)
    print(f"{'package':<10}{'planted':>8}{'killed':>8}{columns}{'median seeds':>14}")
    for room in [*dict.fromkeys(m.room for m, _ in outcomes), "all"]:
        of_room = [found for m, found in outcomes if room in ("all", m.room)]
        killed = sum(any(f.by for f in found) for found in of_room)
        by_net = "".join(
            f"{sum(f.net == net and f.by != '' for found in of_room for f in found):>8}" for net in nets
        )
        seeds = [f.seeds for found in of_room for f in found if f.seeds]
        print(f"{room:<10}{len(of_room):>8}{killed:>8}{by_net}{median(seeds) if seeds else '-':>14}")


if __name__ == "__main__":
    sys.exit(main())

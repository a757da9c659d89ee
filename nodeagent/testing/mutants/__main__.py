"""`python -m nodeagent.testing.mutants [--seeds N] [--room ROOM] [NAME...]`."""

import argparse
import sys
from statistics import median

from nodeagent.testing.mutants import MUTANTS
from nodeagent.testing.mutants.hunt import hunt_one
from nodeagent.testing.parallel import results

SEEDS = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nodeagent.testing.mutants", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="give a mutant up after so many")
    parser.add_argument("--room", action="append", default=[], help="of these rooms only")
    parser.add_argument("names", nargs="*", help="parts of the names of those to plant")
    args = parser.parse_args()
    chosen = [
        m
        for m in MUTANTS
        if (not args.room or m.room in args.room) and (not args.names or any(n in m.name for n in args.names))
    ]
    needed: dict[str, list[int]] = {}
    jobs = [(mutant, args.seeds) for mutant in chosen]
    for mutant, (seeds, by) in zip(chosen, results(hunt_one, jobs), strict=True):
        needed.setdefault(mutant.room, []).append(seeds)
        said = f"killed by seed {seeds}: {by}" if seeds else f"SURVIVED {args.seeds} seeds"
        print(f"{mutant.room}: {mutant.name}: {said}", flush=True)
    print(f"{'room':<10} {'planted':>8} {'killed':>8} {'median seeds':>13}")
    for room, seeds_of in sorted(needed.items()):
        killed = [s for s in seeds_of if s]
        print(f"{room:<10} {len(seeds_of):>8} {len(killed):>8} {median(killed) if killed else 0:>13}")
    return 0 if all(all(s) for s in needed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m nodeagent.testing SEED [COUNT] [--world WORLD]`: run seeds, one on each processor, and print
what was done in them; in one world alone, if it is named.

Ends with the first that fails.
"""

import argparse
from functools import partial

from nodeagent.testing.parallel import print_results
from nodeagent.testing.seeds import WORLDS, evidence

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m nodeagent.testing", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--world", choices=WORLDS, default="")
    args = parser.parse_args()
    print_results(partial(evidence, world=args.world), range(args.seed, args.seed + args.count))

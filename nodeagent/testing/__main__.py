"""Run seeds of the simulator in parallel, one per processor, and print a line of results for each.

`python -m nodeagent.testing SEED [COUNT] [--world WORLD]` runs the worlds of each seed, or only WORLD where
the seed has it: all seeds have the small worlds, even seeds `cluster_swarm`, odd seeds `scenario` and
`client`. It stops at the first seed that fails.
"""

import argparse
from functools import partial

from nodeagent.testing.parallel import print_results
from nodeagent.testing.seeds import WORLDS, result_line

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m nodeagent.testing", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("count", type=int, nargs="?", default=1)
    parser.add_argument("--world", choices=WORLDS, default="")
    args = parser.parse_args()
    print_results(partial(result_line, world=args.world), range(args.seed, args.seed + args.count))

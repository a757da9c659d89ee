"""Explore the scopes on all processors, and stop at the first in which an invariant is broken.

`python -m nodeagent.testing.exhaustive [--steps N] [NAME...]` prints one line per scope.
"""

import argparse
import sys
from functools import partial

from nodeagent.testing.exhaustive.scopes import chosen, result_line
from nodeagent.testing.parallel import results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nodeagent.testing.exhaustive", description=__doc__)
    parser.add_argument("--steps", type=int, help="maximum number of steps in each scope")
    parser.add_argument(
        "names", nargs="*", help="`raft`, `slots`, or a part of the names of scopes (default: all scopes)"
    )
    args = parser.parse_args()
    for line in results(partial(result_line, args.steps), [scope.name for scope in chosen(args.names)]):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

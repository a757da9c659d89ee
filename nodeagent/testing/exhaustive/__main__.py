"""`python -m nodeagent.testing.exhaustive [--steps N] [NAME...]`: go through the scopes, on all processors.

Ends with the first in which an invariant is broken.
"""

import argparse
import sys
from functools import partial

from nodeagent.testing.exhaustive.scopes import chosen, told
from nodeagent.testing.parallel import results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nodeagent.testing.exhaustive", description=__doc__)
    parser.add_argument("--steps", type=int, help="leave a scope after so many")
    parser.add_argument("names", nargs="*", help="`raft` or `slots`, or parts of the names of scopes")
    args = parser.parse_args()
    for line in results(partial(told, args.steps), [scope.name for scope in chosen(args.names)]):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m nodeagent.testing SEED [COUNT]`: run seeds, one on each processor, and print their evidence.

Ends with the first that fails.
"""

import sys

from nodeagent.testing.parallel import results
from nodeagent.testing.seeds import evidence


def main() -> None:
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for line in results(evidence, range(first, first + count)):
        print(line, flush=True)


if __name__ == "__main__":
    main()

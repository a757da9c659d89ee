"""`python -m nodeagent.testing SEED [COUNT]`: run seeds and print their evidence."""

import sys
import time

import msgspec

from nodeagent.testing.scenario import run


def main() -> None:
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for seed in range(first, first + count):
        began = time.monotonic()
        report = run(seed)
        seconds = time.monotonic() - began
        print(msgspec.json.encode(report).decode(), f"{seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()

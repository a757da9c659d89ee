"""`python -m tests.bench [name ...] [--quick] [--seconds N] [--nodes N] [--out FILE]`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from iotctl.output.table import Table
from tests.bench import (
    commits,
    during_changes,
    images,
    ingest,
    large,
    many,
    migrate,
    raw,
    rolling,
    saturated,
    ssh,
    stall,
    startup,
)
from tests.bench.figures import Report, number

BY_NAME = ("rolling", "ssh", "large", "stall")
"""Benches that run only by name: the first two need an OpenSSH server, `ssh` downloads the tools that it
compares, and the others take minutes."""


def main() -> int:
    """Run the benches; returns 1 if a figure misses its floor."""
    options = _options()
    benches: dict[str, Callable[[], Report]] = {
        "commits": lambda: commits.run(quick=options.quick),
        "ingest": lambda: ingest.run(seconds=options.seconds, nodes=options.nodes),
        "migrate": lambda: migrate.run(quick=options.quick),
        "change": lambda: during_changes.run(quick=options.quick),
        "auto": lambda: saturated.run(quick=options.quick),
        "rolling": lambda: rolling.run(quick=options.quick),
        "ssh": lambda: ssh.run(quick=options.quick),
        "large": lambda: large.run(quick=options.quick),
        "stall": lambda: stall.run(quick=options.quick),
        "image": lambda: images.run(quick=options.quick),
        "many": lambda: many.run(quick=options.quick),
        "help": lambda: startup.run(quick=options.quick),
    }
    names = options.names or [n for n in benches if n not in BY_NAME]
    unknown = sorted(set(names) - set(benches))
    if unknown:
        print(f"unknown bench {', '.join(unknown)}; choose from: {', '.join(benches)}", file=sys.stderr)
        return 2
    reports = [_shown(raw.measure())]
    for name in names:
        reports.append(_shown(benches[name]()))
        if options.out:
            options.out.write_bytes(msgspec.json.format(msgspec.json.encode(reports)) + b"\n")
    figures = [f for r in reports for f in r.figures]
    print(*filter(None, (f.judgement for f in figures)), sep="\n", flush=True)
    missed = [f.name for f in figures if f.verdict in ("BELOW", "ABOVE")]
    if missed:
        print(f"floors not reached: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help="commits, ingest, migrate, change, auto, image, many, help (all by default), "
        + ", ".join(BY_NAME),
    )
    parser.add_argument(
        "--quick", action="store_true", help="short runs with little data; do not quote the figures"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.0, help="duration of the ingest (default 60; 15 with --quick)"
    )
    parser.add_argument("--nodes", type=int, default=3, help="number of agents of the ingest (default 3)")
    parser.add_argument("--out", type=Path, help="also write all results to this file as JSON")
    options = parser.parse_args()
    options.seconds = options.seconds or (15.0 if options.quick else 60.0)
    return options


def _shown(report: Report) -> Report:
    headers = ("figure", "median", "unit", "wanted", "", "spread", "beside it", "more")
    rows = [
        (
            f.name,
            number(f.value),
            f.unit,
            f">= {number(f.floor)}" if f.floor else f"<= {number(f.ceiling)}" if f.ceiling else "-",
            f.verdict,
            f"{number(min(f.runs))}..{number(max(f.runs))}" if len(f.runs) > 1 else "-",
            f.limit or "-",
            "  ".join(f"{k} {number(v)}" for k, v in f.details.items()) or "-",
        )
        for f in report.figures
    ]
    title = f"{report.bench}: {report.workload} ({report.seconds:.0f} s)"
    print(Table(headers, rows, title=title).render(wide=True), flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())

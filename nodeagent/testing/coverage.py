"""What a run of the simulator reached, as numbers, and what it never did.

`python -m nodeagent.testing.coverage [FIRST [COUNT]]` runs seeds and prints a table for each class: faults;
effects that a kill or a power cut met; messages by the role that they reached; operations by stage; jobs and
calls of the disk that failed; and the notes of the code, which mark its rare branches.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import nodeagent
from nodeagent.log.identity import LOG_DIR
from nodeagent.model.jobs import Job
from nodeagent.model.operation import NEXT
from nodeagent.model.raft_messages import RaftMessage
from nodeagent.raft.state import Role
from nodeagent.testing.cluster_swarm import ClusterSwarm
from nodeagent.testing.nemesis import FILE_OPERATIONS, FILE_PLACES, KINDS, PASSIVE, WHOLE_KINDS
from nodeagent.testing.parallel import results
from nodeagent.testing.swarm import Swarm

Seen = Mapping[tuple[str, str], int]
NOTE = re.compile(r'\bnote\(\s*"([a-z_]+)"')
OPERATIONS = ("add-node", "remove-node", "replace-node", "rebalance")


def universe() -> dict[str, set[str]]:
    """Everything that could be seen, by class."""
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
            *(f"{operation} {place.rstrip('/')}" for operation in FILE_OPERATIONS for place in FILE_PLACES),
            *(f"{operation} {LOG_DIR}" for operation in ("read", "write", "sync")),
        },
        "message": {f"{m.__name__} at {role}" for m in get_args(RaftMessage) for role in roles},
        "operation": {f"{kind} {stage}" for kind in OPERATIONS for stage in NEXT},
        "note": {name for text in sources for name in NOTE.findall(text)},
    }


def seen(seed: int) -> Seen:
    """Of one seed's groups and cluster."""
    groups, cluster = Swarm(seed), ClusterSwarm(seed)
    groups.run()
    cluster.report()
    found = Counter[tuple[str, str]]()
    for run in (groups, cluster):
        found += run.sim.seen
        found.update({("fault", kind): count for kind, count in run.nemesis.faults.items()})
        for machine in run.sim.nodes.values():
            found.update({("failed on disk", what): count for what, count in machine.disk.failed.items()})
    return found


def report(found: Seen) -> str:
    """A table for each class, and what of it was never reached."""
    lines = []
    for name, members in universe().items():
        counts = {m: found.get((name, m), 0) for m in members}
        reached = sorted(((count, m) for m, count in counts.items() if count), reverse=True)
        lines.append(f"\n{name}: {len(reached)} of {len(members)} reached")
        lines += [f"{m:<32} {count:>8}" for count, m in reached]
        never = sorted(m for m, count in counts.items() if not count)
        if never:
            lines.append(f"never: {', '.join(never)}")
    return "\n".join(lines)


def main() -> None:
    first = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    total = Counter[tuple[str, str]]()
    for number, found in enumerate(results(seen, range(first, first + count)), 1):
        total += found
        print(f"{number} of {count} seeds", file=sys.stderr, flush=True)
    print(report(total))


if __name__ == "__main__":
    main()

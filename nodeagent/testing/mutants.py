"""One-line bugs, each planted in a copy of the package, which the simulator must find.

`python -m nodeagent.testing.mutants [SEEDS [NAME...]]` prints for every mutant the number of seeds it took.
A mutant that survives says what the simulation does not see.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nodeagent

SEEDS = 12
SEED_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `file`, `old` becomes `new`; `old` is there exactly once."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "a write is not checked at apply",
        "data/state.py",
        "refusal = self.check_slot(w.slot) or self._check_session(",
        "refusal = self._check_session(",
    ),
    Mutant(
        "sessions do not move with their slots",
        "data/state.py",
        "        self.sessions.admit(self.staged.tables(command.operation, command.results), opened)\n",
        "",
    ),
    Mutant(
        "a duplicate counts again",
        "data/state.py",
        "            self.refused.add(index)\n            return Written(0, duplicate=True)",
        "            pass",
    ),
    Mutant(
        "refused writes come back with a restart",
        "data/state.py",
        "if entry.kind != EntryKind.COMMAND or index in self.refused:",
        "if entry.kind != EntryKind.COMMAND:",
    ),
    Mutant(
        "replay forgets what is in files",
        "data/state.py",
        "if index > self.closed_through.get(command.partition, 0):",
        "if True:",
    ),
    Mutant(
        "the log is thought to be needed one entry too late",
        "data/state.py",
        "return min(min(needed) - 1, self.applied)",
        "return min(min(needed), self.applied)",
    ),
    Mutant(
        "open rows do not pin the log",
        "data/state.py",
        "needed.append(self.memtable.first_index() or self.applied + 1)",
        "needed.append(self.applied + 1)",
    ),
    Mutant(
        "a close takes the partitions in the order of first writes",
        "data/state.py",
        "tuple((s, p) for p, s in sorted(self.slot_of.items()) if s in slots)",
        "tuple((s, p) for p, s in self.slot_of.items() if s in slots)",
    ),
    Mutant(
        "a source is ready before its files are made",
        "data/state.py",
        "return not any(u.spec.slot in sealed.slots for p in self.pending for u in p.units)",
        "return True",
    ),
    Mutant(
        "a member without the files passes for a source",
        "data/slots.py",
        "s.hollow or op in operations",
        "s.hollow",
    ),
    Mutant(
        "a cancelled operation can seal again",
        "data/slots.py",
        "if operation in self.ended or operation in self.sealed:",
        "if operation in self.sealed:",
    ),
    Mutant(
        "slots open before they are sealed",
        "meta/changes.py",
        "case Stage.SEALED if set(op.sealed) >= set(op.losing):",
        "case Stage.SEALED if op.sealed:",
    ),
    Mutant(
        "adopted without all copies",
        "scaling/groups.py",
        'if any(changes.missing(op, look.group, n, look.incarnations.get(n, "")) for n in members):',
        'if all(changes.missing(op, look.group, n, look.incarnations.get(n, "")) for n in members):',
    ),
    Mutant(
        "released before it is adopted",
        "meta/changes.py",
        "case Stage.MOVING if set(op.adopted) >= set(op.gaining) and op.state()",
        "case Stage.MOVING if op.adopted and op.state()",
    ),
    Mutant(
        "staged files go when the meta group is done",
        "host/mover.py",
        "touched - {current} - owed",
        "touched - {current}",
    ),
    Mutant(
        "an old meta state removes groups after a start",
        "host/host.py",
        "self.meta.applied >= min(self._meta_known, replica.raft.log.last_index)",
        "True",
    ),
    Mutant(
        "messages do not wait for the disk",
        "host/outbox.py",
        "        number = self._group_batch.get(group, 0)",
        "        number = 0",
    ),
    Mutant(
        "votes are not persisted",
        "host/replica.py",
        "            ops.append(SetHard(self.group, ready.hard))",
        "            pass",
    ),
    Mutant(
        "an old term's entry is committed by counting",
        "raft/leader.py",
        "if index <= state.commit or index < self.term_start:",
        "if index <= state.commit:",
    ),
    Mutant(
        "one vote too few wins",
        "raft/quorum.py",
        "    needed = len(voters) // 2 + 1\n    granted",
        "    needed = max(1, len(voters) // 2)\n    granted",
    ),
    Mutant(
        "a strong read does not wait for the state",
        "host/replica.py",
        "ripe = [waiting for i, waiting in self._ripe if i <= self.seen]",
        "ripe = [waiting for _, waiting in self._ripe]",
    ),
    Mutant(
        "own entries count before they are durable",
        "raft/leader.py",
        "state.durability.index if v == node else",
        "state.log.last_index if v == node else",
    ),
    Mutant(
        "a scan leaves deletes out",
        "host/reads.py",
        "plan.tombstones = dead",
        "plan.tombstones = ()",
    ),
    Mutant(
        "the leader removes itself",
        "scaling/membership.py",
        "    if leaves == me:\n",
        "    if False:\n",
    ),
    Mutant(
        "a newcomer votes before it caught up",
        "scaling/membership.py",
        "return promote(config, joins, operation) if caught_up(joins) else None",
        "return promote(config, joins, operation)",
    ),
    Mutant(
        "a newcomer is added while its old replica is there",
        "scaling/groups.py",
        "if (look.group, change.joins) not in op.joined:",
        "if False:",
    ),
    Mutant(
        "a new group begins at index 0",
        "data/state.py",
        "INITIAL_INDEX = 1\n",
        "INITIAL_INDEX = 0\n",
    ),
    Mutant(
        "files of an earlier stay of a slot are kept",
        "data/state.py",
        "            pending.gone |= gone",
        "            pass",
    ),
    Mutant(
        "late answers of an earlier membership count",
        "raft/leader.py",
        "if progress is None or reply.addition != progress.addition:",
        "if progress is None:",
    ),
    Mutant(
        "compacted files go before a checkpoint is without them",
        "host/data_replica.py",
        "        self._unsaved_waits.append((saved, lambda: None))",
        "        saved()",
    ),
    Mutant(
        "a merge leaves deletes out",
        "data/compaction.py",
        "(t for t in c.tombstones if oldest < t.order)",
        "(t for t in c.tombstones if False)",
    ),
    Mutant(
        "a release takes an open slot along",
        "data/state.py",
        "        gone = self.slots.release(command.operation)",
        "        gone = self.slots.release(command.operation) | set(list(self.slots.open)[:1])",
    ),
)


def plant(mutant: Mutant, into: Path) -> Path:
    """A copy of the package with the bug in it; returns the directory to import it from."""
    package = into / "nodeagent"
    shutil.copytree(Path(nodeagent.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    target = package / mutant.file
    source = target.read_text()
    assert source.count(mutant.old) == 1, f"{mutant.name}: {source.count(mutant.old)} places in {mutant.file}"
    target.write_text(source.replace(mutant.old, mutant.new))
    return into


def hunt(mutant: Mutant, seeds: int, first: int = 1) -> tuple[int, str]:
    """Seeds until it was found (0: it survived), and by what."""
    with tempfile.TemporaryDirectory() as directory:
        where = plant(mutant, Path(directory))
        command = [sys.executable, "-m", "nodeagent.testing", str(first), str(seeds)]
        environment = {**os.environ, "PYTHONPATH": str(where)}
        try:
            run = subprocess.run(
                command,
                cwd=where,
                env=environment,
                capture_output=True,
                text=True,
                timeout=SEED_TIMEOUT_S * seeds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return seeds, "it never ends"
    if run.returncode == 0:
        return 0, ""
    by = [line for line in run.stderr.splitlines() if line.startswith("AssertionError: seed")]
    return run.stdout.count("\n") + 1, by[-1][:120] if by else run.stderr[-200:]


def main() -> int:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    names = sys.argv[2:]
    survived = 0
    for mutant in MUTANTS:
        if names and not any(n in mutant.name for n in names):
            continue
        needed, by = hunt(mutant, seeds)
        survived += not needed
        said = f"killed by seed {needed}: {by}" if needed else f"survived {seeds} seeds"
        print(f"{mutant.name}: {said}", flush=True)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())

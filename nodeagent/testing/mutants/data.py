"""Bugs in the data groups' state."""

from nodeagent.testing.mutants.mutant import Mutant

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

"""Bugs in the node."""

from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = (
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
        "a strong read does not wait for the state",
        "host/replica.py",
        "ripe = [waiting for i, waiting in self._ripe if i <= self.seen]",
        "ripe = [waiting for _, waiting in self._ripe]",
    ),
    Mutant(
        "a scan leaves deletes out",
        "host/reads.py",
        "plan.tombstones = dead",
        "plan.tombstones = ()",
    ),
    Mutant(
        "compacted files go before a checkpoint is without them",
        "host/data_replica.py",
        "        self._unsaved_waits.append((saved, lambda: None))",
        "        saved()",
    ),
    Mutant(
        "a batch counts as durable with the one before",
        "host/outbox.py",
        "while self._waiting and self._waiting[0].number <= number:",
        "while self._waiting and self._waiting[0].number <= number + 1:",
    ),
    Mutant(
        "a proposal is answered though another's entry took its place",
        "host/replica.py",
        "if entries[index - first].term != term:",
        "if False:",
    ),
    Mutant(
        "an outcome that is not known is told as a refusal",
        "host/replica.py",
        '            self._give_up(list(self._tokens), "outcome_unknown", f"leadership of',
        '            self._give_up(list(self._tokens), "not_leader", f"leadership of',
    ),
    Mutant(
        "every suffix is kept when a state is installed",
        "host/replica.py",
        "keep = self.raft.log.term(saved.base.index) == saved.base.term",
        "keep = self.raft.log.term(saved.base.index) is not None",
    ),
    Mutant(
        "appends are taken while a state is installed",
        "host/replica.py",
        "            if self._installing is not None:\n                return  # the group must",
        "            if self.stopped:\n                return  # the group must",
    ),
    Mutant(
        "entries are applied between a new state and its base",
        "host/replica.py",
        "        if self.rebasing or self.stopped:\n            return",
        "        if self.stopped:\n            return",
    ),
    Mutant(
        "the log goes when a checkpoint is begun",
        "host/replica.py",
        "        job = SaveJob(self.group, payload, changes)\n",
        "        job = SaveJob(self.group, payload, changes)\n        self._purge(saved.base.index)\n",
    ),
    Mutant(
        "a checkpoint that failed counts",
        "host/replica.py",
        "        if isinstance(result, Failed):\n            self._saving = False",
        "        if False:\n            self._saving = False",
    ),
    Mutant(
        "a snapshot may be older than the log that goes with it",
        "host/replica.py",
        "        base = self._base_at(self.log_needed_after())\n        name = self.new_snapshot_id()",
        "        base = self._base_at(self.raft.log.base.index)\n        name = self.new_snapshot_id()",
    ),
    Mutant(
        "a new replica is saved before the log knows it",
        "host/replica.py",
        "if self._saving or self._installing or self.founding:",
        "if self._saving or self._installing:",
    ),
    Mutant(
        "a state is installed under a leader",
        "host/replica.py",
        "if self._working or self.leads or self.founding:",
        "if self._working or self.founding:",
    ),
    Mutant(
        "a read runs when it is asked",
        "host/replica.py",
        "        self._reads[self._read_number] = (then, failed)\n",
        "        self._reads[self._read_number] = (then, failed)\n        self._ripe.append((0, (then, failed)))\n",
    ),
    Mutant(
        "a proposal that is lost is never answered",
        "host/replica.py",
        "        if self._tokens and min(self._tokens) <= last:",
        "        if False:",
    ),
    Mutant(
        "a node forgets what it promised to a group that it leaves",
        "host/host.py",
        "            forget = Forget(group, memory)\n",
        "            pass\n",
    ),
    Mutant(
        "a page ends behind the place that the reader named",
        "host/reads.py",
        "        if end is not None and s.until is not None and end.position > s.until.position:",
        "        if end is not None and s.until is not None and end.position < s.until.position:",
    ),
    Mutant(
        "what is damaged on one member is merged all the same",
        "host/compactor.py",
        "for n, names in found.items() for f in run if names.get(f.name) != f.xxh3]",
        "for n, names in found.items() for f in run if f.name not in names]",
    ),
)

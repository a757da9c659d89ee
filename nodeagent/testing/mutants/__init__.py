"""One-line bugs, each planted in a copy of the package, which the simulator must find.

`python -m nodeagent.testing.mutants [--seeds N] [--room ROOM] [NAME...]` prints for every mutant the number of
seeds it took, and for every room how many were killed. One that survives says what the simulation does not see.
"""

from nodeagent.testing.mutants import data, host, log, meta, raft, scaling, storage
from nodeagent.testing.mutants.hunt import hunt, plant
from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = tuple(m for room in (raft, log, host, data, meta, scaling, storage) for m in room.MUTANTS)

__all__ = ["MUTANTS", "Mutant", "hunt", "plant"]

"""One-line bugs, each planted in a copy of the package, and the search for them.

`python -m nodeagent.testing.mutants` prints for every bug what the directed tests, the small scopes and the
simulator's seeds find, each on its own. A bug that survives shows what is not tested.
"""

from nodeagent.testing.mutants import client, data, host, log, meta, raft, runtime, scaling, storage
from nodeagent.testing.mutants.hunt import hunt, plant
from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = tuple(
    m for room in (raft, log, host, data, meta, scaling, storage, runtime, client) for m in room.MUTANTS
)

__all__ = ["MUTANTS", "Mutant", "hunt", "plant"]

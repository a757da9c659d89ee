"""Bugs in the meta group's state."""

from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "slots open before they are sealed",
        "meta/changes.py",
        "case Stage.SEALED if set(op.sealed) >= set(op.losing):",
        "case Stage.SEALED if op.sealed:",
    ),
    Mutant(
        "released before it is adopted",
        "meta/changes.py",
        "case Stage.MOVING if set(op.adopted) >= set(op.gaining) and op.state()",
        "case Stage.MOVING if op.adopted and op.state()",
    ),
)

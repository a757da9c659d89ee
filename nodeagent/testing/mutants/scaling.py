"""Bugs in changes of the cluster."""

from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "adopted without all copies",
        "scaling/groups.py",
        'if any(changes.missing(op, look.group, n, look.incarnations.get(n, "")) for n in members):',
        'if all(changes.missing(op, look.group, n, look.incarnations.get(n, "")) for n in members):',
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
)

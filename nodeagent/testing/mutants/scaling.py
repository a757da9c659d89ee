"""Bugs in changes of the cluster."""

from nodeagent.testing.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "adopted without all copies",
        "scaling/groups.py",
        'if any(changes.missing(op, view.group, n, view.incarnations.get(n, "")) for n in members):',
        'if all(changes.missing(op, view.group, n, view.incarnations.get(n, "")) for n in members):',
        breaks="S10",
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
        "a vote moves while a voter lags",
        "scaling/membership.py",
        "if best is None or not all(n == me or caught_up(n) for n in config.voters):",
        "if best is None:",
    ),
    Mutant(
        "the newest voter loses its vote because it lags",
        "scaling/membership.py",
        'key=lambda n: (votes[zones.get(n, "")], n in late))',
        'key=lambda n: (n in late, votes[zones.get(n, "")]))',
    ),
    Mutant(
        "a surplus voter is demoted without a majority of the others",
        "scaling/membership.py",
        "if sum(n not in late for n in left) > len(left) // 2 else None",
        "",
    ),
    Mutant(
        "a lost vote goes to any zone",
        "scaling/membership.py",
        "best = _in_fewest(ready, zones, _votes(fit, zones))",
        "best = next(iter(ready), None)",
    ),
    Mutant(
        "votes of lost nodes count for their zone",
        "scaling/membership.py",
        "best = _in_fewest(ready, zones, _votes(fit, zones))",
        "best = _in_fewest(ready, zones, _votes(config.voters, zones))",
    ),
    Mutant(
        "a newcomer joins without its zone",
        "host/handlers/changes.py",
        'zone=request.zone if self._cluster.level >= Feature.ZONES else "",',
        'zone="",',
    ),
    Mutant(
        "a newcomer is added while its old replica is there",
        "scaling/groups.py",
        "if (view.group, change.joins) not in op.joined:",
        "if False:",
    ),
    Mutant(
        "a newcomer receives files of slots that leave",
        "scaling/groups.py",
        "    if view.group in op.losing and not view.state.is_source_ready(op.id):",
        "    if False:",
        unseen="it only costs bytes that are dropped later",
    ),
    Mutant(
        "a holder leaves before it can serve as a source",
        "scaling/groups.py",
        "may_leave=not is_source or (view.group, leaves) in op.sources_ready,",
        "may_leave=True,",
        breaks="S9",
    ),
    Mutant(
        "a source reports ready before its files are written",
        "scaling/groups.py",
        "        and states[group].is_source_ready(op.id)\n",
        "",
        breaks="S9",
    ),
    Mutant(
        "opened without the sessions of the slots",
        "scaling/groups.py",
        "    missing = view.state.slot_migration.staged.missing(op.id, results)\n",
        "    missing = ()\n",
    ),
    Mutant(
        "copies that differ are adopted",
        "scaling/groups.py",
        "    trouble = changes.copies_disagree(op, view.group)\n",
        '    trouble = ""\n',
        breaks="S10",
    ),
    Mutant(
        "a cancelled newcomer stays a learner",
        "scaling/groups.py",
        "if change is not None and change.joins in view.config.learners:",
        "if False:",
    ),
    Mutant(
        "formed while a newcomer is still a learner",
        "scaling/groups.py",
        "if leaves is None and not view.config.learners:",
        "if leaves is None:",
    ),
    Mutant(
        "a leader with an old view acts on an ended operation",
        "scaling/groups.py",
        "    if order_of(view.config.operation)[:1] > order_of(op.id):",
        "    if False:",
    ),
    Mutant(
        "half of the slots are copied",
        "scaling/moving.py",
        "for i in range(0, len(slots), UNIT_SLOTS):",
        "for i in range(0, len(slots) // 2 + 1, UNIT_SLOTS):",
        breaks="S9",
    ),
    Mutant(
        "copies of an earlier directory count",
        "scaling/moving.py",
        "if (c.node, c.incarnation) == (node, incarnation)}",
        "if c.node == node}",
        breaks="S10",
    ),
    Mutant(
        "adopted files keep no order among themselves",
        "scaling/moving.py",
        "        order=(open_index, *file.order),",
        "        order=(open_index,),",
    ),
    Mutant(
        "deletes are not adopted with their files",
        "scaling/moving.py",
        "            Tombstone((open_index, *t.order), t.partition, t.table, t.tags, t.time_from, t.time_to)\n"
        "            for t in slot.tombstones\n",
        "            Tombstone((open_index, *t.order), t.partition, t.table, t.tags, t.time_from, t.time_to)\n"
        "            for t in slot.tombstones[:0]\n",
    ),
    Mutant(
        "the comparison of copies ignores deletes",
        "scaling/moving.py",
        "        for t in sorted(slot.tombstones, key=lambda t: t.order):\n",
        "        for t in ():\n",
        breaks="S10",
    ),
    Mutant(
        "a recovered group serves slots that are open in another group",
        "scaling/groups.py",
        "if group in op.losing and not has_begun and op.id not in slots.sealed:",
        "if False:",
        breaks="S8",
    ),
    Mutant(
        "a recovered group does not have the slots of the table",
        "scaling/groups.py",
        "if group in op.gaining and not has_begun and op.id not in slots.arriving and op.stage in _AFTER_OPEN:",
        "if False:",
    ),
    Mutant(
        "a config after a recovery looks like one before it",
        "scaling/groups.py",
        "return max(op.id, view.config.operation, key=order_of)",
        "return op.id",
    ),
    Mutant(
        "a source releases although a recovered group has to adopt again",
        "scaling/groups.py",
        "if not set(op.adopted) >= set(op.gaining):",
        "if False:",
    ),
)

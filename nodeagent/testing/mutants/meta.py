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
    Mutant(
        "formed when one group is",
        "meta/changes.py",
        "case Stage.FORMAL if set(op.formed) >= {g.group for g in op.changes}:",
        "case Stage.FORMAL if op.formed or not op.changes:",
    ),
    Mutant(
        "done when one group released",
        "meta/changes.py",
        "case Stage.RELEASED if set(op.released) >= set(op.losing):",
        "case Stage.RELEASED if op.released:",
    ),
    Mutant(
        "open when one group is",
        "meta/changes.py",
        "case Stage.OPEN if set(op.opened) >= set(op.gaining) and",
        "case Stage.OPEN if op.opened and",
    ),
    Mutant(
        "cancelled before every group took its slots back",
        "meta/changes.py",
        "case Stage.CANCELLING if set(op.unsealed) >= affected(op):",
        "case Stage.CANCELLING if op.unsealed or not affected(op):",
    ),
    Mutant(
        "a change can be cancelled when slots are open",
        "meta/changes.py",
        "if op.stage not in (Stage.PLANNED, Stage.SEALED):",
        "if op.stage not in (Stage.PLANNED, Stage.SEALED, Stage.OPEN):",
    ),
    Mutant(
        "evidence of an earlier stage counts in a later one",
        "meta/changes.py",
        "_add(op.adopted, evidence.group, op.stage is Stage.MOVING)",
        "_add(op.adopted, evidence.group, True)",
    ),
    Mutant(
        "a seal can be reported twice",
        "meta/changes.py",
        "op.sealed.setdefault(evidence.result.group, evidence.result)",
        "op.sealed[evidence.result.group] = evidence.result",
    ),
    Mutant(
        "a newcomer that nobody leads takes slots",
        "meta/changes.py",
        "case Stage.PLANNED if op.joining is None or (op.meta_ready and op.group_ready):",
        "case Stage.PLANNED:",
    ),
    Mutant(
        "two changes at a time",
        "meta/state.py",
        "        if (other := self.open_operation()) is not None:\n",
        "        if False and (other := self.open_operation()) is not None:\n",
    ),
    Mutant(
        "a plan for an old table is taken",
        "meta/state.py",
        "        if b.base_version != self.table_version:\n",
        "        if False:\n",
    ),
    Mutant(
        "a newcomer stays though its change was undone",
        "meta/state.py",
        "            del im.groups[op.created_group]\n            im.nodes.pop(op.node)\n",
        "            del im.groups[op.created_group]\n",
    ),
    Mutant(
        "a group keeps the members it had",
        "meta/state.py",
        "im.groups[e.group] = msgspec.structs.replace(im.groups[e.group], members=e.members)",
        "pass",
    ),
)

"""Uses of verbs: whether earlier steps make their work due again, how to undo them, and whether an inspection
shows their effect. Pure."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from iotctl.playbook.command_line import is_true
from iotctl.playbook.model import NO_CHANGE, UNKNOWN, WOULD_CHANGE, Inspection, RunnableVerb

Arguments = dict[str, Any]


class Use(NamedTuple):
    """A verb and its arguments."""

    verb: RunnableVerb
    arguments: Arguments
    is_certain: bool = True
    """False if a check cannot know whether this use would change something."""


def after_earlier(found: Inspection, use: Use, earlier: Sequence[Use]) -> Inspection:
    """What a step would do after the `earlier` uses, which would or might change something.

    Args:
        found: what the step would do now.
    """
    undoing, nodes = use.verb.traits.undone_by, nodes_of(use.arguments)

    def meets(others: set[str]) -> bool:
        return not nodes or not others or bool(nodes & others)

    undone_by = [e for e in earlier if e.verb.name in undoing and meets(nodes_of(e.arguments))]
    if found.state != NO_CHANGE or not undone_by:
        return found
    # Unknown: how long an agent will have run by then, or whether the same verb sets the same value again.
    is_unknown = use.arguments.get("older_than") or use.verb.name in undoing
    is_undone = any(e.is_certain for e in undone_by) and not is_unknown
    state = WOULD_CHANGE if is_undone else UNKNOWN
    return Inspection(state, "because of an earlier step")


def undo_of(use: Use, found: Inspection) -> tuple[str, Arguments] | None:
    """(verb, arguments) that undo a step; None if there are none. `found`: the inspection before it ran."""
    back, arguments = use.verb.traits.undo, use.arguments
    if not back:
        return None
    if "node" in arguments:
        return back, {"node": arguments["node"]}
    nodes = found.left or found.nodes or list_of(arguments.get("nodes") or [])
    kept = {k: v for k, v in arguments.items() if k == "no_write_spec"}
    return (back, {"nodes": list(nodes), **kept}) if nodes else None


def can_look_again(use: Use) -> bool:
    """Whether an inspection right after a step shows that its work is done.

    False if the step ends before its work does (`wait`, `no_migrate`, `hold_release`), if its work depends on
    an age, or if the verb is not visible (`Traits.is_visible`).
    """
    arguments = use.arguments
    if not is_true(arguments.get("wait", True)) or is_true(arguments.get("no_migrate", False)):
        return False
    if any(arguments.get(early) for early in ("older_than", "within", "hold_release")):
        return False
    return use.verb.traits.is_visible(arguments)


def nodes_of(arguments: Arguments) -> set[str]:
    """The nodes that a step works on; empty for all."""
    return {*list_of(arguments.get("nodes") or []), *list_of(arguments.get("node") or [])}


def list_of(value: Any) -> list[str]:
    """A value or a list of values, as a list of texts."""
    return [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]

"""What a playbook needs to know about a command, declared with the command.

A command without a declaration is a verb, too: it changes something, and only a run shows what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from iotctl.playbook.inspect import Inspector
    from iotctl.playbook.model import Inspection
    from iotctl.playbook.uses import Use

Arguments = dict[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def always(arguments: Arguments) -> bool:
    return True


def never(arguments: Arguments) -> bool:
    return False


class Traits(NamedTuple):
    """
    Attributes:
        reads: the command changes nothing, so its whole result can be registered; the result of any other
            command is only whether it changed something.
        looks: the command only reads the cluster's state, so a check runs it, too, if its result is
            registered.
        inspect: finds what the command would do now; None if only a run shows this.
        undone_by: verbs that undo its work; a check, which does not run them, takes them into account.
        undo: the verb that undoes a step; "" if there is none. Removing or replacing a node has none: the
            node's weight, address and place are lost with it.
        is_whole: the command works on the whole cluster and takes no node names; `--limit` skips it.
        is_visible: whether an inspection right after the step shows that its work is done. False if the
            command would do the same again, or if more work becomes due merely as time passes.
    """

    reads: bool = False
    looks: bool = False
    inspect: Callable[[Inspector, Use], Inspection] | None = None
    undone_by: tuple[str, ...] = ()
    undo: str = ""
    is_whole: bool = False
    is_visible: Callable[[Arguments], bool] = always


READS = Traits(reads=True, looks=True)
"""The command reads the cluster and prints."""

WORKS = Traits(reads=True)
"""The command changes nothing in the cluster, but writes a file or takes a long time."""


def step(traits: Traits) -> Callable[[Function], Function]:
    """Declare the traits of a command."""

    def declared(command: Function) -> Function:
        command.__dict__["traits"] = traits
        return command

    return declared


def traits_of(callback: Callable[..., Any] | None) -> Traits:
    """The traits declared for a command; the defaults if there are none."""
    found = getattr(callback, "traits", None)
    return found if isinstance(found, Traits) else Traits()

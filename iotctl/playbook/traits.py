"""What a playbook must know of a command, declared beside the command itself.

A command without a declaration is a verb too: it changes something, and only a run tells what.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from iotctl.playbook.inspect import Inspector, Use
    from iotctl.playbook.model import Inspection

Arguments = dict[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def always(arguments: Arguments) -> bool:
    return True


def never(arguments: Arguments) -> bool:
    return False


class Traits(NamedTuple):
    """
    Attributes:
        reads: it changes nothing, so all that it tells can be registered; of a verb that changes something
            only whether it did.
        looks: it only reads what the cluster says, so a check runs it too.
        inspect: tells what it would do now; None if nothing can before it is run.
        undone_by: verbs after which its work is no longer done. A check runs no step, and asks for this.
        undo: the verb that takes a step back; "" if none does. What a removed or replaced node takes along
            (its weight, address and place), a command must be told.
        is_whole: it is about every node, and names none.
        is_visible: whether a look right after the step shows that its work is done. Not if the same would be
            done again, or time alone makes more of it due.
    """

    reads: bool = False
    looks: bool = False
    inspect: Callable[[Inspector, Use], Inspection] | None = None
    undone_by: tuple[str, ...] = ()
    undo: str = ""
    is_whole: bool = False
    is_visible: Callable[[Arguments], bool] = always


READS = Traits(reads=True, looks=True)
"""It asks the cluster and prints."""

WORKS = Traits(reads=True)
"""It changes nothing, but writes a file or takes its time."""


def step(traits: Traits) -> Callable[[Function], Function]:
    """Declare the traits of a command."""

    def declared(command: Function) -> Function:
        command.__dict__["traits"] = traits
        return command

    return declared


def traits_of(callback: Callable[..., Any] | None) -> Traits:
    """Those declared for a command; the defaults if none are."""
    found = getattr(callback, "traits", None)
    return found if isinstance(found, Traits) else Traits()

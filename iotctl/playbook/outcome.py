"""Batches of nodes, and the failure that an ended command reports. Pure."""

from collections.abc import Sequence
from typing import Any

from iotctl.playbook.model import Ran


def parts(nodes: Sequence[Any], serial: Sequence[Any]) -> list[list[Any]]:
    """`nodes` in batches of the sizes in `serial`; its last size applies to the rest.

    >>> parts(["a", "b", "c", "d", "e"], [1, "50%"])
    [['a'], ['b', 'c'], ['d', 'e']]
    """
    made: list[list[Any]] = []
    left = list(nodes)
    sizes = [_size(s, len(nodes)) for s in serial]
    while left:
        size = sizes[min(len(made), len(sizes) - 1)]
        made.append(left[:size])
        left = left[size:]
    return made


def _size(part: Any, total: int) -> int:
    text = str(part)
    return max(1, total * int(text[:-1]) // 100) if text.endswith("%") else int(text)


def failure_of(ran: Ran) -> tuple[str, str]:
    """(what failed and why, the next command)."""
    error = ran.document.get("error") if isinstance(ran.document, dict) else None
    if not isinstance(error, dict):
        return _first_problem(ran.document) or (f"it ended with exit code {ran.code}", "")
    why = f": {error['why']}" if error.get("why") else ""
    return f"{error.get('what', '')}{why}", str(error.get("next", ""))


def _first_problem(document: Any) -> tuple[str, str] | None:
    """The first problem of a document that lists problems, as `check`, `status` and `verify` do."""
    if not isinstance(document, dict):
        return None
    for key in ("findings", "problems", "mismatches", "unread"):
        for problem in document.get(key) or ():
            if isinstance(problem, dict) and problem.get("severity", "error") == "error":
                where = problem.get("node") or problem.get("file") or ""
                what = problem.get("message") or problem.get("why") or key
                return f"{where}: {what}" if where else str(what), str(problem.get("next", ""))
    return None

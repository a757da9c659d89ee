"""The verbs that only playbooks have: `assert`, `approve` and `exec` (declared in `catalogue`)."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from iotctl.cli.session import Session

if TYPE_CHECKING:
    from iotctl.playbook.model import Ran
    from iotctl.playbook.run import BuiltIn
    from iotctl.playbook.values import Values
    from iotctl.spec.playbook import StepEntry

EXEC_TIMEOUT_S = 600.0
ERROR_LINES_MAX = 40


def built_in(session: Session, approved: Sequence[str]) -> Mapping[str, BuiltIn]:
    """The verbs by name. `approved`: ids of the steps that `--approve` names."""
    return {
        "assert": _assert,
        "approve": lambda a, v, step, own: _approve(session, a, v, own, approved),
        "exec": lambda a, v, step, own: _exec(session, a, step.timeout),
    }


def _assert(arguments: dict[str, Any], values: Values, step: StepEntry, own: str) -> Ran:
    from iotctl.playbook.model import Ran
    from iotctl.spec.expression import BadExpression, condition, holds

    that = arguments["that"]
    for text in that if isinstance(that, list) else [that]:
        try:
            if holds(condition(str(text)), values):
                continue
            what = arguments.get("message") or f"{text} does not hold"
        except (BadExpression, KeyError) as error:
            what = str(error.args[0])
        return Ran(5, {"error": {"what": what}}, what)
    return Ran(0, None, "")


def _approve(
    session: Session, arguments: dict[str, Any], values: Values, own: str, approved: Sequence[str]
) -> Ran:
    from iotctl.errors import RefusedProblem
    from iotctl.playbook.model import Ran

    message = values.redact(str(arguments["message"]))
    try:
        what = "" if session.agrees(message, yes=own in approved) else "declined"
    except RefusedProblem as error:
        what = error.what
    if what:
        return Ran(5, {"error": {"what": what, "next": f"repeat with --approve {own}"}}, "")
    return Ran(0, {"changed": False}, "")


def _exec(session: Session, arguments: dict[str, Any], timeout: str) -> Ran:
    from iotctl.playbook.model import Ran
    from iotctl.spec.units import parse_duration_ms

    timeout_s = parse_duration_ms(timeout) / 1000 if timeout else EXEC_TIMEOUT_S

    def argv_of(words: Any) -> list[str]:
        return [str(w) for w in (words if isinstance(words, list) else [words])]

    def execute(words: Any) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                argv_of(words), cwd=session.cwd, env={**session.env}, capture_output=True, timeout=timeout_s
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 127, "", str(error)
        return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")

    if arguments.get("unless") and execute(arguments["unless"])[0] == 0:
        return Ran(0, {"changed": False, "code": 0, "out": ""}, "")
    code, out, err = execute(arguments["command"])
    if code:
        tail = "\n".join(err.splitlines()[-ERROR_LINES_MAX:])
        what = f"{shlex.join(argv_of(arguments['command']))} ended with {code}"
        return Ran(6, {"error": {"what": what, "why": tail}}, err)
    pattern = arguments.get("changed_when")
    changed = bool(re.search(pattern, out)) if pattern else True
    return Ran(0, {"changed": changed, "code": 0, "out": out}, err)

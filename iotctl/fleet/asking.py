"""Asks a machine several questions in one round trip: shell scripts that print `key=value` lines."""

import shlex
import time

import msgspec

from iotctl.errors import Unreachable
from iotctl.fleet.host import Host

PRELUDE = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
user=$(id -un) sudo=
if sudo -n true </dev/null 2>/dev/null; then sudo=yes; fi
"""
"""Runs before every script: defines `say`, and looks up our user and whether sudo works."""


class Question(msgspec.Struct, frozen=True):
    """`script` for a POSIX shell, with `words` in `$@`. A script that ends before its last line counts as
    unanswered: a partial answer must not be taken for a complete one."""

    script: str
    words: tuple[str, ...]


class Answer(msgspec.Struct, frozen=True):
    """What one script printed, and our clock in seconds when it was sent and when it had answered."""

    said: dict[str, list[str]]
    asked_s: float
    heard_s: float

    def __contains__(self, key: str) -> bool:
        return key in self.said

    def one(self, key: str) -> str:
        """The first value of `key`; "" if there is none."""
        return self.said.get(key, [""])[0]

    def every(self, key: str) -> tuple[str, ...]:
        return tuple(self.said.get(key, ()))

    def number(self, key: str) -> int:
        text = self.one(key)
        return int(text) if text.isdigit() else 0


def ask(host: Host, *questions: Question) -> list[Answer]:
    """Raises `Unreachable`: the connection was lost, a script ended early, or no POSIX shell answered."""
    script = PRELUDE + "".join(
        f"(\nset -- {shlex.join(q.words)}\n{q.script}\nsay end {number}\n) </dev/null\n"
        for number, q in enumerate(questions)
    )
    asked = time.time()
    ran = host.run(["sh", "-s"], stdin=script.encode())
    heard = time.time()
    answers: list[Answer] = []
    said: dict[str, list[str]] = {}
    for line in ran.out.decode(errors="replace").splitlines():
        key, _, value = line.partition("=")
        if (key, value) == ("end", str(len(answers))):
            answers.append(Answer(said, asked, heard))
            said = {}
        else:
            said.setdefault(key, []).append(value)
    if len(answers) < len(questions):
        raise Unreachable(
            f"{host.name}: the machine could not be examined",
            why=ran.err.decode(errors="replace").strip() or f"sh exited with {ran.code}",
            next="make the login shell run `sh` and print nothing by itself",
            where=host.name,
        )
    return answers

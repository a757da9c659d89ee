"""The command lines of a playbook's steps, run in this process with the cluster and identity of the run."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from iotctl.cli.session import Session

if TYPE_CHECKING:
    from iotctl.playbook.model import Ran


class InnerCommands:
    """Runs command lines one after the other and returns their documents."""

    def __init__(self, session: Session, redact: Callable[[str], str]) -> None:
        self._session = session
        self._redact = redact

    def __call__(self, words: Sequence[str], timeout: str = "") -> Ran:
        import msgspec

        from iotctl.cli.main import Terminated
        from iotctl.cli.main import run as run_command
        from iotctl.errors import Exit
        from iotctl.playbook.model import Ran

        outer = self._session
        front = ["-o", "json", "--no-input", *global_words(outer)]
        front += ["--timeout", timeout] if timeout else []
        out, err = io.StringIO(), _Tee(outer.err if outer.options.verbose else None, self._redact)
        inner = Session(out, err, io.StringIO(), outer.env, outer.cwd, outer.connect, lock=outer.lock)
        code = run_command([*front, *words], inner)
        # The signal was for the whole run: no further step may begin.
        if code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        if code == Exit.TERMINATED:
            raise Terminated
        try:
            document = msgspec.json.decode(out.getvalue()) if out.getvalue() else None
        except msgspec.DecodeError:
            document = out.getvalue()
        return Ran(code, document, err.getvalue())


class _Tee(io.StringIO):
    """Stores the written text, and shows it on `shown` without secrets."""

    def __init__(self, shown: TextIO | None, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._shown = shown
        self._redact = redact

    def write(self, text: str) -> int:
        if self._shown is not None:
            self._shown.write(self._redact(text))
        return super().write(text)

    def flush(self) -> None:
        if self._shown is not None:
            self._shown.flush()


def global_words(session: Session) -> list[str]:
    """The options that name the cluster and the certificate, as the operator gave them."""
    options = session.options
    words = ["--cluster", options.cluster] if options.cluster else []
    return words + (["--identity", options.identity] if options.identity else [])


def absolute_words(session: Session) -> list[str]:
    """As `global_words`, with absolute paths, also of a cluster or certificate that no option names."""
    from iotctl.errors import IotctlError

    words = []
    with suppress(IotctlError):  # without cluster.yaml, the run changed no cluster
        words += ["--cluster", str(session.source.path.resolve())]
    if named := session.options.identity or session.env.get("IOTCTL_IDENTITY"):
        words += ["--identity", str((session.cwd / named).resolve())]
    return words

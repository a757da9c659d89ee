"""The output of a command, in the requested format."""

from collections.abc import Callable, Sequence
from typing import TextIO

import msgspec

from iotctl.output.document import document, to_json, to_json_line, to_yaml
from iotctl.output.failure import Failure, to_lines
from iotctl.output.progress import Progress, open_progress
from iotctl.output.table import Table
from nodeagent.model.text import printable

FORMATS = ("table", "wide", "json", "jsonl", "yaml", "csv")


class DryRun(msgspec.Struct, frozen=True):
    """What a command would do, and what it found, one line each; nothing was done."""

    would: list[str]
    found: list[str] = []


class Output:
    """stdout gets only the result; hints, warnings, progress and failures go to stderr.

    With `-o json` and `-o jsonl` a failure is also a document on stdout, so that a reader always gets one.
    Text output escapes control characters in values, names and messages of nodes.
    """

    def __init__(
        self, out: TextIO, err: TextIO, *, format: str = "table", quiet: bool = False, verbose: bool = False
    ) -> None:
        assert format in FORMATS
        self.out = out
        self.err = err
        self.format = format
        self.quiet = quiet
        self.verbose = verbose

    @property
    def is_json(self) -> bool:
        return self.format in ("json", "jsonl")

    def emit(self, kind: str, body: object, tables: Callable[[], Sequence[Table | str]]) -> None:
        """Print a result. `tables` is called only for text formats; control characters in it are escaped."""
        if self.format == "json":
            self.out.write(to_json(document(kind, body)))
        elif self.format == "jsonl":
            self.out.write(to_json_line(document(kind, body)))
        elif self.format == "yaml":
            self.out.write(to_yaml(document(kind, body)))
        else:
            parts = [
                p.render(wide=self.format == "wide") if isinstance(p, Table) else _lines(p) for p in tables()
            ]
            self.out.write("\n".join(parts))
        self.out.flush()

    def would(self, *changes: str, found: Sequence[str] = ()) -> None:
        """Print the result of a dry run; no changes mean that nothing is left to do."""
        lines = [*found, *([f"would {c}" for c in changes] or ["nothing to do"])]
        self.emit("dry-run", DryRun(list(changes), list(found)), lambda: ["\n".join(lines)])

    def note(self, text: str) -> None:
        """Print a hint, unless `--quiet`."""
        if not self.quiet:
            self.err.write(_lines(text))
            self.err.flush()

    def preview(self, parts: Sequence[Table | str]) -> None:
        """Print, as hints, what a question is about."""
        wide = self.format == "wide"
        for part in parts:
            self.note(part if isinstance(part, str) else part.render(wide=wide))

    def detail(self, text: str) -> None:
        """Print a hint, only with `--verbose`."""
        if self.verbose:
            self.note(text)

    def warn(self, text: str) -> None:
        self.err.write(_lines(f"warning: {text}"))
        self.err.flush()

    def fail(self, failure: Failure) -> None:
        if self.format == "json":
            self.out.write(to_json({**document("error", {}), "error": failure}))
            self.out.flush()
        elif self.format == "jsonl":
            self.out.write(to_json_line({**document("error", {}), "error": failure}))
            self.out.flush()
        self.err.write(to_lines(failure))
        self.err.flush()

    def progress(self) -> Progress:
        return open_progress(self.err, quiet=self.quiet)


def _lines(text: str) -> str:
    return printable(text.rstrip("\n"), keep="\n") + "\n"

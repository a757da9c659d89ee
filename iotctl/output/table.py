"""Plain tables; the only importer of tabulate."""

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.model.text import printable


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headers; the last `wide` columns are shown only with `-o wide`."""

    headers: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""
    wide: int = 0

    def render(self, *, wide: bool) -> str:
        from tabulate import tabulate

        shown = len(self.headers) if wide else len(self.headers) - self.wide
        head = f"{printable(self.title)}\n" if self.title else ""
        if not self.rows:
            return f"{head}  (none)\n"
        text = tabulate(
            [[_cell(v) for v in r[:shown]] for r in self.rows],
            headers=[printable(h) for h in self.headers[:shown]],
            tablefmt="plain",
            disable_numparse=True,
            colalign=[_align(self.rows, i) for i in range(shown)],
        )
        return f"{head}{text}\n"


def _cell(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


def _align(rows: Sequence[Sequence[object]], column: int) -> str:
    """Right for columns of numbers, also with units; else left."""
    return "right" if all(str(r[column])[:1].isdigit() or r[column] in ("-", "") for r in rows) else "left"
